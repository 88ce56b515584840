"""Process of one stage: `python -m yolo_lightning.commands.benchmark_gpu.stage_process STAGE SETTINGS-AS-JSON`."""

import faulthandler
import json
import os
import sys
import time
import warnings
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from yolo_lightning.commands.benchmark_gpu.stage_records import Stage, partial_path
from yolo_lightning.commands.benchmark_gpu.stage_runner import PROGRESS
from yolo_lightning.utils.files import replacing

MODULES = {
    Stage.MACHINE: "machine_facts",
    Stage.CORRECTNESS: "conv_correctness",
    Stage.PRODUCTS: "matrix_products",
    Stage.SPEED: "variant_speed",
    Stage.WAITS: "device_waits",
    Stage.MEMORY: "peak_memory",
    Stage.STABILITY: "equal_trainings",
    Stage.RESUME: "kill_and_resume",
    Stage.INDUCTOR: "inductor_speed",
}
"""Module of each stage, with a function `measure(StageContext) -> dict`, whose key `passed` is the result of checks."""


@dataclass(frozen=True)
class StageContext:
    """Settings of a stage, and where it stores results."""

    stage: Stage
    out: Path  # folder of the benchmark
    device: str  # auto, cpu, cuda, cuda:1, ...
    quick: bool  # whether small shapes and counts rehearse the benchmark
    limit_s: float  # the stage should end by itself within this time, seconds
    began_s: float = field(default_factory=time.monotonic)

    def left_s(self) -> float:
        """Return the seconds until the stage should have ended."""
        return self.limit_s - (time.monotonic() - self.began_s)

    def save(self, result: dict[str, Any]) -> None:
        """Store a result, or a part of one, which is kept if the process crashes or is killed later."""
        with replacing(partial_path(self.out, self.stage), durable=False) as temporary:
            temporary.write_text(json.dumps(result) + "\n", encoding="utf-8")

    def announce(self, operation: str) -> None:
        """Name the next operation, which the record shows if the process ends in it."""
        print(f"{PROGRESS}{operation}", file=sys.stderr, flush=True)


def main() -> None:
    """Run the stage of the command line."""
    stage, settings = Stage(sys.argv[1]), json.loads(sys.argv[2])
    context = StageContext(stage, **{**settings, "out": Path(settings["out"])})
    faulthandler.enable()
    # Decisions and kernels of a user's earlier runs must not influence the results.
    os.environ["XDG_CACHE_HOME"] = str(context.out / "cache")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    context.announce("importing torch and the package")
    module = import_module(f"yolo_lightning.commands.benchmark_gpu.{MODULES[stage]}")
    result = module.measure(context)
    context.save(result)


if __name__ == "__main__":
    main()
