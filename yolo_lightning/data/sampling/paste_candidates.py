"""Objects for box paste, by month and class, so that an object of a class and month is drawn in constant time."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from yolo_lightning.data.index.split_index import SplitIndex


class AnnotatedObject(NamedTuple):
    """An annotated object of a split."""

    frame: int  # Index of the frame in the split
    box: int  # Position of the box among the boxes of the frame


class PasteCandidates:
    """Objects of a training split with one of the classes `names`, with any class if `names` is empty.

    A pickle does not contain the positions. Each process derives them on the first draw, with four bytes per box of the
    chosen classes.

    Raises:
        ValueError: If a name is not a class of the dataset, or no box has one of the classes.
    """

    def __init__(self, index: SplitIndex, names: Sequence[str]) -> None:
        known = index.facts.class_names
        for name in names:
            if name not in known:
                raise ValueError(f"data.augmentation.paste.classes must be names of {', '.join(known)}, got {name!r}")
        self.index = index
        self.classes = sorted({known.index(name) for name in names}) or range(len(known))
        if not np.isin(index.all_labels(), self.classes).any():
            raise ValueError(
                "data.augmentation.paste.classes must contain a class that occurs in the training split, got "
                f"{', '.join(known[label] for label in self.classes)}"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {"index": self.index, "classes": self.classes}

    @cached_property
    def positions(self) -> dict[int, list[npt.NDArray[np.int32]]]:
        """Positions of the objects among all boxes of the split: by month, YYYYMM, one array per class that occurs."""
        labels = self.index.all_labels()
        months = np.repeat(self.index.months(), np.diff(self.index.box_offsets()))
        found = {}
        for month in np.unique(self.index.months()).tolist():
            by_class = [np.flatnonzero((months == month) & (labels == label)) for label in self.classes]
            found[month] = [boxes.astype(np.int32) for boxes in by_class if len(boxes)]
        return found

    @cached_property
    def box_offsets(self) -> npt.NDArray[np.int64]:
        """`(N + 1,)` as in `SplitIndex`, which computes the array of a part anew at each call."""
        return self.index.box_offsets()

    def draw(self, month: int, generator: np.random.Generator) -> AnnotatedObject | None:
        """Return a random object of `month`, YYYYMM: a class that occurs in the month, then one of its objects.

        Returns None if the month has no object of the chosen classes.
        """
        present = self.positions[month]
        if not present:
            return None
        boxes = present[generator.integers(len(present))]
        box = int(boxes[generator.integers(len(boxes))])
        frame = int(np.searchsorted(self.box_offsets, box, side="right")) - 1
        return AnnotatedObject(frame, box - int(self.box_offsets[frame]))
