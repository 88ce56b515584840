"""Keeps `status.json` in the run folder: what a person who looks on wants to know."""

import math
import os
import socket
import statistics
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from yolo_lightning.supervision.processes import started_ticks
from yolo_lightning.supervision.run_status import FitPlan, Scores, Status, write_status
from yolo_lightning.utils.loop_position import steps_begun
from yolo_lightning.utils.optional_file import OptionalFile
from yolo_lightning.utils.run_files import STATUS_FILE

BLOCK_STEPS = 16
BLOCKS = 16
SCORES_KEPT = 5
MAP_50, MAP = "val/map_50", "val/map"


class StepPace:
    """How long a step takes lately.

    The median over blocks of the mean within each. Workers deliver in bursts, so that a median over single steps would
    name the fast ones only; a checkpoint or a stall, which spoils one block, does not count.
    """

    def __init__(self) -> None:
        self._blocks: deque[tuple[float, float]] = deque(maxlen=BLOCKS)
        self._fetch_s = self._step_s = 0.0
        self._steps = 0

    def add(self, fetch_s: float, step_s: float) -> None:
        """One more step: seconds spent waiting for its batch, and working."""
        self._fetch_s, self._step_s, self._steps = self._fetch_s + fetch_s, self._step_s + step_s, self._steps + 1
        if self._steps == BLOCK_STEPS:
            self._blocks.append((self._fetch_s / BLOCK_STEPS, self._step_s / BLOCK_STEPS))
            self._fetch_s, self._step_s, self._steps = 0.0, 0.0, 0

    def typical(self) -> tuple[float, float] | None:
        """Seconds per step, wait included, and the share of the wait, 0 to 1; None before the first step."""
        blocks = list(self._blocks)
        if not blocks and self._steps:
            blocks = [(self._fetch_s / self._steps, self._step_s / self._steps)]
        totals = [fetch_s + step_s for fetch_s, step_s in blocks]
        if not totals or not all(totals):
            return None
        shares = [fetch_s / total for (fetch_s, _), total in zip(blocks, totals, strict=True)]
        return statistics.median(totals), statistics.median(shares)


