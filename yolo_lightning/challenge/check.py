"""What is wrong with an answer file: every record looked at, each problem with its count and first example."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from yolo_lightning.challenge.box_checks import check_boxes, first_record
from yolo_lightning.challenge.content import (
    CATEGORY_IDS,
    LTDV2_FRAME_SIZE,
    Certainty,
    Content,
    Flags,
    SubmissionProblem,
    Template,
)
from yolo_lightning.challenge.id_checks import check_ids
from yolo_lightning.challenge.reading import read_submission
from yolo_lightning.challenge.repair import with_shifted_labels, without_detections
from yolo_lightning.evaluation.matching import COUNTED_PER_CLASS

FEWEST_LABELS = 3
"""Different labels, all off by one, before that is certain."""
FEWEST_DETECTIONS = 100
"""Detections before their shares of classes mean something."""
LARGEST_ROUNDS = 4
"""Rounds of repair: one may bring to light what another can mend."""


@dataclass(frozen=True, slots=True)
class SubmissionReport:
    """What a check found.

    Attributes:
        content: As far as it could be read, null where nothing could.
        problems: In the order of repair.
    """

    content: Content | None
    problems: tuple[SubmissionProblem, ...]

    @property
    def wrong(self) -> tuple[SubmissionProblem, ...]:
        """The problems that are more than a note."""
        return tuple(problem for problem in self.problems if problem.is_wrong)


def check_submission(path: Path, template: Template | None = None) -> SubmissionReport:
    """Check a JSON or zip file.

    Args:
        path: The file.
        template: The frames that must be answered for; null checks everything but that.

    Raises:
        ValueError: If the file cannot be opened.
    """
    reading = read_submission(path)
    if reading.content is None:
        return SubmissionReport(None, reading.problems)
    found = check_content(reading.content, template, is_results_list=reading.is_results_list)
    return SubmissionReport(reading.content, (*reading.problems, *found))


def check_content(
    content: Content, template: Template | None, *, is_results_list: bool = False
) -> list[SubmissionProblem]:
    """What is wrong with what the file says, in the order in which it is to be repaired."""
    frame_size = LTDV2_FRAME_SIZE if template is None else template.frame_size
    if not len(content.scores):
        empty = SubmissionProblem("no image has a detection", len(content.image_ids), "", Certainty.LIKELY)
        return [*check_ids(content, template), empty]
    return [
        *check_ids(content, template),
        *check_numbers(content),
        *check_boxes(content, frame_size, is_results_list),
        *check_labels(content),
        *check_scores(content),
        *check_surplus(content),
    ]


def repaired(report: SubmissionReport, template: Template | None) -> tuple[Content | None, list[SubmissionProblem]]:
    """The content with every repair applied, and what was mended.

    The content is null unless all that is wrong can be repaired.
    """
    mended: list[SubmissionProblem] = []
    content, wrong = report.content, report.wrong
    for _ in range(LARGEST_ROUNDS):
        if content is None or not all(problem.repair for problem in wrong):
            return None, mended
        for problem in wrong:
            assert problem.repair is not None
            content = problem.repair(content)
        mended += wrong
        wrong = tuple(problem for problem in check_content(content, template) if problem.is_wrong)
        if not wrong:
            return in_order_of(content, template), mended
    return None, mended


def in_order_of(content: Content, template: Template | None) -> Content:
    """Frames in the order of the template."""
    if template is None:
        return content
    positions = {image_id: position for position, image_id in enumerate(content.image_ids)}
    order = np.array([positions[image_id] for image_id in template.image_ids], dtype=np.int64)
    starts = np.cumsum(content.counts) - content.counts
    counts = content.counts[order]
    detections = np.repeat(starts[order] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    return replace(
        content,
        image_ids=template.image_ids,
        counts=counts,
        boxes=content.boxes[detections],
        scores=content.scores[detections],
        labels=content.labels[detections],
    )


def not_finite(content: Content) -> Flags:
    """`(D,)` whether a detection has a number that is none."""
    return ~(np.isfinite(content.boxes).all(axis=1) & np.isfinite(content.scores) & np.isfinite(content.labels))


def check_numbers(content: Content) -> list[SubmissionProblem]:
    """NaN, Infinity and null."""
    wrong = not_finite(content)
    if not wrong.any():
        return []
    what = "detections have NaN, Infinity or null for a number"
    remedy = "they are dropped: they can be neither ranked nor matched"
    return [
        SubmissionProblem(what, int(wrong.sum()), first_record(content, wrong), remedy=remedy, repair=drop_not_finite)
    ]


def drop_not_finite(content: Content) -> Content:
    """Without detections that have a number that is none."""
    return without_detections(content, not_finite(content))


def check_labels(content: Content) -> list[SubmissionProblem]:
    """Labels other than the dataset's category ids."""
    labels = content.labels
    given = np.unique(labels[np.isfinite(labels)])
    wrong = np.isfinite(labels) & ~np.isin(labels, CATEGORY_IDS)
    if not wrong.any():
        return check_shares(content)
    listed = ", ".join(f"{label:g}" for label in given[:8]) + (", ..." if len(given) > 8 else "")
    example, count = first_record(content, wrong), int(wrong.sum())
    shifts = [shift for shift in (1, -1) if np.isin(given + shift, CATEGORY_IDS).all()]
    if len(shifts) != 1:
        return [SubmissionProblem(f"labels are {listed}; allowed are {listed_ids()}", count, example)]
    start = "0, as YOLO counts" if shifts[0] == 1 else "2, as if background were a class"
    what = f"labels are {listed}: they count from {start}; allowed are {listed_ids()}"
    counts = [int((labels == label).sum()) for label in given]
    if len(given) < FEWEST_LABELS or counts[0] < max(counts):  # persons are the most frequent by far
        return [SubmissionProblem(what, len(labels), example, Certainty.LIKELY)]
    remedy = f"all labels are moved by {shifts[0]:+d}"
    return [
        SubmissionProblem(
            what, len(labels), example, remedy=remedy, repair=partial(with_shifted_labels, shift=shifts[0])
        )
    ]


