"""One arm of the hang study: what its child does. Made to hang on some machines.

Forks with a GPU in use, on purpose: this is the only place that does.
"""

import os
import time
import warnings
from typing import Any

import torch
from torch.utils.data import DataLoader

from yolo_lightning.commands.doctor.study_table import STEP, ArmStart, Copy

WORKERS = 2
EPOCH_STEPS = 500
"""Steps between two starts of workers."""
SIDE = 640


class Batches:
    """Float32 batches `(B, 3, 640, 640)`, made by the worker as a dataset makes them.

    Args:
        frames: Frames of a batch; 8 are 37.5 MiB.
    """

    def __init__(self, frames: int) -> None:
        self.frames = frames

    def __len__(self) -> int:
        return EPOCH_STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.frames, 3, SIDE, SIDE), index % 255 / 255)


def main(start: str, copy: str, device: str, seconds: str, frames: str, steps_path: str) -> None:
    """Load, copy, compute and synchronise for some seconds, and append a `STEP` to a file after each.

    Args:
        start: A `ArmStart`.
        copy: A `Copy`; STAGED needs its variable in the environment.
        device: As torch calls it.
        seconds: How long, from the first batch on.
        frames: Frames of a batch.
        steps_path: File that the steps are appended to.
    """
    # Without a GPU there is nothing to pin for; a rehearsal knows that.
    warnings.filterwarnings("ignore", ".*pin_memory.*")
    file = os.open(steps_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    weight = torch.full((SIDE, SIDE), 1 / SIDE, device=device)
    deadline_s: float | None = None
    starts = 0
    while deadline_s is None or time.monotonic() < deadline_s:
        batches: Any = Batches(int(frames))
        pinned = Copy(copy) is Copy.PINNED
        loader: Any = DataLoader(
            batches,
            batch_size=None,
            num_workers=WORKERS,
            multiprocessing_context=ArmStart(start).value,
            pin_memory=pinned,
        )
        starts += 1
        for batch in loader:
            deadline_s = deadline_s or time.monotonic() + float(seconds)
            os.write(file, STEP.pack(train(batch, weight, device, pinned=pinned), starts))
            if time.monotonic() >= deadline_s:
                break
    # The loader's threads may be inside torch; what is measured is written.
    os._exit(0)


def train(batch: torch.Tensor, weight: torch.Tensor, device: str, *, pinned: bool) -> float:
    """Copy a batch, compute with it, and wait for the result; returns seconds."""
    began_s = time.perf_counter()
    moved = batch.to(device, non_blocking=pinned)
    total = torch.matmul(moved, weight).mean().item()
    assert 0 <= total <= 1.001, total
    return time.perf_counter() - began_s
