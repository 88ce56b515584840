"""What a sweep found, as tables for people and as JSON."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from yolo_lightning.commands.sweep.operating_points import OperatingPoint
from yolo_lightning.commands.sweep.sweep_settings import HeldOut, Setting, SettingScores, best, of_setting
from yolo_lightning.evaluation.average_precision import NO_GROUND_TRUTH
from yolo_lightning.evaluation.drift import month_name


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep found.

    Attributes:
        frames: Of the split.
        cut: Frames with more candidates than were kept.
        usual: The checkpoint's own setting.
        scored: All settings, on all frames.
        held_out: Both ways round; empty where the split cannot be halved.
        points: Operating points at the best overlap.
    """

    frames: int
    cut: int
    usual: Setting
    scored: list[SettingScores]
    held_out: list[HeldOut]
    points: list[OperatingPoint]


def settings_table(sweep: Sweep, rows: int) -> Table:
    """The best settings, and the checkpoint's own.

    Args:
        sweep: What was found.
        rows: How many of the best.
    """
    table = plain_table("setting", "score_threshold", "iou_threshold", "map_50", "cov", "balanced")
    ranked = sorted(sweep.scored, key=lambda one: -math.inf if math.isnan(one.balanced) else one.balanced, reverse=True)
    for number, one in enumerate(ranked[:rows], start=1):
        table.add_row(str(number), *cells(one))
    table.add_row("the checkpoint's", *cells(of_setting(sweep.scored, sweep.usual)))
    return table


def held_out_table(sweep: Sweep) -> Table:
    """The choice of each half of the clips, scored on the other half."""
    table = plain_table("clips", "score_threshold", "iou_threshold", "map_50", "cov", "balanced")
    for number, one in enumerate(sweep.held_out, start=1):
        table.add_row(f"chosen on half {number}", *cells(one.chosen))
        table.add_row(f"the same on half {3 - number}", *cells(one.elsewhere))
        table.add_row(f"the checkpoint's on half {3 - number}", *cells(one.usual), end_section=True)
    return table


def points_table(points: Sequence[OperatingPoint], class_names: Sequence[str]) -> Table:
    """A row per month: confidence and F1 of each class."""
    table = plain_table("best F1 at confidence", *class_names)
    by_place = {(point.month, point.label): point for point in points}
    for month in sorted({point.month for point in points}):
        own = [by_place.get((month, label)) for label in range(len(class_names))]
        table.add_row(month_name(month), *(f"{one.f1:.2f} at {one.score_threshold:.3f}" if one else "-" for one in own))
    return table


def plain_table(first: str, *headings: str) -> Table:
    """A table whose further columns are numbers."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def cells(one: SettingScores) -> list[str]:
    """Of a setting and its scores."""
    variation = math.nan if one.variation is None else one.variation
    numbers = (one.map_50, variation, one.balanced)
    shown = ("-" if math.isnan(number) or number == NO_GROUND_TRUTH else f"{number:.4f}" for number in numbers)
    return [f"{one.setting.score_threshold:g}", f"{one.setting.iou_threshold:g}", *shown]


def content(sweep: Sweep, class_names: Sequence[str]) -> dict[str, Any]:
    """All of it as plain values; null for NaN, and for a variation that cannot be told."""
    return {
        "frames": sweep.frames,
        "frames_cut": sweep.cut,
        "checkpoint": asdict(sweep.usual),
        "best": entry(best(sweep.scored)),
        "settings": [entry(one) for one in sweep.scored],
        "held_out": [
            {"chosen": entry(one.chosen), "elsewhere": entry(one.elsewhere), "checkpoint_elsewhere": entry(one.usual)}
            for one in sweep.held_out
        ],
        "operating_points": [
            {**asdict(point), "month": month_name(point.month), "class": class_names[point.label]}
            for point in sweep.points
        ],
    }


def entry(one: SettingScores) -> dict[str, float | None]:
    """A setting and its scores."""
    balanced = None if math.isnan(one.balanced) else one.balanced
    variation = None if one.variation is None or math.isnan(one.variation) else one.variation
    return {**asdict(one.setting), "map_50": one.map_50, "cov": variation, "balanced": balanced}
