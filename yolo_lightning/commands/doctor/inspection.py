"""Collects the facts about this machine from files and package metadata; imports no package and computes nothing.

Reads that can block for ever (a network file system, a GPU driver) run in a child process with a time limit.
"""

import importlib.metadata
import importlib.util
import multiprocessing
import os
import platform
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from yolo_lightning.commands.doctor.machine import OPENCV, FileSystem, MachineFacts, Memory, TorchBuild
from yolo_lightning.supervision.bounded import bounded
from yolo_lightning.supervision.evidence import SECRET
from yolo_lightning.utils import sensors
from yolo_lightning.utils.host import available_cores

ENVIRONMENT = re.compile(r"(OMP|MKL|HSA|HIP|ROCR?|GPU|CUDA|NVIDIA|PYTORCH|TORCH|MIOPEN|AMD)_\w+")
PACKAGES = ("torch", "torchvision", "lightning", "pytorch-lightning", "ultralytics", "py-spy", *OPENCV)
ASSIGNMENT = re.compile(r"^(__version__|hip|cuda)\b[^=\n]*= *['\"](.+)['\"]", re.MULTILINE)
ANSWER_S = 5.0
"""Time limit for a driver or a file system, in seconds."""


def inspect_machine(run: Path, data: Path | None, root: Path = sensors.ROOT) -> MachineFacts:
    """Return the facts about this machine.

    Args:
        run: Parent folder of run folders; it need not exist.
        data: Dataset folder, or None.
        root: Folder that contains proc, sys, dev and opt; tests pass another one.
    """
    memory, shared, kfd = sensors.memory(root), root / "dev/shm", root / "dev/kfd"
    total_bytes, used_bytes = (memory.total_bytes, memory.used_bytes) if memory is not None else (0, 0)
    return MachineFacts(
        system=f"{platform.system()} {platform.release()}",
        processor=sensors.processor_name(root) or platform.processor() or platform.machine(),
        cores=available_cores(),
        memory=Memory(total_bytes, total_bytes - used_bytes, sensors.swap_bytes(root)),
        shared_memory=file_system(shared) if shared.is_dir() else None,
        run_disk=file_system(run),
        data_disk=None if data is None else file_system(data),
        gpus=bounded(lambda: sensors.pci_gpus(root), ANSWER_S) or (),
        nvidia_driver=sensors.nvidia_driver_version(root),
        # Permissions only: opening the device would create a GPU context.
        kfd_opens=os.access(kfd, os.R_OK | os.W_OK) if kfd.exists() else None,
        rocm=sensors.text(root / "opt/rocm/.info/version"),
        torch=find_build("torch"),
        packages=installed_packages(),
        environment={
            name: value
            for name, value in sorted(os.environ.items())
            if ENVIRONMENT.fullmatch(name) and not SECRET.search(name)
        },
        python=sys.version_info[:3],
        start_method=multiprocessing.get_all_start_methods()[0],  # the default; get_start_method() would fix it
        kernel=sensors.kernel_settings(root),
        is_root=os.geteuid() == 0,
    )


def file_system(path: Path) -> FileSystem:
    """Return the file system of the nearest existing parent of `path`."""

    def usage() -> tuple[int, int]:
        existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
        found = shutil.disk_usage(existing)
        return found.total, found.free

    total, free = bounded(usage, ANSWER_S) or (None, None)
    return FileSystem(str(path), total, free)


def installed_packages() -> dict[str, str]:
    """Return the versions of the packages that the rules need, by name."""
    found = {}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    torchvision = find_build("torchvision")
    return found if torchvision is None else found | {"torchvision": torchvision.version}


def find_build(package: str) -> TorchBuild | None:
    """Return the build of torch or torchvision that an import would load, or None."""
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            return read_build(Path(spec.origin).with_name("version.py"))
    return None


def read_build(version_file: Path) -> TorchBuild | None:
    """Return the build that a file `version.py` describes, or None if it contains no version.

    Unlike package metadata, the file contains the local part of the version, as in 2.15.0+cu132.
    """
    values = dict(ASSIGNMENT.findall(sensors.text(version_file)))
    version = values.get("__version__")
    return None if version is None else TorchBuild(version, values.get("hip"), values.get("cuda"))
