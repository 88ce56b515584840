"""Collects matched frames during a validation; torchmetrics brings the states of several processes together."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from yolo_lightning.batch import Prediction, Target
from yolo_lightning.evaluation.drift import DriftScores, drift_scores
from yolo_lightning.evaluation.matching import Matches, match

FIELDS = tuple(field.name for field in fields(Matches))


class DetectionScores(Metric):
    """Global and monthly scores of all frames that were added, each frame counted once.

    A batch is matched when it is added, and only what scoring needs is kept: 14 bytes per detection. Each field of
    `Matches` is a state of concatenated tensors, which is one gather per field among several processes. After that the
    frames stand as one process would have met them, if each update was dealt to the processes in slices, the first to
    the first: detections of equal scores rank by it.

    Args:
        classes: Number of classes; labels are below it.
    """

    turns: list[Tensor] | Tensor
    full_state_update = False
    is_differentiable = False
    higher_is_better = True

    def __init__(self, classes: int, **options: Any) -> None:
        super().__init__(**options)
        self.classes = classes
        for name in (*FIELDS, "turns"):
            self.add_state(name, default=[], dist_reduce_fx="cat")
        self._turn = 0

    def update(self, predictions: Sequence[Prediction], targets: Sequence[Target]) -> None:
        """Add frames; both sequences are of the same frames in the same order."""
        matches = match(predictions, targets, self.classes)
        for name in FIELDS:
            getattr(self, name).append(getattr(matches, name))
        self.turns.append(torch.full((len(matches.keys),), self._turn))
        self._turn += 1

    def compute(self) -> DriftScores:
        """Scores of the frames added so far."""
        return drift_scores(self.matches().without_repeats())

    def reset(self) -> None:
        """Forget all frames."""
        super().reset()
        self._turn = 0

    def matches(self) -> Matches:
        """What was collected; states are lists of tensors, or one tensor each after a gather."""
        empty = match([], [], self.classes)
        states = {name: getattr(self, name) for name in FIELDS}
        matches = Matches(
            **{
                name: torch.cat([getattr(empty, name), *([state] if isinstance(state, Tensor) else state)])
                for name, state in states.items()
            }
        )
        return matches.in_order(self.turns.argsort(stable=True)) if isinstance(self.turns, Tensor) else matches
