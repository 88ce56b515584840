"""Lines at the start of a fit, and the block of results, files and next commands at its end."""

import sys
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from rich.console import Console

from yolo_lightning.checkpoints.checkpoint_file import read_checksum
from yolo_lightning.commands.console import count_text
from yolo_lightning.commands.report.command import write_report
from yolo_lightning.errors import log_unexpected
from yolo_lightning.evaluation.drift import DriftScores
from yolo_lightning.evaluation.score_table import SCORE_LABELS, class_table
from yolo_lightning.evaluation.ultralytics_metrics import ThresholdCurves, UltralyticsScores
from yolo_lightning.module import YOLOModule
from yolo_lightning.supervision.fallback_levels import AS_CONFIGURED, FallbackState
from yolo_lightning.utils.run_files import BEST_CHECKPOINT, CHECKPOINTS, LAST_CHECKPOINT, REPORT, STATE_FILE
from yolo_lightning.utils.stop_signals import pasteable

ValidationScores = tuple[DriftScores, ThresholdCurves, UltralyticsScores]

TABLE_WIDTH = 80
LABEL_WIDTH = 17


def start_lines(trainer: Trainer, model: YOLOModule, start: str) -> list[str]:
    """Return one line about the model and one about the devices of a fit; `start` describes the initial weights."""
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    total = sum(parameter.numel() for parameter in model.parameters())
    options = model.hparams
    size = f"{total / 1e6:.1f} M parameters"
    if trained / total < 0.999:  # the 16 parameters of the loss are constant
        size += f" ({trained / 1e6:.1f} M trained)"
    classes = f"{len(options['class_names'])} classes"
    model_line = f"model: {options['variant']}, {size}, {classes}, convolutions {model.convolution.backend}, {start}"
    device = trainer.strategy.root_device
    device_line = f"device: {device}"
    if device.type == "cuda":
        device_line += f" ({torch.cuda.get_device_name(device)})"
    if trainer.world_size > 1:
        device_line += f", {trainer.world_size} processes"
    return [model_line, f"{device_line}, precision {trainer.precision}"]


def end_fit(trainer: Trainer, model: YOLOModule, scores: ValidationScores | None, *, with_pt: bool) -> None:
    """Write best.pt and the report, and log the closing block. Nothing in it can fail the fit.

    Args:
        trainer: Trainer of the finished fit; its first rank only calls this function.
        model: Trained model.
        scores: Scores of the last validation, if any.
        with_pt: Whether to write best.pt, which opens with Ultralytics' `YOLO()`.
    """
    run = Path(trainer.default_root_dir)
    best = run / CHECKPOINTS / BEST_CHECKPOINT
    files: dict[str, Path | None] = {"best checkpoint": best, "last checkpoint": best.with_name(LAST_CHECKPOINT)}
    if with_pt and best.is_file():
        files["Ultralytics file"] = _attempted(best.with_suffix(".pt"), lambda path: write_pt(best, path))
    files["report"] = _attempted(run / REPORT, lambda path: write_report([run], path))
    existing = {label: path for label, path in files.items() if path is not None and path.is_file()}
    lines = [_finish_line(trainer, best)]
    fallback = FallbackState.read(run / STATE_FILE).line
    if fallback != AS_CONFIGURED:
        lines.append(f"fallback level: {fallback}")
    lines += _table_lines(scores, model.hparams["class_names"])
    lines += [f"{label:<{LABEL_WIDTH}}{path}" for label, path in existing.items()]
    rank_zero_info("\n".join([*lines, "next:", *(f"  {command}" for command in _next_commands(run, existing))]))


def _attempted(path: Path, write: Callable[[Path], object]) -> Path | None:
    """Write an additional file of a finished fit and return its path; after an error, warn and return None."""
    try:
        write(path)
    except Exception as error:  # the fit is finished and its checkpoints are saved
        log_unexpected(error, OSError)
        reason = type(error).__name__
        if str(error):
            reason = str(error).splitlines()[0]
        rank_zero_warn(f"could not write {path} ({reason}); the fit is finished and its checkpoints are complete")
        return None
    return path


def write_pt(checkpoint: Path, path: Path) -> None:
    """Write the averaged weights of a checkpoint as an Ultralytics file, as `export --format pt` does."""
    from yolo_lightning.commands.export.pt_file import plain_network, write_ultralytics_file
    from yolo_lightning.model.network_settings import read_settings

    write_ultralytics_file(plain_network(checkpoint), path, read_settings(checkpoint))


def _finish_line(trainer: Trainer, best: Path) -> str:
    """Return the number of trained epochs, and the epoch and score of the best checkpoint."""
    epochs = count_text(trainer.current_epoch, "epoch")
    checksum = read_checksum(best) if best.is_file() else None
    callback = trainer.checkpoint_callback
    if checksum is None:
        reason = "no validation was scored"
        if getattr(callback, "recent", ()):
            reason = f"the best epoch is an earlier one, whose {best.name} is not in {best.parent}"
        return f"finished {epochs}; no best checkpoint, because {reason}"
    score = getattr(callback, "best_model_score", None)
    shown = ""
    if score is not None:
        monitor = str(getattr(callback, "monitor", "score"))
        shown = f" with {SCORE_LABELS.get(monitor.removeprefix('val/'), monitor)} {float(score):.4f}"
    return f"finished {epochs}; best epoch {checksum.epoch + 1}{shown}"


def _table_lines(scores: ValidationScores | None, class_names: Sequence[str]) -> list[str]:
    """Return the class table of the last validation as plain lines; none if nothing was scored."""
    if scores is None:
        return []
    text = StringIO()
    console = Console(file=text, width=TABLE_WIDTH, color_system=None, highlight=False)
    console.print(class_table(*scores, class_names))
    return ["scores by class in the last validation:", *(line.rstrip() for line in text.getvalue().splitlines())]


def _next_commands(run: Path, files: dict[str, Path]) -> list[str]:
    """Return commands for the terminal that use the finished run."""
    program = [sys.argv[0]]
    if Path(sys.argv[0]).name.endswith(".py"):
        program = ["python", "-m", "yolo_lightning"]
    commands = [
        (*program, "test", str(run)),
        (*program, "predict", "PICTURES", "--run", str(run)),
    ]
    if "report" not in files:
        commands.append((*program, "report", str(run)))
    if "Ultralytics file" not in files:
        commands.append((*program, "export", str(run)))
    return [pasteable(words) for words in commands]
