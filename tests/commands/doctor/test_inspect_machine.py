"""Facts from fake proc and sys, and facts about this machine without an import of torch."""

from pathlib import Path

import pytest

from tests.commands.doctor.machines import GIB, write
from yolo_lightning.commands.doctor.inspect_machine import (
    RUN_DISK,
    SHARED_MEMORY,
    TorchBuild,
    architectures,
    inspect_machine,
    read_build,
    version_numbers,
)
from yolo_lightning.commands.doctor.read_hardware import KernelSettings, PciGpu, Vendor
from yolo_lightning.utils.sensors import Capacity

NVIDIA_CARD = {
    "sys/bus/pci/devices/0000:65:00.0/vendor": "0x10de",
    "sys/bus/pci/devices/0000:65:00.0/device": "0x2335",
    "sys/bus/pci/devices/0000:65:00.0/class": "0x030200",
    "proc/driver/nvidia/gpus/0000:65:00.0/information": "Model: \t\t NVIDIA H200\nIRQ: 12",
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build",
}


def test_an_nvidia_card_and_its_driver(tmp_path: Path) -> None:
    write(tmp_path, NVIDIA_CARD)
    machine = inspect_machine(tmp_path, tmp_path)
    assert machine.gpus == (PciGpu(Vendor.NVIDIA, "NVIDIA H200"),)
    assert machine.nvidia_driver == "575.57.08"


def test_a_machine_without_readable_files(tmp_path: Path) -> None:
    machine = inspect_machine(tmp_path / "not" / "there", tmp_path)
    assert machine.gpus == ()
    assert machine.kfd_opens is None
    assert machine.disks[SHARED_MEMORY] is None
    assert (machine.memory, machine.swap_bytes) == (Capacity(0, 0), 0)
    assert machine.kernel == KernelSettings()
    space = machine.disks[RUN_DISK]
    assert space is not None, "the space of the nearest existing parent"
    assert space.total_bytes > 0


def test_memory_is_limited_to_that_of_the_container(tmp_path: Path) -> None:
    lines = "MemTotal: 33554432 kB\nMemAvailable: 25165824 kB\nSwapTotal: 2097152 kB"
    write(tmp_path, {"proc/meminfo": lines})
    machine = inspect_machine(tmp_path, tmp_path)
    assert (machine.memory, machine.swap_bytes) == (Capacity(8 * GIB, 32 * GIB), 2 * GIB)
    limit = {"sys/fs/cgroup/memory.max": str(8 * GIB), "sys/fs/cgroup/memory.current": str(3 * GIB)}
    write(tmp_path, limit | {"sys/fs/cgroup/memory.stat": f"inactive_file {GIB}"})
    assert inspect_machine(tmp_path, tmp_path).memory == Capacity(2 * GIB, 8 * GIB)


@pytest.mark.parametrize(
    ("text", "build"),
    [
        (
            "__version__ = '2.6.0+rocm6.2.4'\ncuda: str = None\nhip = '6.2.4'",
            TorchBuild("2.6.0+rocm6.2.4", "6.2.4", None),
        ),
        ("from x import y\n__version__: str = '2.9'\ncuda = '13.2'", TorchBuild("2.9", None, "13.2")),
        ("hip = '6.2'", None),
        ("__version__ = (", None),
    ],
)
def test_a_build_is_read_without_importing_it(tmp_path: Path, text: str, build: TorchBuild | None) -> None:
    (tmp_path / "version.py").write_text(text)
    assert read_build(tmp_path / "version.py") == build


@pytest.mark.parametrize(
    ("version", "parts"), [("6.2.41133-dd7f", (6, 2, 41133)), ("10.3.0", (10, 3, 0)), ("5.0-rc1.2", (5, 0)), ("", ())]
)
def test_numbers_of_a_version(version: str, parts: tuple[int, ...]) -> None:
    assert version_numbers(version) == parts


def test_architectures_are_read_from_file_names(tmp_path: Path) -> None:
    names = ("TensileLibrary_lazy_gfx1010.dat", "Kernels.so-000-gfx90a.hsaco", "gfx1030_36.HIP.fdb.txt", "other.txt")
    write(tmp_path, {f"opt/{name}": "" for name in names})
    assert architectures([tmp_path / "opt", tmp_path / "none"]) == ("gfx1010", "gfx1030", "gfx90a")
    assert architectures([tmp_path / "none"]) is None


def test_files_of_the_system(tmp_path: Path) -> None:
    files = ("opt/rocm/lib/rocblas/library/Tensile_gfx1010.dat", "var/log/journal/1/system.journal")
    write(tmp_path, dict.fromkeys(files, ""))
    machine = inspect_machine(tmp_path, tmp_path)
    assert machine.reads_journal
    assert machine.libraries["rocBLAS"] == ("gfx1010",)
