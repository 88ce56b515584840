"""YOLOv8's loss, computed by Ultralytics' criterion."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from ultralytics.utils.loss import v8DetectionLoss

from yolo_lightning.data.batch import Batch

LOSS_PARTS = ("box_loss", "cls_loss", "dfl_loss")


class DetectionLoss:
    """Box loss (CIoU), class loss (binary cross-entropy) and distribution focal loss over assigned anchors.

    Ultralytics' criterion stores tensors on one device and is not a module; it is created at the first call and again
    after the graph has moved.

    `box`, `cls` and `dfl` are the gains of the three losses; the attribute `args` of `graph` is set to them.
    """

    def __init__(self, graph: Any, box: float = 7.5, cls: float = 0.5, dfl: float = 1.5) -> None:
        graph.args = SimpleNamespace(box=box, cls=cls, dfl=dfl)
        self.class_weights: Tensor | None = None  # `(classes,)`, factor of the class loss per class; None is 1
        # Sum of the scores that the last call assigned to anchors; the loss is divided by it, or by 1 if it is smaller.
        self.target_scores = torch.zeros(())
        self._graph = graph
        self._criterion: Any = None

    def __call__(self, raw: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of one batch from `raw`, the output of the graph in training or evaluation mode.

        The total is a 0-d tensor, gains applied and *summed* over the images as in YOLOv8; the parts `box_loss`,
        `cls_loss`, `dfl_loss` are detached 0-d tensors, gains applied, per image.
        """
        if self._criterion is None or self._criterion.device != batch.images.device:
            self._criterion = v8DetectionLoss(self._graph)
            self._criterion.assigner.register_forward_hook(self._store_target_scores)
            # The criterion uses strides as numbers, which it would read from the device three times per call.
            self._criterion.stride = self._criterion.stride.cpu()
        if self.class_weights is not None and self.class_weights.device != batch.images.device:
            self.class_weights = self.class_weights.to(batch.images.device)
        weights = self.class_weights
        self._criterion.class_weights = None if weights is None else weights.view(1, 1, -1)
        dtype = torch.get_default_dtype()  # the criterion creates tensors of it; float64 under precision 64-true
        labels, boxes = batch.labels.to(dtype).unsqueeze(1), batch.boxes.to(dtype)
        targets = {"batch_idx": batch.sample_index.to(dtype), "cls": labels, "bboxes": boxes}
        total, parts = self._criterion(raw, targets)
        return torch.as_tensor(total).sum(), {name: parts[name] for name in LOSS_PARTS}

    @staticmethod
    def reaching_all_outputs(total: Tensor, raw: Any) -> Tensor:
        """Return the same total with a gradient, possibly 0, for every output of the graph in training mode.

        A batch without boxes has no gradient in the box branch, for which DistributedDataParallel would wait.
        """
        outputs: Tensor = raw["boxes"].sum() + raw["scores"].sum()
        return total + 0 * outputs

    def _store_target_scores(self, assigner: nn.Module, inputs: Any, assigned: tuple[Tensor, ...]) -> None:
        _, _, scores, _, _ = assigned
        self.target_scores = scores.sum()


def class_weights(class_counts: tuple[int, ...], power: float) -> Tensor | None:
    """Return the weights (1 / count)^power, scaled to mean 1, as Ultralytics' `cls_pw`.

    A class without boxes gets the mean weight of the other classes. `power` is 0 to 1. The result is `(classes,)`
    float32; None if `power` or all counts are 0.
    """
    counts = np.array(class_counts, dtype=np.float32)
    present = counts > 0
    if not power or not present.any():
        return None
    weights = np.where(present, (1 / np.where(present, counts, 1)) ** power, 0)
    weights[~present] = weights[present].mean()
    return torch.from_numpy((weights / weights.mean()).astype(np.float32))