class StatusFile(Callback):
    """Rewrites `status.json` in the run folder every few seconds while a fit goes on, and at its end.

    A full disk is reported once and does not end the fit. What was measured before a restart comes back with the
    checkpoint, so that the time that is left is known again at once.

    Args:
        interval_s: Seconds between two writings, at least.
    """

    def __init__(self, interval_s: float = 10.0) -> None:
        if not interval_s >= 1:
            raise ValueError(f"interval_s is {interval_s}, allowed are 1 and more")
        self.interval_s = interval_s
        self._pace = StepPace()
        self._trained_s = 0.0
        self._validation_s: float | None = None
        self._scores: deque[Scores] = deque(maxlen=SCORES_KEPT)
        self._best_map_50: float | None = None
        self._began_s: float | None = None
        self._waiting_since_s = self._step_began_s = self._validation_began_s = 0.0
        self._epoch = self._batch = self._step = 0
        self._any_batch = False
        self._written_at_s = -math.inf
        self._file = OptionalFile()

    def state_dict(self) -> dict[str, Any]:
        """What was measured so far."""
        return {
            "trained_s": self._elapsed_s(),
            "validation_s": self._validation_s,
            "scores": [(one.epoch, dict(one.values)) for one in self._scores],
            "best_map_50": self._best_map_50,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with it."""
        self._trained_s, self._validation_s = state_dict["trained_s"], state_dict["validation_s"]
        self._scores.extend(Scores(epoch, dict(values)) for epoch, values in state_dict["scores"])
        self._best_map_50 = state_dict["best_map_50"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say where training stands, also before the first batch has come."""
        self._began_s = self._waiting_since_s = time.monotonic()
        self._pace, self._any_batch = StepPace(), False
        self._epoch, self._step = trainer.current_epoch, steps_begun(trainer)
        self._batch = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        self._write(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The first batch of the epoch is awaited."""
        self._epoch, self._batch = trainer.current_epoch, 0
        self._waiting_since_s = time.monotonic()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """A batch has come."""
        self._step_began_s = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A step is done; the first of a process, which starts workers and compiles, tells nothing of the others."""
        now_s = time.monotonic()
        if self._any_batch:
            self._pace.add(self._step_began_s - self._waiting_since_s, now_s - self._step_began_s)
        self._any_batch, self._epoch, self._batch = True, trainer.current_epoch, batch_idx + 1
        self._step = steps_begun(trainer)
        self._write_if_due(trainer)
        self._waiting_since_s = time.monotonic()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure."""
        self._validation_began_s = time.monotonic()

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """A sign of life."""
        if not trainer.sanity_checking:
            self._write_if_due(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep how long it took and what it found."""
        self._waiting_since_s = time.monotonic()
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        self._validation_s = self._waiting_since_s - self._validation_began_s
        values = finite({name: trainer.callback_metrics.get(name) for name in (MAP_50, MAP)})
        if values:
            self._scores.append(Scores(trainer.current_epoch, values))
        map_50 = values.get(MAP_50)
        if map_50 is not None:
            self._best_map_50 = map_50 if self._best_map_50 is None else max(map_50, self._best_map_50)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """The last state is whole."""
        self._write(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last state is whole."""
        self._write(trainer)

    def _elapsed_s(self) -> float:
        return self._trained_s + (0.0 if self._began_s is None else time.monotonic() - self._began_s)

    def _write_if_due(self, trainer: Trainer) -> None:
        if time.monotonic() >= self._written_at_s + self.interval_s:
            self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        if self._began_s is None or not trainer.is_global_zero or trainer.state.fn != "fit":
            return
        path = Path(trainer.default_root_dir) / STATUS_FILE
        self._written_at_s = time.monotonic()
        with self._file.attempt(path):
            write_status(self._status(trainer), path)

    def _status(self, trainer: Trainer) -> Status:
        plan = fit_plan(trainer)
        typical = self._pace.typical()
        loader = trainer.train_dataloader
        return Status(
            written_s=time.time(),
            interval_s=self.interval_s,
            process=os.getpid(),
            process_started_ticks=started_ticks(os.getpid()),
            host=socket.gethostname(),
            device=str(trainer.strategy.root_device),
            workers=getattr(loader, "num_workers", 0),
            epoch=self._epoch,
            epochs=plan.epochs,
            batch=self._batch,
            batches_per_epoch=plan.batches_per_epoch,
            step=self._step,
            step_s=typical[0] if typical else None,
            fetch_share=typical[1] if typical else None,
            trained_s=self._elapsed_s(),
            validation_s=self._validation_s,
            validate_every_epochs=plan.validate_every_epochs,
            validations_per_epoch=plan.validations_per_epoch,
            losses=finite({name: value for name, value in logged(trainer, "train/") if "loss" in name}),
            learning_rates=finite(dict(logged(trainer, "lr/"))),
            scores=tuple(self._scores),
            best_map_50=self._best_map_50,
        )


def fit_plan(trainer: Trainer) -> FitPlan:
    """Return the length of the fit and its validations as the Trainer is configured."""
    per_epoch = int(trainer.num_training_batches)
    return FitPlan(
        epochs=trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None,
        batches_per_epoch=per_epoch,
        validate_every_epochs=(trainer.check_val_every_n_epoch or 1) if trainer.enable_validation else None,
        validations_per_epoch=max(1, per_epoch // max(1, int(min(trainer.val_check_batch or 1, per_epoch)))),
    )


def logged(trainer: Trainer, prefix: str) -> list[tuple[str, Any]]:
    """Logged values whose names begin with `prefix`; of a value with two names the plain one."""
    return [
        (name, value)
        for name, value in trainer.callback_metrics.items()
        if name.startswith(prefix) and not name.endswith(("_step", "_epoch"))
    ]


def finite(values: Mapping[str, Any]) -> dict[str, float | None]:
    """As numbers, null where one is infinite or no number, so that any reader of JSON understands; without missing."""
    numbers = {name: float(value) for name, value in values.items() if value is not None}
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}
