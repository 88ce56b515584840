"""Scores of the trainings by one evaluator, their speed and memory, and the table."""

import csv
import json
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from math import exp, isfinite, log, nan
from pathlib import Path
from typing import Any

import yaml
from common import mean_interval, spread
from lightning.pytorch import Trainer
from rich.console import Console
from rich.table import Table

from comparison.clock import CLOCK
from comparison.dataset import Dataset
from comparison.training import ARMS, OF_ULTRALYTICS, USAGE, Training
from yolo_lightning import callbacks
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.module import YOLOModule
from yolo_lightning.utils import run_files

RESULT = "comparison.json"
"""File in a run folder that is finished and scored."""
TABLE_WIDTH = 170
SPEEDS = {
    "images/s": ("images_per_wall_s", 2),
    "images/processor s": ("images_per_processor_s", 2),
    "epoch, s": ("epoch_s", 0),
    "training steps, processor min": ("processor_min", 1),
    "all, processor min": ("process_min", 1),
    "memory, MiB": ("peak_memory_mib", 0),
    "GPU memory, MiB": ("peak_gpu_memory_mib", 0),
}
"""Name and number of digits of each column of speed and memory by its title."""

SCORES = {"map_50": "mAP50", "map": "mAP50-95"}
"""Title of each column of scores by its name; further columns of scores are those of the classes."""
PER_CLASS = "map_50/"

Result = dict[str, Any]


def measure(run: Training, dataset: Dataset) -> Result:
    """Return scores of the final averaged weights, speed and memory, and store them in the run folder.

    Every network gets the input that it was trained with; boxes are compared in pixels of the frames.
    """
    folder = Path(run.folder)
    weights, data = folder / "weights" / "last.pt", dataset.module(run.batch_size, [run.image_size] * 2)
    if run.arm not in OF_ULTRALYTICS:
        weights = folder / run_files.CHECKPOINTS / run_files.LAST_CHECKPOINT
        settings = yaml.safe_load((folder / run_files.config_name("fit")).read_text())
        trained = settings["data"]
        data = dataset.module(run.batch_size, trained["image_size"], background=trained["input"]["background"])
    scores = validated(weights, data, folder)
    names = (
        "map_50",
        "map",
        "ultralytics_map_50",
        "ultralytics_map",
        *(f"map_50/{class_name}" for class_name in data.class_names),
    )
    finite_scores = {name: scores[f"val/{name}"] for name in names if isfinite(scores.get(f"val/{name}", nan))}
    result = {"arm": run.arm, "seed": run.seed, **finite_scores}
    name, column = ("results.csv", "time") if run.arm in OF_ULTRALYTICS else (run_files.METRICS, "time_s")
    with (folder / name).open(newline="") as file:  # the last row of each epoch
        ends = {row["epoch"]: float(row[column]) for row in csv.DictReader(file, skipinitialspace=True)}
    times = [0.0, *ends.values()]
    result["epoch_s"] = statistics.median(after - before for before, after in pairwise(times))
    result |= speed(folder)
    result["process_min"] = json.loads((folder / USAGE).read_text())["seconds"] / 60
    (folder / RESULT).write_text(json.dumps(result, indent=2) + "\n")
    return result


def validated(weights: Path, data: DetectionDataModule, folder: Path) -> Mapping[str, float]:
    """Return the validation scores of weights; pictures of the evaluation are written to `folder`."""
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "default_root_dir": folder / "scoring"}
    trainer = Trainer(accelerator="cpu", callbacks=[callbacks.MeanAP()], **quiet)
    network = YOLOModule(class_names=data.class_names, input_channels=data.input_channels, weights=str(weights))
    (scores,) = trainer.validate(network, data, verbose=False)
    return scores


