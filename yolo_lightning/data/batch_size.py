"""Number of frames per batch: the rule of `data.batch_size: auto`."""

from typing import Literal

BatchSize = int | Literal["auto"]
BATCH_SIZE_LIMITS = ">= 1"  # of a number as `data.batch_size`
USUAL_BATCH = 16
SMALL_BATCH = 8
SMALL_EPOCH = 1000


def automatic_batch_size(frames: int, processes: int = 1) -> int:
    """Return the frames per batch and process for an epoch of `frames` frames.

    16; 8 if a process has fewer than 1,000 frames in an epoch, so that more optimizer steps fit into the training.
    Never more than the frames of a process.
    """
    per_process = frames // processes
    usual = USUAL_BATCH if per_process >= SMALL_EPOCH else SMALL_BATCH
    return max(1, min(usual, per_process))
