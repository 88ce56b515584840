"""Failures of native convolutions in trainings, stored for the device, driver and torch version.

After such a failure, `backend: auto` of all later runs chooses gemm on this device. The file also contains the results
of probes.
"""

import sys
from pathlib import Path

import torch

from yolo_lightning.conv import measurement_cache
from yolo_lightning.conv.measurement_cache import describe_environment
from yolo_lightning.utils.files import CONVOLUTION_VERDICTS, cache_folder


def verdicts_file() -> Path:
    """Return the file with failures and results of probes; it need not exist."""
    return cache_folder() / CONVOLUTION_VERDICTS


def device_key(device: torch.device) -> str:
    """Return the name under which failures of native convolutions on a device, driver and torch version are stored."""
    environment = describe_environment(device)
    return " | ".join(environment[name] for name in ("device_type", "device", "driver", "torch"))


def known_failure(device: torch.device, file: Path | None) -> str | None:
    """Return how native convolutions have failed in a training on this device; None if they have not."""
    stored = measurement_cache.load(file, device_key(device))
    if stored.get("outcome") != "failed":
        return None
    return str(stored.get("detail"))


def store_failure(key: str, file: Path, failure: str) -> None:
    """Store that native convolutions have failed in a training; `key` is that of `device_key`."""
    measurement_cache.store(file, key, {"outcome": "failed", "detail": failure})


def main() -> None:
    """Store a failure in a training; its supervisor, which has no torch, calls this file as a program.

    The words are the key of `device_key`, the file with the results of probes, and the incident.
    """
    key, file, failure = sys.argv[1:]
    store_failure(key, Path(file), failure)


if __name__ == "__main__":
    main()
