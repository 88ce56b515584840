"""Trains one arm, in a process of its own."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import matplotlib
from rich.console import Console

from comparison.clock import EpochClock, time_ultralytics
from yolo_lightning.cli import main as yolo_lightning

Arm = Literal["ultralytics", "native", "gemm"]
ARMS: tuple[Arm, ...] = get_args(Arm)

Device = Literal["cpu", "gpu"]


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        arm: Which trainer and, of ours, which convolution.
        seed: Of weights, order and augmentation.
        folder: Its run folder.
        data: `data.yaml` that Ultralytics' trainer reads.
        words: Options of `fit` that name recipe and dataset for ours.
        epochs: Passes over the training split; the last third of them, ten at most, go without mosaic.
        image_size: Side of the square input, pixels.
        batch_size: Images per batch.
        nominal_batch: Images whose gradients make one update.
        workers: Loader processes.
        threads: Threads of one process.
        device: Where to compute.
    """

    arm: Arm
    seed: int
    folder: str
    data: str
    words: list[str]
    epochs: int
    image_size: int
    batch_size: int
    nominal_batch: int
    workers: int
    threads: int
    device: Device

    @property
    def close_mosaic(self) -> int:
        """Ultralytics' default is ten, which may be all of a short training."""
        return min(10, self.epochs // 3)


def train(run: Run) -> None:
    """Train in a fresh process, its output in `<folder>.log`.

    Raises:
        RuntimeError: If it fails.
    """
    folder = Path(run.folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    scripts = Path(__file__).resolve().parents[1]
    paths = [str(scripts), str(scripts.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"OMP_NUM_THREADS": str(run.threads), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    Console().print(f"training {run.arm}, seed {run.seed}; log in {folder}.log")
    command = [sys.executable, "-m", "comparison.training", json.dumps(asdict(run))]
    with Path(f"{folder}.log").open("w") as log:
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment, check=False).returncode
    if code:
        raise RuntimeError(f"{run.arm}, seed {run.seed}, ended with code {code}: see {folder}.log")


def train_ours(run: Run) -> None:
    """`fit` with the recipe for this kind of data, and the settings that are compared."""
    settings = {
        "seed_everything": run.seed,
        "supervision.enabled": "false",
        "model.conv_backend": run.arm,
        "model.nominal_batch": run.nominal_batch,
        "data.image_size": run.image_size,
        "data.batch_size": run.batch_size,
        "data.augmentation.close_mosaic_epochs": run.close_mosaic,
        "data.loader.num_workers": run.workers,
        "trainer.max_epochs": run.epochs,
        "trainer.default_root_dir": run.folder,
        "trainer.accelerator": run.device,
        "trainer.callbacks+": f"{EpochClock.__module__}.{EpochClock.__name__}",
    }
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    yolo_lightning(["fit", *run.words, *words])


def train_ultralytics(run: Run) -> None:
    """Ultralytics' own trainer with the recipe that we follow: SGD, no mixed precision, from random weights."""
    folder = Path(run.folder).resolve()
    settings = folder.with_name("ultralytics-settings")
    settings.mkdir(exist_ok=True)
    # Its dataset check downloads this font where it is missing.
    shutil.copyfile(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", settings / "Arial.ttf")
    os.environ |= {"YOLO_CONFIG_DIR": str(settings), "YOLO_VERBOSE": "1"}
    from ultralytics import YOLO

    model = YOLO("yolov8n.yaml")
    time_ultralytics(model, run.threads)
    model.train(
        data=run.data,
        epochs=run.epochs,
        imgsz=run.image_size,
        batch=run.batch_size,
        nbs=run.nominal_batch,
        close_mosaic=run.close_mosaic,
        seed=run.seed,
        optimizer="SGD",
        pretrained=False,
        amp=False,
        workers=run.workers,
        device="cpu" if run.device == "cpu" else 0,
        plots=False,
        project=str(folder.parent),
        name=folder.name,
        exist_ok=True,
    )


if __name__ == "__main__":
    described = Run(**json.loads(sys.argv[1]))
    if described.arm == "ultralytics":
        train_ultralytics(described)
    else:
        train_ours(described)
