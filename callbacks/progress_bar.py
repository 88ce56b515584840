"""How far training is and when it will be done: a bar in a terminal, plain lines in a log file."""

import time
from datetime import datetime, timedelta
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only

from yolo_lightning.callbacks.status_file import BLOCK_STEPS, StepPace, fit_plan

ESTIMATING = "estimating"


class FinishEstimate:
    """Estimates when a fit will be done, from the usual duration of a step and the duration of the last validation.

    There is no estimate until `BLOCK_STEPS` steps of this process, or one epoch, have been timed, and one validation.
    The first step of a process is not timed: it waits for worker processes and compilation.
    """

    def __init__(self) -> None:
        self.validation_s: float | None = None
        """Duration of the last validation; None before the first one."""
        self._pace = StepPace()
        self._timed_steps = 0
        self._since_s: float | None = None
        """End of the last step, later by the validations since; None before the first step."""
        self._validation_began_s: float | None = None

    def step_ends(self) -> None:
        """Time one step, with the wait for its batch."""
        now_s = time.monotonic()
        if self._since_s is not None:
            self._pace.add(0.0, now_s - self._since_s)
            self._timed_steps += 1
        self._since_s = now_s

    def validation_begins(self, trainer: Trainer) -> None:
        """Start to time a validation of a fit."""
        if not trainer.sanity_checking and trainer.state.fn == "fit":
            self._validation_began_s = time.monotonic()

    def validation_ends(self) -> None:
        """Keep the duration of the validation, and take it out of the duration of the step that follows."""
        if self._validation_began_s is None:
            return
        self.validation_s = time.monotonic() - self._validation_began_s
        self._validation_began_s = None
        if self._since_s is not None:
            self._since_s += self.validation_s

    def left_s(self, trainer: Trainer, batches: int) -> float | None:
        """Return the seconds that the fit still takes after `batches` batches of the epoch; None while estimating."""
        plan, epoch = fit_plan(trainer), trainer.current_epoch
        typical = self._pace.typical()
        if plan.epochs is None or typical is None or self._timed_steps < min(BLOCK_STEPS, plan.batches_per_epoch):
            return None
        steps = max(0, plan.batches_per_epoch - batches)
        validations = plan.validations_left(epoch, steps) + plan.validations_after(epoch)
        if validations and self.validation_s is None:
            return None
        steps += max(0, plan.epochs - epoch - 1) * plan.batches_per_epoch
        return steps * typical[0] + validations * (self.validation_s or 0.0)

    def text(self, trainer: Trainer, batches: int) -> str:
        """Return the time at which the fit will be done, or "estimating"."""
        left_s = self.left_s(trainer, batches)
        return ESTIMATING if left_s is None else describe_time(datetime.now() + timedelta(seconds=left_s))

    def state(self) -> dict[str, Any]:
        """Return what a resumed fit needs to estimate before its first validation."""
        return {"validation_s": self.validation_s}

    def load(self, state: dict[str, Any]) -> None:
        """Take over the state of the fit that is resumed."""
        self.validation_s = state["validation_s"]


class RunProgressBar(RichProgressBar):
    """Lightning's bar with the time at which the whole fit will be done."""

    def __init__(self) -> None:
        super().__init__()
        self._estimate = FinishEstimate()
        self._batches = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the duration of the last validation."""
        return self._estimate.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the duration of the last validation."""
        self._estimate.load(state_dict)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count batches of the epoch from 0."""
        self._batches = 0
        super().on_train_epoch_start(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Time the step and count the batch."""
        self._estimate.step_ends()
        self._batches = batch_idx + 1
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Time the validation."""
        self._estimate.validation_begins(trainer)
        super().on_validation_start(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Time the validation."""
        self._estimate.validation_ends()
        super().on_validation_end(trainer, pl_module)

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Return the metrics to show behind the bar, with the finish time of a fit."""
        metrics: dict[str, Any] = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            metrics["ETA"] = self._estimate.text(trainer, self._batches)
        return metrics


class ProgressLines(Callback):
    """Prints a line every so often, for output that is not a terminal.

    Args:
        interval_s: Seconds between two lines; the end of an epoch always prints one.
    """

    def __init__(self, interval_s: float = 60.0) -> None:
        if interval_s < 0:
            raise ValueError(f"interval_s is {interval_s}, allowed are 0 and more")
        self.interval_s = interval_s
        self._estimate = FinishEstimate()
        self._printed_s: float | None = None
        """Time of the last line, monotonic clock; None before the first line."""

    def state_dict(self) -> dict[str, Any]:
        """Return the duration of the last validation."""
        return self._estimate.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the duration of the last validation."""
        self._estimate.load(state_dict)

    @rank_zero_only
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Print a line if the last one is `interval_s` old, or the epoch ends."""
        self._estimate.step_ends()
        now_s = time.monotonic()
        is_due = self._printed_s is None or now_s - self._printed_s >= self.interval_s
        if not is_due and not trainer.is_last_batch:
            return
        self._printed_s = now_s
        loss = float(trainer.callback_metrics.get("train/loss", float("nan")))
        rank_zero_info(
            f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}, "
            f"batch {batch_idx + 1:,}/{int(trainer.num_training_batches):,}, loss {loss:.3f}, "
            f"ETA {self._estimate.text(trainer, batch_idx + 1)}"
        )

    @rank_zero_only
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Time the validation."""
        self._estimate.validation_begins(trainer)

    @rank_zero_only
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Time the validation and print its scores."""
        self._estimate.validation_ends()
        if not trainer.sanity_checking and trainer.state.fn == "fit":
            shown = {name: trainer.callback_metrics.get(f"val/{name}") for name in ("map_50", "map")}
            rank_zero_info(
                f"epoch {trainer.current_epoch + 1} validated: "
                + ", ".join(f"{name} {float(value):.4f}" for name, value in shown.items() if value is not None)
            )


def describe_time(moment: datetime) -> str:
    """A time today as hours and minutes, another day's with its date."""
    close = moment - datetime.now() < timedelta(hours=12)
    return moment.strftime("%H:%M" if close else "%a %d %b %H:%M")
