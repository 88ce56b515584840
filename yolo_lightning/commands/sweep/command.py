"""`python -m yolo_lightning sweep`: score and IoU thresholds with the best score on the validation split."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from shlex import quote

import numpy as np

from yolo_lightning.checkpoints.resume import chosen_checkpoint
from yolo_lightning.checkpoints.run_folder import DEFAULT_RUN
from yolo_lightning.commands.command_line import wide_console
from yolo_lightning.commands.console import check_writable, write_results
from yolo_lightning.commands.sweep.sweep_scores import (
    COLUMNS,
    HeldOut,
    Setting,
    SettingScores,
    best,
    held_out,
    of_setting,
    score_settings,
)
from yolo_lightning.commands.sweep.validation_matches import match_validation, network_for
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.errors import UserError
from yolo_lightning.evaluation.score_table import number_table, score_text
from yolo_lightning.model.convolution_settings import Convolution
from yolo_lightning.utils.accelerator import chosen_device

SCORE_THRESHOLDS = (0.001, 0.003, 0.01, 0.03, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
IOU_THRESHOLDS = (0.4, 0.5, 0.6, 0.7, 0.8)
TABLE = ("score_threshold", "iou_threshold", *COLUMNS)
ROWS = 10


def sweep(
    *,
    data: DetectionDataModule,
    run: str = DEFAULT_RUN,
    checkpoint: str | None = None,
    score_thresholds: tuple[float, ...] = SCORE_THRESHOLDS,
    iou_thresholds: tuple[float, ...] = IOU_THRESHOLDS,
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
        device: `cpu`, `cuda`, `cuda:1`, ...; `auto` uses a GPU if there is one.
        conv_backend: As `model.convolution.backend`.
        json: JSON file to write, with all settings and both halves.
    """
    for name, values in (("score_thresholds", score_thresholds), ("iou_thresholds", iou_thresholds)):
        if not values or not all(0 <= value <= 1 for value in values):
            raise UserError(f"--{name} must contain one or more numbers from 0 to 1, got {list(values)}.")
    check_writable(json, ".json")
    file = chosen_checkpoint(run, checkpoint)
    place = chosen_device(device)
    network, names, recorded = network_for(data, file, place, conv_backend)
    usual = Setting(recorded.detections.score_threshold, recorded.detections.iou_threshold)
    thresholds = sorted({*score_thresholds, usual.score_threshold})
    limits = [usual.iou_threshold]
    if not recorded.detections.one_to_one:  # without suppression every IoU threshold gives the same boxes
        limits = sorted({*iou_thresholds, usual.iou_threshold})
    lowest = [replace(recorded.detections, score_threshold=thresholds[0], iou_threshold=limit) for limit in limits]
    matched, half = match_validation(
        [network], data, place, lowest, classes=len(names), single_class=recorded.single_class
    )
    matches = dict(zip(limits, matched, strict=True))
    scored = score_settings(matches, thresholds, np.ones_like(half))
    halves: list[HeldOut] = []
    if half.any() and not half.all():
        halves = held_out(matches, thresholds, half, usual)
    options = best(scored).setting.options()
    if data.image_size != (recorded.image_size or data.image_size):
        options += f" --data.image_size {quote(str(list(data.image_size)))}"
    show(scored, usual, halves)
    print(f"best: --ckpt_path {file} {options}")
    content = {
        "weights": str(file),
        "frames": len(half),
        "checkpoint": asdict(usual),
        "best": best(scored).plain(),
        "settings": [scores.plain() for scores in scored],
        "held_out": [{name: scores.plain() for name, scores in choice._asdict().items()} for choice in halves],
    }
    write_results(json, content)


def show(scored: Sequence[SettingScores], usual: Setting, halves: Sequence[HeldOut]) -> None:
    """Print the best settings, and the settings chosen on halves."""
    console = wide_console()
    settings = number_table("setting", TABLE)
    ranking = sorted(scored, key=SettingScores.rank, reverse=True)
    for number, scores in enumerate(ranking[:ROWS], start=1):
        settings.add_row(str(number), *cells(scores))
    settings.add_row("the checkpoint's", *cells(of_setting(scored, usual)))
    console.print(settings)
    if halves:
        console.print("Scores on the frames used for the choice are too optimistic. Chosen on one half of the clips:")
        table = number_table("clips", TABLE)
        for number, choice in enumerate(halves, start=1):
            table.add_row(f"chosen on half {number}", *cells(choice.chosen))
            table.add_row(f"the same on half {3 - number}", *cells(choice.elsewhere))
            usual_cells = cells(choice.checkpoint_elsewhere)
            table.add_row(f"the checkpoint's on half {3 - number}", *usual_cells, end_section=True)
        console.print(table)


def cells(scores: SettingScores) -> list[str]:
    setting = scores.setting
    return [f"{setting.score_threshold:g}", f"{setting.iou_threshold:g}", *map(score_text, scores.named().values())]
