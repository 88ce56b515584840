"""Settings of the detections: which boxes of the network's output are kept."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Self

from yolo_lightning.errors import UserError
from yolo_lightning.utils.choices import settings_group

SCORING_THRESHOLD = 0.001
"""Average precision needs nearly all boxes: a score threshold up to this one is meant for evaluation."""

CLASS_WIDTH_LIMITS = ">= 1, <= 8192"
"""Limits of `model.class_width`, the channels of the hidden layers of the class head."""


@settings_group("model.detections", score_threshold=">= 0, <= 1", iou_threshold=">= 0, <= 1", max_detections=">= 1")
class DetectionSettings:
    """Choice of the boxes.

    Attributes:
        score_threshold: Detections with a score above this are kept, 0 to 1.
        iou_threshold: IoU above which the box of the same class with the lower score is suppressed, 0 to 1.
        max_detections: Detections kept per frame, >= 1.
        class_agnostic: Whether boxes of different classes suppress each other.
        multi_label: Whether a box is detected as every class above `score_threshold`, as average precision is usually
            computed, or as its best class only. Pictures (`predict PICTURES`, `Detector`) always have one class per
            box.
        one_to_one: Evaluate the one-to-one branch of the head (yolov10, yolo26), which needs no suppression, instead of
            the one-to-many branch. Training uses both.
        tta: Test-time augmentation in `validate`, `test` and `predict`: weighted boxes fusion of the detections of six
            scaled and mirrored copies of each frame, at 4.3 times the cost. The validations of a fit do not use it.
    """

    score_threshold: float = SCORING_THRESHOLD
    iou_threshold: float = 0.7
    max_detections: int = 300
    class_agnostic: bool = False
    multi_label: bool = True
    one_to_one: bool = False
    tta: bool = False

    @property
    def has_one_class_per_anchor(self) -> bool:
        """Whether an anchor of the one-to-one branch is detected as its best class only."""
        return self.class_agnostic or not self.multi_label

    @classmethod
    def of_weights(cls, recorded: Any) -> Self:
        """Return the settings that a file of weights records; missing ones have their defaults, other keys are ignored.

        Raises:
            UserError: If the record is no dictionary or a value cannot be used.
        """
        if not isinstance(recorded, Mapping):
            raise UserError(f"detections of the weights must be a dictionary, got {recorded!r}")
        names = {field.name for field in fields(cls)} & recorded.keys() - {"tta"}
        return cls(**{name: recorded[name] for name in names if recorded[name] is not None})

    def recorded(self) -> dict[str, Any]:
        """Return the settings that belong to the weights: all except `tta`, which a command chooses."""
        settings = asdict(self)
        del settings["tta"]
        return settings
