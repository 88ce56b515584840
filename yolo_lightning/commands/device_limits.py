"""Limits of `trainer.accelerator` and `trainer.devices`, which need no torch where it surely finds no GPU."""

import ctypes
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from yolo_lightning.errors import UserError
from yolo_lightning.utils.choices import AUTO
from yolo_lightning.utils.host import available_cores

PROCESSES_PER_CORE = 4  # Largest number of training processes per available core of a CPU
BUILD_FILE = "version.py"  # in torch's package: the versions of CUDA and ROCm for which torch was built, or None
CUDA_LIBRARY = "libcuda.so.1"  # of NVIDIA's driver
ROCM_DEVICES = ("/dev/kfd", "/dev/dxg")  # of Linux, and of its subsystem for Windows
NO_DEVICE: tuple[Any, ...] = (0, "0", [])


def check_processors(options: Mapping[str, Any]) -> None:
    """Raise a UserError for a GPU that torch surely does not find, or for devices that are no processes of a CPU.

    Args:
        options: Options that the user has set, by full name.
    """
    accelerator = options.get("trainer.accelerator", AUTO)
    devices = options.get("trainer.devices", AUTO)
    if devices in NO_DEVICE:
        raise UserError(f"trainer.devices must be auto, an integer >= 1 or a list of numbers, got {devices!r}")
    if accelerator in (AUTO, "cpu") and devices in (AUTO, 1, "1"):
        return
    has_no_gpu = surely_no_gpu()
    if has_no_gpu:
        check_accelerator(accelerator, ())
    check_devices(devices, is_cpu=has_no_gpu or accelerator == "cpu")


def check_accelerator(accelerator: Any, gpus: Sequence[str]) -> None:
    """Raise a UserError if an accelerator is unknown or this machine does not have it; `gpus` are those it has."""
    available = ["auto", "cpu"]
    remedy = " PyTorch finds no GPU; the command doctor inspects the machine."
    if gpus:
        available += ["gpu", *gpus]
        remedy = ""
    if isinstance(accelerator, str) and accelerator not in available:
        accepted = " or ".join(available)
        raise UserError(f"trainer.accelerator must be {accepted} on this machine, got {accelerator!r}.{remedy}")


def check_devices(devices: Any, *, is_cpu: bool) -> None:
    """Raise a UserError if a CPU cannot start, or has too few cores for, one process per device."""
    if not is_cpu or devices == AUTO:
        return
    if not str(devices).isdigit() or int(devices) < 1:
        raise UserError(f"trainer.devices must be auto or the number of processes, >= 1, on a CPU, got {devices!r}")
    cores = available_cores()
    most = PROCESSES_PER_CORE * cores
    if int(devices) > most:
        raise UserError(
            f"trainer.devices must be at most {most} with {cores} available cores, as each device is a process, "
            f"got {devices}"
        )


def surely_no_gpu() -> bool:
    """Return whether torch cannot find a GPU on this machine, without importing torch; False if this is unknown.

    A build for CUDA needs the library of NVIDIA's driver, a build for ROCm the device of AMD's driver.
    """
    package = find_spec("torch")
    if not sys.platform.startswith("linux") or package is None or package.origin is None:
        return False
    try:
        text = (Path(package.origin).parent / BUILD_FILE).read_text()
    except OSError:
        return False
    built_for = dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *(\S+)", text, re.MULTILINE))
    if len(built_for) < 2:  # another form of the file
        return False
    if built_for["hip"] != "None":
        return not any(map(os.path.exists, ROCM_DEVICES))
    if built_for["cuda"] == "None":
        return True
    try:
        ctypes.CDLL(CUDA_LIBRARY)
    except OSError:
        return True
    return False
