"""A network whose fit takes a fraction of a second, with the attributes that the callbacks need."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader

from yolo_lightning.checkpoints.checkpoint_io import AtomicCheckpointIO

CLASS_NAMES = ["person", "bicycle"]
BATCH = 4


class TinyModule(LightningModule):
    """Linear, BatchNorm, Linear; writes `steps` into checkpoints as YOLOModule does."""

    def __init__(self, learning_rate: float = 0.1, val_scores: Sequence[float] = ()) -> None:
        super().__init__()
        self.save_hyperparameters({"class_names": CLASS_NAMES})
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.learning_rate = learning_rate
        self.val_scores = list(val_scores)
        self.steps = 0

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.steps = self.current_epoch * int(self.trainer.num_training_batches) + batch_idx + 1
        loss = (self.layers(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        score = self.val_scores[self.current_epoch] if self.val_scores else float(self.layers(batch).mean())
        self.log("val/map_50", score)

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.layers.parameters(), lr=self.learning_rate, momentum=0.9)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["steps"] = self.steps


class AccumulatingModule(TinyModule):
    """Manual optimisation, one update every two batches."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Tensor, batch_idx: int) -> None:  # type: ignore[override]
        self.manual_backward((self.layers(batch) - 1).square().mean())
        if batch_idx % 2 == 1:
            optimizer = self.optimizers()
            optimizer.step()
            optimizer.zero_grad()


class Clock:
    """Time that only a test advances, in place of the monotonic clock of all modules."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)


class Interrupt(Exception):
    """Ends a fit from a callback."""


class StopAt(Callback):
    """Raises `Interrupt` at the start of a batch."""

    def __init__(self, epoch: int, batch: int) -> None:
        self.epoch, self.batch = epoch, batch

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx) == (self.epoch, self.batch):
            raise Interrupt


def loader(batches: int = 4) -> DataLoader[Any]:
    """Every batch is the same, so that training does not depend on where a resumed epoch begins."""
    batch = torch.randn(BATCH, 3, generator=torch.Generator().manual_seed(1))
    # A generator of its own: an iterator draws its seed from the global one otherwise.
    return DataLoader(batch.repeat(batches, 1), batch_size=BATCH, generator=torch.Generator())  # type: ignore[arg-type]


def tiny_trainer(
    folder: Path, *callbacks: Callback, epochs: int = 1, kind: type[Trainer] = Trainer, **options: Any
) -> Trainer:
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(callback, Checkpoint) for callback in callbacks),
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
    }
    return kind(
        default_root_dir=folder,
        max_epochs=epochs,
        callbacks=list(callbacks),
        plugins=[AtomicCheckpointIO()],
        **(settings | options),
    )


def fit(
    folder: Path,
    *callbacks: Callback,
    module: TinyModule | None = None,
    epochs: int = 1,
    batches: int = 4,
    resume: Path | None = None,
    **options: Any,
) -> TinyModule:
    """One fit with validation; returns the trained module."""
    module = module or TinyModule()
    trainer = tiny_trainer(folder, *callbacks, epochs=epochs, **options)
    trainer.fit(module, loader(batches), loader(1), ckpt_path=resume)
    return module


def weights(module: LightningModule) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def assert_equal_weights(state: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    torch.testing.assert_close(state, other, rtol=0, atol=0)
