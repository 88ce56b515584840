"""`python -m yolo_lightning sweep`: score and IoU thresholds with the best score on the validation split."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from jsonargparse import Namespace
from rich.console import Console

from yolo_lightning.checkpoints.checkpoint_file import require_whole
from yolo_lightning.checkpoints.mirror import local_checkpoint
from yolo_lightning.checkpoints.resume import checkpoint_to_evaluate
from yolo_lightning.checkpoints.run_folder import DEFAULT_RUN
from yolo_lightning.commands.console import counter, finite, write_results
from yolo_lightning.commands.halves import PIPE_WIDTH
from yolo_lightning.commands.sweep.candidates import Candidates, collect, in_first_half, suppressed
from yolo_lightning.commands.sweep.sweep_scores import (
    HeldOut,
    Setting,
    SettingScores,
    best,
    held_out,
    of_setting,
    score_settings,
)
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.formats.choose_format import format_class
from yolo_lightning.detector import folded_network
from yolo_lightning.evaluation.matching import Matches, match
from yolo_lightning.evaluation.score_table import number_table, score_text
from yolo_lightning.model.detection_settings import DetectionSettings
from yolo_lightning.model.layers import Convolution
from yolo_lightning.model.network_settings import bound_options, read_record, read_settings
from yolo_lightning.utils.choices import chosen_device

SCORE_THRESHOLDS = (0.001, 0.003, 0.01, 0.03, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
IOU_THRESHOLDS = (0.4, 0.5, 0.6, 0.7, 0.8)
COLUMNS = ("score_threshold", "iou_threshold", "map_50", "cov", "balanced")
ROWS = 10
MIN_CANDIDATES = 100


@dataclass(frozen=True, slots=True)
class Sweep:
    """Results of a sweep."""

    frames: int  # number of frames in the split
    cut: int  # number of frames with more candidates than were kept
    usual: Setting  # the checkpoint's setting
    scored: list[SettingScores]  # all settings, scored on all frames
    held_out: list[HeldOut]  # both directions; empty if the split cannot be halved


def sweep(
    *,
    data: DetectionDataModule,
    run: str = DEFAULT_RUN,
    checkpoint: str | None = None,
    score_thresholds: tuple[float, ...] = SCORE_THRESHOLDS,
    iou_thresholds: tuple[float, ...] = IOU_THRESHOLDS,
    candidates: int = 1000,
    device: str = "auto",
    conv_backend: Convolution = "auto",
    json: str | None = None,
) -> None:
    """Find the score threshold and the IoU threshold of NMS with the best balanced score on the validation split.

    The network processes each frame once. The best settings are printed as options; no file is changed.

    Args:
        data: Dataset.
        run: Run folder; the best checkpoint of its newest run is used.
        checkpoint: Path or address of a checkpoint, instead of the best one of `run`.
        score_thresholds: Values to try, 0 to 1; the checkpoint's value is added. Boxes below the lowest are dropped.
        iou_thresholds: Values to try, 0 to 1; the checkpoint's value is added. Not used with
            `model.detections.one_to_one`, which has no NMS.
        candidates: Boxes with the highest scores kept per frame before NMS, >= 100; 22 bytes each.
        device: `cpu`, `cuda`, `cuda:1`, ...; `auto` uses a GPU if there is one.
        conv_backend: As `model.convolution.backend`.
        json: JSON file to write, with all settings and both halves.
    """
    check_options(score_thresholds, iou_thresholds, candidates)
    file = checkpoint_file(run, checkpoint)
    recorded = read_settings(file)
    known = recorded.detections
    place = chosen_device(device)
    network, names = folded_network(file, place, conv_backend, one_to_one=known.one_to_one)
    data.image_size.check("data.image_size", stride=network.stride)
    if not recorded.single_class and names != list(data.class_names):
        classes = list(data.class_names)
        raise ValueError(f"The classes of the data must be {names}, as in checkpoint {file}, got {classes}.")
    thresholds = sorted({*score_thresholds, known.score_threshold})
    data.setup("validate")
    with counter("processed", len(data.index("valid"))) as advance:
        parts = collect(
            network,
            data,
            place,
            advance,
            score_threshold=thresholds[0],
            limit=candidates,
            single_class=recorded.single_class,
        )
    # Without suppression every IoU threshold gives the same boxes.
    limits = [known.iou_threshold] if known.one_to_one else sorted({*iou_thresholds, known.iou_threshold})
    found = _score_all(parts, data, known, len(names), thresholds, limits)
    options = best(found.scored).setting.options()
    if data.image_size != (recorded.image_size or data.image_size):
        options += f" --data.image_size {quote(str(data.image_size))}"
    show(found)
    print(f"best: --ckpt_path {file} {options}")
    write_results(json, {"weights": str(file), **content(found)})


def check_options(score_thresholds: Sequence[float], iou_thresholds: Sequence[float], candidates: int) -> None:
    for name, values in (("score_thresholds", score_thresholds), ("iou_thresholds", iou_thresholds)):
        if not values or not all(0 <= value <= 1 for value in values):
            raise ValueError(f"--{name} must contain one or more numbers from 0 to 1, got {list(values)}.")
    if candidates < MIN_CANDIDATES:
        raise ValueError(f"--candidates must be >= {MIN_CANDIDATES}, got {candidates}.")


def checkpoint_file(run: str, checkpoint: str | None) -> Path:
    """Return the given checkpoint, or the best one of the run, if it is complete."""
    file = local_checkpoint(checkpoint) if checkpoint else checkpoint_to_evaluate(Path(run))
    require_whole(file)
    return file


def bound_by_weights(options: Namespace) -> dict[str, Any]:
    """Return the data options that follow from the checkpoint of the given options."""
    check_options(options.score_thresholds, options.iou_thresholds, options.candidates)
    return data_options_of(checkpoint_file(options.run, options.checkpoint), options)


def data_options_of(file: Path, options: Namespace) -> dict[str, Any]:
    """Return the data options that follow from a checkpoint; `options` are those of the command line."""
    bound = bound_options(read_record(file), is_gray=format_class(options.data.format).is_gray)
    return {name: value for name, value in bound.items() if name.startswith("data.")}


def _score_all(
    parts: Sequence[Candidates],
    data: DetectionDataModule,
    known: DetectionSettings,
    classes: int,
    score_thresholds: Sequence[float],
    iou_thresholds: Sequence[float],
) -> Sweep:
    """Run NMS once per IoU threshold and score all pairs of thresholds.

    `score_thresholds` is ascending; the candidates have scores above its first value. Both sequences of thresholds
    contain the value in `known`, the settings recorded in the checkpoint.
    """
    half = in_first_half(parts, data.index("valid"))
    lowest = replace(known, score_threshold=score_thresholds[0])
    matches = {}
    with counter("suppressed", len(half) * len(iou_thresholds)) as advance:
        for iou_threshold in iou_thresholds:
            matched = []
            for part in parts:
                found = suppressed(part, classes, replace(lowest, iou_threshold=iou_threshold))
                matched.append(match(found, part.targets, classes))
                advance(len(part.targets))
            matches[iou_threshold] = Matches.join(matched)
    usual = Setting(known.score_threshold, known.iou_threshold)
    scored = score_settings(matches, score_thresholds, np.ones(len(half), dtype=np.bool_))
    can_halve = bool(half.any() and not half.all())
    return Sweep(
        frames=len(half),
        cut=sum(part.cut for part in parts),
        usual=usual,
        scored=scored,
        held_out=held_out(matches, score_thresholds, half, usual) if can_halve else [],
    )


def show(found: Sweep) -> None:
    """Print the best settings, and the settings chosen on halves."""
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    settings = number_table("setting", COLUMNS)
    for number, one in enumerate(sorted(found.scored, key=SettingScores.rank, reverse=True)[:ROWS], start=1):
        settings.add_row(str(number), *cells(one))
    settings.add_row("the checkpoint's", *cells(of_setting(found.scored, found.usual)))
    console.print(settings)
    if found.cut:
        console.print(f"{found.cut:,} of {found.frames:,} frames had more candidates than --candidates")
    if found.held_out:
        console.print("Scores on the frames used for the choice are too optimistic. Chosen on one half of the clips:")
        halves = number_table("clips", COLUMNS)
        for number, pair in enumerate(found.held_out, start=1):
            halves.add_row(f"chosen on half {number}", *cells(pair.chosen))
            halves.add_row(f"the same on half {3 - number}", *cells(pair.elsewhere))
            halves.add_row(f"the checkpoint's on half {3 - number}", *cells(pair.usual), end_section=True)
        console.print(halves)


def cells(one: SettingScores) -> list[str]:
    return [
        f"{one.setting.score_threshold:g}",
        f"{one.setting.iou_threshold:g}",
        *map(score_text, one.named().values()),
    ]


def content(found: Sweep) -> dict[str, Any]:
    """Return all results as JSON data; NaN and an unknown variation become null."""
    return {
        "frames": found.frames,
        "frames_cut": found.cut,
        "checkpoint": asdict(found.usual),
        "best": entry(best(found.scored)),
        "settings": [entry(one) for one in found.scored],
        "held_out": [
            {"chosen": entry(one.chosen), "elsewhere": entry(one.elsewhere), "checkpoint_elsewhere": entry(one.usual)}
            for one in found.held_out
        ],
    }


def entry(one: SettingScores) -> dict[str, float | None]:
    return {**asdict(one.setting), **{name: finite(value) for name, value in one.named().items()}}
