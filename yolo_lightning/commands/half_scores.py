"""Scores of frames before and after a change, on all frames and on both halves of the clips."""

import math
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import torch

from yolo_lightning.commands.command_line import wide_console
from yolo_lightning.commands.console import finite
from yolo_lightning.evaluation.drift import drift_scores
from yolo_lightning.evaluation.matching import Matches
from yolo_lightning.evaluation.score_table import number_table, score_text

Mask = npt.NDArray[np.bool_]
PARTS = ("all", "half 1", "half 2")
COLUMNS = ("map_50", "cov", "balanced")


@dataclass(frozen=True, slots=True)
class FrameSetScores:
    """Scores of a set of frames."""

    map_50: float  # of all classes and frames, 0 to 1; -1 without ground truth
    variation: float | None  # coefficient of variation over the months; None for fewer than two compared months
    balanced: float  # see `DriftScores.balanced`; NaN if every month scores 0

    def rank(self) -> tuple[float, float]:
        """Return the sort key: balanced score, then `map_50`; NaN is the lowest."""
        balanced = -math.inf if math.isnan(self.balanced) else self.balanced
        return balanced, self.map_50

    def cells(self) -> list[str]:
        """Return the texts of the scores in the order of `COLUMNS`."""
        return [score_text(score) for score in (self.map_50, self.variation, self.balanced)]

    def plain(self) -> dict[str, float | None]:
        """Return the scores by column as JSON data; NaN and an unknown variation become null."""
        return dict(zip(COLUMNS, map(finite, asdict(self).values()), strict=True))


def score_frames(matches: Matches, frames: Mask) -> FrameSetScores:
    """Score the frames in `frames`, `(F,)`."""
    detections = torch.ones(len(matches.scores), dtype=torch.bool)
    scores = drift_scores(matches.chosen(torch.from_numpy(frames), detections))
    return FrameSetScores(scores.overall.scalars()["map_50"], scores.variation(), scores.balanced())


@dataclass(frozen=True, slots=True)
class Comparison:
    """Scores without a change (`before`) and with it (`after`): of all frames, then of the halves."""

    before: list[FrameSetScores]
    after: list[FrameSetScores]

    @property
    def is_better(self) -> bool:
        """Whether the balanced score is higher on all frames and, if the split can be halved, on each half."""
        pairs = zip(self.before, self.after, strict=True)
        return all(after.rank() > before.rank() for before, after in pairs)

    @property
    def score_name(self) -> str:
        """Name of the compared score: without months to compare, the balanced score is mAP50."""
        return "mAP50" if self.before[0].variation is None else "balanced"

    @property
    def where(self) -> str:
        return "all frames and both halves" if len(self.before) > 1 else "all frames, because no month has two clips"

    def show(self, change: str) -> None:
        """Print a table; `change` is the heading of the rows with the change."""
        table = number_table("frames", COLUMNS)
        for name, parts in {"before": self.before, change: self.after}.items():
            for part, scores in zip(PARTS, parts, strict=False):
                table.add_row(f"{part}, {name}", *scores.cells())
        wide_console().print(table)
