"""What a network says of the frames of a split before suppression, kept small enough for all of them at once.

A candidate is one box with one class: 22 bytes. With a limit of 1000 a frame takes at most 22 kB, and the 43,850 frames
of LTDv2's validation split at most 0.97 GB of memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from yolo_lightning.data.batch import Batch, Prediction, Target, targets
from yolo_lightning.model.postprocess import predictions

CANDIDATE_BYTES = 22
"""Four coordinates and a score in float32, a class in int16."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Of the frames of a batch, N in all, those of one frame together, on the CPU.

    Attributes:
        frames: The batch without its pixels.
        targets: The annotated boxes of its readable frames.
        counts: `(B,)` int64, how many belong to each frame.
        boxes: `(N, 4)` float32, xywh, pixels of the letterboxed input.
        scores: `(N,)` float32, 0 to 1.
        labels: `(N,)` int16, class index from 0.
        cut: How many frames had more than the limit.
    """

    frames: Batch
    targets: list[Target]
    counts: Tensor
    boxes: Tensor
    scores: Tensor
    labels: Tensor
    cut: int


def keep_candidates(decoded: Tensor, batch: Batch, *, floor: float, limit: int) -> Candidates:
    """The best candidates of each frame of a batch.

    Args:
        decoded: `(B, 4 + classes, anchors)`, xywh in pixels of the letterboxed input, class scores 0 to 1; any device.
        batch: The frames that were shown, with their boxes.
        floor: Candidates must score more than this.
        limit: Candidates kept per frame, best first. They stay in the order of anchors and classes, in which
            suppression takes equal scores.
    """
    boxes, scores = decoded[:, :4].mT.float(), decoded[:, 4:].mT.float()
    kept_boxes, kept_scores, kept_labels, counts, cut = [], [], [], [], 0
    for own_boxes, own_scores in zip(boxes, scores, strict=True):
        anchors, labels = torch.where(own_scores > floor)
        found = own_scores[anchors, labels]
        if len(found) > limit:
            best = found.topk(limit).indices.sort().values
            anchors, labels, found = anchors[best], labels[best], found[best]
            cut += 1
        kept_boxes.append(own_boxes[anchors].cpu())
        kept_scores.append(found.cpu())
        kept_labels.append(labels.to(torch.int16).cpu())
        counts.append(len(found))
    return Candidates(
        frames=msgspec.structs.replace(batch, images=torch.empty(0, dtype=torch.uint8)),
        targets=targets(batch),
        counts=torch.tensor(counts),
        boxes=torch.cat(kept_boxes),
        scores=torch.cat(kept_scores),
        labels=torch.cat(kept_labels),
        cut=cut,
    )


def suppressed(
    candidates: Candidates,
    classes: int,
    *,
    floor: float,
    iou_threshold: float,
    max_detections: int,
    class_agnostic: bool,
) -> list[Prediction]:
    """Predictions of the frames, by the suppression that `test` uses; arguments as in `postprocess.predictions`.

    A higher confidence only takes away from the end of each frame's list: a box is suppressed by better ones alone. So
    one suppression at the floor serves every confidence above it.
    """
    again = rebuilt(candidates, classes)
    return predictions(
        (again,),
        candidates.frames,
        score_threshold=floor,
        iou_threshold=iou_threshold,
        max_detections=max_detections,
        class_agnostic=class_agnostic,
    )


def rebuilt(candidates: Candidates, classes: int) -> Tensor:
    """`(B, 4 + classes, most candidates of a frame)` as the network decodes, with one class for each candidate."""
    counts = candidates.counts
    frame = torch.arange(len(counts)).repeat_interleave(counts)
    place = torch.arange(len(frame)) - (counts.cumsum(0) - counts)[frame]
    decoded = torch.zeros(len(counts), 4 + classes, max(1, int(counts.max())))
    decoded[frame, :4, place] = candidates.boxes
    decoded[frame, 4 + candidates.labels.long(), place] = candidates.scores
    return decoded


def size_bytes(parts: Sequence[Candidates]) -> int:
    """Memory of the candidates of several batches."""
    return CANDIDATE_BYTES * sum(len(part.scores) for part in parts)
