"""Progress and finish time of a fit: a progress bar in a terminal, lines in a log file."""

import time
from datetime import datetime, timedelta
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.types import STEP_OUTPUT

from yolo_lightning.callbacks.status_file import BLOCK_STEPS, StepPace, fit_plan
from yolo_lightning.utils.choices import check_range

ESTIMATING = "estimating"


class FinishEstimate(Callback):
    """Estimates the finish time of a fit from the typical duration of a step and the duration of the last validation.

    There is no estimate until `BLOCK_STEPS` steps of this process, or one epoch, and one validation have been timed.
    The first step of a process is not timed, because it includes the start of workers and compilation. A checkpoint
    contains the duration of the last validation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0
        """Finished batches of the current epoch."""
        self._validation_s: float | None = None
        self._pace = StepPace()
        self._timed_steps = 0
        self._since_s: float | None = None
        """End of the last step plus the duration of the validations since; None before the first step."""
        self._validation_began_s: float | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"validation_s": self._validation_s}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._validation_s = state_dict["validation_s"]

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.batches = 0
        super().on_train_epoch_start(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: STEP_OUTPUT, batch: Any, batch_idx: int
    ) -> None:
        """Time the step, including the wait for its batch."""
        now_s = time.monotonic()
        if self._since_s is not None:
            self._pace.add(0.0, now_s - self._since_s)
            self._timed_steps += 1
        self._since_s = now_s
        self.batches = batch_idx + 1
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking and trainer.state.fn == "fit":
            self._validation_began_s = time.monotonic()
        super().on_validation_start(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Time the validation, and subtract its duration from that of the next step."""
        if self._validation_began_s is not None:
            self._validation_s = time.monotonic() - self._validation_began_s
            self._validation_began_s = None
            if self._since_s is not None:
                self._since_s += self._validation_s
        super().on_validation_end(trainer, pl_module)

    def finish_time(self, trainer: Trainer) -> str:
        """Return the time at which the fit will be finished, or "estimating"."""
        left_s = self._left_s(trainer)
        return ESTIMATING if left_s is None else describe_time(datetime.now() + timedelta(seconds=left_s))

    def _left_s(self, trainer: Trainer) -> float | None:
        plan, epoch = fit_plan(trainer), trainer.current_epoch
        typical = self._pace.typical()
        if plan.epochs is None or typical is None or self._timed_steps < min(BLOCK_STEPS, plan.batches_per_epoch):
            return None
        steps = max(0, plan.batches_per_epoch - self.batches)
        validations = plan.validations_left(epoch, steps) + plan.validations_after(epoch)
        if validations and self._validation_s is None:
            return None
        steps += max(0, plan.epochs - epoch - 1) * plan.batches_per_epoch
        return steps * typical[0] + validations * (self._validation_s or 0.0)


class RunProgressBar(FinishEstimate, RichProgressBar):
    """Lightning's progress bar with the finish time of the fit."""

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        metrics: dict[str, Any] = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            metrics["ETA"] = self.finish_time(trainer)
        return metrics


class ProgressLines(FinishEstimate):
    """Logs a line of progress at intervals, for output that is not a terminal.

    Args:
        interval_s: Smallest time between two lines in seconds, >= 0; the end of an epoch is always logged.
    """

    def __init__(self, interval_s: float = 60.0) -> None:
        super().__init__()
        check_range("interval_s", interval_s, ">= 0")
        self.interval_s = interval_s
        self._printed_s: float | None = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: STEP_OUTPUT, batch: Any, batch_idx: int
    ) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        now_s = time.monotonic()
        is_due = self._printed_s is None or now_s - self._printed_s >= self.interval_s
        if not is_due and not trainer.is_last_batch:
            return
        self._printed_s = now_s
        loss = float(trainer.callback_metrics.get("train/loss", float("nan")))
        rank_zero_info(
            f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}, "
            f"batch {batch_idx + 1:,}/{int(trainer.num_training_batches):,}, loss {loss:.3f}, "
            f"ETA {self.finish_time(trainer)}"
        )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_end(trainer, pl_module)
        if not trainer.sanity_checking and trainer.state.fn == "fit":
            shown = {name: trainer.callback_metrics.get(f"val/{name}") for name in ("map_50", "map")}
            scores = ", ".join(f"{name} {float(value):.4f}" for name, value in shown.items() if value is not None)
            rank_zero_info(f"epoch {trainer.current_epoch + 1} validated: {scores}")


def describe_time(moment: datetime) -> str:
    """Return hours and minutes of a time within the next 12 hours, or else also its date."""
    is_close = moment - datetime.now() < timedelta(hours=12)
    return moment.strftime("%H:%M" if is_close else "%a %d %b %H:%M")
