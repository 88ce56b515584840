"""Detection loss, computed by Ultralytics' criteria."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from yolo_lightning.conv.algorithms.shared import is_under_autocast, without_autocast
from yolo_lightning.data.batch import Batch
from yolo_lightning.model.layers import has_one_to_one_branch, in_float32
from yolo_lightning.model.loss_settings import LossSettings
from yolo_lightning.utils.offline import offline

with offline():
    from ultralytics.utils.loss import E2ELoss, v8DetectionLoss

EPSILON = 1e-30
"""Added to the alignment of an object (score^0.5 * IoU^6) before a division by it. With Ultralytics' 1e-9, objects much
smaller than the first predicted boxes have targets near 0, and a network with random weights may never detect them."""


class DetectionLoss:
    """Box loss (CIoU), class loss (binary cross-entropy) and distribution focal loss over assigned anchors.

    Without a distribution (yolo26) the third loss is the L1 distance of the sides of the boxes. A head with a
    one-to-one branch (yolov10, yolo26) has a loss per branch; from the first epoch to the last, the weight of the
    one-to-many branch falls from 0.8 to 0.1, and the two weights sum to 1. The weights follow from the epoch alone, so
    that a checkpoint needs no state of the loss.

    Ultralytics' criterion stores tensors on one device and is not a module; it is created at the first call and again
    after the graph has moved.

    The attribute `args` of `graph` is set to the gains of the three losses.
    """

    def __init__(self, graph: Any, settings: LossSettings | None = None) -> None:
        gains = settings or LossSettings()
        graph.args = SimpleNamespace(box=gains.box_gain, cls=gains.cls_gain, dfl=gains.dfl_gain, epochs=1)
        self.class_weights: Tensor | None = None  # `(classes,)`, factor of the class loss per class; None is 1
        # Sum of the scores that the last call assigned to anchors; the loss is divided by it, or by 1 if it is smaller.
        # 0-d, or `(2,)` for a head with two branches, one-to-many first.
        self.target_scores = torch.zeros(())
        self._graph = graph
        self._criterion: Any = None
        self._branches: list[Any] = []  # criterion of each branch of the head
        self._scores: list[Tensor] = []
        self._epoch = 0

    def __call__(self, raw: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of one batch from `raw`, the output of the graph in training or evaluation mode.

        The total is a 0-d tensor, gains applied and *summed* over the images as in YOLOv8; for a head with two branches
        `(2,)`, one weighted total per branch, one-to-many first. The parts `box_loss`, `cls_loss`, `dfl_loss`
        (`l1_loss` without a distribution) are detached 0-d tensors, gains applied, per image; as in Ultralytics, those
        of the one-to-one branch if there is one.
        """
        if self._criterion is None or self._branches[0].device != batch.images.device:
            self._create()
        if self.class_weights is not None and self.class_weights.device != batch.images.device:
            self.class_weights = self.class_weights.to(batch.images.device)
        class_weights = None if self.class_weights is None else self.class_weights.view(1, 1, -1)
        for branch in self._branches:
            branch.class_weights = class_weights
        dtype = torch.get_default_dtype()  # the criterion creates tensors of it; float64 under precision 64-true
        targets = {
            "batch_idx": batch.sample_index.to(dtype),
            "cls": batch.labels.to(dtype).unsqueeze(1),
            "bboxes": batch.boxes.to(dtype),
        }
        outputs = raw[1] if isinstance(raw, tuple) else raw
        if is_under_autocast(batch.images.device.type):
            outputs = in_float32(outputs)
        with without_autocast(batch.images):
            total, parts = self._compute(outputs, targets)
        return total, {name: parts[name] for name in self._branches[-1].loss_names}

    def _compute(self, outputs: Any, targets: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the total and the named parts, and set the sum of the target scores."""
        self._scores = []
        criterion = self._criterion
        if isinstance(criterion, E2ELoss):
            one_to_many, _ = criterion.one2many.loss(outputs["one2many"], targets)
            one_to_one, parts = criterion.one2one.loss(outputs["one2one"], targets)
            self.target_scores = torch.stack(self._scores)
            return torch.stack([one_to_many.sum() * criterion.o2m, one_to_one.sum() * criterion.o2o]), parts
        totals, parts = criterion.loss(outputs, targets)
        (self.target_scores,) = self._scores
        return totals.sum(), parts

    def set_epoch(self, epoch: int, epochs: int) -> None:
        """Set the weights of the branches for `epoch`, from 0, of `epochs`; heads with one branch ignore them."""
        is_new = epoch != self._epoch or epochs != self._graph.args.epochs
        self._graph.args.epochs = epochs
        self._epoch = epoch
        if is_new and isinstance(self._criterion, E2ELoss):
            self._decay()

    @torch.inference_mode(False)  # the first call can be a validation, and the next one a training step
    def _create(self) -> None:
        if has_one_to_one_branch(self._graph):
            self._criterion = E2ELoss(self._graph)
            self._branches = [self._criterion.one2many, self._criterion.one2one]
            self._decay()
        else:
            self._criterion = v8DetectionLoss(self._graph)
            self._branches = [self._criterion]
        for branch in self._branches:
            branch.assigner.eps = EPSILON
            branch.assigner.register_forward_hook(self._store_target_scores)
            # The criterion uses strides as numbers, which it would read from the device three times per call.
            branch.stride = branch.stride.cpu()

    def _decay(self) -> None:
        """Set the state that Ultralytics' criterion has after an update at the end of each earlier epoch."""
        criterion = self._criterion
        criterion.updates = 0
        criterion.o2m = criterion.o2m_copy
        criterion.o2o = criterion.total - criterion.o2m
        if self._epoch:
            criterion.updates = self._epoch - 1
            criterion.update()

    def _store_target_scores(self, assigner: nn.Module, inputs: Any, assigned: tuple[Tensor, ...]) -> None:
        _, _, scores, _, _ = assigned
        self._scores.append(scores.sum())


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
