"""Train the same network on the same frames with Ultralytics' trainer and with ours, and compare.

    python scripts/compare_ultralytics.py --root path/to/LTDv2 --epochs 15 --image_size 416 --batch_size 16

Arms: `ultralytics`, `native` and `gemm` (ours, by the convolution used). Every arm and seed is a process of its own.
All final weights are scored by one evaluator (COCO mean AP over the validation split), seconds per epoch are the
median over epochs, training, validation and checkpoint included. An arm that has finished in the work folder is not
trained again.
"""

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
from lightning.pytorch import Trainer
from rich.console import Console
from rich.table import Table

import callbacks
from yolo_lightning import run_folder
from yolo_lightning.data.annotation_file import decode
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.loader import LoaderSettings
from yolo_lightning.data.ltdv2 import CLASS_NAMES
from yolo_lightning.module import YOLOModule

ARMS = ("ultralytics", "native", "gemm")
SPLITS = {"train": "Train.json", "val": "Valid.json"}


def main() -> None:
    """Train what is missing, score everything, print the table."""
    arguments = parse_arguments()
    if arguments.train_ultralytics is not None:
        train_ultralytics(arguments, arguments.train_ultralytics)
        return
    results = []
    for seed in arguments.seeds:
        for arm in arguments.arms:
            folder = arguments.work / f"{arm}-{seed}"
            if not (folder / "finished").exists():
                train(arguments, arm, seed, folder)
            results.append({"arm": arm, "seed": seed, **measure(arguments, arm, folder)})
            (arguments.work / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    show(results, arguments.arms)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="dataset folder in LTDv2's layout")
    parser.add_argument("--work", type=Path, default=Path("runs/compare"), help="where everything is written")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--image_size", type=int, default=416, help="pixels")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--train_ultralytics", type=int, metavar="SEED", help=argparse.SUPPRESS)
    return parser.parse_args()


