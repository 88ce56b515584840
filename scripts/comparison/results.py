"""Scores of the trainings by one evaluator, their speed and memory, and the table."""

import csv
import json
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import spread
from lightning.pytorch import Trainer
from rich.console import Console
from rich.table import Table

from comparison.clock import CLOCK
from comparison.training import ARMS, Training
from yolo_lightning import callbacks
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.module import YOLOModule
from yolo_lightning.utils import run_files

RESULT = "comparison.json"
"""File in a run folder that is finished and scored."""
TABLE_WIDTH = 170
COLUMNS = {
    "mAP50": ("map_50", 3),
    "mAP50-95": ("map", 3),
    "images/s": ("images_per_wall_s", 2),
    "images/processor s": ("images_per_processor_s", 2),
    "epoch, s": ("epoch_s", 0),
    "memory, MiB": ("peak_memory_mib", 0),
    "GPU memory, MiB": ("peak_gpu_memory_mib", 0),
}
"""Name and number of digits of each column by its title."""

Result = dict[str, Any]


def measure(run: Training, data: DetectionDataModule) -> Result:
    """Return scores of the final averaged weights, speed and memory, and store them in the run folder."""
    folder = Path(run.folder)
    ours = folder / run_files.CHECKPOINTS / run_files.LAST_CHECKPOINT
    weights = folder / "weights" / "last.pt" if run.arm == "ultralytics" else ours
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "default_root_dir": folder / "scoring"}
    trainer = Trainer(accelerator="cpu", callbacks=[callbacks.MeanAP()], **quiet)
    (scores,) = trainer.validate(YOLOModule(weights=str(weights), class_names=data.class_names), data, verbose=False)
    names = ("map_50", "map", "ultralytics_map_50", "ultralytics_map")
    result = {"arm": run.arm, "seed": run.seed, **{name: scores[f"val/{name}"] for name in names}}
    with (folder / run_files.RESULTS).open(newline="") as file:
        times = [0.0, *(float(row["time"]) for row in csv.DictReader(file, skipinitialspace=True))]
    result["epoch_s"] = statistics.median(after - before for before, after in pairwise(times))
    result |= speed(folder)
    (folder / RESULT).write_text(json.dumps(result, indent=2) + "\n")
    return result


def speed(folder: Path) -> Result:
    """Return images per second of wall and processor time, medians over all but the first epoch, and peak memory."""
    content = json.loads((folder / CLOCK).read_text())
    epochs = content.pop("epochs")
    for name in ("wall_s", "processor_s"):
        content[f"images_per_{name}"] = statistics.median(one["images"] / one[name] for one in epochs[1:] or epochs)
    return dict(content)


def finished(work: Path) -> list[Result]:
    """Return the results of all finished runs in a work folder, by arm and seed."""
    results = [json.loads(path.read_text()) for path in work.glob(f"*/{RESULT}")]
    return sorted(results, key=lambda result: (ARMS.index(result["arm"]), result["seed"]))


def show(results: Sequence[Result], turns: dict[str, list[Result]]) -> None:
    """Print a row per arm with mean and range over the seeds, and the speeds of the short trainings in turns."""
    table = Table(title="validation split, final weights, one evaluator (COCO); mean over seeds (lowest to highest)")
    shown = {title: column for title, column in COLUMNS.items() if any(column[0] in one for one in results)}
    for title in ("trainer", "seeds", *shown):
        table.add_column(title, justify="left" if title == "trainer" else "right")
    for arm in ARMS:
        if own := [result for result in results if result["arm"] == arm]:
            cells = [spread([one[name] for one in own], digits) for name, digits in shown.values()]
            table.add_row(arm, str(len(own)), *cells)
    Console(width=TABLE_WIDTH).print(table)
    for trainer, own in turns.items():
        for unit, name in (("images/s", "images_per_wall_s"), ("images/processor s", "images_per_processor_s")):
            rates = [one[name] for one in own]
            middle, extremes = statistics.median(rates), f"{min(rates):.2f} to {max(rates):.2f}"
            print(f"{len(rates)} turns, {trainer}: median {middle:.2f} {unit} ({extremes})")
