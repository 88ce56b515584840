"""Objects for box paste, by month and class, so that an object of a class and month is drawn in constant time."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from yolo_lightning.data.index.split_index import SplitIndex


class AnnotatedObject(NamedTuple):
    """An annotated object of a split."""

    frame: int  # Index of the frame in the split
    box: int  # Position of the box among the boxes of the frame


class Objects(NamedTuple):
    """Boxes of the chosen classes, grouped by month and class."""

    months: npt.NDArray[np.int32]  # `(G,)` ascending, YYYYMM, 0 for unknown months
    boxes: npt.NDArray[np.int32]  # `(M,)` positions among all boxes of the split
    starts: npt.NDArray[np.int64]  # `(G, C + 1)`; month g, class c has `boxes[starts[g, c]:starts[g, c + 1]]`
    box_offsets: npt.NDArray[np.int64]  # `(N + 1,)` as in `SplitIndex`


@dataclass(frozen=True)
class PasteCandidates:
    """Objects of the given classes, class indices from 0, of a training split.

    Pickles as the two attributes. Each process derives the grouped positions on the first draw: four bytes per box of
    the chosen classes.
    """

    index: SplitIndex
    classes: tuple[int, ...]

    def __getstate__(self) -> dict[str, Any]:
        return {"index": self.index, "classes": self.classes}

    @cached_property
    def objects(self) -> Objects:
        labels, offsets = self.index.all_labels(), self.index.box_offsets()
        months, groups = np.unique(self.index.months(), return_inverse=True)
        count = len(self.index.facts.class_names)
        is_chosen = np.isin(np.arange(count), self.classes)
        boxes = np.flatnonzero(is_chosen[labels]).astype(np.int32)
        frames = np.repeat(np.arange(len(groups), dtype=np.int32), np.diff(offsets))[boxes]
        keys = groups[frames] * count + labels[boxes]
        by_key = np.argsort(keys, kind="stable")
        bounds = np.searchsorted(keys[by_key], np.arange(len(months) * count + 1))
        places = np.arange(len(months))[:, None] * count + np.arange(count + 1)
        return Objects(months, boxes[by_key], bounds[places], offsets)

    def draw(self, month: int, generator: np.random.Generator) -> AnnotatedObject | None:
        """Return a random object of `month`, YYYYMM: a class that occurs in the month, then one of its objects.

        Returns None if the month has no object of the chosen classes.
        """
        starts = self.objects.starts[np.searchsorted(self.objects.months, month)]
        present = np.flatnonzero(np.diff(starts))
        if not len(present):
            return None
        label = present[generator.integers(len(present))]
        box = int(self.objects.boxes[generator.integers(starts[label], starts[label + 1])])
        frame = int(np.searchsorted(self.objects.box_offsets, box, side="right")) - 1
        return AnnotatedObject(frame, box - int(self.objects.box_offsets[frame]))

    def describe(self) -> str:
        counts = np.diff(self.objects.starts).sum(axis=0)
        parts = [f"{counts[label]:,} {self.index.facts.class_names[label]}" for label in self.classes]
        return f"objects for box paste: {', '.join(parts)}"


def paste_candidates(index: SplitIndex, names: Sequence[str]) -> PasteCandidates:
    """Return the objects of the classes with these names, of all classes if `names` is empty.

    Raises:
        ValueError: If a name is not a class of the dataset, or no box has one of the classes.
    """
    known = index.facts.class_names
    for name in names:
        if name not in known:
            raise ValueError(f"data.augmentation.paste.classes must be names of {', '.join(known)}, got {name!r}")
    classes = tuple(sorted({known.index(name) for name in names})) or tuple(range(len(known)))
    if not np.isin(index.all_labels(), classes).any():
        raise ValueError(
            "data.augmentation.paste.classes must contain a class that occurs in the training split, got "
            f"{', '.join(known[label] for label in classes)}"
        )
    return PasteCandidates(index, classes)
