"""Scores of threshold settings from one matching per IoU threshold, and comparison of the scores on both halves.

NMS and matching both process detections in descending order of scores. A higher score threshold therefore changes
nothing for the remaining detections: its scores come from the same matches, cut at that threshold.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

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
class Setting:
    """Values of `model.detections.score_threshold` and `model.detections.iou_threshold`, 0 to 1."""

    score_threshold: float
    iou_threshold: float

    def options(self) -> str:
        thresholds = {"score_threshold": self.score_threshold, "iou_threshold": self.iou_threshold}
        return " ".join(f"--model.detections.{name} {value:g}" for name, value in thresholds.items())


@dataclass(frozen=True, slots=True)
class SettingScores:
    """Scores of a setting."""

    setting: Setting
    map_50: float  # of all classes and frames, 0 to 1; -1 without ground truth
    variation: float | None  # coefficient of variation over the months; None for fewer than two compared months
    balanced: float  # see `DriftScores.balanced`; NaN if every month scores 0

    def rank(self) -> tuple[float, float]:
        """Return the sort key: balanced score, then `map_50`; NaN is the lowest."""
        balanced = -math.inf if math.isnan(self.balanced) else self.balanced
        return balanced, self.map_50

    def named(self) -> dict[str, float | None]:
        """Return the scores by column name."""
        return {"map_50": self.map_50, "cov": self.variation, "balanced": self.balanced}

    def plain(self) -> dict[str, float | None]:
        """Return setting and scores as JSON data; NaN and an unknown variation become null."""
        return {**asdict(self.setting), **{name: finite(value) for name, value in self.named().items()}}


def selected(matches: Matches, frames: Mask, score_threshold: float) -> Matches:
    """Return the matches of the frames in `frames`, `(F,)`, with detections of scores above `score_threshold`."""
    return matches.chosen(torch.from_numpy(frames), matches.scores > score_threshold)


def score_setting(matches: Matches, setting: Setting, frames: Mask) -> SettingScores:
    """Score a setting on the frames in `frames`, `(F,)`; `matches` were suppressed at its IoU threshold."""
    scores = drift_scores(selected(matches, frames, setting.score_threshold))
    return SettingScores(setting, scores.overall.scalars()["map_50"], scores.variation(), scores.balanced())


def score_settings(
    matches: Mapping[float, Matches], score_thresholds: Sequence[float], frames: Mask
) -> list[SettingScores]:
    """Score all pairs of an IoU threshold (the keys of `matches`) and a score threshold."""
    return [
        score_setting(of_iou_threshold, Setting(score_threshold, iou_threshold), frames)
        for iou_threshold, of_iou_threshold in matches.items()
        for score_threshold in score_thresholds
    ]


def best(scored: Sequence[SettingScores]) -> SettingScores:
    """Return the setting with the highest balanced score; ties by `map_50`, then by order."""
    return max(scored, key=SettingScores.rank)


def of_setting(scored: Sequence[SettingScores], setting: Setting) -> SettingScores:
    return next(scores for scores in scored if scores.setting == setting)


class HeldOut(NamedTuple):
    """The best setting on one half of the frames, and its scores on the other half."""

    chosen: SettingScores  # the best setting on its half
    elsewhere: SettingScores  # the same setting on the other half
    checkpoint_elsewhere: SettingScores  # the setting of the checkpoint on the other half


def held_out(
    matches: Mapping[float, Matches], score_thresholds: Sequence[float], half: Mask, usual: Setting
) -> list[HeldOut]:
    """Choose on one half of the frames and score on the other half, in both directions.

    `matches` are by IoU threshold, `half` is `(F,)`. The setting `usual` of the checkpoint must be among the choices.
    """
    first = score_settings(matches, score_thresholds, half)
    second = score_settings(matches, score_thresholds, ~half)
    choices = []
    for scored, elsewhere in ((first, second), (second, first)):
        chosen = best(scored)
        choices.append(HeldOut(chosen, of_setting(elsewhere, chosen.setting), of_setting(elsewhere, usual)))
    return choices


@dataclass(frozen=True, slots=True)
class Comparison:
    """Scores without a change (`before`) and with it (`after`): of all frames, then of the halves."""

    before: list[SettingScores]
    after: list[SettingScores]

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
                table.add_row(f"{part}, {name}", *map(score_text, scores.named().values()))
        wide_console().print(table)
