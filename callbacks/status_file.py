"""Callback that writes `status.json` in the run folder, for `monitor`."""

import math
import os
import socket
import statistics
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from yolo_lightning.supervision.run_status import FitPlan, Scores, Status, write_status
from yolo_lightning.supervision.watches import MAX_TEMPERATURE_C, Minute, Reading, RunWatches, WatchFinding
from yolo_lightning.utils.activity import number_from_device
from yolo_lightning.utils.choices import check_state, checked_arguments
from yolo_lightning.utils.loop_position import steps_begun
from yolo_lightning.utils.moment import parse_moment
from yolo_lightning.utils.optional_file import OptionalFile
from yolo_lightning.utils.process_identity import started_ticks
from yolo_lightning.utils.run_files import STATUS_FILE
from yolo_lightning.utils.sensors import Capacity, MachineReader, SensorReadings

BLOCK_STEPS = 16
BLOCKS = 16
SCORES_KEPT = 5
MAP_50, MAP, LOSS = "val/map_50", "val/map", "train/loss"
MOST_PAUSE_S = 30.0


class StepPace:
    """Recent duration of a training step: median over blocks of the mean within each block.

    Workers deliver batches in bursts, so that a median over single steps would be the duration of a fast step. A
    checkpoint or a stall distorts one block only.
    """

    def __init__(self) -> None:
        self._blocks: deque[tuple[float, float]] = deque(maxlen=BLOCKS)
        self._fetch_s = self._step_s = 0.0
        self._steps = 0
        self.timed_steps = 0
        self.total_fetch_s = self.total_step_s = 0.0

    def add(self, fetch_s: float, step_s: float) -> None:
        """Add a step with the seconds of the wait for its batch and of its computation."""
        self._fetch_s, self._step_s, self._steps = self._fetch_s + fetch_s, self._step_s + step_s, self._steps + 1
        self.total_fetch_s, self.total_step_s = self.total_fetch_s + fetch_s, self.total_step_s + step_s
        self.timed_steps += 1
        if self._steps == BLOCK_STEPS:
            self._blocks.append((self._fetch_s / BLOCK_STEPS, self._step_s / BLOCK_STEPS))
            self._fetch_s, self._step_s, self._steps = 0.0, 0.0, 0

    def typical(self, newest: int = BLOCKS) -> tuple[float, float] | None:
        """Return the seconds per step with the wait, and the share of the wait (0 to 1); None before the first step.

        `newest` is the number of blocks, at most `BLOCKS`, that are used.
        """
        blocks = list(self._blocks)[-newest:]
        if not blocks and self._steps:
            blocks = [(self._fetch_s / self._steps, self._step_s / self._steps)]
        totals = [fetch_s + step_s for fetch_s, step_s in blocks]
        if not totals or not all(totals):
            return None
        shares = [fetch_s / total for (fetch_s, _), total in zip(blocks, totals, strict=True)]
        return statistics.median(totals), statistics.median(shares)


