"""Which frames are trained on and which are validated on, by whole clips.

Consecutive frames are near duplicates, so a clip is never divided between them, and a part of a split is a part of
its clips.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

import numpy as np
import numpy.typing as npt

from yolo_lightning.data.index.annotation_index import SplitIndex
from yolo_lightning.data.index.clip_subset import ClipSubset
from yolo_lightning.data.sampling.sampling_rules import FrameTable

Mask = npt.NDArray[np.bool_]
Split = Literal["train", "valid", "test", "predict"]


@dataclass(frozen=True)
class Shares:
    """Shares of the clips that are used.

    Attributes:
        train_fraction: Share of the clips to train on; see `choose_clips`.
        valid_fraction: Share of the clips to validate on.
        valid_share: Share of the clips of the training split to hold out for validation; see `hold_out`.

    Raises:
        ValueError: If a share is out of range.
    """

    train_fraction: float = 1.0
    valid_fraction: float = 1.0
    valid_share: float | None = None

    def __post_init__(self) -> None:
        for name in ("train_fraction", "valid_fraction"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"data.{name} is {getattr(self, name)}, allowed are values above 0 up to 1")
        if self.valid_share is not None and not 0 < self.valid_share < 1:
            raise ValueError(f"data.valid_share is {self.valid_share}, allowed are values between 0 and 1, or null")

    def part(self, split: Split, index: SplitIndex) -> SplitIndex:
        """The clips that `split` uses of the file that it is taken from.

        Raises:
            ValueError: If nothing can be held out.
        """
        if self.valid_share is not None and split in ("train", "valid"):
            remaining, held_out = hold_out(index, self.valid_share)
            index = remaining if split == "train" else held_out
        return subset(index, {"train": self.train_fraction, "valid": self.valid_fraction}.get(split, 1.0))


def choose_clips(index: SplitIndex, share: float, candidates: Mask | None = None) -> Mask:
    """A share of the clips of each month, at least one of each, whatever the seed; a larger share holds a smaller one.

    Within a month, clips are taken in the order of a hash of their names.

    Args:
        index: A whole file.
        share: Of the clips of each month, 0 to 1.
        candidates: `(number of clips,)` bool, the clips to choose from; null are all.

    Returns:
        `(number of clips,)` bool.
    """
    months = clip_months(index)
    chosen = np.zeros(len(months), dtype=np.bool_)
    allowed = np.ones(len(months), dtype=np.bool_) if candidates is None else candidates
    ranks = np.array([sha256(index.clip_name(number).encode()).hexdigest() for number in range(len(months))])
    for month in np.unique(months[allowed]):
        members = np.flatnonzero(allowed & (months == month))
        count = max(1, round(share * len(members)))
        chosen[members[np.argsort(ranks[members], kind="stable")[:count]]] = True
    return chosen


def clip_months(index: SplitIndex) -> npt.NDArray[np.int32]:
    """`(number of clips,)` month of each clip, that of its first frame in the file, as YYYYMM; 0 where unknown."""
    _, first = np.unique(index.clips(), return_index=True)
    return index.months()[first]


def subset(index: SplitIndex, share: float) -> SplitIndex:
    """A share of the clips of a split, which may be a part of a file; see `choose_clips`."""
    if share == 1:
        return index
    whole = SplitIndex(index.folder)
    candidates = np.zeros(len(clip_months(whole)), dtype=np.bool_)
    candidates[index.clips()] = True
    return ClipSubset.of(whole, choose_clips(whole, share, candidates))


def hold_out(index: SplitIndex, share: float) -> tuple[SplitIndex, SplitIndex]:
    """Split a file into the clips to train on and a share to validate on; see `choose_clips`.

    Args:
        index: A whole file.
        share: Of the clips of each month; a month with a single clip is trained on.

    Raises:
        ValueError: If that leaves nothing to validate on.
    """
    months = clip_months(index)
    held_out = choose_clips(index, share)
    for month in np.unique(months):
        members = np.flatnonzero(months == month)
        if held_out[members].all():
            held_out[members[-1]] = False
    if not held_out.any():
        raise ValueError(
            f"data.valid_share is {share}, but no month has two clips of which one could be held out; "
            "name a validation split instead"
        )
    return ClipSubset.of(index, ~held_out), ClipSubset.of(index, held_out)


def frame_table(index: SplitIndex) -> FrameTable:
    """What sampling needs to know of a split."""
    return FrameTable(
        clips=index.clips(),
        positions_in_clip=index.positions_in_clip(),
        months=index.months(),
        box_offsets=index.box_offsets(),
        labels=index.all_labels(),
        has_clips=index.has_clips,
    )


def describe_split(index: SplitIndex) -> str:
    """Size of a split, in one line for the log."""
    whole = SplitIndex(index.folder)

    def part(found: int, of: int) -> str:
        return f"{found:,}" if found == of else f"{found:,} of {of:,}"

    if not index.has_clips:
        return f"{part(len(index), len(whole))} images"
    months = np.unique(index.months())
    known = months[months > 0]
    span = f"{len(known)} months from {known[0]} to {known[-1]}" if len(known) else "months unknown"
    return (
        f"{part(len(index), len(whole))} frames, "
        f"{part(len(np.unique(index.clips())), len(np.unique(whole.clips())))} clips, {span}"
    )
