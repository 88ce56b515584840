"""`python -m yolo_lightning sweep`: which confidence and overlap score best on the validation split."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from rich.console import Console

from yolo_lightning.checkpoints.checkpoint_file import require_whole
from yolo_lightning.checkpoints.remote import local_checkpoint
from yolo_lightning.checkpoints.run_folder import DEFAULT_RUN, checkpoint_to_evaluate
from yolo_lightning.commands.command_line import wide_console
from yolo_lightning.commands.console import counter, gigabytes
from yolo_lightning.commands.predict.detector import folded_network
from yolo_lightning.commands.sweep.candidates import Candidates, size_bytes
from yolo_lightning.commands.sweep.collecting import collect
from yolo_lightning.commands.sweep.sweep import half_of, sweep_candidates
from yolo_lightning.commands.sweep.sweep_report import Sweep, content, held_out_table, points_table, settings_table
from yolo_lightning.commands.sweep.sweep_settings import Setting, best
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.formats.dataset_format import LTDV2
from yolo_lightning.model.layers import Convolution
from yolo_lightning.model.network_settings import NetworkSettings, bound_options, read_record, read_settings
from yolo_lightning.utils.choices import chosen_device
from yolo_lightning.utils.files import write_json

CONFIDENCES = (0.001, 0.003, 0.01, 0.03, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
OVERLAPS = (0.4, 0.5, 0.6, 0.7, 0.8)
ROWS = 10
LEAST_CANDIDATES = 100


def sweep(
    *,
    data: DetectionDataModule,
    run: str = DEFAULT_RUN,
    checkpoint: str | None = None,
    score_thresholds: tuple[float, ...] = CONFIDENCES,
    iou_thresholds: tuple[float, ...] = OVERLAPS,
    candidates: int = 1000,
    tta: bool = False,
    device: str = "auto",
    conv_backend: Convolution = "auto",
    json: str | None = None,
) -> None:
    """Find the confidence and the overlap of suppression with the best balanced score on the validation split.

    The network looks once at each frame. The best settings are printed as options; nothing is applied.

    Args:
        data: The dataset.
        run: Run folder; its newest run's best checkpoint is taken.
        checkpoint: A checkpoint file or address, instead of the best one of `run`.
        score_thresholds: Values to try, 0 to 1; the value of the checkpoint is added. Boxes below the lowest are
            dropped.
        iou_thresholds: Values to try, 0 to 1; the value of the checkpoint is added.
        candidates: Boxes kept per frame before suppression, best first, 22 bytes each; 100 and more.
        tta: As `model.tta`: show each frame mirrored and scaled, too.
        device: `cpu`, `cuda`, `cuda:1`, ...; `auto` takes a GPU where there is one.
        conv_backend: As `model.conv_backend`.
        json: File that receives all settings, both halves and the operating points.

    Raises:
        ValueError: If an option is not allowed, or checkpoint or data cannot be used.
    """
    check_options(score_thresholds, iou_thresholds, candidates)
    file = checkpoint_file(run, checkpoint)
    known = read_settings(file)
    place = chosen_device(device)
    network, names = folded_network(file, place, conv_backend)
    if not known.single_class and names != list(data.class_names):
        raise ValueError(f"checkpoint {file} knows the classes {names}, the data {list(data.class_names)}")
    tried = sorted({*score_thresholds, known.score_threshold})
    data.setup("validate")
    with counter("looked at", len(data.index("valid"))) as advance:
        parts = collect(
            network,
            data,
            place,
            advance,
            floor=tried[0],
            limit=candidates,
            single_class=known.single_class,
            tta=tta,
        )
    found = try_settings(parts, data, known, classes=len(names), score_thresholds=tried, iou_thresholds=iou_thresholds)
    more = " --model.tta true" if tta else ""
    if data.image_size != (known.image_size or data.image_size):
        more += f" --data.image_size {data.image_size}"
    show(found, names, file, more)
    if json is not None:
        write(Path(json), {"weights": str(file), "tta": tta, **content(found, names)})


def check_options(score_thresholds: Sequence[float], iou_thresholds: Sequence[float], candidates: int) -> None:
    """Refuse what is not allowed.

    Raises:
        ValueError: If an option is not.
    """
    for name, values in (("score_thresholds", score_thresholds), ("iou_thresholds", iou_thresholds)):
        if not values or not all(0 <= value <= 1 for value in values):
            raise ValueError(f"{name} are {list(values)}, allowed are numbers from 0 to 1, one or more")
    if candidates < LEAST_CANDIDATES:
        raise ValueError(f"candidates is {candidates}, allowed are {LEAST_CANDIDATES} and more")


def checkpoint_file(run: str, checkpoint: str | None) -> Path:
    """The given checkpoint, or the best of the run.

    Raises:
        ValueError: If there is none, or it is damaged.
    """
    file = local_checkpoint(checkpoint) if checkpoint else checkpoint_to_evaluate(Path(run))
    require_whole(file)
    return file


def try_settings(
    parts: Sequence[Candidates],
    data: DetectionDataModule,
    known: NetworkSettings,
    *,
    classes: int,
    score_thresholds: Sequence[float],
    iou_thresholds: Sequence[float],
) -> Sweep:
    """Suppress what the network said, and score all settings.

    Args:
        parts: Candidates of the validation split.
        data: Set up for validation.
        known: Settings of the weights.
        classes: Number of classes.
        score_thresholds: To try, ascending, with the checkpoint's.
        iou_thresholds: To try; the checkpoint's is added.
    """
    usual = Setting(known.score_threshold, known.iou_threshold)
    allowed = sorted({*iou_thresholds, usual.iou_threshold})
    half = half_of(parts, data)
    print(f"{gigabytes(size_bytes(parts))} of candidates, {size_bytes(parts) // max(1, len(half)):,} bytes per frame")
    with counter("suppressed", len(half) * len(allowed)) as advance:
        return sweep_candidates(
            parts,
            half,
            advance,
            classes=classes,
            score_thresholds=score_thresholds,
            iou_thresholds=allowed,
            usual=usual,
            max_detections=known.max_detections,
            class_agnostic=known.class_agnostic,
        )


def bound_by_weights(options: Namespace) -> dict[str, Any]:
    """The data options that follow from the checkpoint which the given options name.

    Raises:
        ValueError: If there is none, or it is damaged, or an option is not allowed.
    """
    check_options(options.score_thresholds, options.iou_thresholds, options.candidates)
    record = read_record(checkpoint_file(options.run, options.checkpoint))
    bound = bound_options(record, is_gray=options.data.format == LTDV2)
    return {name: value for name, value in bound.items() if name.startswith("data.")}


def show(found: Sweep, names: list[str], file: Path, more: str) -> None:
    """Print tables and the options to use, `more` among them."""
    console: Console = wide_console()
    console.print(settings_table(found, ROWS))
    if found.cut:
        console.print(f"{found.cut:,} of {found.frames:,} frames had more candidates than were kept: the weakest went")
    if found.held_out:
        console.print("Settings chosen on frames flatter themselves there. Chosen on one half of the clips:")
        console.print(held_out_table(found))
    if found.points:
        console.print(points_table(found.points, names))
    words = best(found.scored).setting.options() + more
    console.print(f"best: --ckpt_path {file} {words}", soft_wrap=True, highlight=False)


def write(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON file, whole or not at all.

    Raises:
        ValueError: If it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, values, allow_nan=False)
    except OSError as error:
        raise ValueError(f"json {path} cannot be written: {error.strerror}") from error
