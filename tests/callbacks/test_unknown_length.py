"""Trainings of an `IterableDataset` without length."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from tests.callbacks.tiny_training import TinyModule, loader, tiny_trainer
from yolo_lightning.callbacks import FinishBy, MetricsFile, ProgressLines, StatusFile
from yolo_lightning.errors import UserError
from yolo_lightning.supervision.run_status import read_status
from yolo_lightning.utils.run_files import METRICS, STATUS_FILE


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        yield from torch.ones(12, 3)


class TinyStreamModule(TinyModule):
    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss: Tensor = self.layers(batch).square().mean()
        self.log("train/loss", loss)
        return loss


def fit(folder: Path, *callbacks: Callback) -> Trainer:
    trainer = tiny_trainer(folder, *callbacks, epochs=2)
    trainer.fit(TinyStreamModule(), DataLoader(Stream(), batch_size=4), loader(1))
    return trainer


def test_files_and_lines_of_a_training_of_unknown_length(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        fit(tmp_path, MetricsFile(), StatusFile(), ProgressLines(interval_s=0))
    assert "epoch 2/2, batch 3, loss" in caplog.text
    assert "end not yet estimated" in caplog.text
    status = read_status(tmp_path / STATUS_FILE)
    assert status is not None
    assert (status.epoch, status.step, status.batches_per_epoch) == (1, 6, 0)
    assert len((tmp_path / METRICS).read_text().splitlines()) == 1 + 6 + 2


def test_deadline_needs_the_length(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"max_hours need .*: set trainer\.limit_train_batches to an integer"):
        fit(tmp_path, FinishBy(max_hours=1.0))
