"""Progress and finish time of a fit: a progress bar in a terminal, lines in a log file."""

import math
import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.utilities import rank_zero_info
from rich.progress import BarColumn

from yolo_lightning.callbacks.finish_by import fit_length
from yolo_lightning.callbacks.fit_timer import BLOCK_STEPS, TimedCallback
from yolo_lightning.supervision.run_status import remaining
from yolo_lightning.utils.activity import number_from_device
from yolo_lightning.utils.choices import checked_arguments
from yolo_lightning.utils.loop_position import batches_per_epoch, is_validation_of_fit
from yolo_lightning.utils.moment import duration, moment

ESTIMATING = "estimating"
LOSS = "train/loss"
LOSS_INTERVAL_S = 1.0
BAR_WIDTH = 10
"""Columns of the bar."""


def finish_time(remaining_s: float) -> str:
    now_s = time.time()
    return moment(now_s + remaining_s, now_s)


class ShowsFinishTime(TimedCallback):
    """Base class of callbacks that show when a fit will be finished."""

    def remaining_s(self, trainer: Trainer) -> float | None:
        """Return the time in seconds until a fit will be finished: from the typical step and the last validation.

        None until `BLOCK_STEPS` steps of this process, or one epoch, and one validation were timed.
        """
        length = fit_length(trainer)
        typical = self.timer.pace.typical()
        if typical is None or self.timer.pace.timed_steps < min(BLOCK_STEPS, length.batches_per_epoch):
            return None
        rest = remaining(length, typical.step_s, self.timer.validation_s, trainer.current_epoch, self.timer.batch)
        if rest.unmeasured_validations:
            return None
        return rest.run_s


class RunProgressBar(ShowsFinishTime, RichProgressBar):
    """Lightning's progress bar with the loss and the finish time of the fit; `EpochTable` shows the scores.

    Epochs count from 1, as in the log. The bar disappears at the end of the fit. The loss is read from the device
    every `LOSS_INTERVAL_S` seconds, because reading it waits for the device.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._loss: dict[str, float] = {}
        self._loss_read_s = -math.inf

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        metrics: dict[str, Any] = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        if is_validation_of_fit(trainer):
            remaining_s = self.remaining_s(trainer)
            end = ESTIMATING if remaining_s is None else finish_time(remaining_s)
            return {**self._train_loss(trainer), "ends": end}
        return metrics

    def configure_columns(self, trainer: Trainer) -> list[Any]:
        """Shorten the bar, so that the loss and the finish time stay on its line in a terminal of 80 columns."""
        columns: list[Any] = super().configure_columns(trainer)
        for column in columns:
            if isinstance(column, BarColumn):
                column.bar_width = BAR_WIDTH
        return columns

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        if self.progress is not None and self.train_progress_bar_id is not None:
            self.progress.update(self.train_progress_bar_id, visible=False)
            self.refresh(hard=True)

    def _get_train_description(self, current_epoch: int) -> str:
        epochs = self.trainer.max_epochs
        if epochs is None or epochs < 1:
            return f"Epoch {current_epoch + 1}"
        return f"Epoch {current_epoch + 1}/{epochs}"

    def _train_loss(self, trainer: Trainer) -> dict[str, float]:
        now_s = time.monotonic()
        if LOSS in trainer.callback_metrics and now_s - self._loss_read_s >= LOSS_INTERVAL_S:
            self._loss = {"loss": number_from_device(trainer.callback_metrics[LOSS])}
            self._loss_read_s = now_s
        return self._loss


class ProgressLines(ShowsFinishTime):
    """Logs a line of progress at intervals, for output that is not a terminal with cursor control.

    Args:
        interval_s: Smallest time between two lines in seconds, >= 0; the end of an epoch is always logged.
    """

    @checked_arguments(interval_s=">= 0")
    def __init__(self, interval_s: float = 60.0) -> None:
        super().__init__()
        self.interval_s = interval_s
        self._printed_s = -math.inf

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now_s = time.monotonic()
        if now_s - self._printed_s < self.interval_s and not trainer.is_last_batch:
            return
        self._printed_s = now_s
        loss = number_from_device(trainer.callback_metrics.get(LOSS, float("nan")))
        remaining_s = self.remaining_s(trainer)
        end = "end not yet estimated"
        if remaining_s is not None:
            end = f"ends at {finish_time(remaining_s)}, in {duration(remaining_s)}"
        batches = batches_per_epoch(trainer)
        of_batches = f"/{batches:,}" if batches else ""
        rank_zero_info(
            f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}, batch {batch_idx + 1:,}{of_batches}, "
            f"loss {loss:.3f}, {end}"
        )
