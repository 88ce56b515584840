"""Checkpoints inside an accumulation of gradients, at the end of a fit within an epoch, and of a dry run."""

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Timer
from torch import nn

from tests.helpers.lightning_runs import BATCHES, SAMPLES, Recorder, assert_resumes_exactly, run
from yolo_lightning.callbacks.checkpoint import LOOP_STATE


class Manual(Recorder):
    """Makes an optimizer step after every third batch, also across the end of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer: Any = self.optimizers()
        if (self.current_epoch * BATCHES + batch_idx) % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def test_gradients_of_an_incomplete_accumulation_are_resumed(tmp_path: Path) -> None:
    assert_resumes_exactly(tmp_path, [1, 3, 4, 5, BATCHES, BATCHES + 2], accumulate_grad_batches=4, max_epochs=2)


def test_gradients_of_manual_optimization_are_resumed(tmp_path: Path) -> None:
    assert_resumes_exactly(tmp_path, [2, BATCHES, BATCHES + 1, BATCHES + 2], module=Manual, max_epochs=2)


class Sparse(Recorder):
    """Has an embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SAMPLES, 1, sparse=True)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) + (self.embedding(batch.long()[:, 0]) * self.layer.weight).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_sparse_gradients_are_resumed(tmp_path: Path) -> None:
    assert_resumes_exactly(tmp_path, [3, BATCHES + 2], module=Sparse, accumulate_grad_batches=4, max_epochs=2)


def test_weights_in_float64_are_resumed(tmp_path: Path) -> None:
    assert_resumes_exactly(tmp_path, [BATCHES + 2], precision="64-true", max_epochs=2)


def test_only_checkpoints_inside_an_accumulation_contain_gradients(tmp_path: Path) -> None:
    for batches in (2, 4, BATCHES):
        run(tmp_path / str(batches), batches, accumulate_grad_batches=4)
        checkpoint = torch.load(tmp_path / str(batches) / "checkpoints/last.ckpt", weights_only=True)
        assert bool(checkpoint[LOOP_STATE]["gradients"]) == (batches == 2)


class Terminates(Callback):
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *arguments: Any) -> None:
        if trainer.fit_loop.total_batch_idx == BATCHES + 1:
            os.kill(os.getpid(), signal.SIGTERM)


def test_stop_signal_inside_an_accumulation(tmp_path: Path) -> None:
    options: dict[str, Any] = {"accumulate_grad_batches": 4, "interval": 0}
    whole = run(tmp_path / "whole", **options)
    with pytest.raises(SystemExit):
        run(tmp_path, callbacks=[Terminates], **options)
    resumed = run(tmp_path, **options)
    assert resumed.seen == whole.seen[BATCHES + 2 :]
    assert torch.equal(resumed.layer.weight, whole.layer.weight)


@pytest.mark.parametrize("first", [2, BATCHES, BATCHES + 2])
def test_more_steps_continue_with_the_rest_of_the_epoch(first: int, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", max_epochs=-1, max_steps=2 * BATCHES + 3)
    run(tmp_path, max_epochs=-1, max_steps=first, interval=0)
    resumed = run(tmp_path, max_epochs=-1, max_steps=2 * BATCHES + 3, interval=0)
    assert resumed.seen == whole.seen[first:]
    assert torch.equal(resumed.layer.weight, whole.layer.weight)


class OutOfTime(Callback):
    """Ends the fit after a batch, as `Trainer(max_time=...)` does."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *arguments: Any) -> None:
        trainer.should_stop = trainer.should_stop or trainer.fit_loop.total_batch_idx == BATCHES + 1


@pytest.mark.parametrize("options", [{}, {"min_epochs": 2}], ids=str)
def test_a_fit_without_time_is_resumed_within_its_epoch(options: dict[str, Any], tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    stopped = run(tmp_path, callbacks=[OutOfTime], interval=0, **options)
    resumed = run(tmp_path, interval=0)
    assert stopped.seen + resumed.seen == whole.seen
    assert torch.equal(resumed.layer.weight, whole.layer.weight)


def test_max_time_is_resumed_within_its_epoch(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    stopped = run(tmp_path, callbacks=[lambda: Timer(timedelta(0))], interval=0)
    resumed = run(tmp_path, interval=0)
    assert len(stopped.seen) < BATCHES
    assert stopped.seen + resumed.seen == whole.seen


def test_a_dry_run_saves_nothing(tmp_path: Path) -> None:
    run(tmp_path, fast_dev_run=True, limit_val_batches=1)
    assert not list(tmp_path.rglob("*.ckpt"))
    assert len(run(tmp_path).seen) == 3 * BATCHES
