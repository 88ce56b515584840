"""Collects the matched frames of a validation; torchmetrics gathers the states of several ranks."""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import torch
from torch import Tensor
from torchmetrics import Metric

from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.evaluation.frame_records import FrameNames, FrameRecords
from yolo_lightning.evaluation.matching import Matches, match
from yolo_lightning.evaluation.ultralytics_matching import UltralyticsMatches, match_as_ultralytics

Records = TypeVar("Records", bound=FrameRecords)


class Collected(msgspec.Struct, frozen=True, eq=False):
    """The frames of an evaluation. Not a dataclass, because torchmetrics rejects frozen dataclasses as results."""

    matches: Matches
    ultralytics: UltralyticsMatches
    image_ids: tuple[str, ...]


class EvaluationCollection(Metric):
    """Matched frames for the scores of COCO and Ultralytics, without repeated frames; 17 bytes per detection.

    A batch is matched in `update`. Each field of a table is a state of concatenated tensors, so that ranks gather once
    per field. Gathered frames are restored to the order of a single process, given that each update is split over the
    ranks in slices, the first slice to rank 0: detections of equal scores are ranked by this order.

    Args:
        classes: Number of classes; labels are smaller.
    """

    turns: list[Tensor] | Tensor
    full_state_update = False
    is_differentiable = False
    higher_is_better = True

    def __init__(self, classes: int, **options: Any) -> None:
        super().__init__(**options)
        self.classes = classes
        self._empty = self._tables([], [])
        for name, empty in self._empty.items():
            for field in empty.names():
                self.add_state(f"{name}_{field}", default=[], dist_reduce_fx="cat")
        self.add_state("turns", default=[], dist_reduce_fx="cat")
        self._turn = 0

    def update(self, predictions: Sequence[Prediction], targets: Sequence[Target]) -> None:
        """Add frames; both sequences contain the same frames in the same order."""
        for name, table in self._tables(predictions, targets).items():
            for field in table.names():
                getattr(self, f"{name}_{field}").append(getattr(table, field))
        assert isinstance(self.turns, list)
        self.turns.append(torch.full((len(targets),), self._turn))
        self._turn += 1

    def reset(self) -> None:
        super().reset()
        self._turn = 0

    def compute(self) -> Collected:
        """Return the frames added so far."""
        names = self._joined("names", FrameNames)
        matches, ultralytics = self._joined("matches", Matches), self._joined("ultralytics", UltralyticsMatches)
        return Collected(matches, ultralytics, names.image_ids())

    def _tables(self, predictions: Sequence[Prediction], targets: Sequence[Target]) -> dict[str, FrameRecords]:
        return {
            "matches": match(predictions, targets, self.classes),
            "ultralytics": match_as_ultralytics(predictions, targets, self.classes),
            "names": FrameNames.of([one.image_id for one in targets]),
        }

    def _joined(self, name: str, kind: type[Records]) -> Records:
        """Concatenate the states of a table: lists of tensors, or one tensor each after a gather."""
        empty = self._empty[name]
        states = {field: getattr(self, f"{name}_{field}") for field in empty.names()}
        table = kind(
            **{
                field: torch.cat([getattr(empty, field), *([state] if isinstance(state, Tensor) else state)])
                for field, state in states.items()
            }
        )
        if isinstance(self.turns, Tensor):
            table = table.in_order(self.turns.argsort(stable=True))
        return table.without_repeats()
