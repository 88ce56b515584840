"""The command line in processes that Ray Train starts: python scripts/fit_on_ray.py PROCESSES fit --config ...

See configs/engine/ray.yaml, which belongs on the command line. Ray starts each process in a folder of its own, so give
absolute paths, or paths relative to where this is called from.
"""

import os
import sys
from typing import Any

USAGE = "python scripts/fit_on_ray.py PROCESSES fit --config configs/ltdv2.yaml --config configs/engine/ray.yaml ..."


def work(job: dict[str, Any]) -> None:
    """What each process does."""
    os.chdir(job["folder"])
    sys.path.insert(0, job["folder"])
    from yolo_lightning.cli import main

    main(job["words"])


def run(processes: int, words: list[str], on_gpu: bool) -> None:
    """Train in `processes` processes of the Ray cluster at hand, or of this machine where there is none."""
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    TorchTrainer(
        work,
        train_loop_config={"words": words, "folder": os.getcwd()},
        scaling_config=ScalingConfig(num_workers=processes, use_gpu=on_gpu),
    ).fit()


if __name__ == "__main__":
    if len(sys.argv) < 3 or not sys.argv[1].isdigit() or int(sys.argv[1]) < 1:
        sys.exit(USAGE)
    cpu_only = "cpu" in [word.rpartition("=")[2] for word in sys.argv[2:]]
    run(int(sys.argv[1]), sys.argv[2:], on_gpu=not cpu_only)
