"""Looks at this machine: files of /proc and /sys and installed packages; nothing is imported, nothing is computed.

What may wait for ever (a file system over a dead network, a dead driver) is asked in a child with a time limit.
"""

import multiprocessing
import os
import platform
import re
import shutil
import sys
from pathlib import Path

from yolo_lightning.commands.doctor.gpus import find_gpus
from yolo_lightning.commands.doctor.machine import FileSystem, KernelSettings, MachineFacts, Memory
from yolo_lightning.commands.doctor.software import find_build, installed
from yolo_lightning.supervision.bounded import bounded
from yolo_lightning.supervision.evidence import SECRET
from yolo_lightning.utils import sensors
from yolo_lightning.utils.host import available_cores
from yolo_lightning.utils.sensors import integer, text

ENVIRONMENT = re.compile(r"(OMP|MKL|HSA|HIP|ROCR?|GPU|CUDA|NVIDIA|PYTORCH|TORCH|MIOPEN|AMD)_\w+")
ANSWER_S = 5.0
"""Seconds that a driver or a file system may take to answer."""
ROOT = Path("/")


def look(run: Path, data: Path | None, root: Path = ROOT) -> MachineFacts:
    """Everything that can be known without trying.

    Args:
        run: Folder that run folders go into; it need not exist.
        data: Dataset folder, or None.
        root: Where proc, sys and dev are mounted; another one for tests.
    """
    shared = root / "dev/shm"
    return MachineFacts(
        system=f"{platform.system()} {platform.release()}",
        processor=_processor(root),
        cores=available_cores(),
        memory=read_memory(root),
        shared_memory=space(shared) if shared.is_dir() else None,
        run_disk=space(run),
        data_disk=None if data is None else space(data),
        gpus=bounded(lambda: find_gpus(root), ANSWER_S) or (),
        nvidia_driver=_nvidia_driver(root),
        kfd_opens=_opens(root / "dev/kfd"),
        rocm=text(root / "opt/rocm/.info/version"),
        torch=find_build("torch"),
        packages=installed(),
        environment={
            name: value
            for name, value in sorted(os.environ.items())
            if ENVIRONMENT.fullmatch(name) and not SECRET.search(name)
        },
        python=sys.version_info[:3],
        start_method=multiprocessing.get_all_start_methods()[0],  # the default comes first, and asking sets nothing
        kernel=read_kernel(root),
        is_root=os.geteuid() == 0,
    )


def space(path: Path) -> FileSystem:
    """Of the file system that `path` is on, or would be."""
    total, free = bounded(lambda: _usage(path.absolute()), ANSWER_S) or (None, None)
    return FileSystem(str(path), total, free)


def _usage(folder: Path) -> tuple[int, int]:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    return usage.total, usage.free


def read_memory(root: Path) -> Memory:
    """Main memory; where a container may use less than there is, that."""
    space = sensors.memory(root / "proc", root / "sys")
    swap = [line.split() for line in text(root / "proc/meminfo").splitlines() if line.startswith("SwapTotal:")]
    swap_bytes = int(swap[0][1]) * 1024 if swap else 0
    return (
        Memory(0, 0, swap_bytes)
        if space is None
        else Memory(space.total_bytes, space.total_bytes - space.used_bytes, swap_bytes)
    )


def read_kernel(root: Path) -> KernelSettings:
    """Settings of Linux."""
    huge = text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    numa, restricted = (integer(root / f"proc/sys/kernel/{name}") for name in ("numa_balancing", "dmesg_restrict"))
    return KernelSettings(
        huge_pages=huge.partition("[")[2].partition("]")[0] or None,
        numa_balancing=None if numa is None else numa != 0,
        ptrace_scope=integer(root / "proc/sys/kernel/yama/ptrace_scope"),
        log_restricted=None if restricted is None else restricted != 0,
    )


def _processor(root: Path) -> str:
    for line in text(root / "proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _nvidia_driver(root: Path) -> str:
    words = text(root / "proc/driver/nvidia/version").partition("\n")[0].split()
    return next((word for word in words if word[0].isdigit() and "." in word), "")


def _opens(device: Path) -> bool | None:
    """By permissions alone: opening it would be a GPU context."""
    return os.access(device, os.R_OK | os.W_OK) if device.exists() else None
