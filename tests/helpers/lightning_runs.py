"""Interrupted and resumed trainings of a tiny module under Lightning, for comparison with uninterrupted ones."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import Dataset

from yolo_lightning import AtomicCheckpointIO, LastCheckpoint, RandomState, latest_checkpoint, resumable_loader

SAMPLES, BATCH = 22, 4
BATCHES = 6
"""Batches per epoch; the last one has two samples."""


class Numbers(Dataset[Tensor]):
    def __init__(self, count: int = SAMPLES) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([float(index)])


class Recorder(LightningModule):
    """Records the epoch, the number and the samples of each batch; `seen` depends on the whole course of a training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.seen: list[tuple[int, int, Any]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        batches = batch if isinstance(batch, list) else [batch]
        samples = [None if part is None else part[:, 0].int().tolist() for part in batches]
        self.seen.append((self.current_epoch, batch_idx, samples))
        noise = torch.rand(())
        return sum((self.layer(part / SAMPLES) + noise).square().mean() for part in batches if part is not None)

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Kill(Exception):
    """Ends a process at a batch."""


class KillAt(Callback):
    def __init__(self, batch: int | None) -> None:
        self.batch = batch

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self.batch is not None and trainer.fit_loop.total_batch_idx == self.batch:
            raise Kill


def quiet_trainer(folder: Path, *callbacks: Callback, **options: Any) -> Trainer:
    settings: dict[str, Any] = {"max_epochs": 3, "num_sanity_val_steps": 0, "limit_val_batches": 0}
    return Trainer(
        **(settings | options),
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, RandomState()],
        plugins=[AtomicCheckpointIO()],
    )


Fit = Callable[[Trainer, Recorder, Path | None], None]


def fit_numbers(trainer: Trainer, module: Recorder, checkpoint: Path | None) -> None:
    trainer.fit(module, resumable_loader(Numbers(), BATCH, trainer=trainer), ckpt_path=checkpoint)


def run(
    folder: Path,
    kill: int | None = None,
    *,
    fit: Fit = fit_numbers,
    module: type[Recorder] = Recorder,
    callbacks: Sequence[Callable[[], Callback]] = (),
    interval: int = 1,
    **options: Any,
) -> Recorder:
    """Train, or resume the training in `folder`, until batch number `kill` begins."""
    seed_everything(0, verbose=False)
    recorder = module()
    saving = LastCheckpoint(interval_steps=interval)
    trainer = quiet_trainer(folder, *(callback() for callback in callbacks), saving, KillAt(kill), **options)
    try:
        fit(trainer, recorder, latest_checkpoint(folder))
    except Kill:
        assert kill is not None
    return recorder


def assert_resumes_exactly(folder: Path, kills: Sequence[int], **situation: Any) -> Recorder:
    """Kill and resume a training at each batch of `kills`; compare batches, random numbers and weights."""
    whole = run(folder / "whole", **situation)
    for kill in kills:
        run(folder / str(kill), kill, **situation)
        resumed = run(folder / str(kill), **situation)
        assert resumed.seen, kill
        assert resumed.seen == whole.seen[-len(resumed.seen) :], kill
        assert torch.equal(resumed.layer.weight, whole.layer.weight), kill
    return whole
