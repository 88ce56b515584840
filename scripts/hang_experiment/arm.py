"""The child process of one arm: `python arm.py START COPY DEVICE SECONDS FRAMES STEPS_FILE`.

It is designed to hang on some machines: the fork arms fork while the GPU is in use. Imports no other file of the study.
"""

import os
import struct
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

STEP = struct.Struct("<dd")
"""Record of a step: seconds of copy, computation and synchronisation; number of worker starts so far."""
WORKERS = 2
EPOCH_STEPS = 500
"""Steps between two starts of the workers."""
SIDE = 640


class Batches:
    """Dataset of float32 batches `(frames, 3, 640, 640)`, created in the worker; 8 frames are 37.5 MiB."""

    def __init__(self, frames: int) -> None:
        self.frames = frames

    def __len__(self) -> int:
        return EPOCH_STEPS

    def __getitem__(self, index: int) -> "Tensor":
        import torch

        return torch.full((self.frames, 3, SIDE, SIDE), index % 255 / 255)


def run_arm(start: str, copy: str, device: str, seconds: float, frames: int, steps_file: str) -> None:
    """Load, copy, compute and synchronise for `seconds` from the first batch on; append a `STEP` after each step."""
    import torch
    from torch.utils.data import DataLoader

    warnings.filterwarnings("ignore", ".*pin_memory.*")  # a rehearsal without a GPU has nothing to pin for
    file = os.open(steps_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    weight = torch.full((SIDE, SIDE), 1 / SIDE, device=device)
    pinned = copy == "pinned"
    batches: Any = Batches(frames)
    end_s: float | None = None
    starts = 0
    while end_s is None or time.monotonic() < end_s:
        loader: Any = DataLoader(
            batches, batch_size=None, num_workers=WORKERS, multiprocessing_context=start, pin_memory=pinned
        )
        starts += 1
        for batch in loader:
            end_s = end_s or time.monotonic() + seconds
            began_s = time.perf_counter()
            mean = (batch.to(device, non_blocking=pinned) @ weight).mean().item()
            assert 0 <= mean <= 1.001, mean
            os.write(file, STEP.pack(time.perf_counter() - began_s, starts))
            if time.monotonic() >= end_s:
                break
    os._exit(0)  # threads of the loader may be inside torch; all results are written


if __name__ == "__main__":
    _, start, copy, device, seconds, frames, steps_file = sys.argv
    run_arm(start, copy, device, float(seconds), int(frames), steps_file)
