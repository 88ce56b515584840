"""Which frames an epoch holds, and in which order: a pure function of (seed, epoch).

Consecutive frames of a clip are near duplicates, and months and classes are unequal. Every rule is a weight: the
expected number of times that a frame is in an epoch. The weights of a split sum to a whole number, the length of an
epoch, and are turned into whole counts by systematic sampling (W. G. Madow 1949, "On the theory of systematic
sampling, II", Annals of Mathematical Statistics 20): frames are laid end to end, in order of time, each as long as its
weight, and a comb of unit spacing is laid over them. So each epoch has the same length, each group of frames gets its
share to within one, what is left out is spread evenly over time, and only the comb's offset moves with the epoch.

Order of the rules: subset of clips (`splits`), then `repeat_threshold` and `frame_interval`, then `balance`, then the
shuffle, then `epoch_frames`.
"""

from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

Balance = Literal["none", "clip", "month"]
Integers = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]

ORDER_STREAM = 1
"""Keeps the random numbers of the order apart from those of the samples."""

OFFSET_STREAM = 3
"""Keeps the random numbers of the comb's offset apart from both."""


@dataclass(frozen=True)
class Sampling:
    """Which frames of the training split an epoch holds. The defaults take every frame once.

    Epochs are what the Trainer counts: validation intervals, warm-up, `close_mosaic_epochs` and the learning rates
    follow the epoch whose length is decided here. Mosaic draws its other three frames from the whole split, evenly. A
    resumed run may change the rules at an epoch's end, not inside an epoch.

    Attributes:
        frame_interval: Every n-th frame of each clip, in order of time; the phase moves with the epoch, so that n
            epochs (the first n, the next n, ...) hold every frame. 1 takes all.
        balance: Give each clip or each month the same share of an epoch, to within one frame, at unchanged length:
            frames of large groups are then taken in some epochs only, those of small groups several times in one.
            Frames of unknown month are a group of their own.
        repeat_threshold: The threshold t of repeat factor sampling (LVIS, Gupta et al. 2019, arXiv 1908.03195,
            appendix B.2): a class in a share f of the frames is repeated max(1, sqrt(t / f)) times, a frame as often as
            its rarest class, an epoch grows accordingly. 0 to 1; 0 is off. With `balance` it acts within groups.
        epoch_frames: Length of an epoch in frames; null takes what the rules above give, called a pass. Epochs walk
            on through one pass after the other, so a short epoch only means more frequent validation, while
            `trainer.limit_train_batches` would train the first frames of every pass.
    """

    frame_interval: int = 1
    balance: Balance = "none"
    repeat_threshold: float = 0.0
    epoch_frames: int | None = None

    def __post_init__(self) -> None:
        if self.frame_interval < 1:
            raise ValueError(f"sampling.frame_interval is {self.frame_interval}, allowed are 1 and more")
        if self.balance not in get_args(Balance):
            raise ValueError(f"sampling.balance is {self.balance!r}, allowed are {', '.join(get_args(Balance))}")
        if not 0 <= self.repeat_threshold <= 1:
            raise ValueError(f"sampling.repeat_threshold is {self.repeat_threshold}, allowed are 0 to 1")
        if self.epoch_frames is not None and self.epoch_frames < 1:
            raise ValueError(f"sampling.epoch_frames is {self.epoch_frames}, allowed are 1 and more, or null")


@dataclass(frozen=True)
class FrameTable:
    """What sampling needs to know of a split's N frames and M boxes.

    Attributes:
        clips: `(N,)` integer, number of the clip.
        positions_in_clip: `(N,)` integer, ascending with time within a clip.
        months: `(N,)` integer, YYYYMM; 0 where unknown.
        box_offsets: `(N + 1,)` int64; frame `i` owns boxes `box_offsets[i]:box_offsets[i + 1]`.
        labels: `(M,)` integer, class index from 0.
        has_clips: Whether clips are recordings; if not, each frame stands as a clip of its own.
    """

    clips: npt.NDArray[np.integer[Any]]
    positions_in_clip: npt.NDArray[np.integer[Any]]
    months: npt.NDArray[np.integer[Any]]
    box_offsets: npt.NDArray[np.integer[Any]]
    labels: npt.NDArray[np.integer[Any]]
    has_clips: bool = True

    def __len__(self) -> int:
        return len(self.clips)


