"""An answer file in memory: ids and flat arrays, and what can be wrong with it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

import numpy as np
import numpy.typing as npt

FIRST_CATEGORY_ID = 1
CATEGORY_IDS = (1, 2, 3, 4)
"""Person, bicycle, motorcycle, vehicle."""
LTDV2_FRAME_SIZE = (384, 288)
"""Width and height in pixels."""

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Template:
    """The frames that must be answered for.

    Attributes:
        image_ids: Their ids, in order.
        frame_size: Width and height that all of them share, pixels; null if they differ.
    """

    image_ids: tuple[str, ...]
    frame_size: tuple[int, int] | None = LTDV2_FRAME_SIZE


@dataclass(frozen=True, slots=True)
class Truth:
    """The frames of a split with their annotated objects.

    Attributes:
        template: The frames.
        owners: `(G,)` int64, ascending, number of the frame that each object is in.
        boxes: `(G, 4)` float64, xyxy, pixels.
        labels: `(G,)` int64, 1 to 4.
    """

    template: Template
    owners: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.float64]
    labels: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Content:
    """F answered frames with D detections in all.

    Attributes:
        image_ids: F keys as they stand in the file.
        counts: `(F,)` int64, detections of each frame.
        boxes: `(D, 4)` float64 as they stand in the file; right are xyxy, pixels of the frame. NaN for null.
        scores: `(D,)` float64, likewise; right are 0 to 1.
        labels: `(D,)` float64, likewise; right are 1 to 4.
    """

    image_ids: tuple[str, ...]
    counts: npt.NDArray[np.int64]
    boxes: Floats
    scores: Floats
    labels: Floats

    def owners(self) -> npt.NDArray[np.int64]:
        """`(D,)`, number of the frame that each detection belongs to."""
        return np.repeat(np.arange(len(self.image_ids)), self.counts)

    def keeping(self, detections: Flags) -> Self:
        """All frames with the chosen, `(D,)` bool, detections only."""
        counts = np.bincount(self.owners()[detections], minlength=len(self.image_ids))
        return replace(
            self,
            counts=counts,
            boxes=self.boxes[detections],
            scores=self.scores[detections],
            labels=self.labels[detections],
        )

    def record(self, detection: int) -> str:
        """A detection in words: frame, place in its lists, values."""
        frame = int(np.searchsorted(np.cumsum(self.counts), detection, side="right"))
        place = detection - int(self.counts[:frame].sum())
        box = ", ".join(f"{side:g}" for side in self.boxes[detection])
        return (
            f"image {self.image_ids[frame]}, detection {place}: box [{box}], score {self.scores[detection]:g}, "
            f"label {self.labels[detection]:g}"
        )


class Certainty(StrEnum):
    """How sure it is that something is wrong."""

    CERTAIN = "certain"
    LIKELY = "likely"
    NOTE = "note"  # nothing is wrong, but one should know


Repair = Callable[[Content], Content]


@dataclass(frozen=True, slots=True)
class SubmissionProblem:
    """Something wrong with an answer file.

    Attributes:
        what: In words.
        count: How many records have it.
        example: The first of them, or the first few, one a line.
        certainty: How sure it is.
        remedy: What `repair` does, in words; empty without one.
        repair: Mends the content where that needs no guess; null otherwise.
        tolerated: Whether the organisers' evaluation puts up with it.
    """

    what: str
    count: int
    example: str
    certainty: Certainty = Certainty.CERTAIN
    remedy: str = ""
    repair: Repair | None = None
    tolerated: bool = False

    @property
    def is_wrong(self) -> bool:
        """Whether the file should not be handed in like this."""
        return self.certainty is not Certainty.NOTE


def same(content: Content) -> Content:
    """The repair of what is mended by writing the file again."""
    return content
