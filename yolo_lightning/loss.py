"""Raw predictions and a batch to the loss, by Ultralytics' criterion."""

from typing import Any

import torch
from torch import Tensor, nn
from ultralytics.utils.loss import v8DetectionLoss

from yolo_lightning.batch import Batch

LOSS_PARTS = ("box_loss", "cls_loss", "dfl_loss")


class DetectionLoss:
    """YOLOv8's loss: box (CIoU), class (binary cross-entropy) and distribution focal loss over assigned anchors.

    The criterion keeps tensors on the device it was made for and is no module, so it is made when first called and
    again whenever the graph has moved.

    Args:
        graph: The network; carries strides, number of classes and the gains of the three parts.
    """

    def __init__(self, graph: nn.Module) -> None:
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
