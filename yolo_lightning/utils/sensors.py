"""What the machine says of itself: GPUs, memory, disk, processes. Reads /proc, /sysfs and NVML; makes no GPU context.

A GPU driver that hangs may hold up even a read of its files: call from a thread that can be left behind.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

PROC, SYS = Path("/proc"), Path("/sys")
AMD_VENDOR = "0x1002"
BUSY_READINGS = 5
BUSY_PAUSE_S = 0.05
WORKER_NAME = "pt_data_worker"
"""What torch's loader names its workers; the kernel shows it."""

GONE = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU; None for what its driver does not say.

    Attributes:
        name: For a person.
        busy_share: The most of a few readings within a quarter of a second, 0 to 1.
        temperature_c: Of the chip's edge, degrees Celsius.
        power_w: Watts.
        memory_used_bytes: Of its own memory.
        memory_bytes: All of it.
    """

    name: str
    busy_share: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """Memory or disk.

    Attributes:
        used_bytes: In use, without what the kernel can give back.
        total_bytes: At most.
    """

    used_bytes: int
    total_bytes: int

    @property
    def free_share(self) -> float:
        """0 to 1."""
        return 1 - self.used_bytes / self.total_bytes if self.total_bytes else 0.0


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process.

    Attributes:
        pid: Its id.
        name: As the kernel knows it.
        state: R running, S sleeping, D in the kernel, T stopped, t traced, Z zombie.
        memory_bytes: Resident; memory shared with others counts in each.
    """

    pid: int
    name: str
    state: str
    memory_bytes: int


def amd_gpus(sys: Path = SYS) -> list[GpuReading]:
    """AMD's GPUs, from the files of the amdgpu driver under `sys`."""
    devices = [card / "device" for card in sorted(sys.glob("class/drm/card[0-9]*")) if "-" not in card.name]
    return [amd_gpu(device) for device in devices if text(device / "vendor") == AMD_VENDOR]


def amd_gpu(device: Path) -> GpuReading:
    """One of them; the average power has another name on newer chips."""
    readings = []
    for number in range(BUSY_READINGS):
        busy = integer(device / "gpu_busy_percent")
        if busy is None:
            break
        readings.append(busy / 100)
        if number < BUSY_READINGS - 1:
            time.sleep(BUSY_PAUSE_S)
    hwmon = next(iter(sorted(device.glob("hwmon/hwmon*"))), device)
    milli_c = integer(hwmon / "temp1_input")
    micro_w = first_of(integer(hwmon / "power1_average"), integer(hwmon / "power1_input"))
    return GpuReading(
        name=text(device / "product_name") or f"AMD GPU {device.parent.name.removeprefix('card')}",
        busy_share=max(readings, default=None),
        temperature_c=None if milli_c is None else milli_c / 1e3,
        power_w=None if micro_w is None else micro_w / 1e6,
        memory_used_bytes=integer(device / "mem_info_vram_used"),
        memory_bytes=integer(device / "mem_info_vram_total"),
    )


def nvidia_gpus() -> list[GpuReading]:
    """NVIDIA's GPUs, where the package nvidia-ml-py is installed; it asks the driver and computes nothing."""
    try:
        nvml: Any = import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # not installed, or no driver
        return []
    try:
        return [nvidia_gpu(nvml, number) for number in range(nvml.nvmlDeviceGetCount())]
    finally:
        nvml.nvmlShutdown()


def nvidia_gpu(nvml: Any, number: int) -> GpuReading:
    """One of them."""
    handle = nvml.nvmlDeviceGetHandleByIndex(number)

    def ask(question: str, *arguments: Any) -> Any:
        with suppress(nvml.NVMLError):  # consumer cards do not answer everything
            return getattr(nvml, question)(handle, *arguments)
        return None

    name, memory, use = ask("nvmlDeviceGetName"), ask("nvmlDeviceGetMemoryInfo"), ask("nvmlDeviceGetUtilizationRates")
    temperature, milli_w = ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU), ask("nvmlDeviceGetPowerUsage")
    return GpuReading(
        name=name.decode() if isinstance(name, bytes) else name or f"NVIDIA GPU {number}",
        busy_share=None if use is None else use.gpu / 100,
        temperature_c=None if temperature is None else float(temperature),
        power_w=None if milli_w is None else milli_w / 1e3,
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_bytes=None if memory is None else int(memory.total),
    )


def evicted_ms(pid: int, sys: Path = SYS) -> int | None:
    """For how long the kernel has stopped a process's GPU queues (AMD), over all GPUs; None without one."""
    paths = (sys / "class/kfd/kfd/proc" / str(pid)).glob("stats_*/evicted_ms")
    found = [value for path in paths if (value := integer(path)) is not None]
    return sum(found) if found else None


def memory(proc: Path = PROC, sys: Path = SYS) -> Capacity | None:
    """The machine's memory, or the control group's where that has less; None where neither can be read."""
    lines = dict(line.split(":", 1) for line in text(proc / "meminfo").splitlines() if ":" in line)
    try:
        total, available = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (KeyError, ValueError, IndexError):
        return None
    limit, used = integer(sys / "fs/cgroup/memory.max"), integer(sys / "fs/cgroup/memory.current")
    if limit is not None and used is not None and limit < total:
        statistics = dict(line.split() for line in text(sys / "fs/cgroup/memory.stat").splitlines())
        return Capacity(max(0, used - int(statistics.get("inactive_file", 0))), limit)
    return Capacity(total - available, total)


def disk(path: Path) -> Capacity | None:
    """The file system that `path` lies on; None where it cannot be asked."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return Capacity(usage.total - usage.free, usage.total)


def process(pid: int, proc: Path = PROC) -> ProcessInfo | None:
    """A process; None if there is none."""
    head, _, rest = text(proc / str(pid) / "stat").rpartition(")")
    fields = rest.split()
    try:
        pages = int(fields[21])
        return ProcessInfo(pid, head.partition("(")[2], fields[0], pages * os.sysconf("SC_PAGESIZE"))
    except (IndexError, ValueError):
        return None


def loader_workers(trainer: int, proc: Path = PROC) -> list[ProcessInfo]:
    """The workers below a trainer that have begun their work, also those that have died and were not noticed yet.

    Their command lines would tell more, but to read them can wait for ever on a process that hangs in the kernel.
    """
    found = [one for pid in children(trainer, proc) if (one := process(pid, proc)) is not None]
    return [one for one in found if one.name == WORKER_NAME]


def children(pid: int, proc: Path = PROC) -> Iterator[int]:
    """Process ids of the children of all threads."""
    for path in sorted((proc / str(pid) / "task").glob("*/children")):
        yield from map(int, text(path).split())


def text(path: Path) -> str:
    """A small file's content without blanks around; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def integer(path: Path) -> int | None:
    """A file that holds a whole number; None where it does not."""
    try:
        return int(text(path))
    except ValueError:
        return None


def first_of(*values: int | None) -> int | None:
    """The first that is known."""
    return next((value for value in values if value is not None), None)