def speed(folder: Path) -> Result:
    """Return images per second of wall and processor time, medians over all but the first epoch, and peak memory."""
    content = json.loads((folder / CLOCK).read_text())
    epochs = content.pop("epochs")
    content["processor_min"] = sum(epoch["processor_s"] for epoch in epochs) / 60
    for name in ("wall_s", "processor_s"):
        content[f"images_per_{name}"] = statistics.median(
            epoch["images"] / epoch[name] for epoch in epochs[1:] or epochs
        )
    return dict(content)


def finished(work: Path) -> list[Result]:
    """Return the results of all finished runs in a work folder, by arm and seed."""
    results = [json.loads(path.read_text()) for path in work.glob(f"*/{RESULT}")]
    return sorted(results, key=lambda result: (ARMS.index(result["arm"]), result["seed"]))


def show(results: Sequence[Result], turns: dict[str, list[Result]]) -> None:
    """Print a row per arm: scores with intervals, mean and range of speed and memory; and the speeds of the turns."""
    present = dict.fromkeys(name for result in results for name in result)
    names = [name for name in SCORES if name in present] + [name for name in present if name.startswith(PER_CLASS)]
    speeds = {title: column for title, column in SPEEDS.items() if column[0] in present}
    about = "validation split, final weights, one evaluator (COCO); mean over seeds"
    table = Table(title=f"{about}; scores with the 95 % interval of the mean (Student's t), others with their range")
    scores = [SCORES.get(name, f"mAP50 {name.removeprefix(PER_CLASS)}") for name in names]
    for title in ("trainer", "seeds", *scores, *speeds):
        table.add_column(title, justify="left" if title == "trainer" else "right")
    for arm in ARMS:
        if arm_results := [result for result in results if result["arm"] == arm]:
            columns = [[result[name] for result in arm_results if name in result] for name in names]
            # Earlier results lack classes.
            cells = [_score_cell(values) if len(values) == len(arm_results) else "" for values in columns]
            cells += [spread([result[name] for result in arm_results], digits) for name, digits in speeds.values()]
            table.add_row(arm, str(len(arm_results)), *cells)
    Console(width=TABLE_WIDTH).print(table)
    for line in compared_by_seed(results):
        print(line)
    for trainer, trainer_turns in turns.items():
        for unit, name in (("images/s", "images_per_wall_s"), ("images/processor s", "images_per_processor_s")):
            rates = [turn[name] for turn in trainer_turns]
            middle, extremes = statistics.median(rates), f"{min(rates):.2f} to {max(rates):.2f}"
            print(f"{len(rates)} turns, {trainer}: median {middle:.2f} {unit} ({extremes})")


def compared_by_seed(results: Sequence[Result]) -> list[str]:
    """Return a line per pair of an arm of this project and one of Ultralytics with two or more seeds in common.

    A line contains the geometric mean of the ratios of mAP50 and the mean difference, with their 95 % intervals.
    """
    scores: dict[str, dict[int, float]] = {}
    for result in results:
        scores.setdefault(result["arm"], {})[result["seed"]] = result["map_50"]
    lines = []
    for arm, baseline in product(scores, OF_ULTRALYTICS):
        seeds = sorted(scores[arm].keys() & scores.get(baseline, {}).keys())
        if arm in OF_ULTRALYTICS or len(seeds) < 2:
            continue
        differences = [scores[arm][seed] - scores[baseline][seed] for seed in seeds]
        text = "difference {:+.3f} ± {:.3f}".format(*mean_interval(differences))
        if all(scores[arm][seed] > 0 < scores[baseline][seed] for seed in seeds):
            mean, half = mean_interval([log(scores[arm][seed] / scores[baseline][seed]) for seed in seeds])
            text += f", ratio {exp(mean):.2f} ({exp(mean - half):.2f} to {exp(mean + half):.2f})"
        lines.append(f"mAP50 of {arm} and {baseline}, {len(seeds)} seeds: {text}")
    return lines


def _score_cell(values: Sequence[float]) -> str:
    return f"{values[0]:.3f}" if len(values) == 1 else "{:.3f} ± {:.3f}".format(*mean_interval(values))
