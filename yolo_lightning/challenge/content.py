"""Content of a submission, or ground truth, as flat arrays, and the problems that a check finds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from yolo_lightning.data.array_types import AnyArray, BoolArray, Float64Array, Int64Array

CATEGORY_IDS = (1, 2, 3, 4)  # person, bicycle, motorcycle, vehicle
LTDV2_FRAME_SIZE = (384, 288)  # width and height in pixels


@dataclass(frozen=True, slots=True)
class Template:
    """The frames that a submission must contain: their ids in order, and their common width and height in pixels."""

    image_ids: tuple[str, ...]
    frame_size: tuple[int, int] | None = LTDV2_FRAME_SIZE


@dataclass(frozen=True, slots=True)
class Content:
    """F frames with D detections, or with D annotated objects of score 1."""

    image_ids: tuple[str, ...]  # F keys of the file
    owners: Int64Array  # `(D,)` int64, ascending, position of each detection's frame
    boxes: Float64Array  # `(D, 4)` float64 as in the file, NaN for null; valid boxes are xyxy, pixels of the frame
    scores: Float64Array  # `(D,)` float64 as in the file, NaN for null; valid scores are 0 to 1
    labels: Float64Array  # `(D,)` float64 as in the file, NaN for null; valid labels are 1 to 4

    def take(self, detections: AnyArray) -> Self:
        """Return all frames with the detections of a boolean mask or an index array."""
        fields = ("owners", "boxes", "scores", "labels")
        return replace(self, **{name: getattr(self, name)[detections] for name in fields})

    def with_frames(self, image_ids: Sequence[str]) -> Self:
        """Return exactly these frames in this order; frames that this content lacks have no detections."""
        positions = {image_id: position for position, image_id in enumerate(image_ids)}
        moved = np.array([positions.get(image_id, -1) for image_id in self.image_ids], dtype=np.int64)[self.owners]
        order = np.argsort(moved, kind="stable")
        return replace(self, image_ids=tuple(image_ids), owners=moved).take(order[moved[order] >= 0])

    def first(self, detections: BoolArray) -> str:
        """Return a description of the first of some detections: image id, position in the frame, values."""
        detection = int(np.flatnonzero(detections)[0])
        frame = self.owners[detection]
        place = detection - int(np.searchsorted(self.owners, frame))
        box = ", ".join(f"{side:g}" for side in self.boxes[detection])
        return (
            f"image {self.image_ids[frame]}, detection {place}: box [{box}], score {self.scores[detection]:g}, "
            f"label {self.labels[detection]:g}"
        )


@dataclass(frozen=True, slots=True)
class SubmissionProblem:
    """A problem of a submission."""

    what: str
    count: int  # number of records with the problem
    example: str  # first of these records
    tolerated: bool = False  # whether the organisers' evaluation accepts the file nevertheless


def problems_of(what: str, examples: Sequence[str], *, tolerated: bool = False) -> list[SubmissionProblem]:
    """Return the problem of some records, given a description of each; nothing without records."""
    if not examples:
        return []
    return [SubmissionProblem(what, len(examples), examples[0], tolerated)]


@dataclass(frozen=True, slots=True)
class SubmissionReport:
    """Result of reading or checking a file."""

    content: Content | None  # readable part; None if the file cannot be read
    problems: tuple[SubmissionProblem, ...]
