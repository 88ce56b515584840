"""Partners of a mosaic: the frames of the three tiles besides the sample's own frame, and the four of mixup.

The partners of the sample at position p of an epoch are the frames at the positions p - s, p - 4 s and p - 6 s, modulo
the length of the epoch, where s is the stride. The frames of its second sample in mixup are those at the positions
p - 2 s, p - 3 s, p - 5 s and p - 7 s. Since the order of an epoch is a random permutation, each mosaic
consists of random frames; each frame is a partner three times for each time that it is sampled; and the sampling rules
apply to all tiles. Two mosaics have at most one position in common, because all differences of (0, 1, 4, 6) are
distinct (a Golomb ruler).

A partner was the own frame of an earlier sample, so a process that caches the frames of its last `window` samples reads
one frame per sample instead of four. Workers receive batches in turns. If the stride is a multiple of batch size times
number of workers times number of ranks, each process prepares a sample and its partners' own samples. Batches do not
depend on the cache: with other numbers, a process reads some partners again.
"""

import numpy as np

from yolo_lightning.data.array_types import Int64Array

RULER = (1, 4, 6)
"""Distances of the partners, strides."""

MIXUP_RULER = (2, 3, 5, 7)
"""Distances of the frames of the second sample in mixup, strides; none is a partner of the first sample."""

LARGEST_STRIDE = 192
"""Positions; a multiple of 8, 16 or 32 samples times 1, 2, 3 or 6 workers, of 8 or 16 times 4, and of 8 times 8."""

WINDOWS_PER_EPOCH = 4
"""The first samples of an epoch have partners from its end, which are not cached: up to 11 strides are read again."""


def stride(length: int) -> int:
    """Return the stride of an epoch of `length` samples: `LARGEST_STRIDE`, halved until the epoch has four windows."""
    positions = LARGEST_STRIDE
    while positions > 1 and WINDOWS_PER_EPOCH * RULER[-1] * positions > length:
        positions //= 2
    return positions


def frames_to_cache(length: int, processes: int, batch_size: int, *, has_mixup: bool = False) -> int:
    """Return the number of own frames that each of `processes` must cache to read each frame once per epoch.

    They reach back to the farthest partner in an epoch of `length` samples.
    """
    ruler = MIXUP_RULER if has_mixup else RULER
    return -(-ruler[-1] * stride(length) // processes) + batch_size


def mosaic_partners(indices: Int64Array, positions: slice, ruler: tuple[int, ...] = RULER) -> Int64Array:
    """Return the `(P, 3)` partners of the samples at P `positions` of an epoch whose frames are `indices` `(N,)`.

    With `MIXUP_RULER`, the `(P, 4)` frames of the second samples in mixup.
    """
    places = np.arange(len(indices))[positions, None] - stride(len(indices)) * np.array(ruler)
    return np.asarray(indices[places % len(indices)])