def check_shares(content: Content) -> list[SubmissionProblem]:
    """Motorcycles are the rarest class by far, vehicles 22 times as many: more of them points at swapped labels."""
    if len(content.labels) < FEWEST_DETECTIONS:
        return []
    motorcycle, vehicle = (float(content.scores[content.labels == label].sum()) for label in (3, 4))
    if not motorcycle > vehicle:
        return []
    what = "motorcycle (3) outweighs vehicle (4): were classes swapped?"
    example = f"their scores add up to {motorcycle:.1f} and {vehicle:.1f}"
    return [SubmissionProblem(what, int((content.labels == 3).sum()), example, Certainty.NOTE)]


def listed_ids() -> str:
    """The category ids, in words."""
    return ", ".join(map(str, CATEGORY_IDS))


def check_scores(content: Content) -> list[SubmissionProblem]:
    """Scores beyond 0 to 1."""
    wrong = (content.scores < 0) | (content.scores > 1)
    if not wrong.any():
        return []
    return [SubmissionProblem("scores are not between 0 and 1", int(wrong.sum()), first_record(content, wrong))]


def check_surplus(content: Content) -> list[SubmissionProblem]:
    """Frames with more detections of a class than the evaluation looks at."""
    counts = class_counts(content)
    frames = np.flatnonzero(counts > COUNTED_PER_CLASS)
    if not len(frames):
        return []
    frame, position = divmod(int(frames[0]), len(CATEGORY_IDS))
    example = f"image {content.image_ids[frame]}: {counts[frames[0]]} of label {CATEGORY_IDS[position]}"
    what = f"images have more than {COUNTED_PER_CLASS} detections of a class; only the best count"
    return [SubmissionProblem(what, len(np.unique(frames // len(CATEGORY_IDS))), example, Certainty.NOTE)]


def class_counts(content: Content) -> npt.NDArray[np.int64]:
    """`(4 F,)` detections per frame and category id."""
    known = np.isin(content.labels, CATEGORY_IDS)
    cells = content.owners()[known] * len(CATEGORY_IDS) + content.labels[known].astype(np.int64) - CATEGORY_IDS[0]
    return np.bincount(cells, minlength=len(content.image_ids) * len(CATEGORY_IDS))
