"""Where precision and recall balance best, per month and class: how far one threshold for all is from each of them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from yolo_lightning.evaluation.average_precision import AT_50
from yolo_lightning.evaluation.matching import Matches


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """The best F1 of a class in a month, detections right at an IoU of 0.5.

    Attributes:
        month: YYYYMM.
        label: Class index from 0.
        annotated: Objects.
        score_threshold: Detections that score more than this are kept, 0 to 1.
        f1: Harmonic mean of precision and recall, 0 to 1.
        precision: Share of the kept detections that are right.
        recall: Share of the objects that are found.
    """

    month: int
    label: int
    annotated: int
    score_threshold: float
    f1: float
    precision: float
    recall: float


def operating_points(matches: Matches, floor: float) -> list[OperatingPoint]:
    """Of each known month and each class annotated in it, in this order.

    Args:
        matches: Of a split.
        floor: Confidence down to which detections were kept.
    """
    months = matches.months.numpy()
    owners = np.repeat(np.arange(len(months)), matches.counts.numpy())
    labels, scores = matches.labels.numpy(), matches.scores.numpy()
    right = (matches.hits.numpy() >> AT_50) & 1 > 0
    result = []
    for month in np.unique(months[months > 0]).tolist():
        annotated = matches.annotated.numpy()[months == month].sum(axis=0)
        for label in np.flatnonzero(annotated).tolist():
            own = (months[owners] == month) & (labels == label)
            point = best_f1(scores[own], right[own], int(annotated[label]), floor)
            result.append(OperatingPoint(month, label, int(annotated[label]), *point))
    return result


def best_f1(
    scores: npt.NDArray[np.float32], right: npt.NDArray[np.bool_], annotated: int, floor: float
) -> tuple[float, float, float, float]:
    """Confidence, F1, precision and recall where F1 is highest; of equals the highest confidence.

    The confidence lies half way between the last score that is kept and the next, which is `floor` behind the last.

    Args:
        scores: `(D,)` above `floor`.
        right: `(D,)` whether a detection is right.
        annotated: Objects, 1 or more.
        floor: 0 to 1.
    """
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order].astype(np.float64)
    following = np.append(ranked[1:], floor)
    can_cut = np.flatnonzero(ranked > following)  # equal scores stay or go together
    if not len(can_cut):
        return floor, 0.0, 0.0, 0.0
    found = np.cumsum(right[order])[can_cut]
    kept = can_cut + 1
    f1 = 2 * found / (kept + annotated)
    at = int(f1.argmax())
    last = can_cut[at]
    score_threshold = float((ranked[last] + following[last]) / 2)
    return score_threshold, float(f1[at]), float(found[at] / kept[at]), float(found[at] / annotated)
