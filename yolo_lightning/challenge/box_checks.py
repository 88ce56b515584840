"""Are the boxes of an answer file corners in pixels of the frame, and if not, what are they?"""

from functools import partial

import numpy as np

from yolo_lightning.challenge.content import Certainty, Content, Flags, Floats, SubmissionProblem, same
from yolo_lightning.challenge.repair import corners, with_corners, without_detections

LAYOUTS = ("xyxy", "xywh", "cxcywh")
LAYOUT_WORDS = {
    "xyxy": "corners",
    "xywh": "corner, width and height (COCO's layout)",
    "cxcywh": "centre, width and height (YOLO's layout)",
}
SLACK = 1.0
"""Pixels by which boxes may stand out of the frame before their layout is doubted."""
NAMED_BOXES = 5
"""Degenerate boxes that are named in one report."""
LARGEST_SHARE = 1.5
"""No coordinate of a file in pixels is as small as this everywhere; shares of the frame are."""


def check_boxes(content: Content, frame_size: tuple[int, int] | None, is_results_list: bool) -> list[SubmissionProblem]:
    """What is wrong with the finite boxes of the detections.

    Args:
        content: The file.
        frame_size: Width and height of the frames, pixels; null if they differ.
        is_results_list: Whether it is a COCO results list, whose boxes are x, y, width, height by definition.
    """
    finite = np.isfinite(content.boxes).all(axis=1)
    if not finite.any():
        return []
    boxes = content.boxes[finite]
    normalised = bool(np.abs(boxes).max() <= LARGEST_SHARE and (boxes != 0).any())
    scale = (1.0, 1.0) if not normalised else frame_size or (1, 1)
    fitting = [layout for layout in LAYOUTS if frame_size and fits(corners(boxes, layout, scale), frame_size)]
    inverted = is_inverted(content.boxes)
    if normalised:
        return [normalised_boxes(content, fitting, scale)]
    if is_results_list or (inverted.any() and fitting and "xyxy" not in fitting):
        return [other_layout(content, inverted, fitting, is_results_list)]
    problems = []
    if inverted.any():
        what = "boxes end before they begin (x2 < x1 or y2 < y1), and no layout fits all"
        problems.append(SubmissionProblem(what, int(inverted.sum()), first_records(content, inverted), tolerated=True))
    empty = is_empty(content.boxes)
    if empty.any():
        remedy = "they are dropped: they can match no object"
        example, count = first_records(content, empty), int(empty.sum())
        problems.append(
            SubmissionProblem(
                "boxes have no area", count, example, Certainty.LIKELY, remedy, drop_empty_boxes, tolerated=True
            )
        )
    if frame_size:
        problems += outside(content, frame_size)
    return problems


def normalised_boxes(content: Content, fitting: list[str], scale: tuple[float, float]) -> SubmissionProblem:
    """The report of boxes that are shares of the frame."""
    what = f"boxes are shares of the frame: no coordinate exceeds {LARGEST_SHARE}"
    example = content.record(0)
    if len(fitting) != 1:
        layouts = " or ".join(fitting) or "none"
        what = f"{what}; their layout is not clear ({layouts} would fit)"
        return SubmissionProblem(what, len(content.boxes), example, tolerated=True)
    remedy = f"they are {fitting[0]} and are multiplied by {scale[0]:g} and {scale[1]:g}"
    repair = partial(with_corners, layout=fitting[0], scale=scale)
    return SubmissionProblem(what, len(content.boxes), example, remedy=remedy, repair=repair, tolerated=True)


def other_layout(content: Content, inverted: Flags, fitting: list[str], is_results_list: bool) -> SubmissionProblem:
    """The report of boxes that are no corners; the evaluation takes those of an object keyed by image id for some."""
    tolerated = not is_results_list
    example = first_record(content, inverted) if inverted.any() else content.record(0)
    if len(fitting) == 1 and (fitting == ["xywh"] or not is_results_list):
        layout = fitting[0]
        what = f"boxes are {LAYOUT_WORDS[layout]}, not corners"
        remedy = f"corners are computed; {layout} is the only layout in which all boxes lie in the frame"
        repair = partial(with_corners, layout=layout, scale=(1.0, 1.0))
        return SubmissionProblem(what, len(content.boxes), example, remedy=remedy, repair=repair, tolerated=tolerated)
    if is_results_list and fitting == ["xyxy"]:
        what = "boxes of the results list are corners, where COCO has width and height"
        remedy = "they are taken as corners; xyxy is the only layout in which all boxes lie in the frame"
        return SubmissionProblem(what, len(content.boxes), example, remedy=remedy, repair=same)
    layouts = " or ".join(fitting) or "none"
    what = f"the layout of the boxes is not clear: {layouts} would fit the frame"
    return SubmissionProblem(what, len(content.boxes), example, tolerated=tolerated)


def outside(content: Content, frame_size: tuple[int, int]) -> list[SubmissionProblem]:
    """Boxes beyond the frame."""
    problems = []
    sides = np.array([*frame_size])
    wholly = ((content.boxes[:, :2] >= sides) | (content.boxes[:, 2:] <= 0)).any(axis=1) & ~is_empty(content.boxes)
    size = f"{frame_size[0]} x {frame_size[1]}"
    if wholly.any():
        what = f"boxes lie outside the frame of {size} pixels, as if they were made for another size"
        example = first_record(content, wholly)
        problems.append(SubmissionProblem(what, int(wholly.sum()), example, Certainty.LIKELY, tolerated=True))
    partly = stands_out(content.boxes, frame_size) & ~wholly
    if partly.any():
        what = f"boxes stand out of the frame of {size} pixels by more than {SLACK:g}"
        problems.append(SubmissionProblem(what, int(partly.sum()), first_record(content, partly), Certainty.NOTE))
    return problems


def fits(boxes: Floats, frame_size: tuple[int, int]) -> bool:
    """Whether xyxy boxes all lie in the frame and none ends before it begins."""
    return not (is_inverted(boxes).any() or stands_out(boxes, frame_size).any())


def is_inverted(boxes: Floats) -> Flags:
    """`(D,)` whether an xyxy box ends before it begins."""
    return (boxes[:, 2] < boxes[:, 0]) | (boxes[:, 3] < boxes[:, 1])


def is_empty(boxes: Floats) -> Flags:
    """`(D,)` whether an xyxy box has a side of 0."""
    flags: Flags = (boxes[:, 2] == boxes[:, 0]) | (boxes[:, 3] == boxes[:, 1])
    return flags


def stands_out(boxes: Floats, frame_size: tuple[int, int]) -> Flags:
    """`(D,)` whether an xyxy box reaches beyond the frame by more than the slack."""
    width, height = frame_size
    beyond = np.maximum(boxes[:, [0, 2]].max(axis=1) - width, boxes[:, [1, 3]].max(axis=1) - height)
    farthest: Floats = np.maximum(beyond, -boxes.min(axis=1))
    return farthest > SLACK


def drop_empty_boxes(content: Content) -> Content:
    """Without boxes that have no area."""
    return without_detections(content, is_empty(content.boxes))


def first_record(content: Content, wrong: Flags) -> str:
    """The first of the wrong detections in words."""
    return content.record(int(wrong.argmax()))


def first_records(content: Content, wrong: Flags) -> str:
    """The first few of the wrong detections in words, one a line."""
    return "\n".join(content.record(detection) for detection in np.flatnonzero(wrong)[:NAMED_BOXES].tolist())
