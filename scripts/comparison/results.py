"""What came of the trainings: scores by one evaluator, speed, memory; a table and a picture of the curves."""

import csv
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from comparison.clock import CLOCK
from comparison.training import ARMS, Run
from yolo_lightning import callbacks
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.module import YOLOModule
from yolo_lightning.utils import run_files

RESULT = "comparison.json"
"""In a run folder, once the run is finished and scored."""

CURVES = {
    "mAP50, own evaluator": ("metrics/mAP50(B)",),
    "mAP50-95, own evaluator": ("metrics/mAP50-95(B)",),
    "training loss (box + cls + dfl)": ("train/box_loss", "train/cls_loss", "train/dfl_loss"),
}
"""Titles, and columns of `results.csv`, which both trainers write, whose sum is drawn."""

TABLE_WIDTH = 170
"""Characters; nothing is broken or cut off."""

COLOURS = {"ultralytics": "#c44e52", "native": "#4c72b0", "gemm": "#55a868"}

Result = dict[str, Any]


def measure(run: Run, data: DetectionDataModule) -> Result:
    """Scores of the final averaged weights, speed and memory; kept in the run folder."""
    folder = Path(run.folder)
    if run.arm == "ultralytics":
        weights = folder / "weights" / "last.pt"
    else:
        weights = folder / run_files.CHECKPOINTS / run_files.LAST_CHECKPOINT
    trainer = Trainer(
        accelerator="cpu",
        callbacks=[callbacks.MeanAP()],
        logger=False,
        enable_progress_bar=False,
        default_root_dir=folder / "scoring",
    )
    (scores,) = trainer.validate(YOLOModule(weights=str(weights), class_names=data.class_names), data, verbose=False)
    names = ("map_50", "map", "ultralytics_map_50", "ultralytics_map")
    result = {"arm": run.arm, "seed": run.seed, **{name: scores[f"val/{name}"] for name in names}}
    times = columns(folder, ("time",))
    result["epoch_s"] = statistics.median(after - before for before, after in zip([0.0, *times], times, strict=False))
    result |= speed(folder)
    (folder / RESULT).write_text(json.dumps(result, indent=2) + "\n")
    return result


def speed(folder: Path) -> Result:
    """Images per second and per second of processor time, median over the epochs after the first, and peak memory."""
    content = json.loads((folder / CLOCK).read_text())
    epochs = content.pop("epochs")
    counted = epochs[1:] or epochs
    for name in ("wall_s", "processor_s"):
        content[f"images_per_{name}"] = statistics.median(epoch["images"] / epoch[name] for epoch in counted)
    return dict(content)


def finished(work: Path) -> list[Result]:
    """Results of all runs in a work folder, by arm and seed."""
    results = [json.loads(path.read_text()) for path in work.glob(f"*/{RESULT}")]
    return sorted(results, key=lambda result: (ARMS.index(result["arm"]), result["seed"]))


def columns(folder: Path, names: Sequence[str]) -> list[float]:
    """The sum of columns of `results.csv`, row by row; rows without them are left out."""
    with (folder / run_files.RESULTS).open(newline="") as file:
        rows = [{key.strip(): value for key, value in row.items()} for row in csv.DictReader(file)]
    return [sum(float(row[name]) for name in names) for row in rows if all(row[name].strip() for name in names)]


def show(results: Sequence[Result], turns: dict[str, list[Result]]) -> None:
    """Print a row per arm: mean over seeds, from where to where."""
    table = Table(title="validation split, final weights, one evaluator (COCO); mean over seeds (lowest to highest)")
    headings = {"trainer": "", "seeds": ""} | {
        "mAP50": "map_50",
        "mAP50-95": "map",
        "images/s": "images_per_wall_s",
        "images/processor s": "images_per_processor_s",
        "epoch, s": "epoch_s",
        "memory, MiB": "peak_memory_mib",
        "GPU memory, MiB": "peak_gpu_memory_mib",
    }
    shown = {title: name for title, name in headings.items() if not name or any(name in one for one in results)}
    for title in shown:
        table.add_column(title, justify="left" if title == "trainer" else "right")
    for arm, own in by_arm(results).items():
        cells = [spread([one[name] for one in own], digits_of(name)) for name in shown.values() if name]
        table.add_row(arm, str(len(own)), *cells)
    Console(width=TABLE_WIDTH).print(table)
    for trainer, own in turns.items():
        for unit, name in (("images/s", "images_per_wall_s"), ("images/processor s", "images_per_processor_s")):
            rates = [one[name] for one in own]
            middle, extremes = statistics.median(rates), f"{min(rates):.2f} to {max(rates):.2f}"
            print(f"{len(rates)} turns, {trainer}: median {middle:.2f} {unit} ({extremes})")


def digits_of(name: str) -> int:
    """Digits that a figure is shown with."""
    return 3 if name.startswith("map") else 2 if name.startswith("images") else 0


def spread(values: Sequence[float], digits: int) -> str:
    """Mean and, of several numbers, their range."""
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def draw(work: Path, results: Sequence[Result]) -> Path:
    """Curves over the epochs (thin lines are seeds), scores, speed and memory; returns the picture."""
    figure = Figure(figsize=(16, 8), layout="constrained")
    axes = list(figure.subplots(2, 3).flat)
    arms = by_arm(results)
    for axis, (title, names) in zip(axes, CURVES.items(), strict=False):
        axis.set(title=title, xlabel="epoch")
        for arm, own in arms.items():
            curves = [columns(work / f"{arm}-{result['seed']}", names) for result in own]
            for curve in curves:
                axis.plot(range(1, len(curve) + 1), curve, color=COLOURS[arm], alpha=0.4, linewidth=0.8)
            means = [statistics.mean(values) for values in zip(*curves, strict=False)]
            label = f"{arm}, mean of {len(own)} seeds" if len(own) > 1 else arm
            axis.plot(range(1, len(means) + 1), means, color=COLOURS[arm], linewidth=2.5, label=label)
        axis.legend()
    bars = {
        "mAP50 of the final weights, one evaluator": "map_50",
        "images/s in training": "images_per_wall_s",
        "peak memory of the process, MiB": "peak_memory_mib",
    }
    for axis, (title, name) in zip(axes[len(CURVES) :], bars.items(), strict=True):
        axis.bar(range(len(results)), [one[name] for one in results], color=[COLOURS[one["arm"]] for one in results])
        axis.set(title=title, xlabel="seed")
        axis.set_xticks(range(len(results)), [str(one["seed"]) for one in results])
    path = work / "comparison.png"
    figure.savefig(path, dpi=90)
    return path


def by_arm(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Results of each arm that has any, in the order of the arms."""
    return {arm: own for arm in ARMS if (own := [result for result in results if result["arm"] == arm])}
