"""Callback that records the delivered images of each rank, and its weights after the fit; readers of the record."""

import os
from collections import Counter, defaultdict
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

FOLDER_VARIABLE = "RECORD"
"""Environment variable with the folder of the record."""


class Recorder(Callback):
    """Writes a line `epoch batch ids` after each step, a hash of each validated network, and the weights at the end."""

    def __init__(self) -> None:
        self._folder = Path(os.environ[FOLDER_VARIABLE])

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        with (self._folder / f"steps-{trainer.global_rank}.txt").open("a") as file:
            print(trainer.current_epoch, batch_idx, ",".join(batch.image_ids), file=file)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if batch_idx == 0:
            digest = sha256(b"".join(tensor.numpy().tobytes() for tensor in pl_module.state_dict().values()))
            with (self._folder / f"validated-{trainer.global_rank}.txt").open("a") as file:
                print(trainer.current_epoch, digest.hexdigest(), file=file)

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


def is_each_image_once(folder: Path, epochs: int, images: int) -> bool:
    """Return whether each of the images was delivered once in each epoch."""
    counts = delivered_images(folder, epochs)
    return all(len(count) == images and set(count.values()) == {1} for count in counts)


def are_validated_networks_equal(folder: Path) -> bool:
    """Return whether the ranks 0 and 1 have validated equal networks, with equal statistics of normalization."""
    first, second = ((folder / f"validated-{rank}.txt").read_text() for rank in range(2))
    return first == second != ""


def read_weights(folder: Path) -> list[dict[str, torch.Tensor]]:
    """Return the weights of the ranks 0 and 1 after the fit, without those of a rank that has not finished."""
    paths = [folder / f"weights-{rank}.pt" for rank in range(2)]
    return [torch.load(path, weights_only=True) for path in paths if path.is_file()]


def are_equal(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    """Return whether the weights of two ranks or fits are equal, bit for bit."""
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())