def train(arguments: argparse.Namespace, arm: str, seed: int, folder: Path) -> None:
    """Train one arm in a process of its own, its output in `<folder>.log`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if arm == "ultralytics":
        options = ("root", "work", "epochs", "image_size", "batch_size")
        command = [__file__, *(text for name in options for text in (f"--{name}", str(getattr(arguments, name))))]
        command += ["--train_ultralytics", str(seed)]
    else:
        command = ["-m", "yolo_lightning", "fit", "--model.conv", arm, "--seed_everything", str(seed)]
        command += ["--data.root", str(arguments.root), "--data.image_size", str(arguments.image_size)]
        command += ["--data.batch_size", str(arguments.batch_size), "--data.loader.workers", "0"]
        command += ["--trainer.max_epochs", str(arguments.epochs), "--trainer.default_root_dir", str(folder)]
        command += ["--trainer.accelerator", "cpu"]
    Console().print(f"training {arm}, seed {seed}; log in {folder}.log")
    with Path(f"{folder}.log").open("w") as log:
        subprocess.run([sys.executable, *command], check=True, stdout=log, stderr=subprocess.STDOUT)
    (folder / "finished").touch()


def train_ultralytics(arguments: argparse.Namespace, seed: int) -> None:
    """Ultralytics' own trainer with the recipe that we follow: SGD, no mixed precision, from random weights."""
    settings = arguments.work / "ultralytics-settings"
    settings.mkdir(parents=True, exist_ok=True)
    # Its dataset check downloads this font where it is missing.
    shutil.copyfile(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", settings / "Arial.ttf")
    os.environ |= {"YOLO_CONFIG_DIR": str(settings.resolve()), "YOLO_VERBOSE": "1"}
    from ultralytics import YOLO

    YOLO("yolov8n.yaml").train(
        data=str(convert(arguments.root, arguments.work / "yolo-format")),
        epochs=arguments.epochs,
        imgsz=arguments.image_size,
        batch=arguments.batch_size,
        seed=seed,
        optimizer="SGD",
        pretrained=False,
        amp=False,
        workers=0,
        device="cpu",
        plots=False,
        project=str(arguments.work.resolve()),
        name=f"ultralytics-{seed}",
        exist_ok=True,
    )


def convert(root: Path, target: Path) -> Path:
    """Write YOLO text labels and links to the frames; returns the data file."""
    for split, file in SPLITS.items():
        content = decode(root / file)
        lines: dict[str, list[str]] = {str(image.id): [] for image in content.images}
        sizes = {str(image.id): (image.width, image.height) for image in content.images}
        for annotation in content.annotations:
            width, height = sizes[str(annotation.image_id)]
            x, y, box_width, box_height = annotation.bbox
            centre = ((x + box_width / 2) / width, (y + box_height / 2) / height)
            numbers = (*centre, box_width / width, box_height / height)
            label = annotation.category_id - 1
            lines[str(annotation.image_id)].append(" ".join([str(label), *(f"{number:.8f}" for number in numbers)]))
        for folder in ("images", "labels"):
            (target / folder / split).mkdir(parents=True, exist_ok=True)
        for image in content.images:
            name = Path(image.file_name.replace("/", "_"))
            link = target / "images" / split / name
            link.unlink(missing_ok=True)
            link.symlink_to((root / image.file_name).resolve())
            (target / "labels" / split / f"{name.stem}.txt").write_text("\n".join(lines[str(image.id)]))
    data = target / "data.yaml"
    data.write_text(
        f"path: {target.resolve()}\ntrain: images/train\nval: images/val\nnames: {json.dumps(list(CLASS_NAMES))}\n"
    )
    return data


def measure(arguments: argparse.Namespace, arm: str, folder: Path) -> dict[str, Any]:
    """Scores of the final averaged weights, and seconds per epoch."""
    if arm == "ultralytics":
        weights = folder / "weights" / "last.pt"
        times = column(folder / "results.csv", "time")
    else:
        weights = folder / run_folder.CHECKPOINTS / run_folder.LAST_CHECKPOINT
        times = column(folder / run_folder.METRICS, "time_s", where="val/map_50")
    epochs_s = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    data = DetectionDataModule(
        str(arguments.root), image_size=arguments.image_size, batch_size=16, loader=LoaderSettings(workers=0)
    )
    trainer = Trainer(
        accelerator="cpu", callbacks=[callbacks.MeanAP()], logger=False, enable_progress_bar=False, barebones=False
    )
    (scores,) = trainer.validate(YOLOModule(weights=str(weights)), data, verbose=False)
    return {
        "map_50": scores["val/map_50"],
        "map": scores["val/map"],
        "epoch_s": statistics.median(epochs_s),
        "epoch_s_spread": [min(epochs_s), max(epochs_s)],
    }


def column(path: Path, name: str, where: str | None = None) -> list[float]:
    """A column of a CSV file, of the rows in which column `where` is filled."""
    with path.open(newline="") as file:
        rows = [{key.strip(): value for key, value in row.items()} for row in csv.DictReader(file)]
    return [float(row[name]) for row in rows if where is None or row[where]]


def show(results: list[dict[str, Any]], arms: list[str]) -> None:
    """Print a row per arm: mean over seeds, and from where to where."""
    table = Table(title="validation split, final weights; mean over seeds (lowest to highest)")
    for heading in ("trainer", "mAP50", "mAP50-95", "seconds per epoch"):
        table.add_column(heading, justify="left" if heading == "trainer" else "right")
    for arm in arms:
        own = [result for result in results if result["arm"] == arm]
        cells = [spread([result[name] for result in own], digits) for name, digits in (("map_50", 3), ("map", 3))]
        table.add_row(arm, *cells, spread([result["epoch_s"] for result in own], 1))
    Console().print(table)


def spread(values: list[float], digits: int) -> str:
    """Mean and, of several numbers, their range."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


if __name__ == "__main__":
    main()
