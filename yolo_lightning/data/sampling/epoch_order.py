"""Frames of each epoch and their order, a pure function of (seed, epoch).

Consecutive frames of a clip are near duplicates, and months and classes are unequally frequent. Each sampling rule
assigns a weight to every frame: the expected number of times that the frame occurs in an epoch. The weights of a split
sum to an integer, the length of an epoch, and systematic sampling turns them into integer counts (W. G. Madow 1949, "On
the theory of systematic sampling, II", Annals of Mathematical Statistics 20): the weights are intervals laid end to end
in order of time, and each frame counts the points of a grid of unit spacing that fall on its interval. Thus every epoch
has the same length, the count of each group of frames differs by less than one from the sum of its weights, omitted
frames are spread evenly over time, and only the offset of the grid depends on the epoch.

Order of the rules: subset of clips (`splits`), `repeat_threshold`, `frame_interval` and `every_frame_of`, `balance`,
shuffling, `epoch_frames`.
"""

from dataclasses import asdict, dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from yolo_lightning.data.index.split_index import SplitIndex

Balance = Literal["none", "clip", "month"]
RepeatScope = Literal["split", "month"]
Integers = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]

ORDER_STREAM = 1  # Seed component of the order; `dataset.SAMPLE_STREAM` is 2
OFFSET_STREAM = 3  # Seed component of the grid offset


@dataclass(frozen=True)
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
        balance: `clip` or `month` gives each clip or month the same number of frames per epoch, to within one, without
            changing the length of an epoch: frames of large groups occur in some epochs only, frames of small groups
            several times per epoch. Frames of unknown month form one group.
        repeat_threshold: Threshold t of repeat factor sampling (LVIS, Gupta et al. 2019, arXiv 1908.03195, appendix
            B.2), 0 to 1: the repeat factor of a class that occurs in a fraction f of the frames is max(1, sqrt(t / f)),
            that of a frame the largest factor of its classes. The epoch becomes longer accordingly. 0 disables it. With
            `balance` it acts within groups.
        repeat_scope: `split` computes f of a class from all frames, `month` from the frames of each month separately,
            so that a class that is frequent on the whole but rare in a month is repeated in that month. Frames of
            unknown month count as one month.
        epoch_frames: Frames per epoch; null uses the length that results from the other rules, called a pass.
            Successive epochs walk through one pass after the other, so short epochs omit no frame, whereas
            `trainer.limit_train_batches` trains on the first frames of every pass only.
    """

    frame_interval: int = 1
    every_frame_of: tuple[str, ...] = ()
    balance: Balance = "none"
    repeat_threshold: float = 0.0
    repeat_scope: RepeatScope = "split"
    epoch_frames: int | None = None

    def __post_init__(self) -> None:
        if self.frame_interval < 1:
            raise ValueError(f"data.sampling.frame_interval must be >= 1, got {self.frame_interval}")
        if self.balance not in get_args(Balance):
            names = ", ".join(get_args(Balance))
            raise ValueError(f"data.sampling.balance must be one of {names}, got {self.balance!r}")
        if not 0 <= self.repeat_threshold <= 1:
            raise ValueError(f"data.sampling.repeat_threshold must be from 0 to 1, got {self.repeat_threshold}")
        if self.repeat_scope not in get_args(RepeatScope):
            names = ", ".join(get_args(RepeatScope))
            raise ValueError(f"data.sampling.repeat_scope must be one of {names}, got {self.repeat_scope!r}")
        if self.repeat_scope != "split" and not self.repeat_threshold:
            raise ValueError(
                f"data.sampling.repeat_threshold must be > 0 with data.sampling.repeat_scope {self.repeat_scope}, got 0"
            )
        if self.epoch_frames is not None and self.epoch_frames < 1:
            raise ValueError(f"data.sampling.epoch_frames must be >= 1 or null, got {self.epoch_frames}")


class SampledOrder:
    """The frames of each epoch in training order.

    Attributes:
        length: Frames per epoch.
        pass_length: Frames per pass; equal to `length` unless `epoch_frames` is set.
        settings: Everything besides the split on which the order depends; plain Python, compared when a run resumes.
    """

    def __init__(self, index: "SplitIndex", sampling: Sampling, seed: int) -> None:
        if sampling.frame_interval > len(index):
            raise ValueError(
                f"data.sampling.frame_interval must be <= {len(index)}, the number of frames of the split, "
                f"got {sampling.frame_interval}"
            )
        if not index.facts.has_clips and (sampling.balance != "none" or sampling.frame_interval > 1):
            raise ValueError(
                "data.sampling.balance must be none and data.sampling.frame_interval 1 for a dataset without clips and "
                f"months, got {sampling.balance} and {sampling.frame_interval}; use data.sampling.epoch_frames or "
                "data.split.train_fraction for shorter epochs"
            )
        if sampling.balance == "month" and not np.any(index.months()):
            raise ValueError("data.sampling.balance must be none or clip because no frame's month is known, got month")
        if sampling.repeat_scope == "month" and not np.any(index.months()):
            raise ValueError("data.sampling.repeat_scope must be split because no frame's month is known, got month")
        self.frames = len(index)
        self.sampling = sampling
        self.seed = seed
        self.settings: dict[str, Any] = {"seed": seed} | {
            f"sampling.{name}": list(value) if isinstance(value, tuple) else value
            for name, value in asdict(sampling).items()
        }
        clips = index.clips()
        groups = {"none": np.zeros_like(clips), "clip": clips, "month": index.months()}[sampling.balance]
        self._by_time = np.lexsort((index.positions_in_clip(), clips, groups))
        months = index.months() if sampling.repeat_scope == "month" else None
        repeats = repeat_factors(index.box_offsets(), index.all_labels(), sampling.repeat_threshold, months)
        if sampling.every_frame_of:
            repeats[frames_with(index, sampling.every_frame_of)] *= sampling.frame_interval
        weights = sampling_weights(repeats, groups, sampling.frame_interval)
        self._weights_by_time = weights[self._by_time]
        self.pass_length = round(weights.sum())
        self.length = sampling.epoch_frames or self.pass_length

    def indices(self, epoch: int) -> Integers:
        """Return `(length,)` frame indices of `epoch` in training order; a frame may occur several times."""
        first, stop = epoch * self.length, (epoch + 1) * self.length
        passes = range(first // self.pass_length, -(-stop // self.pass_length))
        start = first - passes.start * self.pass_length
        return np.concatenate([self._pass(number) for number in passes])[start : start + self.length]

    def _pass(self, number: int) -> Integers:
        offset = grid_offset(self.seed, number, self.sampling.frame_interval)
        counts = np.empty(self.frames, dtype=np.int64)
        counts[self._by_time] = systematic_counts(self._weights_by_time, offset, self.pass_length)
        chosen = np.repeat(np.arange(self.frames), counts)
        return chosen[np.random.default_rng((ORDER_STREAM, self.seed, number)).permutation(len(chosen))]

    def describe(self) -> str:
        parts = [f"epoch: {self.length:,} of {self.frames:,} frames"]
        most = ceil(self._weights_by_time.max() - 1e-9)
        if most > 1:
            parts.append(f"a frame up to {most} times")
        if self.length != self.pass_length:
            parts.append(f"{self.pass_length / self.length:.2f} epochs per pass of {self.pass_length:,}")
        return ", ".join(parts)


def repeat_factors(
    box_offsets: npt.NDArray[np.integer[Any]],
    labels: npt.NDArray[np.integer[Any]],
    threshold: float,
    months: npt.NDArray[np.integer[Any]] | None = None,
) -> Weights:
    """Return the `(N,)` repeat factor, >= 1, of each frame; arguments as in `SplitIndex`, rule as in `Sampling`.

    With `months` `(N,)`, the frequency of a class is that among the frames of the same month.
    """
    frames = len(box_offsets) - 1
    if not threshold or not len(labels):
        return np.ones(frames)
    holds = np.zeros((frames, int(labels.max()) + 1), dtype=np.bool_)
    holds[np.repeat(np.arange(frames), np.diff(box_offsets)), labels] = True
    factors: Weights = np.ones(frames)
    for members in [slice(None)] if months is None else [months == month for month in np.unique(months)]:
        part = holds[members]
        frequency = np.maximum(part.sum(axis=0), 1) / len(part)
        factors[members] = np.where(part, np.sqrt(threshold / frequency), 1.0).max(axis=1)
    return np.maximum(factors, 1.0)


def frames_with(index: "SplitIndex", names: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Return `(N,)` whether a frame contains an object of one of these classes."""
    for name in names:
        if name not in index.facts.class_names:
            known = ", ".join(index.facts.class_names)
            raise ValueError(f"data.sampling.every_frame_of must contain names of classes ({known}), got {name!r}")
    labels = [index.facts.class_names.index(name) for name in names]
    found = np.zeros(len(index), dtype=np.bool_)
    owners = np.repeat(np.arange(len(index)), np.diff(index.box_offsets()))
    found[owners[np.isin(index.all_labels(), labels)]] = True
    return found


