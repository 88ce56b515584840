"""A training with plain Lightning that kills itself: python plain_training.py WORKERS KILLED_STEP [BATCH_SIZE].

The dataset and its augmentation are torchvision's, with random numbers of Python, NumPy and torch; the network has a
dropout. With KILLED_STEP -1 the training ends.
"""

import os
import random
import signal
import sys
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torchvision import datasets, transforms

from yolo_lightning import AtomicCheckpointIO, LastCheckpoint, RandomState, latest_checkpoint, resumable_loader

SAMPLES, BATCH, EPOCHS = 22, 4, 3


def jitter(pixels: Tensor) -> Tensor:
    return pixels * random.uniform(0.5, 1.5) + np.random.rand() * torch.rand(3, 1, 1)


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Dropout(0.5), nn.Linear(4 * 36, 3))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


class Kill(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    workers, killed_step, *rest = map(int, sys.argv[1:])
    augmentation = transforms.Compose(
        [transforms.RandomCrop(8, padding=2), transforms.RandomHorizontalFlip(), transforms.ToTensor(), jitter]
    )
    seed_everything(0)
    model = Classifier()
    trainer = Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        default_root_dir="run",
        callbacks=[RandomState(), LastCheckpoint(interval_steps=2), Kill(killed_step)],
        plugins=[AtomicCheckpointIO()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = resumable_loader(
        datasets.FakeData(SAMPLES, (3, 8, 8), 3, augmentation),
        *(rest or [BATCH]),
        trainer=trainer,
        num_workers=workers,
    )
    trainer.fit(model, loader, ckpt_path=latest_checkpoint("run"))
