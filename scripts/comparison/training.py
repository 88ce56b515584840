"""Trains one arm in its own process.

Libraries are imported late: a spawned loader worker imports this file again and needs neither trainer.
"""

import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import yaml
from common import run_logged

Arm = Literal[
    "ultralytics_default",
    "ultralytics",
    "ultralytics_amp",
    "default",
    "auto",
    "bf16",
    "cuda_graph",
    "native",
    "gemm",
    "best",
]
ARMS: tuple[Arm, ...] = get_args(Arm)
BEST: Arm = "best"
DEFAULT: Arm = "default"
ULTRALYTICS_DEFAULT: Arm = "ultralytics_default"
AMP: Arm = "ultralytics_amp"
"""The trainer of Ultralytics with its automatic mixed precision, which it has on a GPU only."""
CUDA_GRAPH: Arm = "cuda_graph"
GPU_ARMS: tuple[Arm, ...] = (AMP, CUDA_GRAPH)
OF_ULTRALYTICS: tuple[Arm, ...] = (ULTRALYTICS_DEFAULT, "ultralytics", AMP)
USAGE = "usage.json"
"""File in a run folder with processor time and memory of the whole process."""

Device = Literal["cpu", "gpu"]


@dataclass(frozen=True)
class Training:
    """Settings of one training."""

    arm: Arm  # trainer and, for this project, convolution or another recipe
    seed: int  # of weights, order and augmentation
    folder: str  # run folder
    data: str  # data.yaml for Ultralytics
    words: list[str]  # options of `fit` that name configuration and dataset
    epochs: int
    image_size: int  # side of the square input, pixels
    batch_size: int
    nominal_batch: int  # images per update
    workers: int  # loader processes
    threads: int
    device: Device
    options: list[str]  # further options of `fit`, or NAME=VALUE of Ultralytics

    @property
    def close_mosaic(self) -> int:
        """Last epochs without mosaic: ten as by default in Ultralytics, at most a quarter of all; 0 in a turn."""
        return min(10, self.epochs // 4)


def train(run: Training) -> None:
    """Train in a new process with its output in `<folder>.log`; raise SystemExit if the training fails."""
    folder = Path(run.folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    scripts = Path(__file__).resolve().parents[1]
    paths = os.pathsep.join(filter(None, (str(scripts), str(scripts.parent), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "comparison.training", json.dumps(asdict(run))]
    usage = run_logged(command, Path(f"{folder}.log"), {"OMP_NUM_THREADS": str(run.threads), "PYTHONPATH": paths})
    (folder / USAGE).write_text(json.dumps(usage) + "\n")


def epochs_in_time(run: Training, processor_min: float) -> int:
    """Return the number of epochs that takes nearest to this time from start to end, by a training of two epochs."""
    from comparison.clock import CLOCK

    folder = Path(run.folder).with_name("trials") / run.arm
    if not (folder / USAGE).is_file():
        train(replace(run, folder=str(folder), epochs=2))
    first, second = json.loads((folder / CLOCK).read_text())["epochs"]
    epoch_s: float = second["elapsed_processor_s"] - first["elapsed_processor_s"]
    remaining_s: float = json.loads((folder / USAGE).read_text())["seconds"] - 2 * epoch_s
    budget_s = 60 * processor_min
    return max(1, round((budget_s - remaining_s) / epoch_s))


def train_ours(run: Training) -> None:
    """Run `fit` with the configuration for this kind of data and the compared settings."""
    from comparison.clock import EpochClock
    from yolo_lightning.cli import main as yolo_lightning

    settings: dict[str, object] = {
        "seed_everything": run.seed,
        "supervision.enabled": "false",
        "data.image_size": run.image_size,
        "data.loader.num_workers": run.workers,
        "trainer.max_epochs": run.epochs,
        "trainer.default_root_dir": run.folder,
        "trainer.accelerator": run.device,
        "trainer.callbacks+": f"{EpochClock.__module__}.{EpochClock.__name__}",
    }
    if run.arm != DEFAULT:
        settings |= _compared_settings(run)
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    yolo_lightning(["fit", *run.words, *words, *run.options])


def _compared_settings(run: Training) -> dict[str, object]:
    """Return the options of `fit` that equal the settings of Ultralytics."""
    settings: dict[str, object] = {
        "model.convolution.backend": run.arm if run.arm in ("native", "gemm") else "auto",
        "model.convolution.cuda_graph": str(run.arm == CUDA_GRAPH).lower(),
        "trainer.precision": "bf16-mixed" if run.arm in ("bf16", CUDA_GRAPH) else "32-true",
        "model.recipe.nominal_batch": run.nominal_batch,
        "data.image_size": [run.image_size] * 2,  # the square of Ultralytics
        "data.batch_size": run.batch_size,
        "data.augmentation.close_mosaic_epochs": run.close_mosaic,
    }
    if run.arm != BEST:  # as the arms of Ultralytics
        settings["model.recipe.optimizer"] = "SGD"
        settings["model.recipe.warmup_epochs"] = 3.0
    return settings


def _train_ultralytics(run: Training) -> None:
    """Run the trainer of Ultralytics with random weights, by default or with SGD and the compared settings."""
    import matplotlib

    from comparison.clock import time_ultralytics
    from yolo_lightning.utils.offline import set_switches

    folder = Path(run.folder).resolve()
    settings = folder.with_name("ultralytics-settings")
    settings.mkdir(exist_ok=True)
    # Without this font, the dataset check of Ultralytics downloads it.
    shutil.copyfile(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", settings / "Arial.ttf")
    os.environ |= {"YOLO_CONFIG_DIR": str(settings), "YOLO_VERBOSE": "1"}
    set_switches()
    from ultralytics import YOLO

    compared: dict[str, object] = {}
    if run.arm != ULTRALYTICS_DEFAULT:
        compared = {
            "batch": run.batch_size,
            "nbs": run.nominal_batch,
            "close_mosaic": run.close_mosaic,
            "optimizer": "SGD",
        }
        for option in run.options:
            name, _, value = option.partition("=")
            compared[name] = yaml.safe_load(value)
    model = YOLO("yolov8n.yaml")
    time_ultralytics(model, run.threads)
    model.train(
        **compared,
        data=run.data,
        epochs=run.epochs,
        imgsz=run.image_size,
        seed=run.seed,
        pretrained=False,
        amp=run.arm in (AMP, ULTRALYTICS_DEFAULT),  # on a CPU always float32
        workers=run.workers,
        device="cpu" if run.device == "cpu" else 0,
        plots=False,
        project=str(folder.parent),
        name=folder.name,
        exist_ok=True,
    )


if __name__ == "__main__":
    described = Training(**json.loads(sys.argv[1]))
    (_train_ultralytics if described.arm in OF_ULTRALYTICS else train_ours)(described)
