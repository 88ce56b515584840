"""Collects matched frames during a validation; torchmetrics brings the states of several processes together."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import torch
from torch import Tensor
from torchmetrics import Metric

from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.evaluation.drift import DriftScores, drift_scores
from yolo_lightning.evaluation.frame_names import FrameNames
from yolo_lightning.evaluation.frame_records import FrameRecords
from yolo_lightning.evaluation.matching import Matches, match
from yolo_lightning.evaluation.ultralytics_matching import UltralyticsMatches, match_as_ultralytics

MakeTable = Callable[[Sequence[Prediction], Sequence[Target], int], FrameRecords]
"""Makes a table of some frames: predictions, targets, number of classes."""


class FrameCollection(Metric):
    """Tables of all frames that were added, each frame once; derived classes say which, and what follows from them.

    A batch is matched when it is added, and only what scoring needs is kept. Each field of a table is a state of
    concatenated tensors, which is one gather per field among several processes. After that the frames stand as one
    process would have met them, if each update was dealt to the processes in slices, the first to the first: detections
    of equal scores rank by it.

    Args:
        classes: Number of classes; labels are below it.
    """

    TABLES: ClassVar[Mapping[str, MakeTable]]
    turns: list[Tensor] | Tensor
    full_state_update = False
    is_differentiable = False
    higher_is_better = True

    def __init__(self, classes: int, **options: Any) -> None:
        super().__init__(**options)
        self.classes = classes
        self._empty = {name: make([], [], classes) for name, make in self.TABLES.items()}
        for table, empty in self._empty.items():
            for field in empty.names():
                self.add_state(f"{table}_{field}", default=[], dist_reduce_fx="cat")
        self.add_state("turns", default=[], dist_reduce_fx="cat")
        self._turn = 0

    def update(self, predictions: Sequence[Prediction], targets: Sequence[Target]) -> None:
        """Add frames; both sequences are of the same frames in the same order."""
        for name, make in self.TABLES.items():
            table = make(predictions, targets, self.classes)
            for field in table.names():
                getattr(self, f"{name}_{field}").append(getattr(table, field))
        assert isinstance(self.turns, list)
        self.turns.append(torch.full((len(targets),), self._turn))
        self._turn += 1

    def reset(self) -> None:
        """Forget all frames."""
        super().reset()
        self._turn = 0

    def table(self, name: str) -> FrameRecords:
        """What was collected; states are lists of tensors, or one tensor each after a gather."""
        empty = self._empty[name]
        states = {field: getattr(self, f"{name}_{field}") for field in empty.names()}
        table = type(empty)(
            **{
                field: torch.cat([getattr(empty, field), *([state] if isinstance(state, Tensor) else state)])
                for field, state in states.items()
            }
        )
        table = table.in_order(self.turns.argsort(stable=True)) if isinstance(self.turns, Tensor) else table
        return table.without_repeats()


class DetectionScores(FrameCollection):
    """Global and monthly scores; 8 bytes are kept per detection."""

    TABLES: ClassVar[Mapping[str, MakeTable]] = {"matches": match}

    def compute(self) -> DriftScores:
        """Scores of the frames added so far."""
        matches = self.table("matches")
        assert isinstance(matches, Matches)
        return drift_scores(matches)


class Collected(msgspec.Struct, frozen=True, eq=False):
    """What an `EvaluationRecord` keeps of the frames. Not a dataclass: torchmetrics refuses frozen ones as results."""

    matches: Matches
    ultralytics: UltralyticsMatches
    image_ids: tuple[str, ...]


class EvaluationCollection(FrameCollection):
    """Frames for COCO's scores and for Ultralytics'; 17 bytes are kept per detection."""

    TABLES: ClassVar[Mapping[str, MakeTable]] = {
        "matches": match,
        "ultralytics": match_as_ultralytics,
        "names": lambda predictions, targets, classes: FrameNames.of([one.image_id for one in targets]),
    }

    def compute(self) -> Collected:
        """The frames added so far."""
        matches, ultralytics, names = (self.table(name) for name in self.TABLES)
        assert isinstance(matches, Matches)
        assert isinstance(ultralytics, UltralyticsMatches)
        assert isinstance(names, FrameNames)
        return Collected(matches, ultralytics, names.image_ids())