def sampling_weights(repeats: Weights, groups: npt.NDArray[np.integer[Any]], frame_interval: int) -> Weights:
    """Return the `(N,)` expected number of times that each frame occurs in a pass; the sum is an integer.

    Args:
        repeats: `(N,)` repeat factors.
        groups: `(N,)` integer; all groups get the same share of a pass.
        frame_interval: Divisor of the length of a pass, which is rounded up. With one group, each weight is at least
            1 / `frame_interval`, so that `frame_interval` passes contain every frame.
    """
    _, members = np.unique(groups, return_inverse=True)
    # Sequential sums, because the last bit of NumPy's pairwise sums depends on the processor.
    sums = np.bincount(members, weights=repeats)
    length = ceil(np.cumsum(sums)[-1] / frame_interval)
    weights: Weights = repeats * (length / len(sums) / sums[members])
    return weights


def systematic_counts(weights: Weights, offset: float, length: int) -> Integers:
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


def occurrences(indices: Integers) -> Integers:
    """Return, for each position of `indices`, how many earlier positions have the same index."""
    by_index = np.argsort(indices, kind="stable")
    ordered = indices[by_index]
    starts_run = np.diff(ordered, prepend=-1) != 0
    places = np.arange(len(indices))
    result = np.empty(len(indices), dtype=np.int64)
    result[by_index] = places - np.maximum.accumulate(np.where(starts_run, places, 0))
    return result
