"""From what a network says of a split to the scores of all settings."""

from collections.abc import Callable, Sequence

import numpy as np

from yolo_lightning.commands.sweep.candidates import Candidates, suppressed
from yolo_lightning.commands.sweep.halves import first_half
from yolo_lightning.commands.sweep.operating_points import operating_points
from yolo_lightning.commands.sweep.sweep_report import Sweep
from yolo_lightning.commands.sweep.sweep_settings import Mask, Setting, best, held_out, score_settings
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.evaluation.matching import Matches, match


def sweep_candidates(
    parts: Sequence[Candidates],
    half: Mask,
    advance: Callable[[int], None],
    *,
    classes: int,
    score_thresholds: Sequence[float],
    iou_thresholds: Sequence[float],
    usual: Setting,
    max_detections: int,
    class_agnostic: bool,
) -> Sweep:
    """Suppress once per overlap, score every pair of settings.

    Args:
        parts: Candidates of a split above the lowest confidence.
        half: `(frames,)` those of the first half of the clips; frames as in `parts`.
        advance: Told how many more frames are suppressed, once per overlap.
        classes: Number of classes.
        score_thresholds: To try, ascending; with that of `usual`.
        iou_thresholds: To try; with that of `usual`.
        usual: The checkpoint's setting.
        max_detections: Detections kept per frame.
        class_agnostic: Whether boxes of different classes suppress each other, too.
    """
    by_overlap: dict[float, Matches] = {}
    for iou_threshold in iou_thresholds:
        matched = []
        for part in parts:
            found = suppressed(
                part,
                classes,
                floor=score_thresholds[0],
                iou_threshold=iou_threshold,
                max_detections=max_detections,
                class_agnostic=class_agnostic,
            )
            matched.append(match(found, part.targets, classes))
            advance(len(part.targets))
        by_overlap[iou_threshold] = Matches.join(matched)
    everything = np.ones(len(half), dtype=np.bool_)
    scored = score_settings(by_overlap, score_thresholds, everything)
    can_halve = bool(half.any() and not half.all())
    return Sweep(
        frames=len(half),
        cut=sum(part.cut for part in parts),
        usual=usual,
        scored=scored,
        held_out=held_out(by_overlap, score_thresholds, half, usual) if can_halve else [],
        points=operating_points(by_overlap[best(scored).setting.iou_threshold], score_thresholds[0]),
    )


def half_of(parts: Sequence[Candidates], data: DetectionDataModule) -> Mask:
    """`(frames,)` which frames of `parts`, those that could be read, are of the first half of the clips."""
    index = data.index("valid")
    is_first = dict(zip(index.image_ids(), first_half(index).tolist(), strict=True))
    return np.array([is_first[target.image_id] for part in parts for target in part.targets], dtype=np.bool_)
