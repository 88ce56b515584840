"""Check of a submission: every record is checked, each problem has a count and an example."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from yolo_lightning.challenge.content import (
    CATEGORY_IDS,
    LTDV2_FRAME_SIZE,
    Content,
    SubmissionProblem,
    SubmissionReport,
    Template,
    problems_of,
)
from yolo_lightning.challenge.reading import read_submission
from yolo_lightning.data.array_types import BoolArray
from yolo_lightning.data.formats.image_ids import ID_DIGITS

ID = re.compile(rf"\d{{{ID_DIGITS}}}")
LEAST_SHARE = 0.5
"""Minimum fraction of the split's ids in a file that is scored in spite of missing and foreign ids."""

LARGEST_SHARE = 1.5  # if no coordinate of a file is larger, the boxes are fractions of the frame


def check_submission(path: Path, template: Template | None = None) -> SubmissionReport:
    """Check a JSON or zip file; `template` contains the frames that the file must contain, None omits this check."""
    report = read_submission(path)
    if report.content is None:
        return report
    return replace(report, problems=(*report.problems, *_check_content(report.content, template)))


def _check_content(content: Content, template: Template | None) -> list[SubmissionProblem]:
    """Return the problems of the content."""
    problems = _check_format_of_ids(content.image_ids) if template is None else _check_ids(content, template)
    if not len(content.scores):
        return [*problems, SubmissionProblem("no image has a detection", len(content.image_ids), "", tolerated=True)]
    not_finite = ~(np.isfinite(content.boxes).all(axis=1) & np.isfinite(content.scores) & np.isfinite(content.labels))
    problems += _of_detections(content, not_finite, "detections contain NaN, Infinity or null")
    problems += _check_boxes(content, LTDV2_FRAME_SIZE if template is None else template.frame_size)
    wrong = np.isfinite(content.labels) & ~np.isin(content.labels, CATEGORY_IDS)
    problems += _of_detections(content, wrong, _wrong_labels(content))
    invalid = (content.scores < 0) | (content.scores > 1)
    return problems + _of_detections(content, invalid, "scores are not between 0 and 1", tolerated=True)


def _of_detections(
    content: Content, detections: BoolArray, what: str, *, tolerated: bool = False
) -> list[SubmissionProblem]:
    """Return the problem of some detections; nothing if there are none."""
    if not detections.any():
        return []
    return [SubmissionProblem(what, int(detections.sum()), content.first(detections), tolerated=tolerated)]


def _check_format_of_ids(image_ids: Sequence[str]) -> list[SubmissionProblem]:
    """Return the problems of ids that can be found without a template."""
    wrong_ids = [image_id for image_id in image_ids if not ID.fullmatch(image_id)]
    what = f"keys are not ids of {ID_DIGITS} digits (a conversion to a floating-point number rounds an id)"
    return problems_of(what, wrong_ids)


def _check_ids(content: Content, template: Template) -> list[SubmissionProblem]:
    """Return the problems of ids, given those of the split."""
    expected = frozenset(template.image_ids)
    present = frozenset(content.image_ids)
    foreign = [image_id for image_id in content.image_ids if image_id not in expected]
    missing = [image_id for image_id in template.image_ids if image_id not in present]
    is_this_split = len(present & expected) >= LEAST_SHARE * len(expected)
    return [
        *problems_of("ids do not belong to this split", foreign, tolerated=is_this_split),
        *problems_of("ids of the split are missing", missing, tolerated=is_this_split),
    ]


def _wrong_labels(content: Content) -> str:
    """Return the problem of labels other than the category ids."""
    labels = np.unique(content.labels[np.isfinite(content.labels)])
    listed = [f"{label:g}" for label in labels[:8]]
    if len(labels) > 8:
        listed.append("...")
    counts_from_0 = ", which count from 0 as in YOLO" if np.isin(labels + 1, CATEGORY_IDS).all() else ""
    return f"labels must be {', '.join(map(str, CATEGORY_IDS))}, got {', '.join(listed)}{counts_from_0}"


def _check_boxes(content: Content, frame_size: tuple[int, int] | None) -> list[SubmissionProblem]:
    """Return the problems of boxes; `frame_size` is width and height in pixels, None if frames differ."""
    boxes = content.boxes
    finite = boxes[np.isfinite(boxes).all(axis=1)]
    if (finite != 0).any() and np.abs(finite).max() <= LARGEST_SHARE:
        what = f"boxes are fractions of the frame instead of pixels: no coordinate exceeds {LARGEST_SHARE}"
        return _of_detections(content, np.ones(len(boxes), np.bool_), what, tolerated=True)
    inverted = (boxes[:, 2] < boxes[:, 0]) | (boxes[:, 3] < boxes[:, 1])
    what = "boxes must be corners x1, y1, x2, y2 (not corner and size as in COCO), but have x2 < x1 or y2 < y1"
    problems = _of_detections(content, inverted, what, tolerated=True)
    empty = (boxes[:, 2] == boxes[:, 0]) | (boxes[:, 3] == boxes[:, 1])
    problems += _of_detections(content, empty, "boxes have no area", tolerated=True)
    if frame_size:
        outside = ((boxes[:, :2] >= frame_size) | (boxes[:, 2:] <= 0)).any(axis=1) & ~empty
        size = f"{frame_size[0]} x {frame_size[1]}"
        what = f"boxes are outside the frame of {size} pixels, possibly because they refer to another frame size"
        problems += _of_detections(content, outside, what, tolerated=True)
    return problems
