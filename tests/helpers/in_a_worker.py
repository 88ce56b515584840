"""Datasets that report the worker process that reads them. Workers import this file, so imports are few."""

import atexit
import os
from typing import Any

import cv2
import numpy as np
import torch
from torch.utils.data import Dataset

from yolo_lightning.data.worker_processes import THREADS_VARIABLE


class Surroundings(Dataset[dict[str, Any]]):
    """Every item tells about the process that made it."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        np.ones((300, 300)) @ np.ones((300, 300))  # wakes the threads of BLAS
        return {
            "variable": os.environ.get(THREADS_VARIABLE),
            "torch": torch.get_num_threads(),
            "opencv": cv2.getNumThreads(),
            "threads": len(os.listdir("/proc/self/task")),
            "process": os.getpid(),
            "parent": os.getppid(),
            "inherited_gpu": torch.cuda.is_initialized(),
        }


class AbortsWhenTornDown(Dataset[int]):
    """Its process dies if the interpreter in it is ever finalised."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        atexit.register(os.abort)
        return index


def first(samples: list[Any]) -> Any:
    return samples[0]
