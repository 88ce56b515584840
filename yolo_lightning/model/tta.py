"""Test-time augmentation: the detections of six scaled and mirrored views of each image."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from yolo_lightning.data.batch import Batch, Prediction
from yolo_lightning.data.box_fusion import FUSION_IOU, fuse
from yolo_lightning.data.boxes import clip_to_frame
from yolo_lightning.data.image_size import STRIDE
from yolo_lightning.model.detection_settings import DetectionSettings
from yolo_lightning.model.postprocess import predictions

PADDING_LEVEL = 114 / 255  # gray level of the letterbox padding


@dataclass(frozen=True, slots=True)
class View:
    """One augmented copy of an image."""

    scale: float  # factor of both sides, > 0 and <= 1; sides are rounded down to whole pixels
    mirrored: bool  # whether left and right are exchanged


VIEWS = tuple(View(scale, mirrored) for scale in (1.0, 0.83, 0.67) for mirrored in (False, True))
"""The unchanged image first. Together the views have 4.3 times its pixels."""


def tta_predictions(
    network: Callable[[Tensor], Any],
    images: Tensor,
    original: Tensor,
    batch: Batch,
    settings: DetectionSettings,
    stride: int = STRIDE,
) -> list[Prediction]:
    """Return the weighted boxes fusion of all views for each readable frame of a batch.

    The scales are those of Ultralytics' `DetectionModel._predict_augment` (8.4), which mirrors the middle scale only.
    Here every scale is used with and without mirroring, so that a mirrored image gives exactly the mirrored result.

    Args:
        network: Maps `(B, C, H, W)` floating-point images (0 to 1), sides multiples of `stride`, to a sequence whose
            first element is `(B, 4 + classes, anchors)`: xywh in input pixels and class scores.
        images: Images of the batch, `(B, C, H, W)`.
        original: Output of the network for `images`.
        batch: The batch.
        settings: Settings of the detections of each view; `max_detections` also limits those of a frame.
        stride: See `graph_stride`.
    """
    candidates = [original, *(view_candidates(network, images, view, stride) for view in VIEWS[1:])]
    by_view = [predictions((boxes,), batch, settings) for boxes in candidates]
    by_frame = zip(*by_view, strict=True)
    shapes = [batch.frame_shapes[position] for position in batch.readable_positions()]
    limit = settings.max_detections
    return [fused(views, shape, limit) for views, shape in zip(by_frame, shapes, strict=True)]


def fused(views: Sequence[Prediction], frame_shape: tuple[int, int], max_detections: int) -> Prediction:
    """Return the weighted boxes fusion of the predictions of several views of one frame.

    All views have the same weight: an object that K of V views contain has the mean of their scores times K / V.
    """
    boxes = np.concatenate([view.boxes_before_clipping.numpy() for view in views]).astype(np.float64)
    scores = np.concatenate([view.scores.numpy() for view in views]).astype(np.float64)
    labels = np.concatenate([view.labels.numpy() for view in views])
    boxes, scores, labels = fuse(boxes, scores / len(views), labels, FUSION_IOU, len(views))
    all_boxes = torch.from_numpy(boxes).float()
    all_scores = torch.from_numpy(scores).float()
    best = all_scores.argsort(descending=True, stable=True)[:max_detections]
    return msgspec.structs.replace(
        views[0],
        boxes=clip_to_frame(all_boxes[best], frame_shape),
        scores=all_scores[best],
        labels=torch.from_numpy(labels)[best],
        unclipped=all_boxes[best],
    )


def view_candidates(network: Callable[[Tensor], Any], images: Tensor, view: View, stride: int = STRIDE) -> Tensor:
    """Return the candidates of a view, `(B, 4 + classes, anchors)`, in pixels of the original input."""
    height, width = images.shape[-2:]
    # Pixels of the view per pixel of the original input.
    vertical = int(height * view.scale) / height
    horizontal = int(width * view.scale) / width
    x, y, widths, heights, scores = network(apply_view(images, view, stride))[0].tensor_split((1, 2, 3, 4), dim=1)
    x = x / horizontal
    if view.mirrored:
        x = width - x
    return torch.cat([x, y / vertical, widths / horizontal, heights / vertical, scores], dim=1)


def apply_view(images: Tensor, view: View, stride: int = STRIDE) -> Tensor:
    """Scale and mirror images `(B, C, H, W)`, and pad them on the right and bottom to multiples of the stride."""
    if view.mirrored:
        images = images.flip(-1)
    if view.scale != 1:
        sides = [int(side * view.scale) for side in images.shape[-2:]]
        images = nn.functional.interpolate(images, size=sides, mode="bilinear", align_corners=False)
    below, right = (-side % stride for side in images.shape[-2:])
    return nn.functional.pad(images, (0, right, 0, below), value=PADDING_LEVEL)
