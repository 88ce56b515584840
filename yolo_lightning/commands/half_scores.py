"""Scores of frames before and after a change, on all frames and on both halves of the clips."""

import math
from dataclasses import dataclass

import numpy as np

from yolo_lightning.commands.command_line import wide_console
from yolo_lightning.data.array_types import BoolArray
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.index.splits import choose_clips
from yolo_lightning.evaluation.drift import RankingScores, drift_scores
from yolo_lightning.evaluation.matching import Matches
from yolo_lightning.evaluation.score_table import number_table, ranking_cells

PARTS = ("all", "half 1", "half 2")


def first_half(index: SplitIndex) -> BoolArray:
    """Return `(frames,)` whether a frame belongs to the first half: half of each month's clips, at least one.

    Halves share no clip, because neighbouring frames are near duplicates. Clips are chosen by a hash of their names,
    independent of run and machine. A month with a single clip is in the first half only.
    """
    return np.isin(index.clips(), choose_clips(index, 0.5))


def score_frames(matches: Matches, frames: BoolArray) -> RankingScores:
    """Score the frames in `frames`, `(F,)`."""
    detections = np.ones(len(matches.scores), np.bool_)
    return drift_scores(matches.chosen(frames, detections)).ranking()


def _rank(scores: RankingScores) -> tuple[float, float]:
    """Return the sort key: balanced score, then `map_50`; NaN is the lowest."""
    balanced = -math.inf if math.isnan(scores.balanced) else scores.balanced
    return balanced, scores.map_50


@dataclass(frozen=True, slots=True)
class Comparison:
    """Scores without a change (`before`) and with it (`after`): of all frames, then of the halves."""

    before: list[RankingScores]
    after: list[RankingScores]

    @classmethod
    def of(cls, before: Matches, after: Matches, half: BoolArray) -> "Comparison":
        """Score the matches of the same frames; `half` is `(F,)` whether a frame belongs to the first half."""
        parts = [np.ones_like(half)]
        if half.any() and not half.all():
            parts += [half, ~half]
        return cls([score_frames(before, part) for part in parts], [score_frames(after, part) for part in parts])

    @property
    def is_better(self) -> bool:
        """Whether the balanced score is higher on all frames and, if the split can be halved, on each half."""
        pairs = zip(self.before, self.after, strict=True)
        return all(_rank(after) > _rank(before) for before, after in pairs)

    @property
    def where(self) -> str:
        return "all frames and both halves" if len(self.before) > 1 else "all frames, because no month has two clips"

    def show(self, change: str) -> None:
        """Print a table; `change` is the heading of the rows with the change."""
        table = number_table("frames", ("map_50", "cov", "balanced"))
        for name, parts in {"before": self.before, change: self.after}.items():
            for part, scores in zip(PARTS, parts, strict=False):
                table.add_row(f"{part}, {name}", *ranking_cells(scores))
        wide_console().print(table)
