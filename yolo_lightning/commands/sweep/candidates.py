"""Network outputs of a split before NMS, compact enough to keep those of all frames in memory.

A candidate is one box with one class: 22 bytes. With a limit of 1000 candidates, a frame takes at most 22 kB, and the
43,850 frames of LTDv2's validation split at most 0.97 GB.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from yolo_lightning.data.batch import Batch, Prediction, Target, collate, targets
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import EvaluationDataset
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.index.splits import choose_clips
from yolo_lightning.model.detection_settings import DetectionSettings
from yolo_lightning.model.graph import network_input
from yolo_lightning.model.postprocess import predictions
from yolo_lightning.training.device_transforms import as_one_class


@dataclass(frozen=True, slots=True)
class Candidates:
    """N candidates of the B frames of a batch, sorted by frame, on the CPU."""

    frames: Batch  # the batch without its pixels
    targets: list[Target]  # annotated boxes of the readable frames
    counts: Tensor  # `(B,)` int64, number of candidates per frame
    boxes: Tensor  # `(N, 4)` float32, xywh, pixels of the letterboxed input
    scores: Tensor  # `(N,)` float32, 0 to 1
    labels: Tensor  # `(N,)` int16, class index from 0
    cut: int  # number of frames with more candidates than the limit


def collect(
    network: Callable[[Tensor], Any],
    data: DetectionDataModule,
    device: torch.device,
    advance: Callable[[int], None],
    *,
    score_threshold: float,
    limit: int,
    single_class: bool,
    batches: int | None = None,
) -> list[Candidates]:
    """Return the candidates of the validation split, batch by batch, in file order.

    `network` is in evaluation mode on `device`, and `data` is set up for validation. `advance` is called with the
    number of frames of each batch. With `single_class`, all annotated boxes count as class 0. `batches` is the number
    of batches; None: all.
    """
    frames = data.open("valid")
    frames.quarantined = data.limits.quarantined(frames.index, "valid")
    arguments = data.loader.arguments(on_gpu=device.type == "cuda", persistent=False)
    dataset = EvaluationDataset(frames, data.image_size)
    parts = []
    loader = DataLoader(dataset, batch_size=data.batch_size, collate_fn=collate, **arguments)
    for batch in islice(loader, batches):
        batch = data.on_before_batch_transfer(batch, 0)
        decoded = network(network_input(batch.images.to(device, non_blocking=True)))[0]
        labelled = as_one_class(batch) if single_class else batch
        parts.append(keep_candidates(decoded, labelled, score_threshold=score_threshold, limit=limit))
        advance(len(batch))
    return parts


def keep_candidates(decoded: Tensor, batch: Batch, *, score_threshold: float, limit: int) -> Candidates:
    """Return the candidates of each frame above the threshold, at most `limit` with the highest scores.

    Candidates keep the order of anchors and classes, because NMS resolves equal scores by this order. `decoded` is
    `(B, 4 + classes, anchors)`, xywh in pixels of the letterboxed input, class scores 0 to 1.
    """
    boxes, scores = decoded[:, :4].mT.float(), decoded[:, 4:].mT.float()
    kept_boxes, kept_scores, kept_labels, counts, cut = [], [], [], [], 0
    for own_boxes, own_scores in zip(boxes, scores, strict=True):
        anchors, labels = torch.where(own_scores > score_threshold)
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


def suppressed(candidates: Candidates, classes: int, settings: DetectionSettings) -> list[Prediction]:
    """Return the predictions after the NMS of `test`.

    A box is suppressed only by boxes with higher scores. A higher score threshold therefore only removes the end of
    each frame's list, and one NMS at the lowest threshold is valid for all higher ones.
    """
    return predictions((rebuilt(candidates, classes),), candidates.frames, settings)


def rebuilt(candidates: Candidates, classes: int) -> Tensor:
    """Return decoded output `(B, 4 + classes, M)` with one class per candidate, M the maximum count of a frame."""
    counts = candidates.counts
    frame = torch.arange(len(counts)).repeat_interleave(counts)
    place = torch.arange(len(frame)) - (counts.cumsum(0) - counts)[frame]
    decoded = torch.zeros(len(counts), 4 + classes, max(1, int(counts.max())))
    decoded[frame, :4, place] = candidates.boxes
    decoded[frame, 4 + candidates.labels.long(), place] = candidates.scores
    return decoded


def first_half(index: SplitIndex) -> npt.NDArray[np.bool_]:
    """Return `(frames,)` whether a frame belongs to the first half: half of each month's clips, at least one.

    Halves share no clip, because neighbouring frames are near duplicates. Clips are chosen by a hash of their names,
    independent of run and machine. A month with a single clip is in the first half only.
    """
    return np.isin(index.clips(), choose_clips(index, 0.5))


def in_first_half(parts: Sequence[Candidates], index: SplitIndex) -> npt.NDArray[np.bool_]:
    """Return `(frames,)` whether a frame belongs to the first half, in the order of `parts`."""
    is_first = dict(zip(index.image_ids(), first_half(index).tolist(), strict=True))
    return np.array([is_first[target.image_id] for part in parts for target in part.targets], dtype=np.bool_)
