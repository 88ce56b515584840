"""Readings of this machine from /proc, /sys and NVML: load of GPUs, memory, disks.

No function creates a GPU context. A read can block forever while a GPU driver or a disk hangs: call the GPU functions
from a daemon thread, such as that of `MachineReader`, or from a child process. `root` is the folder that contains
`proc` and `sys`; tests pass another one.
"""

import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path("/")
AMD_VENDOR = "0x1002"  # PCI id
BUSY_READINGS = 5
BUSY_PAUSE_S = 0.05
SILENT_AFTER_S = 3.0  # the sensors count as silent if a reading is so many seconds late


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Current readings of a GPU; None for values that its driver does not report."""

    name: str
    busy_share: float | None = None  # 0 to 1, the maximum of several readings within 0.25 s
    temperature_c: float | None = None  # edge of the chip
    power_w: float | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """Usage of memory or of a file system."""

    used_bytes: int  # without memory that the kernel can reclaim
    total_bytes: int

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - self.used_bytes

    @property
    def free_share(self) -> float:
        """Free part of the total, 0 to 1."""
        if not self.total_bytes:
            return 0.0
        return self.free_bytes / self.total_bytes


def amd_gpus(root: Path = ROOT) -> list[GpuReading]:
    devices = [card / "device" for card in sorted((root / "sys/class/drm").glob("card[0-9]*")) if "-" not in card.name]
    return [_amd_gpu(device) for device in devices if text(device / "vendor") == AMD_VENDOR]


def _amd_gpu(device: Path) -> GpuReading:
    busy = []
    for number in range(BUSY_READINGS):
        if number:
            time.sleep(BUSY_PAUSE_S)
        percent = integer(device / "gpu_busy_percent")
        if percent is None:
            break
        busy.append(percent)
    hwmon = next(iter(sorted(device.glob("hwmon/hwmon*"))), device)
    micro_w = integer(hwmon / "power1_average")
    if micro_w is None:  # newer chips
        micro_w = integer(hwmon / "power1_input")
    return GpuReading(
        name=text(device / "product_name") or f"AMD GPU {device.parent.name.removeprefix('card')}",
        busy_share=max(busy) / 100 if busy else None,
        temperature_c=_divided(integer(hwmon / "temp1_input"), 1e3),
        power_w=_divided(micro_w, 1e6),
        memory_used_bytes=integer(device / "mem_info_vram_used"),
        memory_bytes=integer(device / "mem_info_vram_total"),
    )


def _divided(value: float | None, divisor: float) -> float | None:
    return None if value is None else value / divisor


def nvidia_gpus() -> list[GpuReading]:
    """Return readings of all NVIDIA GPUs, or an empty list without the package nvidia-ml-py or without a driver."""
    try:
        nvml: Any = import_module("pynvml")
        nvml.nvmlInit()
    except Exception:
        return []
    try:
        return [_nvidia_gpu(nvml, number) for number in range(nvml.nvmlDeviceGetCount())]
    finally:
        nvml.nvmlShutdown()


def _nvidia_gpu(nvml: Any, number: int) -> GpuReading:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)

    def query(function: str, *arguments: Any) -> Any:
        with suppress(nvml.NVMLError):  # consumer GPUs do not support every query
            return getattr(nvml, function)(handle, *arguments)
        return None

    name = query("nvmlDeviceGetName")
    if isinstance(name, bytes):
        name = name.decode()
    load = query("nvmlDeviceGetUtilizationRates")
    memory = query("nvmlDeviceGetMemoryInfo")
    return GpuReading(
        name=name or f"NVIDIA GPU {number}",
        busy_share=_divided(getattr(load, "gpu", None), 100),
        temperature_c=_divided(query("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU), 1),
        power_w=_divided(query("nvmlDeviceGetPowerUsage"), 1e3),
        memory_used_bytes=getattr(memory, "used", None),
        memory_bytes=getattr(memory, "total", None),
    )


def evicted_ms(pid: int, root: Path = ROOT) -> int | None:
    """Return how long the amdkfd driver has stopped the GPU queues of a process, summed over GPUs; None without one."""
    paths = (root / f"sys/class/kfd/kfd/proc/{pid}").glob("stats_*/evicted_ms")
    values = [value for value in map(integer, paths) if value is not None]
    return sum(values) if values else None


def memory(root: Path = ROOT) -> Capacity | None:
    """Return usage of the main memory, of the control group if its limit is lower; None if neither can be read."""
    total = meminfo_bytes(root, "MemTotal")
    available = meminfo_bytes(root, "MemAvailable")
    if total is None or available is None:
        return None
    group = root / "sys/fs/cgroup"
    limit = integer(group / "memory.max")
    used = integer(group / "memory.current")
    if limit is not None and used is not None and limit < total:
        statistics = dict(line.split() for line in text(group / "memory.stat").splitlines())
        return Capacity(max(0, used - int(statistics.get("inactive_file", 0))), limit)
    return Capacity(total - available, total)


def meminfo_bytes(root: Path, name: str) -> int | None:
    words = fields_of(text(root / "proc/meminfo")).get(name, "").split()
    return int(words[0]) * 1024 if words and words[0].isdigit() else None


def disk(path: Path) -> Capacity | None:
    """Return usage of the file system that contains `path`; None if it cannot be read."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return Capacity(usage.total - usage.free, usage.total)


def text(path: Path) -> str:
    """Return the stripped content of a small file; an empty string if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def integer(path: Path) -> int | None:
    try:
        return int(text(path))
    except ValueError:
        return None


def fields_of(content: str) -> dict[str, str]:
    """Return the first value of every `name: value` line."""
    fields: dict[str, str] = {}
    for line in content.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


@dataclass(frozen=True, slots=True)
class SensorReadings:
    """Readings of GPUs, main memory and the disk of the run folder."""

    gpus: tuple[GpuReading, ...] = ()
    memory: Capacity | None = None
    disk: Capacity | None = None
    silent_s: float = 0.0  # seconds without an answer of the sensors; 0 if they answer


def _read_machine(folder: Path) -> SensorReadings:
    """Read all sensors once, and the file system of `folder`."""
    gpus = tuple(amd_gpus() + nvidia_gpus())
    return SensorReadings(gpus, memory(), disk(folder))


class MachineReader:
    """Daemon thread that reads the sensors every `interval_s` seconds until `close`."""

    def __init__(self, folder: Path, interval_s: float, read: Callable[[Path], SensorReadings] = _read_machine) -> None:
        self.folder = folder
        self.interval_s = interval_s
        self._read = read
        self._latest = SensorReadings()
        self._at_s = time.monotonic()
        self._has_any = threading.Event()
        self._closed = threading.Event()
        threading.Thread(target=self._work, name="sensors", daemon=True).start()

    def latest(self, wait_s: float = 0.0) -> SensorReadings:
        """Return the latest readings; wait at most `wait_s` seconds for the first ones."""
        self._has_any.wait(wait_s)
        late_s = time.monotonic() - self._at_s - self.interval_s
        return replace(self._latest, silent_s=late_s if late_s > SILENT_AFTER_S else 0.0)

    def close(self) -> None:
        """Let the thread end after its current read, without waiting for the thread."""
        self._closed.set()

    def _work(self) -> None:
        while True:
            self._latest = self._read(self.folder)
            self._at_s = time.monotonic()
            self._has_any.set()
            if self._closed.wait(self.interval_s):
                return
