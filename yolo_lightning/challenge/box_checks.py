"""Checks of box layout, unit and position."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from yolo_lightning.challenge.content import Certainty, Content, Flags, Floats, SubmissionProblem

LAYOUTS = {
    "xyxy": "corners",
    "xywh": "corner, width and height (COCO's layout)",
    "cxcywh": "centre, width and height (YOLO's layout)",
}
SLACK = 1.0
"""Pixels by which boxes of a layout may extend beyond the frame."""
NAMED_BOXES = 5
LARGEST_SHARE = 1.5
"""If no coordinate of a file is larger, the boxes are fractions of the frame."""


def check_boxes(content: Content, frame_size: tuple[int, int] | None, is_results_list: bool) -> list[SubmissionProblem]:
    """Return the problems of the finite boxes.

    Args:
        content: Content of the file.
        frame_size: Width and height of the frames, pixels; None if they differ.
        is_results_list: Whether the boxes are x, y, width, height by definition (COCO results list).
    """
    finite = np.isfinite(content.boxes).all(axis=1)
    if not finite.any():
        return []
    boxes = content.boxes[finite]
    are_fractions = bool(np.abs(boxes).max() <= LARGEST_SHARE and (boxes != 0).any())
    unit = (frame_size or (1, 1)) if are_fractions else (1, 1)
    fitting = [layout for layout in LAYOUTS if frame_size and fits(corners(boxes, layout, unit), frame_size)]
    inverted = is_inverted(content.boxes)
    if are_fractions or is_results_list or (inverted.any() and fitting and "xyxy" not in fitting):
        example = content.first(inverted) if inverted.any() and not are_fractions else content.record(0)
        return [layout_problem(content, example, fitting, unit, are_fractions, is_results_list)]
    problems = []
    if inverted.any():
        what = "boxes have x2 < x1 or y2 < y1, and no layout fits all boxes"
        example = content.first(inverted, NAMED_BOXES)
        problems.append(SubmissionProblem(what, int(inverted.sum()), example, tolerated=True))
    empty = is_empty(content.boxes)
    if empty.any():
        problems.append(
            SubmissionProblem(
                "boxes have no area",
                int(empty.sum()),
                content.first(empty, NAMED_BOXES),
                Certainty.LIKELY,
                "drop them, because they cannot match an object",
                lambda content: content.take(~is_empty(content.boxes)),
                tolerated=True,
            )
        )
    if frame_size:
        outside = ((content.boxes[:, :2] >= frame_size) | (content.boxes[:, 2:] <= 0)).any(axis=1) & ~empty
        if outside.any():
            size = f"{frame_size[0]} x {frame_size[1]}"
            what = f"boxes are outside the frame of {size} pixels, possibly because they refer to another frame size"
            first = content.first(outside)
            problems.append(SubmissionProblem(what, int(outside.sum()), first, Certainty.LIKELY, tolerated=True))
    return problems


def layout_problem(
    content: Content,
    example: str,
    fitting: Sequence[str],
    unit: tuple[int, int],
    are_fractions: bool,
    is_results_list: bool,
) -> SubmissionProblem:
    """Return the problem of boxes that are not corners in pixels, with a repair if only one layout fits the frame."""
    layout = fitting[0] if len(fitting) == 1 else ""
    if layout == "cxcywh" and is_results_list and not are_fractions:
        layout = ""
    if are_fractions:
        what = f"boxes are fractions of the frame: no coordinate exceeds {LARGEST_SHARE}"
        remedy = f"interpret them as {layout} and multiply them by {unit[0]} and {unit[1]}"
    elif layout == "xyxy":
        what = "boxes of the results list are corners instead of COCO's corner, width and height"
        remedy = "keep them; xyxy is the only layout in which all boxes are inside the frame"
    elif layout:
        what = f"boxes are {LAYOUTS[layout]}, not corners"
        remedy = f"compute corners; {layout} is the only layout in which all boxes are inside the frame"
    else:
        what = "boxes may not be corners"
    # The organisers' evaluation interprets boxes of an object keyed by image id as corners and rejects a results list.
    tolerated = are_fractions or not is_results_list
    if not layout:
        what += f"; the layout is ambiguous: {' or '.join(fitting) or 'none'} would fit the frame"
        return SubmissionProblem(what, len(content.boxes), example, tolerated=tolerated)

    def repair(content: Content) -> Content:
        return replace(content, boxes=corners(content.boxes, layout, unit))

    return SubmissionProblem(what, len(content.boxes), example, remedy=remedy, repair=repair, tolerated=tolerated)


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
    return bool(inside) and not is_inverted(boxes).any()


def is_inverted(boxes: Floats) -> Flags:
    return np.asarray((boxes[:, 2] < boxes[:, 0]) | (boxes[:, 3] < boxes[:, 1]))


def is_empty(boxes: Floats) -> Flags:
    return np.asarray((boxes[:, 2] == boxes[:, 0]) | (boxes[:, 3] == boxes[:, 1]))
