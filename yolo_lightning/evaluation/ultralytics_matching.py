"""Ultralytics' matching of detections with annotated objects, and the confusion matrix.

Differences from COCO's rule (see `matching`): all detections of a frame count, not the best 100 of a class; of objects
with equal IoU the first one is taken; IoUs are float32; detections are not clipped to the frame, so the part of a box
outside the frame lowers its IoU with an object at the edge. Source: `DetectionValidator`,
`BaseValidator.match_predictions` and `ConfusionMatrix.process_batch` of Ultralytics 8.4.190.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from yolo_lightning.data.array_types import Float32Array, Int16Array, Int32Array, Int64Array, UInt16Array, UnsignedArray
from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.evaluation.frame_records import FrameRecords
from yolo_lightning.evaluation.greedy import pairs_of_group, take_in_turn
from yolo_lightning.evaluation.matching import IOU_THRESHOLDS, all_scores, bit_masks, flattened, label_type

CONFUSION_SCORE_THRESHOLD = 0.25  # detections with a score above this value enter the confusion matrix
CONFUSION_IOU_THRESHOLD = 0.45  # IoU above which a detection is assigned to an object in the confusion matrix

NOT_COUNTED = -1


@dataclass(frozen=True, slots=True)
class UltralyticsMatches(FrameRecords):
    """F frames and all their D detections."""

    annotated: Int32Array  # `(F, C)` int32, number of annotated objects per class
    labels: UnsignedArray  # `(D,)` of `label_type`, class index; detections are sorted by frame and descending score
    scores: Float32Array  # `(D,)` float32, as predicted
    hits: UInt16Array  # `(D,)` uint16, bit `t` is set if the detection is correct at `IOU_THRESHOLDS[t]`
    # `(D,)` int16, class of the object assigned to the detection in the class-agnostic matching of the confusion
    # matrix; C if there is none; -1 if the detection does not enter the matrix
    assigned: Int16Array

    def confusion(self) -> Int64Array:
        """Return counts `(C + 1, C + 1)` by detected and annotated class; the last row and column are background."""
        classes = self.annotated.shape[1]
        counted = self.assigned != NOT_COUNTED
        pairs = self.labels[counted].astype(np.int64) * (classes + 1) + self.assigned[counted]
        matrix = np.bincount(pairs, minlength=(classes + 1) ** 2).reshape(classes + 1, classes + 1)
        annotated = self.annotated.sum(axis=0, dtype=np.int64)
        matrix[classes, :classes] = annotated - matrix[:classes, :classes].sum(axis=0)
        return matrix


def match_as_ultralytics(
    predictions: Sequence[Prediction], targets: Sequence[Target], classes: int
) -> UltralyticsMatches:
    """Match the detections of some frames with their annotated objects; arguments as in `matching.match`."""
    assert [prediction.image_id for prediction in predictions] == [target.image_id for target in targets]
    frames = len(targets)
    boxes, labels, owners = flattened(
        [(prediction.boxes_before_clipping, prediction.labels) for prediction in predictions]
    )
    scores = all_scores(predictions)
    order = np.lexsort((-scores, owners))
    boxes = boxes[order]
    labels = labels[order]
    owners = owners[order]
    scores = scores[order]
    objects, object_labels, object_owners = flattened([(target.boxes, target.labels) for target in targets])
    annotated = np.bincount(object_owners * classes + object_labels, minlength=frames * classes)
    pair_detections, pair_objects = pairs_of_group(owners, object_owners)
    overlaps = _intersection_over_union_float32(objects[pair_objects], boxes[pair_detections])
    is_close = overlaps > np.float32(CONFUSION_IOU_THRESHOLD)  # the lower one of both thresholds
    pair_detections = pair_detections[is_close]
    pair_objects = pair_objects[is_close]
    overlaps = overlaps[is_close]

    is_same = labels[pair_detections] == object_labels[pair_objects]
    taken = take_in_turn(
        pair_detections[is_same],
        pair_objects[is_same],
        overlaps[is_same],
        owners * classes + labels,
        IOU_THRESHOLDS,
        prefers_last=False,
    )
    counted = scores > np.float32(CONFUSION_SCORE_THRESHOLD)
    is_shown = counted[pair_detections]
    (assigned,) = take_in_turn(
        pair_detections[is_shown], pair_objects[is_shown], overlaps[is_shown], owners, (0.0,), prefers_last=False
    )
    confusion_classes = np.where(counted, np.int16(classes), np.int16(NOT_COUNTED))
    confusion_classes[assigned >= 0] = object_labels[assigned[assigned >= 0]]
    return UltralyticsMatches(
        counts=np.bincount(owners, minlength=frames).astype(np.int32),
        annotated=annotated.reshape(frames, classes).astype(np.int32),
        labels=labels.astype(label_type(classes)),
        scores=scores,
        hits=bit_masks(taken >= 0),
        assigned=confusion_classes,
    )


def _intersection_over_union_float32(objects: Float32Array, detections: Float32Array) -> Float32Array:
    """Return the IoU of N pairs of boxes `(N, 4)` xyxy, by the operations of Ultralytics in their order."""
    low = np.maximum(objects[:, :2], detections[:, :2])
    sides = np.maximum(np.minimum(objects[:, 2:], detections[:, 2:]) - low, np.float32(0))
    shared = sides[:, 0] * sides[:, 1]
    size = objects[:, 2:] - objects[:, :2]
    detected_size = detections[:, 2:] - detections[:, :2]
    union = size[:, 0] * size[:, 1] + detected_size[:, 0] * detected_size[:, 1] - shared + np.float32(1e-7)
    return np.asarray(shared / union)
