"""What all cases share: the drawn dataset, the configuration, the run that nothing happened to."""

import os
import shutil
import subprocess
import sys
from copy import deepcopy
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from faults.launch import Launch
from yolo_lightning.data.synthetic import draw_dataset
from yolo_lightning.supervision.phase_timeouts import PhaseTimeouts

SCRIPTS = Path(__file__).resolve().parent.parent
REPOSITORY = SCRIPTS.parent
TRAIN_FRAMES, VALID_FRAMES, BATCH, EPOCHS = 64, 8, 4, 2
STEPS_PER_EPOCH = TRAIN_FRAMES // BATCH
STEPS = STEPS_PER_EPOCH * EPOCHS
PATIENT_S = 90.0
"""What no case waits for; a busy machine must not raise an alarm."""

STARTS = frozenset({"import_s", "setup_s", "first_batch_s", "validate_s", "exit_s"})
"""Timeouts of the phases in which processes start or end; they take longer where others run."""

SUPERVISION = {"poll_s": 0.1, "kill_after_s": 0.5, "pause_s": 0.0, "grace_s": 20.0, "resample_s": 0.2}
CALLBACKS: tuple[dict[str, Any], ...] = (
    {"class_path": "EMA", "init_args": {"tau": 20.0}},
    *({"class_path": name} for name in ("MeanAP", "FinalValidation", "MetricsFile", "RandomState", "BestCheckpoint")),
)
CONFIGURATION: dict[str, Any] = {
    "seed_everything": 0,
    "supervise": True,
    "supervision": SUPERVISION,
    "trainer": {
        "default_root_dir": "run",
        "accelerator": "cpu",
        "max_epochs": EPOCHS,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
        "enable_model_summary": False,
    },
    # Three steps make an update, so that gradients cross most checkpoints and the epoch's end.
    "model": {"conv_backend": "native", "nominal_batch": 3 * BATCH, "warmup_epochs": 1.0},
    "data": {
        "image_size": 64,
        "batch_size": BATCH,
        "loader": {"num_workers": 0},
        "augmentation": {"mosaic": 0.5, "close_mosaic_epochs": 1},
    },
}


@dataclass(frozen=True)
class Workshop:
    """Where everything lies.

    Attributes:
        root: Folder of all cases.
        python: Interpreter.
    """

    root: Path
    python: str = sys.executable

    @property
    def data(self) -> Path:
        """The drawn dataset."""
        return self.root / "data"

    @property
    def index(self) -> Path:
        """Its packed index."""
        return self.root / "index"

    @property
    def library(self) -> Path:
        """The compiled `hang.c`; it may not be there."""
        return self.root / "hang.so"

    def prepare(self) -> None:
        """Draw the dataset, compile."""
        self.root.mkdir(parents=True, exist_ok=True)
        sizes: dict[str, Any] = {
            "train_frames": TRAIN_FRAMES,
            "valid_frames": VALID_FRAMES,
            "test_frames": 4,
            "width": 96,
            "height": 64,
        }
        draw_dataset(self.data, **sizes)
        draw_dataset(self.root / "other-data", seed=1, **sizes)
        shutil.copytree(self.data, self.root / "damaged-data")
        sorted((self.root / "damaged-data" / "frames").rglob("*.jpg"))[7].write_bytes(b"this is no image")
        compiler = shutil.which("cc")
        if compiler:
            source = str(Path(__file__).with_name("hang.c"))
            subprocess.run([compiler, "-shared", "-fPIC", "-O0", "-o", str(self.library), source], check=True)

    def configuration(self, case: Launch, folder: Path) -> dict[str, Any]:
        """What `fit` is told to do for a case.

        Args:
            case: The case.
            folder: Where it notes which faults have happened.
        """
        tree = deepcopy(CONFIGURATION)
        long_s = {field.name: PATIENT_S * busyness() for field in fields(PhaseTimeouts)}
        short_s = {name: value * (busyness() if name in STARTS else 1) for name, value in case.short_s.items()}
        tree["supervision"] |= {**case.supervision, "phase_timeouts": long_s | short_s}
        tree["data"] |= {"root": str(self.data), "index_root": str(self.index)}
        tree["data"]["loader"]["num_workers"] = case.workers
        injector = {
            "class_path": "faults.injector.Injector",
            "init_args": {"faults": list(case.inside), "folder": str(folder)},
        }
        last = {"class_path": "LastCheckpoint", "init_args": {"interval_steps": case.save_interval_steps}}
        plug_in = [{"class_path": case.plug_in}] if case.plug_in else []
        tree["trainer"]["callbacks"] = [*deepcopy(CALLBACKS), last, injector, *plug_in]
        for name, value in case.options.items():
            put(tree, name, value.format(root=self.root) if isinstance(value, str) else value)
        return tree


def busyness() -> float:
    """Processes that want to run, for each core, 1 at least."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def put(tree: dict[str, Any], name: str, value: Any) -> None:
    """Set the value of a dotted name."""
    *parents, last = name.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[last] = value


def epochs_option(epochs: int) -> dict[str, Any]:
    """The option of a case that trains so long."""
    return {"trainer.max_epochs": epochs}


def write(tree: dict[str, Any], path: Path) -> None:
    """Write a configuration."""
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
