"""Check and repair of a submission: every record is checked, each problem has a count and an example."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from yolo_lightning.challenge.box_checks import check_boxes
from yolo_lightning.challenge.content import (
    CATEGORY_IDS,
    LTDV2_FRAME_SIZE,
    Certainty,
    Content,
    Flags,
    SubmissionProblem,
    SubmissionReport,
    Template,
)
from yolo_lightning.challenge.id_checks import check_ids
from yolo_lightning.challenge.reading import read_submission

FEWEST_LABELS = 3
"""Minimum number of different labels before a common offset of all labels is certain."""
FEWEST_DETECTIONS = 100
"""Minimum number of detections before class frequencies are compared."""
MAX_REPAIRS = 4
"""Maximum number of repair rounds; a repair may reveal further repairable errors."""


def check_submission(path: Path, template: Template | None = None) -> SubmissionReport:
    """Check a JSON or zip file.

    Args:
        path: The file.
        template: The frames that the file must contain; None omits this check.

    Raises:
        ValueError: If the file cannot be opened.
    """
    report = read_submission(path)
    if report.content is None:
        return report
    found = check_content(report.content, template, is_results_list=report.is_results_list)
    return replace(report, problems=(*report.problems, *found))


def check_content(
    content: Content, template: Template | None, *, is_results_list: bool = False
) -> list[SubmissionProblem]:
    """Return the problems of the content in the order of repair."""
    problems = check_ids(content, template)
    if not len(content.scores):
        return [*problems, SubmissionProblem("no image has a detection", len(content.image_ids), "", Certainty.LIKELY)]
    frame_size = LTDV2_FRAME_SIZE if template is None else template.frame_size
    invalid = not_finite(content)
    if invalid.any():
        problems.append(
            SubmissionProblem(
                "detections contain NaN, Infinity or null",
                int(invalid.sum()),
                content.first(invalid),
                remedy="drop them, because they can neither be ranked nor matched",
                repair=lambda content: content.take(~not_finite(content)),
            )
        )
    problems += check_boxes(content, frame_size, is_results_list)
    problems += check_labels(content)
    invalid = (content.scores < 0) | (content.scores > 1)
    if invalid.any():
        what = "scores are not between 0 and 1"
        problems.append(SubmissionProblem(what, int(invalid.sum()), content.first(invalid)))
    return problems


def repaired(
    report: SubmissionReport, template: Template | None
) -> tuple[Content | None, tuple[SubmissionProblem, ...]]:
    """Return the repaired content, with the frames of the template in order, and the repaired errors.

    The content is None unless every error has a repair.
    """
    fixed: tuple[SubmissionProblem, ...] = ()
    content, errors = report.content, report.errors
    for _ in range(MAX_REPAIRS):
        for error in errors:
            if content is None or error.repair is None:
                return None, fixed
            content = error.repair(content)
        fixed += errors
        if content is None:
            return None, fixed
        errors = SubmissionReport(content, tuple(check_content(content, template))).errors
        if not errors:
            return content if template is None else content.with_frames(template.image_ids), fixed
    return None, fixed


def not_finite(content: Content) -> Flags:
    """Return `(D,)` bool: detections with a number that is not finite."""
    return ~(np.isfinite(content.boxes).all(axis=1) & np.isfinite(content.scores) & np.isfinite(content.labels))


def check_labels(content: Content) -> list[SubmissionProblem]:
    """Return the problems of labels other than the category ids, or of class frequencies."""
    labels = content.labels
    wrong = np.isfinite(labels) & ~np.isin(labels, CATEGORY_IDS)
    if not wrong.any():
        return check_frequencies(content)
    given, counts = np.unique(labels[np.isfinite(labels)], return_counts=True)
    listed = ", ".join(f"{label:g}" for label in given[:8]) + (", ..." if len(given) > 8 else "")
    what = f"labels must be {', '.join(map(str, CATEGORY_IDS))}, got {listed}"
    example = content.first(wrong)
    shifts = [shift for shift in (1, -1) if np.isin(given + shift, CATEGORY_IDS).all()]
    if len(shifts) != 1:
        return [SubmissionProblem(what, int(wrong.sum()), example)]
    (shift,) = shifts
    what += ", which count from 0 as in YOLO" if shift == 1 else ", which count from 2 as if background were a class"
    if len(given) < FEWEST_LABELS or counts[0] < counts.max():  # person is by far the most frequent class
        return [SubmissionProblem(what, len(labels), example, Certainty.LIKELY)]

    def repair(content: Content) -> Content:
        return replace(content, labels=content.labels + shift)

    return [SubmissionProblem(what, len(labels), example, remedy=f"add {shift:+d} to all labels", repair=repair)]


def check_frequencies(content: Content) -> list[SubmissionProblem]:
    """Return a note if motorcycles outweigh vehicles, which are 22 times as frequent: labels may be swapped."""
    motorcycle, vehicle = (float(content.scores[content.labels == label].sum()) for label in (3, 4))
    if len(content.labels) < FEWEST_DETECTIONS or not motorcycle > vehicle:
        return []
    what = "motorcycle (3) outweighs vehicle (4): the classes may be swapped"
    example = f"the sums of their scores are {motorcycle:.1f} and {vehicle:.1f}"
    return [SubmissionProblem(what, int((content.labels == 3).sum()), example, Certainty.NOTE)]
