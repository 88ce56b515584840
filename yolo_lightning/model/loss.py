"""Raw predictions and a batch to the loss, by Ultralytics' criterion."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from ultralytics.utils.loss import v8DetectionLoss

from yolo_lightning.data.batch import Batch

LOSS_PARTS = ("box_loss", "cls_loss", "dfl_loss")


class DetectionLoss:
    """YOLOv8's loss: box (CIoU), class (binary cross-entropy) and distribution focal loss over assigned anchors.

    The criterion keeps tensors on the device it was made for and is no module, so it is made when first called and
    again whenever the graph has moved.

    Args:
        graph: The network; carries strides, number of classes and the gains of the three parts.

    Attributes:
        class_weights: `(classes,)` floating point, what the class loss of each class is multiplied by; None is 1.
        target_scores: 0-d, sum of the scores that the last call assigned to anchors. The loss is divided by it, or by
            1 where it is smaller.
    """

    def __init__(self, graph: nn.Module) -> None:
        self.class_weights: Tensor | None = None
        self.target_scores = torch.zeros(())
        self._graph = graph
        self._criterion: Any = None

    def __call__(self, raw: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one batch.

        Args:
            raw: What the graph returned, in training or in evaluation mode.
            batch: The targets, on the same device.

        Returns:
            The total as a 0-d tensor, gains applied and *summed* over the batch's images as YOLOv8 does, and the parts
            `box_loss`, `cls_loss`, `dfl_loss` as detached 0-d tensors, gains applied, per image.
        """
        if self._criterion is None or self._criterion.device != batch.images.device:
            self._criterion = v8DetectionLoss(self._graph)
            self._criterion.assigner.register_forward_hook(self._note_target_scores)
        weights = self.class_weights
        self._criterion.class_weights = None if weights is None else weights.to(batch.images.device).view(1, 1, -1)
        dtype = torch.get_default_dtype()  # the criterion builds its own tensors in it; float64 under precision 64-true
        total, parts = self._criterion(
            raw,
            {
                "batch_idx": batch.sample_index.to(dtype),
                "cls": batch.labels.to(dtype).unsqueeze(1),
                "bboxes": batch.boxes.to(dtype),
            },
        )
        return torch.as_tensor(total).sum(), {name: parts[name] for name in LOSS_PARTS}

    @staticmethod
    def reaching_all_outputs(total: Tensor, raw: Any) -> Tensor:
        """The same total, whose gradient is defined, if only as 0, for all that the graph returned in training mode.

        A batch without boxes gives the box branch no gradient, while other processes wait for it.
        """
        outputs: Tensor = raw["boxes"].sum() + raw["scores"].sum()
        return total + 0 * outputs

    def _note_target_scores(self, assigner: nn.Module, inputs: Any, assigned: tuple[Tensor, ...]) -> None:
        _, _, scores, _, _ = assigned
        self.target_scores = scores.sum()


def class_weights(labels: npt.NDArray[np.integer[Any]], classes: int, power: float) -> Tensor | None:
    """Weights against unequal numbers of boxes: (1 / number)^power, scaled to a mean of 1, as Ultralytics' `cls_pw`.

    A class without boxes gets the mean weight of those that have some.

    Args:
        labels: `(N,)` class index from 0 of every training box.
        classes: Number of classes.
        power: 0 to 1; 0 gives all classes the same weight, 1 weights by the inverse number.

    Returns:
        `(classes,)` float32; None where nothing is to be weighted.
    """
    counts = np.bincount(labels, minlength=classes).astype(np.float32)
    present = counts > 0
    if not power or not present.any():
        return None
    weights = np.where(present, (1 / np.where(present, counts, 1)) ** power, 0)
    weights[~present] = weights[present].mean()
    return torch.from_numpy((weights / weights.mean()).astype(np.float32))
