"""Run the command line in processes that Ray Train starts: python scripts/fit_on_ray.py PROCESSES fit --config ...

Pass configs/engine/ray.yaml on the command line. Ray starts each process in its own folder; this script returns to the
folder of the call, so relative paths work.
"""

import os
import sys
from typing import Any

USAGE = "python scripts/fit_on_ray.py PROCESSES fit --config configs/ltdv2.yaml --config configs/engine/ray.yaml ..."


def work(job: dict[str, Any]) -> None:
    """Run the command line in one process."""
    os.chdir(job["folder"])
    sys.path.insert(0, job["folder"])
    from yolo_lightning.cli import main

    main(job["words"])


if __name__ == "__main__":
    if len(sys.argv) < 3 or not sys.argv[1].isdigit() or int(sys.argv[1]) < 1:
        sys.exit(USAGE)
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    words = sys.argv[2:]
    on_gpu = not any(word.rpartition("=")[2] == "cpu" for word in words)
    config = {"words": words, "folder": os.getcwd()}
    TorchTrainer(work, train_loop_config=config, scaling_config=ScalingConfig(int(sys.argv[1]), use_gpu=on_gpu)).fit()
