"""Non-maximum suppression of raw predictions, and boxes in pixels of the original frames."""

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

    The first element of `raw`, the output of the graph in evaluation mode, is `(B, 4 + classes, anchors)`: xywh in
    pixels of the letterboxed input and class scores from 0 to 1. `NetworkSettings` describes the other values.
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
