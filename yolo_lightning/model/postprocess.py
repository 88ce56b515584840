"""Non-maximum suppression, or choice of the best boxes, and boxes in pixels of the original frames."""

from typing import Any

import torch
from torch import Tensor

from yolo_lightning.data.batch import Batch, Prediction
from yolo_lightning.data.boxes import clip_to_frame, input_to_frame
from yolo_lightning.model.detection_settings import DetectionSettings
from yolo_lightning.utils.activity import Activity, during
from yolo_lightning.utils.offline import offline

with offline():
    from ultralytics.utils.nms import non_max_suppression

NO_TIME_LIMIT_S = 1e9
"""Ultralytics returns no boxes for the images left when a time limit is reached, which would falsify the scores."""


def predictions(
    raw: Any,
    batch: Batch,
    settings: DetectionSettings,
) -> list[Prediction]:
    """Return the predictions of each readable frame of a batch, in its order.

    Suppression runs on the CPU: torchvision may have no kernel for the device (CPU-only torchvision with ROCm torch).

    The first element of `raw`, the output of the graph in evaluation mode, is `(B, 4 + classes, anchors)`: xywh in
    pixels of the letterboxed input and class scores from 0 to 1. With `one_to_one` these are boxes of a one-to-one
    branch, of which the best are chosen without suppression. The setting `tta` is not used here.
    """
    with during(Activity.DEVICE_WAIT):
        decoded: Tensor = raw[0].detach().float().cpu()
    if settings.one_to_one:
        decoded = best_boxes(decoded, settings.max_detections, class_agnostic=settings.has_one_class_per_anchor)
    kept = non_max_suppression(
        decoded,
        conf_thres=settings.score_threshold,
        iou_thres=settings.iou_threshold,
        multi_label=settings.multi_label,
        agnostic=settings.class_agnostic,
        max_det=settings.max_detections,
        max_time_img=NO_TIME_LIMIT_S,
        end2end=settings.one_to_one,
    )
    result = []
    for position in batch.readable_positions():
        detections = kept[position]
        unclipped = input_to_frame(detections[:, :4], batch.letterboxes[position])
        boxes = clip_to_frame(unclipped, batch.frame_shapes[position])
        scores = detections[:, 4]
        labels = detections[:, 5].long()
        result.append(Prediction(batch.image_ids[position], boxes, scores, labels, unclipped))
    return result


def best_boxes(decoded: Tensor, max_detections: int, *, class_agnostic: bool = False) -> Tensor:
    """Return the boxes with the highest scores, as the end-to-end heads of Ultralytics (`Detect.postprocess`).

    The `max_detections` anchors with the highest scores are candidates; one anchor can be detected as several classes,
    or with `class_agnostic` as one.

    Args:
        decoded: `(B, 4 + classes, anchors)`, xywh in input pixels and class scores from 0 to 1.
        max_detections: Number of rows; unused ones are 0.
        class_agnostic: Whether an anchor is detected as its best class only.

    Returns:
        `(B, max_detections, 6)` sorted by descending score: x1, y1, x2, y2, score, class.
    """
    # Padding instead of a smaller count, so that exported files accept images with few anchors.
    decoded = torch.nn.functional.pad(decoded, (0, max_detections))
    rows = decoded.mT
    centres = rows[..., :2]
    half_sizes = rows[..., 2:4] / 2
    class_scores = rows[..., 4:]
    boxes = torch.cat([centres - half_sizes, centres + half_sizes], dim=-1)
    anchor_scores, labels = class_scores.max(-1)
    _, anchors = anchor_scores.topk(max_detections, dim=1)
    if class_agnostic:
        scores = anchor_scores.gather(1, anchors)
        labels = labels.gather(1, anchors)
    else:
        classes = class_scores.shape[-1]
        candidates = class_scores.gather(1, anchors.unsqueeze(-1).expand(-1, -1, classes))
        scores, candidate = candidates.flatten(1).topk(max_detections, dim=1)
        anchors = anchors.gather(1, candidate // classes)
        labels = candidate % classes
    best = boxes.gather(1, anchors.unsqueeze(-1).expand(-1, -1, 4))
    return torch.cat([best, scores.unsqueeze(-1), labels.unsqueeze(-1).to(best)], dim=-1)