class FitTimer(Callback):
    """Times the steps and validations of a fit; a checkpoint contains the duration of the last validation.

    The first step of a process is not timed, because it starts workers and compiles kernels.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pace = StepPace()
        self.batch = 0
        """Trained batches of the current epoch."""
        self.validation_s: float | None = None
        self._waiting_since_s = self._step_began_s = self._validation_began_s = 0.0
        self._any_batch = False

    def state_dict(self) -> dict[str, Any]:
        return {"validation_s": self.validation_s}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        check_state(self, state_dict, self.state_dict().keys() - {"minutes", "findings"})  # of earlier versions
        self.validation_s = state_dict["validation_s"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.pace, self._any_batch = StepPace(), False
        self.batch = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        super().on_train_start(trainer, pl_module)
        self._waiting_since_s = time.monotonic()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.batch = 0
        super().on_train_epoch_start(trainer, pl_module)
        self._waiting_since_s = time.monotonic()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._step_began_s = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now_s = time.monotonic()
        if self._any_batch:
            self.pace.add(self._step_began_s - self._waiting_since_s, now_s - self._step_began_s)
        self._any_batch, self.batch, self._waiting_since_s = True, batch_idx + 1, now_s
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation_began_s = time.monotonic()
        super().on_validation_start(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._waiting_since_s = time.monotonic()
        if is_validation_of_fit(trainer):
            self.validation_s = self._waiting_since_s - self._validation_began_s
        super().on_validation_end(trainer, pl_module)


class StatusFile(FitTimer):
    """Writes `status.json` in the run folder every few seconds during a fit, and at its end, and watches the run.

    A thread reads the sensors; the watches (`supervision/watches.py`) judge temperature, memory, disk, speed and loss
    over minutes. A full disk causes one warning and does not end the fit. Measurements are stored in checkpoints, so
    that the remaining time is known immediately after a resume.

    Args:
        interval_s: Minimum seconds between two writes.
        max_temperature_c: Limit of the GPU temperature in °C; five minutes above the limit are an alarm.
        pause_when_hot: Whether to pause after each step for the duration of the step, at most 30 s, while that alarm
            lasts. This halves the load of the GPU.
        deadline: Moment that the status file names, as YYYY-MM-DDTHH:MM, local time or with zone. `monitor` shows the
            buffer until this moment, and the supervisor sends a notification when the buffer falls below a day. The
            length of the fit does not change; see `FinishBy`.
    """

    @checked_arguments(interval_s=">= 1", max_temperature_c="> 0")
    def __init__(
        self,
        interval_s: float = 10.0,
        max_temperature_c: float = MAX_TEMPERATURE_C,
        pause_when_hot: bool = False,
        deadline: str | None = None,
    ) -> None:
        super().__init__()
        self.deadline = None if deadline is None else parse_moment("deadline", deadline)
        self.interval_s, self.pause_when_hot = interval_s, pause_when_hot
        self.watches = RunWatches(max_temperature_c)
        self._machine: MachineReader | None = None
        self._trained_s = 0.0
        self._scores: deque[Scores] = deque(maxlen=SCORES_KEPT)
        self._best_map_50: float | None = None
        self._began_s: float | None = None
        self._epoch = self._step = 0
        self._written_at_s = -math.inf
        self._file = OptionalFile()

    def state_dict(self) -> dict[str, Any]:
        scores = [(one.epoch, dict(one.values)) for one in self._scores]
        further = {"trained_s": self._elapsed_s(), "scores": scores, "best_map_50": self._best_map_50}
        further["minutes"] = [astuple(one) for one in self.watches.minutes]
        further["findings"] = [asdict(one) for one in self.watches.findings if one.until_s is not None]
        return super().state_dict() | further

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._trained_s = state_dict["trained_s"]
        self._scores.extend(Scores(epoch, dict(values)) for epoch, values in state_dict["scores"])
        self._best_map_50 = state_dict["best_map_50"]
        self.watches.minutes.extend(Minute(*one) for one in state_dict.get("minutes", ()))
        self.watches.findings = tuple(WatchFinding(**one) for one in state_dict.get("findings", ()))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._began_s = time.monotonic()
        if trainer.is_global_zero:
            self._machine = MachineReader(Path(trainer.default_root_dir), self.interval_s)
        self._epoch, self._step = trainer.current_epoch, steps_begun(trainer)
        self._write(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_start(trainer, pl_module)
        self._epoch = trainer.current_epoch

    def on_train_batch_end(self, trainer: Trainer, *arguments: Any) -> None:
        super().on_train_batch_end(trainer, *arguments)
        self._step = steps_begun(trainer)
        self._write_if_due(trainer)
        if self.pause_when_hot and self.watches.is_hot():
            time.sleep(min(self._waiting_since_s - self._step_began_s, MOST_PAUSE_S))
            self._waiting_since_s = time.monotonic()  # the pause is no wait for data

    def on_validation_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if not trainer.sanity_checking:
            self._write_if_due(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_end(trainer, pl_module)
        if not is_validation_of_fit(trainer):
            return
        values = finite({name: trainer.callback_metrics.get(name) for name in (MAP_50, MAP)})
        if values:
            self._scores.append(Scores(trainer.current_epoch, values))
        if (map_50 := values.get(MAP_50)) is not None:
            self._best_map_50 = max(map_50, map_50 if self._best_map_50 is None else self._best_map_50)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._write(trainer)
        self._close()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer)
        self._close()

    def _close(self) -> None:
        if self._machine is not None:
            self._machine.close()
            self._machine = None

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
        step_s, fetch_share = self.pace.typical() or (None, None)
        # A value with two names has a plain name, too.
        named = trainer.callback_metrics.items()
        plan = getattr(trainer.lightning_module, "plan", None)  # of `FinishBy`
        deadline_s = None if self.deadline is None else self.deadline.timestamp()
        if plan is not None:
            deadline_s = plan.deadline_s
        logged = {name: value for name, value in named if not name.endswith(("_step", "_epoch"))}
        losses = finite({name: logged[name] for name in logged if name.startswith("train/") and "loss" in name})
        self._observe(trainer, losses.get(LOSS))
        return Status(
            **asdict(fit_plan(trainer)),
            written_s=time.time(),
            interval_s=self.interval_s,
            process=os.getpid(),
            process_started_ticks=started_ticks(os.getpid()),
            host=socket.gethostname(),
            device=str(trainer.strategy.root_device),
            workers=getattr(trainer.train_dataloader, "num_workers", 0),
            epoch=self._epoch,
            batch=self.batch,
            step=self._step,
            step_s=step_s,
            fetch_share=fetch_share,
            trained_s=self._elapsed_s(),
            validation_s=self.validation_s,
            losses=losses,
            learning_rates=finite({name: logged[name] for name in logged if name.startswith("lr/")}),
            scores=tuple(self._scores),
            best_map_50=self._best_map_50,
            findings=self.watches.findings,
            deadline_s=deadline_s,
            deadline_problem="" if plan is None else plan.problem,
            is_planned=plan is not None,
        )

    def _observe(self, trainer: Trainer, loss: float | None) -> None:
        """Pass the readings of this moment to the watches. Readings of silent sensors are left out."""
        machine = SensorReadings() if self._machine is None else self._machine.latest()
        if machine.silent_s:
            machine = SensorReadings()
        gpus = () if trainer.strategy.root_device.type == "cpu" else machine.gpus
        usage = {"memory grows": machine.memory, "disk fills": machine.disk}
        for number, gpu in enumerate(gpus):
            if gpu.memory_used_bytes is not None and gpu.memory_bytes is not None:
                usage[f"memory of GPU {number} grows"] = Capacity(gpu.memory_used_bytes, gpu.memory_bytes)
        temperatures = [gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None]
        reading = Reading(
            now_s=time.monotonic(),
            epoch=self._epoch,
            steps=self.pace.timed_steps,
            fetch_s=self.pace.total_fetch_s,
            step_s=self.pace.total_step_s,
            loss=loss,
            temperature_c=max(temperatures, default=None),
            usage={name: capacity for name, capacity in usage.items() if capacity is not None},
        )
        self.watches.observe(reading, time.time())


def is_validation_of_fit(trainer: Trainer) -> bool:
    return not trainer.sanity_checking and trainer.state.fn == "fit"


def fit_plan(trainer: Trainer) -> FitPlan:
    """Return the length of the fit and its validations from the configuration of the Trainer."""
    per_epoch = int(trainer.num_training_batches)
    plan = getattr(trainer.lightning_module, "plan", None)  # of `FinishBy`
    return FitPlan(
        epochs=trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None,
        batches_per_epoch=per_epoch,
        validate_every_epochs=(trainer.check_val_every_n_epoch or 1) if trainer.enable_validation else None,
        validations_per_epoch=max(1, per_epoch // max(1, int(min(trainer.val_check_batch or 1, per_epoch)))),
        last_epoch_batches=None if plan is None else plan.last_epoch_steps,
    )


def finite(values: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the values as numbers, None if not finite (strict JSON has no NaN), without missing values."""
    numbers = {name: number_from_device(value) for name, value in values.items() if value is not None}
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}
