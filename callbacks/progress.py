"""How far training is and when it will be done: a bar in a terminal, plain lines in a log file."""

import time
from datetime import datetime, timedelta
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only

from yolo_lightning.position import place_in_schedule


def finish_time(now: datetime, started: datetime, done_share: float, started_share: float) -> datetime | None:
    """When training will be done if it goes on as since `started`.

    Args:
        now: Wall clock.
        started: When this process began to train.
        done_share: Share of all steps that is done, 0 to 1.
        started_share: Share that was done when this process began; above 0 after a resume.

    Returns:
        None while nothing has been done yet.
    """
    gained = done_share - started_share
    if gained <= 0:
        return None
    return now + (now - started) * ((1 - done_share) / gained)


class FinishEstimate:
    """When a fit will be done, by its pace over all its work, validation and checkpoints included."""

    def __init__(self) -> None:
        self._started = datetime.now()
        self._started_share: float | None = None

    def finish(self, trainer: Trainer, batches: int) -> datetime | None:
        """When the fit will be done, seen after `batches` batches of the current epoch."""
        assert trainer.max_epochs is not None
        share = place_in_schedule(trainer, batches) / (trainer.max_epochs * int(trainer.num_training_batches))
        if self._started_share is None:
            self._started, self._started_share = datetime.now(), share
        return finish_time(datetime.now(), self._started, share, self._started_share)


class RunProgressBar(RichProgressBar):
    """Lightning's bar with the time at which the whole fit will be done."""

    def __init__(self) -> None:
        super().__init__()
        self._estimate = FinishEstimate()
        self._batches = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count."""
        self._batches = batch_idx + 1
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """What is shown behind the bar."""
        metrics: dict[str, Any] = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            finish = self._estimate.finish(trainer, self._batches)
            metrics |= {"done": describe_time(finish)} if finish else {}
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

    @rank_zero_only
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Print if it is time."""
        finish = self._estimate.finish(trainer, batch_idx + 1)
        now_s = time.monotonic()
        is_due = self._printed_s is None or now_s - self._printed_s >= self.interval_s
        if not is_due and not trainer.is_last_batch:
            return
        self._printed_s = now_s
        loss = float(trainer.callback_metrics.get("train/loss", float("nan")))
        rank_zero_info(
            f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}, "
            f"batch {batch_idx + 1:,}/{int(trainer.num_training_batches):,}, loss {loss:.3f}"
            + (f", done {describe_time(finish)}" if finish else "")
        )

    @rank_zero_only
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the scores."""
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
