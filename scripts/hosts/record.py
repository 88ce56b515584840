"""Callback that records the delivered images of each rank, and its weights after the fit; reads the record."""

import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

FOLDER_VARIABLE = "RECORD"
"""Environment variable with the folder of the record."""


class Recorder(Callback):
    """Writes a line `epoch batch ids` after each step, and `weights-<rank>.pt` at the end of the fit."""

    def __init__(self) -> None:
        self._folder = Path(os.environ[FOLDER_VARIABLE])

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        with (self._folder / f"steps-{trainer.global_rank}.txt").open("a") as file:
            print(trainer.current_epoch, batch_idx, ",".join(batch.image_ids), file=file)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        torch.save(pl_module.state_dict(), self._folder / f"weights-{trainer.global_rank}.pt")


def delivered_images(folder: Path, epochs: int) -> list[Counter[str]]:
    """Return how often each image was delivered in each epoch; the last delivery of a repeated step counts."""
    steps: dict[tuple[int, int], dict[str, str]] = defaultdict(dict)
    for path in folder.glob("steps-*.txt"):
        for line in path.read_text().splitlines():
            fields = line.split(" ")
            steps[int(fields[0]), int(fields[1])][path.name] = fields[2]
    counts = [Counter[str]() for _ in range(epochs)]
    for (epoch, _), shares in steps.items():
        for ids in shares.values():
            counts[epoch].update(ids.split(","))
    return counts
