"""Frames of each epoch and their order, a pure function of (seed, epoch).

Consecutive frames of a clip are near duplicates, and some classes are rare. The sampling rules assign a weight to every
frame: the expected number of times that the frame occurs in a pass. The weights of a split sum to an integer, the
length of a pass, and systematic sampling turns them into integer counts (W. G. Madow 1949, "On the theory of systematic
sampling, II", Annals of Mathematical Statistics 20): the weights are intervals laid end to end in order of time, and
each frame counts the points of a grid of unit spacing that fall on its interval. Thus every pass has the same length,
omitted frames are spread evenly over time, and only the offset of the grid depends on the pass.

Order of the rules: subset of clips (`splits`), `frame_interval` and `every_frame_of`, shuffling, `epoch_frames`.
"""

from dataclasses import asdict
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from yolo_lightning.data.array_types import BoolArray, Float64Array, Int64Array
from yolo_lightning.errors import UserError
from yolo_lightning.utils.choices import settings_group

if TYPE_CHECKING:
    from yolo_lightning.data.index.split_index import SplitIndex


ORDER_STREAM = 1  # Seed component of the order; `dataset.SAMPLE_STREAM` is 2
OFFSET_STREAM = 3  # Seed component of the grid offset


@settings_group("data.sampling", frame_interval=">= 1", epoch_frames=">= 1")
class Sampling:
    """Sampling of the training split. The defaults use every frame once per epoch.

    The Trainer counts the epochs defined here: validation intervals, warm-up, `close_mosaic_epochs` and learning rates
    depend on them. Mosaic takes its other three frames from the same epoch (`mosaic_partners`). A resumed run may
    change the rules at the end of an epoch only.

    Attributes:
        frame_interval: Use every n-th frame of each clip, in order of time. The phase changes with the epoch, so that n
            epochs (the first n, the next n, ...) contain every frame. 1 uses all.
        every_frame_of: Names of classes; every epoch contains all frames with an object of these classes, beside every
            n-th of the other frames. For rare classes, such as `[motorcycle]`.
        epoch_frames: Frames per epoch; null uses the length that results from the other rules, called a pass.
            Successive epochs walk through one pass after the other, so short epochs omit no frame, whereas
            `trainer.limit_train_batches` trains on the first frames of every pass only.
    """

    frame_interval: int = 1
    every_frame_of: tuple[str, ...] = ()
    epoch_frames: int | None = None


class SampledOrder:
    """The frames of each epoch in training order; every epoch is the first one for `trainer.overfit_batches`.

    Attributes:
        length: Frames per epoch.
        pass_length: Frames per pass; equal to `length` unless `epoch_frames` is set.
        settings: Everything besides the split on which the order depends; plain Python, compared when a run resumes.
    """

    def __init__(self, index: "SplitIndex", sampling: Sampling, seed: int, *, is_overfit: bool = False) -> None:
        if not index.facts.has_clips and sampling.frame_interval > 1:
            raise UserError(
                f"data.sampling.frame_interval must be 1 for a dataset without clips, got {sampling.frame_interval}; "
                "use data.sampling.epoch_frames or data.split.train_fraction for shorter epochs"
            )
        if sampling.frame_interval > len(index):
            raise UserError(
                f"data.sampling.frame_interval must be <= {len(index)}, the number of frames of the split, "
                f"got {sampling.frame_interval}"
            )
        self.frames = len(index)
        self.sampling = sampling
        self.seed = seed
        self.settings: dict[str, Any] = {"seed": seed}
        for name, value in asdict(sampling).items():
            self.settings[f"sampling.{name}"] = list(value) if isinstance(value, tuple) else value
        if is_overfit:
            self.settings["overfit"] = True
        self._is_overfit = is_overfit
        self._by_time = np.lexsort((index.positions_in_clip(), index.clips()))
        weights = sampling_weights(frames_with(index, sampling.every_frame_of), sampling.frame_interval)
        self._weights_by_time = weights[self._by_time]
        self.pass_length = round(weights.sum())
        self.length = sampling.epoch_frames or self.pass_length

    def indices(self, epoch: int, cycle: int = 0) -> Int64Array:
        """Return `(length,)` frame indices of `epoch` in training order; a frame may occur several times.

        Further passes of an epoch, `cycle` > 0, contain the same frames in another order.
        """
        if self._is_overfit:
            epoch = 0
            cycle = 0
        begin = epoch * self.length
        passes = range(begin // self.pass_length, -(-(begin + self.length) // self.pass_length))
        start = begin - passes.start * self.pass_length
        indices = np.concatenate([self._pass(number) for number in passes])[start : start + self.length]
        if cycle:
            indices = np.random.default_rng((ORDER_STREAM, self.seed, epoch, cycle)).permutation(indices)
        return indices

    def _pass(self, number: int) -> Int64Array:
        offset = grid_offset(self.seed, number, self.sampling.frame_interval)
        counts = np.empty(self.frames, dtype=np.int64)
        counts[self._by_time] = systematic_counts(self._weights_by_time, offset, self.pass_length)
        chosen = np.repeat(np.arange(self.frames), counts)
        return chosen[np.random.default_rng((ORDER_STREAM, self.seed, number)).permutation(len(chosen))]

    def describe(self) -> str:
        parts = [f"epoch: {self.length:,} of {self.frames:,} frames"]
        if self.length != self.pass_length:
            parts.append(f"{self.pass_length / self.length:.2f} epochs per pass of {self.pass_length:,}")
        return ", ".join(parts)


def frames_with(index: "SplitIndex", names: tuple[str, ...]) -> BoolArray:
    """Return `(N,)` whether a frame contains an object of one of these classes."""
    classes = index.facts.class_names
    for name in names:
        if name not in classes:
            raise UserError(
                f"data.sampling.every_frame_of must contain names of classes ({', '.join(classes)}), got {name!r}"
            )
    labels = [classes.index(name) for name in names]
    owners = np.repeat(np.arange(len(index)), np.diff(index.box_offsets()))
    has_class = np.zeros(len(index), dtype=np.bool_)
    has_class[owners[np.isin(index.all_labels(), labels)]] = True
    return has_class


def sampling_weights(always: BoolArray, frame_interval: int) -> Float64Array:
    """Return the `(N,)` expected number of times that each frame occurs in a pass; the sum is an integer.

    The weights are about 1 for the frames `always` `(N,)`, and 1 / `frame_interval` for all others. The length of a
    pass is rounded up, so that `frame_interval` passes contain every frame.
    """
    shares = np.where(always, float(frame_interval), 1.0)
    return np.asarray(shares * (ceil(shares.sum() / frame_interval) / shares.sum()))


def systematic_counts(weights: Float64Array, offset: float, length: int) -> Int64Array:
    """Return `(N,)` integer counts, each weight rounded down or up, that sum to `length`, the sum of `weights`.

    Each frame counts the grid points `offset`, `offset` + 1, ... (0 <= `offset` < 1) on its interval.
    """
    ends = np.minimum(np.ceil(np.cumsum(weights) - offset), length).astype(np.int64)
    ends[-1] = length
    return np.diff(ends, prepend=0)


def grid_offset(seed: int, number: int, frame_interval: int) -> float:
    """Return the grid offset of a pass, 0 to 1; the grids of `frame_interval` passes form a finer regular grid."""
    cycle, step = divmod(number, frame_interval)
    generator = np.random.default_rng((OFFSET_STREAM, seed, cycle))
    return float((generator.random() + generator.permutation(frame_interval)[step]) / frame_interval)
