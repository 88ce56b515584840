"""Check of a submission: every record is checked, each problem has a count and an example."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from yolo_lightning.challenge.content import (
    CATEGORY_IDS,
    LTDV2_FRAME_SIZE,
    Certainty,
    Content,
    Flags,
    Floats,
    SubmissionProblem,
    SubmissionReport,
    Template,
)
from yolo_lightning.challenge.id_checks import check_against, check_alone
from yolo_lightning.challenge.reading import read_submission

FEWEST_LABELS = 3  # minimum number of different labels before a common offset of all labels is certain
FEWEST_DETECTIONS = 100  # minimum number of detections before class frequencies are compared

LAYOUTS = {
    "xyxy": "corners",
    "xywh": "corner, width and height (COCO's layout)",
    "cxcywh": "centre, width and height (YOLO's layout)",
}
SLACK = 1.0  # pixels by which boxes of a layout may extend beyond the frame
NAMED_BOXES = 5
LARGEST_SHARE = 1.5  # if no coordinate of a file is larger, the boxes are fractions of the frame


def check_submission(path: Path, template: Template | None = None) -> SubmissionReport:
    """Check a JSON or zip file; `template` contains the frames that the file must contain, None omits this check."""
    report = read_submission(path)
    if report.content is None:
        return report
    found = _check_content(report.content, template, is_results_list=report.is_results_list)
    return replace(report, problems=(*report.problems, *found))


def _check_content(
    content: Content, template: Template | None, *, is_results_list: bool = False
) -> list[SubmissionProblem]:
    """Return the problems of the content."""
    problems = check_alone(content.image_ids) if template is None else check_against(content, template)
    if not len(content.scores):
        return [*problems, SubmissionProblem("no image has a detection", len(content.image_ids), "", Certainty.LIKELY)]
    frame_size = LTDV2_FRAME_SIZE if template is None else template.frame_size
    problems += _of_detections(
        content,
        not_finite(content),
        "detections contain NaN, Infinity or null",
    )
    problems += check_boxes(content, frame_size, is_results_list)
    problems += check_labels(content)
    invalid = (content.scores < 0) | (content.scores > 1)
    return problems + _of_detections(content, invalid, "scores are not between 0 and 1")


def _of_detections(
    content: Content, detections: Flags, what: str, named: int = 1, **options: Any
) -> list[SubmissionProblem]:
    """Return the problem of some detections, of which it names the first ones; nothing if there are none."""
    if not detections.any():
        return []
    return [SubmissionProblem(what, int(detections.sum()), content.first(detections, named), **options)]


def not_finite(content: Content) -> Flags:
    return ~(np.isfinite(content.boxes).all(axis=1) & np.isfinite(content.scores) & np.isfinite(content.labels))


def check_labels(content: Content) -> list[SubmissionProblem]:
    """Return the problems of labels other than the category ids, or of class frequencies."""
    labels = content.labels
    wrong = np.isfinite(labels) & ~np.isin(labels, CATEGORY_IDS)
    if not wrong.any():
        return _check_frequencies(content)
    given, counts = np.unique(labels[np.isfinite(labels)], return_counts=True)
    listed = ", ".join(f"{label:g}" for label in given[:8]) + (", ..." if len(given) > 8 else "")
    what = f"labels must be {', '.join(map(str, CATEGORY_IDS))}, got {listed}"
    example = content.first(wrong)
    shifts = {1: ", which count from 0 as in YOLO", -1: ", which count from 2 as if background were a class"}
    found = [words for shift, words in shifts.items() if np.isin(given + shift, CATEGORY_IDS).all()]
    if len(found) != 1:
        return [SubmissionProblem(what, int(wrong.sum()), example)]
    is_sure = len(given) >= FEWEST_LABELS and counts[0] == counts.max()  # person is by far the most frequent class
    return [
        SubmissionProblem(what + found[0], len(labels), example, Certainty.CERTAIN if is_sure else Certainty.LIKELY)
    ]


def _check_frequencies(content: Content) -> list[SubmissionProblem]:
    """Return a note if motorcycles outweigh vehicles, which are 22 times as frequent: labels may be swapped."""
    motorcycle, vehicle = (float(content.scores[content.labels == label].sum()) for label in (3, 4))
    if len(content.labels) < FEWEST_DETECTIONS or not motorcycle > vehicle:
        return []
    what = "motorcycle (3) outweighs vehicle (4): the classes may be swapped"
    example = f"the sums of their scores are {motorcycle:.1f} and {vehicle:.1f}"
    return [SubmissionProblem(what, int((content.labels == 3).sum()), example, Certainty.NOTE)]


def check_boxes(content: Content, frame_size: tuple[int, int] | None, is_results_list: bool) -> list[SubmissionProblem]:
    """Return the problems of the finite boxes; `frame_size` is width and height in pixels, None if frames differ.

    With `is_results_list`, the boxes are x, y, width, height by definition (COCO results list).
    """
    finite = np.isfinite(content.boxes).all(axis=1)
    if not finite.any():
        return []
    boxes = content.boxes[finite]
    are_fractions = bool(np.abs(boxes).max() <= LARGEST_SHARE and (boxes != 0).any())
    unit = (frame_size or (1, 1)) if are_fractions else (1, 1)
    fitting = [layout for layout in LAYOUTS if frame_size and fits(corners(boxes, layout, unit), frame_size)]
    inverted = _is_inverted(content.boxes)
    if are_fractions or is_results_list or (inverted.any() and fitting and "xyxy" not in fitting):
        example = content.first(inverted) if inverted.any() and not are_fractions else content.record(0)
        return [_layout_problem(content, example, fitting, are_fractions, is_results_list)]
    what = "boxes have x2 < x1 or y2 < y1, and no layout fits all boxes"
    problems = _of_detections(content, inverted, what, NAMED_BOXES, tolerated=True)
    empty = is_empty(content.boxes)
    problems += _of_detections(
        content,
        empty,
        "boxes have no area",
        NAMED_BOXES,
        certainty=Certainty.LIKELY,
        tolerated=True,
    )
    if frame_size:
        outside = ((content.boxes[:, :2] >= frame_size) | (content.boxes[:, 2:] <= 0)).any(axis=1) & ~empty
        size = f"{frame_size[0]} x {frame_size[1]}"
        what = f"boxes are outside the frame of {size} pixels, possibly because they refer to another frame size"
        problems += _of_detections(content, outside, what, certainty=Certainty.LIKELY, tolerated=True)
    return problems


def _layout_problem(
    content: Content,
    example: str,
    fitting: Sequence[str],
    are_fractions: bool,
    is_results_list: bool,
) -> SubmissionProblem:
    """Return the problem of boxes that are not corners in pixels, with the layout if only one fits the frame."""
    layout = fitting[0] if len(fitting) == 1 else ""
    if layout == "cxcywh" and is_results_list and not are_fractions:
        layout = ""
    if are_fractions:
        what = f"boxes are fractions of the frame: no coordinate exceeds {LARGEST_SHARE}"
    elif layout == "xyxy":
        what = "boxes of the results list are corners instead of COCO's corner, width and height"
    elif layout:
        what = f"boxes are {LAYOUTS[layout]}, not corners"
    else:
        what = "boxes may not be corners"
    # The organisers' evaluation interprets boxes of an object keyed by image id as corners and rejects a results list.
    tolerated = are_fractions or not is_results_list
    if not layout:
        what += f"; the layout is ambiguous: {' or '.join(fitting) or 'none'} would fit the frame"
    return SubmissionProblem(what, len(content.boxes), example, tolerated=tolerated)


def corners(boxes: Floats, layout: str, unit: tuple[int, int] = (1, 1)) -> Floats:
    """Convert `(D, 4)` boxes of a layout of `LAYOUTS` to xyxy in pixels; `unit` is the unit of x and y, pixels."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if layout == "xywh":
        second = first + second
    elif layout == "cxcywh":
        first, second = first - second / 2, first + second / 2
    return np.asarray(np.concatenate((first, second), axis=1) * np.array([*unit, *unit], dtype=np.float64))


def fits(boxes: Floats, frame_size: tuple[int, int]) -> bool:
    """Return whether all xyxy boxes are inside the frame, up to the slack, and none is inverted."""
    inside = boxes.min() >= -SLACK and (boxes.reshape(-1, 2).max(axis=0) <= np.add(frame_size, SLACK)).all()
    return bool(inside) and not _is_inverted(boxes).any()


def _is_inverted(boxes: Floats) -> Flags:
    return np.asarray((boxes[:, 2] < boxes[:, 0]) | (boxes[:, 3] < boxes[:, 1]))


def is_empty(boxes: Floats) -> Flags:
    return np.asarray((boxes[:, 2] == boxes[:, 0]) | (boxes[:, 3] == boxes[:, 1]))
