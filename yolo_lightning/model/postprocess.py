"""Non-maximum suppression, and conversion of boxes to pixels of the original frames."""

from typing import Any

from torch import Tensor
from ultralytics.utils.nms import non_max_suppression

from yolo_lightning.data.batch import Batch, Prediction
from yolo_lightning.data.boxes import clip_to_frame, input_to_frame

NO_TIME_LIMIT_S = 1e9
"""Ultralytics returns no boxes for the images left when a time limit is reached, which would falsify the scores."""


def predictions(
    raw: Any,
    batch: Batch,
    *,
    score_threshold: float,
    iou_threshold: float,
    max_detections: int,
    class_agnostic: bool = False,
) -> list[Prediction]:
    """Return the predictions of each readable frame of a batch, in its order.

    Suppression runs on the CPU: torchvision may have no kernel for the device (CPU-only torchvision with ROCm torch).

    Args:
        raw: Output of the graph in evaluation mode; the first element is `(B, 4 + classes, anchors)`, xywh in pixels of
            the letterboxed input and class scores from 0 to 1.
        batch: The input.
        score_threshold: Detections with a score above this are kept, 0 to 1.
        iou_threshold: IoU above which the box with the lower score is suppressed, 0 to 1.
        max_detections: Number of detections kept per frame, best first.
        class_agnostic: Whether boxes of different classes suppress each other.
    """
    decoded: Tensor = raw[0].detach().float().cpu()
    kept = non_max_suppression(
        decoded,
        conf_thres=score_threshold,
        iou_thres=iou_threshold,
        multi_label=True,
        agnostic=class_agnostic,
        max_det=max_detections,
        max_time_img=NO_TIME_LIMIT_S,
    )
    result = []
    for position in batch.readable_positions():
        found = kept[position]
        unclipped = input_to_frame(found[:, :4], batch.letterboxes[position])
        boxes = clip_to_frame(unclipped, batch.frame_shapes[position])
        result.append(Prediction(batch.image_ids[position], boxes, found[:, 4], found[:, 5].long(), unclipped))
    return result