class SampledOrder:
    """The frames of each epoch in training order; `sampler.EpochOrder` says what it promises.

    Args:
        table: The split.
        sampling: The rules.
        seed: Seed of the run.

    Attributes:
        length: Frames in every epoch.
        pass_length: Frames in every pass, which is an epoch unless `epoch_frames` says otherwise.
        settings: All that the order depends on besides the split; plain Python.

    Raises:
        ValueError: If a rule cannot be applied to this split.
    """

    def __init__(self, table: FrameTable, sampling: Sampling, seed: int) -> None:
        if sampling.frame_interval > len(table):
            raise ValueError(f"sampling.frame_interval is {sampling.frame_interval}, the split has {len(table)} frames")
        if not table.has_clips and (sampling.balance != "none" or sampling.frame_interval > 1):
            raise ValueError(
                f"sampling.balance is {sampling.balance} and sampling.frame_interval {sampling.frame_interval}, but "
                "the images of this dataset belong to no clips or months, allowed are none and 1; "
                "sampling.epoch_frames and data.train_fraction make epochs shorter"
            )
        if sampling.balance == "month" and not np.any(table.months):
            raise ValueError("sampling.balance is month, but no frame's month is known, allowed are none and clip")
        self.frames = len(table)
        self.sampling = sampling
        self.seed = seed
        self.settings: dict[str, Any] = {"seed": seed} | {
            f"sampling.{name}": value for name, value in asdict(sampling).items()
        }
        groups = {"none": np.zeros_like(table.clips), "clip": table.clips, "month": table.months}[sampling.balance]
        self._by_time = np.lexsort((table.positions_in_clip, table.clips, groups))
        repeats = repeat_factors(table.box_offsets, table.labels, sampling.repeat_threshold)
        weights = sampling_weights(repeats, groups, sampling.frame_interval)
        self._weights_by_time = weights[self._by_time]
        self.pass_length = round(weights.sum())
        self.length = sampling.epoch_frames or self.pass_length

    def indices(self, epoch: int) -> Integers:
        """`(length,)` frame indices of `epoch`, in training order; a frame may occur several times."""
        first, stop = epoch * self.length, (epoch + 1) * self.length
        passes = range(first // self.pass_length, -(-stop // self.pass_length))
        start = first - passes.start * self.pass_length
        return np.concatenate([self._pass(number) for number in passes])[start : start + self.length]

    def _pass(self, number: int) -> Integers:
        offset = comb_offset(self.seed, number, self.sampling.frame_interval)
        counts = np.empty(self.frames, dtype=np.int64)
        counts[self._by_time] = systematic_counts(self._weights_by_time, offset, self.pass_length)
        chosen = np.repeat(np.arange(self.frames), counts)
        return chosen[np.random.default_rng((ORDER_STREAM, self.seed, number)).permutation(len(chosen))]

    def describe(self) -> str:
        """The rules' effect on an epoch, in one line for the log."""
        rules = self.sampling
        parts = [f"epoch: {self.length:,} of {self.frames:,} frames"]
        if rules.frame_interval > 1:
            parts.append(f"one in {rules.frame_interval} of each clip")
        if rules.repeat_threshold:
            parts.append(f"classes in less than {rules.repeat_threshold:.2%} of frames repeated")
        if rules.balance != "none":
            parts.append(f"equal shares for each {rules.balance}")
        most = ceil(self._weights_by_time.max() - 1e-9)
        if most > 1:
            parts.append(f"a frame up to {most} times")
        if self.length != self.pass_length:
            parts.append(f"{self.pass_length / self.length:.2f} epochs to a pass of {self.pass_length:,}")
        return ", ".join(parts)


def repeat_factors(
    box_offsets: npt.NDArray[np.integer[Any]], labels: npt.NDArray[np.integer[Any]], threshold: float
) -> Weights:
    """`(N,)` repeat factor, 1 or more, of each frame; fields as in `FrameTable`, rule as in `Sampling`."""
    frames = len(box_offsets) - 1
    if not threshold or not len(labels):
        return np.ones(frames)
    holds = np.zeros((frames, int(labels.max()) + 1), dtype=np.bool_)
    holds[np.repeat(np.arange(frames), np.diff(box_offsets)), labels] = True
    frequency = np.maximum(holds.sum(axis=0), 1) / frames
    factors: Weights = np.where(holds, np.sqrt(threshold / frequency), 1.0).max(axis=1)
    return np.maximum(factors, 1.0)


def sampling_weights(repeats: Weights, groups: npt.NDArray[np.integer[Any]], frame_interval: int) -> Weights:
    """Expected number of times that each frame is in a pass; sums to a whole number, the length of a pass.

    Args:
        repeats: `(N,)` repeat factors.
        groups: `(N,)` integer; all groups get the same share of a pass.
        frame_interval: The pass is this many times shorter than the sum of the repeat factors, rounded up: in one
            group, each weight is at least 1 / `frame_interval`, which is what makes so many passes hold every frame.
    """
    _, members = np.unique(groups, return_inverse=True)
    # Sequential sums: numpy's pairwise ones depend on the processor in their last bit.
    sums = np.bincount(members, weights=repeats)
    length = ceil(np.cumsum(sums)[-1] / frame_interval)
    weights: Weights = repeats * (length / len(sums) / sums[members])
    return weights


def systematic_counts(weights: Weights, offset: float, length: int) -> Integers:
    """`(N,)` whole counts, each its weight rounded down or up, that sum to `length`, the sum of `weights`.

    Counts the teeth `offset`, `offset` + 1, ... (`offset` from 0 to 1) that fall on each weight, laid end to end.
    """
    ends = np.minimum(np.ceil(np.cumsum(weights) - offset), length).astype(np.int64)
    ends[-1] = length
    return np.diff(ends, prepend=0)


def comb_offset(seed: int, number: int, frame_interval: int) -> float:
    """Offset of the comb in pass `number`, 0 to 1; `frame_interval` passes together make a finer, even comb."""
    cycle, step = divmod(number, frame_interval)
    generator = np.random.default_rng((OFFSET_STREAM, seed, cycle))
    return float((generator.random() + generator.permutation(frame_interval)[step]) / frame_interval)


def occurrences(indices: Integers) -> Integers:
    """`(N,)` how many times the index at each position stands before it."""
    by_index = np.argsort(indices, kind="stable")
    ordered = indices[by_index]
    starts_run = np.diff(ordered, prepend=-1) != 0
    places = np.arange(len(indices))
    result = np.empty(len(indices), dtype=np.int64)
    result[by_index] = places - np.maximum.accumulate(np.where(starts_run, places, 0))
    return result
