"""Scores of settings, from one matching per overlap. Pure.

Suppression and matching both go from the best detection to the worst, so what a higher confidence leaves out changes
nothing of what stays: its scores come from the same matches, cut at that confidence.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from yolo_lightning.evaluation.drift import drift_scores
from yolo_lightning.evaluation.matching import Matches

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Setting:
    """What `model.score_threshold` and `model.iou_threshold` may be.

    Attributes:
        score_threshold: Detections must score more than this, 0 to 1.
        iou_threshold: Intersection over union above which the weaker of two boxes of a class goes, 0 to 1.
    """

    score_threshold: float
    iou_threshold: float

    def options(self) -> str:
        """As words of a command line."""
        return f"--model.score_threshold {self.score_threshold:g} --model.iou_threshold {self.iou_threshold:g}"


@dataclass(frozen=True, slots=True)
class SettingScores:
    """What a setting scores.

    Attributes:
        setting: The setting.
        map_50: Of all classes and frames, 0 to 1; -1 without ground truth.
        variation: Coefficient of variation over the months; None where fewer than two can be compared.
        balanced: See `DriftScores.balanced`; NaN where every month scores 0.
    """

    setting: Setting
    map_50: float
    variation: float | None
    balanced: float


def selected(matches: Matches, frames: Mask, score_threshold: float) -> Matches:
    """The matches of some frames, without detections that score `score_threshold` or less.

    Args:
        matches: Of F frames.
        frames: `(F,)` which of them.
        score_threshold: 0 to 1.
    """
    owners = torch.arange(len(matches.keys)).repeat_interleave(matches.counts.long())
    chosen = torch.from_numpy(frames)
    kept = chosen[owners] & (matches.scores > score_threshold)
    counts = torch.bincount(owners[kept], minlength=len(matches.keys)).to(matches.counts.dtype)
    return Matches(
        keys=matches.keys[chosen],
        months=matches.months[chosen],
        annotated=matches.annotated[chosen],
        counts=counts[chosen],
        labels=matches.labels[kept],
        scores=matches.scores[kept],
        ranks=matches.ranks[kept],
        hits=matches.hits[kept],
    )


def score_setting(matches: Matches, setting: Setting, frames: Mask) -> SettingScores:
    """Scores of one setting.

    Args:
        matches: Of F frames, suppressed at the setting's overlap, down to its confidence or further.
        setting: The setting.
        frames: `(F,)` which of them count.
    """
    scores = drift_scores(selected(matches, frames, setting.score_threshold))
    return SettingScores(setting, scores.overall.scalars()["map_50"], scores.variation(), scores.balanced())


def score_settings(
    by_overlap: Mapping[float, Matches], score_thresholds: Iterable[float], frames: Mask
) -> list[SettingScores]:
    """Scores of every pair of an overlap and a confidence; arguments as in `score_setting`."""
    listed = list(score_thresholds)
    return [
        score_setting(matches, Setting(score_threshold, iou_threshold), frames)
        for iou_threshold, matches in by_overlap.items()
        for score_threshold in listed
    ]


def best(scored: Sequence[SettingScores]) -> SettingScores:
    """The highest balanced score, of equals the higher `map_50`, then the first."""
    return max(scored, key=lambda one: (-math.inf if math.isnan(one.balanced) else one.balanced, one.map_50))


def of_setting(scored: Sequence[SettingScores], setting: Setting) -> SettingScores:
    """The scores of a setting among those of others."""
    return next(one for one in scored if one.setting == setting)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What a choice is worth on frames that had no part in it.

    Attributes:
        chosen: The best setting of one half of the clips, with its scores there.
        elsewhere: The same setting on the other half.
        usual: The checkpoint's own setting on the other half.
    """

    chosen: SettingScores
    elsewhere: SettingScores
    usual: SettingScores


def held_out(
    by_overlap: Mapping[float, Matches], score_thresholds: Sequence[float], half: Mask, usual: Setting
) -> list[HeldOut]:
    """Choose on one half and score on the other, both ways round.

    Args:
        by_overlap: As in `score_settings`.
        score_thresholds: To choose from; hold that of `usual`.
        half: `(F,)` frames of the first half.
        usual: The setting to compare with.
    """
    scored = [score_settings(by_overlap, score_thresholds, part) for part in (half, ~half)]
    result = []
    for own, other in (scored, scored[::-1]):
        chosen = best(own)
        result.append(HeldOut(chosen, of_setting(other, chosen.setting), of_setting(other, usual)))
    return result
