"""The command line of each system, and the values that all systems share."""

import importlib.util
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

SCRIPTS = Path(__file__).resolve().parents[1]
STEPS_PER_EPOCH = 10
"""Also the steps between two checkpoints, because Ultralytics saves at the end of epochs only."""
TRAINING_VARIABLE = "FAULT_RACE_TRAINING"
"""Environment variable with the `Training` of a process as JSON."""
HANG_S = 20
"""Seconds without progress after which a system that detects hangs ends its training process."""
RESTARTS = 100


@dataclass(frozen=True)
class Training:
    """What all systems train."""

    run_folder: str  # for checkpoints; its disk becomes full
    data: str  # drawn dataset in LTDv2's layout
    yolo_data: str  # data.yaml of the same frames in Ultralytics' layout
    steps: int  # optimizer steps, a multiple of STEPS_PER_EPOCH
    seed: int
    image_size: int
    batch: int = 4
    workers: int = 1
    interval: int = STEPS_PER_EPOCH  # optimizer steps between two checkpoints

    @property
    def epochs(self) -> int:
        return self.steps // STEPS_PER_EPOCH

    @classmethod
    def read(cls) -> Self:
        """Return the training of this process."""
        return cls(**json.loads(os.environ[TRAINING_VARIABLE]))

    def text(self) -> str:
        """Return the value of the environment variable."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class System:
    """One participant of the race."""

    title: str  # in the table
    command: str  # of bash; {python} and the names of `ours` are replaced
    module: str = ""  # optional package that it needs

    def missing(self) -> str:
        """Return why the system cannot take part, or an empty string."""
        absent = self.module and importlib.util.find_spec(self.module) is None
        return f"{self.module} is not installed" if absent else ""

    def line(self, training: Training) -> str:
        """Return the command line."""
        return self.command.format(python=sys.executable, ours=ours(training))


def ours(training: Training) -> str:
    """Return our options."""
    settings = {
        "seed_everything": training.seed,
        "trainer.default_root_dir": training.run_folder + "/run",
        "trainer.max_epochs": training.epochs,
        "model.recipe.nominal_batch": training.batch,
        "data.root": training.data,
        "data.storage.index_root": training.data + "-index",
        "data.image_size": training.image_size,
        "data.batch_size": training.batch,
        "data.loader.num_workers": training.workers,
    }
    words = [f"--{name} {value}" for name, value in settings.items()]
    return " ".join([f"--config {SCRIPTS / 'race' / 'ours.yaml'}", *words])


# A shell loop as in many cluster scripts: the same command until it succeeds.
LOOP = "until {{python}} -m race.peers.{peer}; do sleep 1; done"
TORCHRUN = f"--standalone --nnodes=1 --nproc-per-node=1 --max-restarts={RESTARTS}"
# The heartbeat timeout and the check interval add up to HANG_S. There is no GPU and no network card to monitor.
FT_LAUNCHER = (
    f"--ft-initial-rank-heartbeat-timeout=120 --ft-rank-heartbeat-timeout={HANG_S - 5} "
    "--ft-workload-check-interval=5 --ft-enable-nic-monitor=false"
)

SYSTEMS = {
    "ours": System("yolo_lightning, supervised", "{python} -m yolo_lightning fit {ours}"),
    "lightning": System("Lightning, shell loop", LOOP.format(peer="lightning_peer")),
    "torchrun": System(
        "torchrun --max-restarts", f"{{python}} -m torch.distributed.run {TORCHRUN} -m race.peers.torch_peer"
    ),
    "ultralytics": System("Ultralytics, shell loop, resume=True", LOOP.format(peer="ultralytics_peer")),
    "nvrx": System(
        "nvidia-resiliency-ext, ft_launcher",
        f"{{python}} -m nvidia_resiliency_ext.fault_tolerance.launcher {TORCHRUN} {FT_LAUNCHER} "
        "-m race.peers.torch_peer --heartbeats",
        module="nvidia_resiliency_ext",
    ),
}
