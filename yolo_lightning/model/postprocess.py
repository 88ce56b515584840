"""Decoded network output to predictions in pixels of the original frames."""

from typing import Any

from torch import Tensor
from ultralytics.utils.nms import non_max_suppression

from yolo_lightning.data.batch import Batch, Prediction
from yolo_lightning.data.boxes import clip_to_frame, input_to_frame

NO_TIME_LIMIT_S = 1e9
"""Ultralytics stops after a time limit and returns the remaining images empty: a wrong score on a slow machine."""


def predictions(
    raw: Any,
    batch: Batch,
    *,
    score_threshold: float,
    iou_threshold: float,
    max_detections: int,
    class_agnostic: bool = False,
) -> list[Prediction]:
    """Non-maximum suppression, per class or of all classes together, then back to the frames, on the CPU.

    The CPU, because torchvision's kernel need not exist for the device (a CPU-only torchvision beside a ROCm torch).

    Args:
        raw: What the graph returned in evaluation mode; its first part is `(B, 4 + classes, anchors)`, xywh in pixels
            of the letterboxed input and class scores from 0 to 1.
        batch: The frames that were shown.
        score_threshold: Detections must score more than this, 0 to 1.
        iou_threshold: Intersection over union above which the weaker of two boxes of a class goes, 0 to 1.
        max_detections: Detections kept per frame, best first.
        class_agnostic: Whether boxes of different classes suppress each other, too.

    Returns:
        One prediction per readable frame of the batch, in its order.
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
