"""Settings of the detection loss."""

from yolo_lightning.utils.choices import settings_group


@settings_group("model.loss", box_gain=">= 0", cls_gain=">= 0", dfl_gain=">= 0", class_weight_power=">= 0, <= 1")
class LossSettings:
    """Weights of the parts of the loss.

    Attributes:
        box_gain: Gain of the box loss.
        cls_gain: Gain of the class loss.
        dfl_gain: Gain of the distribution focal loss.
        class_weight_power: Weight the class loss by (1 / boxes of the class)^power, mean 1; 0 to 1, 0 disables it.
    """

    box_gain: float = 7.5
    cls_gain: float = 0.5
    dfl_gain: float = 1.5
    class_weight_power: float = 0.0
