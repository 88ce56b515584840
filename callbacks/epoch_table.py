"""A table of the epochs of a fit: one line per epoch, in a terminal and in a log file."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from yolo_lightning.callbacks.fit_timer import TimedCallback
from yolo_lightning.callbacks.status_file import MAP, MAP_50
from yolo_lightning.evaluation.score_table import MISSING, score_text
from yolo_lightning.utils.activity import Activity, during, number_from_device
from yolo_lightning.utils.loop_position import is_validation_of_fit

HEADING_INTERVAL = 20
"""Rows between two headings."""

LOSSES = (("box_loss",), ("cls_loss",), ("dfl_loss", "l1_loss"))
"""Names of the losses of a column; a network has one of them."""

TRAIN_LOSSES = frozenset(f"train/{name}" for names in LOSSES for name in names)
HEADINGS = ("box", "cls", "dfl", "box", "cls", "dfl", "mAP50", "mAP50-95", "lr", "img/s", "time")
WIDTHS = (5, 5, 5, 5, 5, 5, 6, 8, 6, 5, 7)
GAP = " "


def row(epoch: int, epochs: int | None, values: Sequence[str]) -> str:
    """Return the line of an epoch, counted from 1, with the `values` of all columns; 80 characters up to epoch 999."""
    number = f"{epoch}/{epochs}" if epochs else str(epoch)
    return GAP.join([number.rjust(_number_width(epochs)), *map(str.rjust, values, WIDTHS)])


def heading(epochs: int | None) -> str:
    """Return the two lines above the rows."""
    width = _number_width(epochs)
    loss_width = sum(WIDTHS[:3]) + 2 * len(GAP)
    groups = GAP.join([" " * width, " train loss ".center(loss_width, "-"), " val loss ".center(loss_width, "-")])
    columns = GAP.join(["epoch".rjust(width), *map(str.rjust, HEADINGS, WIDTHS)])
    return f"{groups}\n{columns}"


def _losses_of(values: Mapping[str, float], stage: str) -> list[str]:
    """Return the losses of a stage by column."""
    columns = []
    for names in LOSSES:
        keys = [f"{stage}/{name}" for name in names if f"{stage}/{name}" in values]
        columns.append(loss_text(values[keys[0]]) if keys else MISSING)
    return columns


def _number_width(epochs: int | None) -> int:
    return max(len("epoch"), len(f"{epochs}/{epochs}") if epochs else 0)


def loss_text(value: float) -> str:
    """Return a loss in at most five characters: 1.234, 12.34, 123.4, 1e+05."""
    if abs(value) >= 999.95:
        return f"{value:.0e}"
    if abs(value) >= 99.995:
        return f"{value:.1f}"
    if abs(value) >= 9.9995:
        return f"{value:.2f}"
    return f"{value:.3f}"


def rate_text(per_s: float) -> str:
    return f"{per_s:.1f}" if per_s < 999.95 else f"{per_s:.0f}"


def duration_text(seconds: float) -> str:
    """Return minutes and seconds, with hours from one hour on: 0:07, 12:30, 1:02:30."""
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest_s:02d}"
    return f"{minutes}:{rest_s:02d}"


class EpochTable(TimedCallback):
    """Logs one line per epoch: mean losses, scores, learning rate, images per second and time, on the first rank.

    Training losses are means over the batches of the epoch with a finite loss in the first rank, the learning rate is
    that of the last batch. Validation columns are empty for an epoch without a validation. The training losses, images
    per second and time of a resumed epoch refer to its part after the resume.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rows = 0
        self._images = 0
        self._began_s = 0.0
        self._training_s = 0.0
        """Seconds of the epoch up to the last batch, without validations."""
        self._scores: Mapping[str, Any] = {}
        self._losses: dict[str, Tensor] = {}
        """Sum of the finite losses of the epoch and their number, by logged name."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._rows = 0
        self._begin()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._images += len(batch) * trainer.world_size
        for name in TRAIN_LOSSES & trainer.callback_metrics.keys():  # summed on the device, without a synchronization
            loss = trainer.callback_metrics[name].double()
            finite = torch.stack([loss, torch.ones_like(loss)]).where(loss.isfinite(), 0.0)
            self._losses[name] = finite + self._losses.get(name, 0.0)
        self._training_s += self.timer.step_with_wait_s

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if is_validation_of_fit(trainer):
            self._scores = {name: number_from_device(value) for name, value in trainer.callback_metrics.items()}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with during(Activity.DEVICE_WAIT):
            sums = {name: total_and_count.tolist() for name, total_and_count in self._losses.items()}
        train_losses = {name: total / count for name, (total, count) in sums.items() if count}
        learning_rate = MISSING
        if "lr/weight" in trainer.callback_metrics:
            learning_rate = f"{number_from_device(trainer.callback_metrics['lr/weight']):.1e}".replace("e-0", "e-")
        speed = MISSING
        if self._images and self._training_s > 0:
            speed = rate_text(self._images / self._training_s)
        values = [
            *_losses_of(train_losses, "train"),
            *_losses_of(self._scores, "val"),
            *(score_text(self._scores.get(name)) for name in (MAP_50, MAP)),
            learning_rate,
            speed,
            duration_text(time.monotonic() - self._began_s),
        ]
        epochs = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None
        if self._rows % HEADING_INTERVAL == 0:
            rank_zero_info(heading(epochs))
        rank_zero_info(row(trainer.current_epoch + 1, epochs, values))
        self._rows += 1

    def _begin(self) -> None:
        self._began_s = time.monotonic()
        self._images = 0
        self._training_s = 0.0
        self._scores = {}
        self._losses = {}
