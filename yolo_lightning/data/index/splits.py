"""Division of a dataset into training and validation frames by whole clips.

Consecutive frames of a clip are near duplicates. Therefore frames of one clip are never divided between training and
validation, and a fraction of a split consists of whole clips.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Literal

import numpy as np

from yolo_lightning.data.array_types import Int32Array, Int64Array, IntegerArray
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.errors import UserError
from yolo_lightning.utils.choices import settings_group

Split = Literal["train", "valid", "test", "predict"]
SPLITS_OF_STAGE: dict[str, tuple[Split, ...]] = {
    "fit": ("train", "valid"),
    "validate": ("valid",),
    "test": ("test",),
    "predict": ("predict",),
}


@settings_group("data.split", train_fraction="> 0, <= 1", valid_fraction="> 0, <= 1", valid_share="> 0, < 1")
class Shares:
    """Fractions of the clips that are used. For datasets without clips (COCO, YOLO), fractions refer to images.

    Attributes:
        train_fraction: Fraction of each month's clips to train on, > 0 and <= 1. The subset consists of whole clips, at
            least one per month, is the same for every seed and is contained in every larger subset. Frames outside the
            subset need not be on the disk.
        valid_fraction: Fraction of each month's clips to validate on. `test` and `predict` always use the whole file.
        valid_share: Fraction of each month's clips of `files.train` that is used for validation instead of training,
            > 0 and < 1. Requires `files.valid: null`; replaces the `val` of a `data.yaml`.
    """

    train_fraction: float = 1.0
    valid_fraction: float = 1.0
    valid_share: float | None = None

    def part(self, split: Split, index: SplitIndex) -> SplitIndex:
        """Return the clips of the file `index` that `split` uses."""
        if self.valid_share is not None and split in ("train", "valid"):
            train_index, valid_index = hold_out(index, self.valid_share)
            index = valid_index if split == "valid" else train_index
        fractions = {"train": self.train_fraction, "valid": self.valid_fraction}
        return subset(index, fractions.get(split, 1.0))


def clip_months(index: SplitIndex) -> tuple[Int32Array, Int32Array]:
    """Return the number of each clip, ascending, and the month of its first frame as YYYYMM, 0 if unknown."""
    numbers, first = np.unique(index.clips(), return_index=True)
    return numbers, index.months()[first]


def choose_clips(index: SplitIndex, fraction: float) -> Int32Array:
    """Return the numbers of a fraction of each month's clips, at least one per month; see `of_each_month`."""
    numbers, months = clip_months(index)
    return numbers[of_each_month([index.clip_name(number) for number in numbers.tolist()], months, fraction)]


def of_each_month(clip_names: Sequence[str], months: IntegerArray, fraction: float) -> Int64Array:
    """Return the positions of a fraction of each month's clips, at least one per month.

    Within a month, clips are taken in the order of a hash of their names. Thus the choice is independent of any seed,
    and a larger fraction contains every smaller one.
    """
    ranks = np.array([sha256(name.encode()).hexdigest() for name in clip_names])
    chosen = [np.zeros(0, dtype=np.int64)]
    for month in np.unique(months):
        members = np.flatnonzero(months == month)
        count = max(1, round(fraction * len(members)))
        chosen.append(members[np.argsort(ranks[members], kind="stable")[:count]])
    return np.concatenate(chosen)


def subset(index: SplitIndex, fraction: float) -> SplitIndex:
    """Return a fraction of the clips of a split; see `choose_clips`."""
    if fraction == 1:
        return index
    return index.of_clips(choose_clips(index, fraction))


def hold_out(index: SplitIndex, fraction: float) -> tuple[SplitIndex, SplitIndex]:
    """Divide a file into clips for training and a fraction of each month's clips for validation.

    At least one clip of each month remains for training.
    """
    numbers, months = clip_months(index)
    held_out = np.isin(numbers, choose_clips(index, fraction))
    for month in np.unique(months):
        members = np.flatnonzero(months == month)
        if held_out[members].all():
            held_out[members[-1]] = False
    if not held_out.any():
        raise UserError(
            f"data.split.valid_share is {fraction}, but no month has two clips, so no clip can be held out: "
            "set data.files.valid instead"
        )
    return index.of_clips(numbers[~held_out]), index.of_clips(numbers[held_out])


def describe_split(index: SplitIndex) -> str:
    whole = SplitIndex(index.folder)

    def part(count: int, total: int) -> str:
        return f"{count:,}" if count == total else f"{count:,} of {total:,}"

    if not index.facts.has_clips:
        return f"{part(len(index), len(whole))} images"
    months = np.unique(index.months())
    months = months[months > 0]
    span = f"{len(months)} months from {months[0]} to {months[-1]}" if len(months) else "months unknown"
    clips = part(len(clip_months(index)[0]), len(clip_months(whole)[0]))
    return f"{part(len(index), len(whole))} frames, {clips} clips, {span}"
