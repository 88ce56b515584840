"""Readings of this machine from /proc, /sys and NVML: GPUs, memory, disks, kernel settings.

No function creates a GPU context. A read can block forever while a GPU driver hangs: call the GPU functions from a
daemon thread or a child process. `root` is the folder that contains `proc` and `sys`; tests pass another one.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path("/")
BUSY_READINGS, BUSY_PAUSE_S = 5, 0.05
PCI_CLASSES = ("0x03", "0x1200")  # display controllers, and accelerators without display outputs such as AMD Instinct
PCI_NAMES = ("usr/share/hwdata/pci.ids", "usr/share/misc/pci.ids")


class Vendor(StrEnum):
    """GPU vendors for which torch builds exist."""

    AMD = "AMD"
    NVIDIA = "NVIDIA"


PCI_VENDORS = {"0x1002": Vendor.AMD, "0x10de": Vendor.NVIDIA}


@dataclass(frozen=True, slots=True)
class PciGpu:
    """A GPU on the PCI bus, with or without a loaded driver."""

    vendor: Vendor
    name: str
    architecture: str = ""  # compiler name such as gfx1010; empty if the driver does not report one
    memory_bytes: int | None = None  # dedicated memory; None if the driver does not report it


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
        return 1 - self.used_bytes / self.total_bytes if self.total_bytes else 0.0


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """Linux settings that affect training; None if the kernel does not have the setting."""

    huge_pages: str | None = None  # always, madvise or never
    numa_balancing: bool | None = None  # pages move between memory nodes
    ptrace_scope: int | None = None  # processes that can be traced: 0 same user, 1 children, 2 by root only, 3 none
    log_restricted: bool | None = None  # only root can read the kernel log


def pci_gpus(root: Path = ROOT) -> tuple[PciGpu, ...]:
    """Return the AMD and NVIDIA GPUs on the PCI bus, in bus order."""
    drivers = dict(_amd_driver_entries(root))
    found = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor_id, device_id = text(device / "vendor"), text(device / "device")
        vendor = PCI_VENDORS.get(vendor_id)
        if vendor is None or not text(device / "class").startswith(PCI_CLASSES):
            continue
        driver_name, architecture = drivers.get(device.name, ("", ""))
        information = _fields(text(root / "proc/driver/nvidia/gpus" / device.name / "information"))
        name = (
            information.get("Model", "")
            or text(device / "product_name")
            or _listed_name(root, vendor_id[2:], device_id[2:])
            or driver_name
            or f"device {device_id}"
        )
        name = name if name.startswith(vendor) else f"{vendor} {name}"
        found.append(PciGpu(vendor, name, architecture, integer(device / "mem_info_vram_total")))
    return tuple(found)


def architecture_name(version: int) -> str:
    """Return the compiler name of a `gfx_target_version`, for example gfx1010 for 100100 and gfx90a for 90010.

    The number has two decimal digits each for variant and step after the generation; variant and step are printed in
    hexadecimal. Source: `kfd_device.c` of the Linux kernel, LLVM's AMDGPU user guide.
    """
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _amd_driver_entries(root: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield PCI address, driver name and architecture of every GPU that the amdkfd driver lists."""
    for node in (root / "sys/class/kfd/kfd/topology/nodes").glob("*"):
        pairs = (line.split() for line in text(node / "properties").splitlines())
        values = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
        version, location = values.get("gfx_target_version", 0), values.get("location_id", 0)
        if version:
            slot = f"{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 0x7}"
            yield f"{values.get('domain', 0):04x}:{slot}", (text(node / "name"), architecture_name(version))


def _listed_name(root: Path, vendor: str, device: str) -> str:
    """Return the name of a device in the system's list of PCI names, or an empty string."""
    lines = next((listed for name in PCI_NAMES if (listed := text(root / name).splitlines())), [])
    in_vendor = False
    for line in lines:
        if not line.startswith(("\t", "#")):
            in_vendor = line.startswith(f"{vendor} ")
        elif in_vendor and line.startswith(f"\t{device} "):
            return line.partition("  ")[2].strip()
    return ""


def amd_gpus(root: Path = ROOT) -> list[GpuReading]:
    devices = [card / "device" for card in sorted((root / "sys/class/drm").glob("card[0-9]*")) if "-" not in card.name]
    return [_amd_gpu(device) for device in devices if PCI_VENDORS.get(text(device / "vendor")) is Vendor.AMD]


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
    milli_c = integer(hwmon / "temp1_input")
    micro_w = integer(hwmon / "power1_average")
    if micro_w is None:  # newer chips
        micro_w = integer(hwmon / "power1_input")
    return GpuReading(
        name=text(device / "product_name") or f"AMD GPU {device.parent.name.removeprefix('card')}",
        busy_share=max(busy) / 100 if busy else None,
        temperature_c=None if milli_c is None else milli_c / 1e3,
        power_w=None if micro_w is None else micro_w / 1e6,
        memory_used_bytes=integer(device / "mem_info_vram_used"),
        memory_bytes=integer(device / "mem_info_vram_total"),
    )


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

    name, memory = query("nvmlDeviceGetName"), query("nvmlDeviceGetMemoryInfo")
    load, milli_w = query("nvmlDeviceGetUtilizationRates"), query("nvmlDeviceGetPowerUsage")
    temperature = query("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)
    return GpuReading(
        name=name.decode() if isinstance(name, bytes) else name or f"NVIDIA GPU {number}",
        busy_share=None if load is None else load.gpu / 100,
        temperature_c=None if temperature is None else float(temperature),
        power_w=None if milli_w is None else milli_w / 1e3,
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_bytes=None if memory is None else int(memory.total),
    )


def nvidia_driver_version(root: Path = ROOT) -> str:
    """Return the version of the loaded NVIDIA driver, or an empty string."""
    words = text(root / "proc/driver/nvidia/version").partition("\n")[0].split()
    return next((word for word in words if word[0].isdigit() and "." in word), "")


def evicted_ms(pid: int, root: Path = ROOT) -> int | None:
    """Return how long the amdkfd driver has stopped the GPU queues of a process, summed over GPUs; None without one."""
    paths = (root / f"sys/class/kfd/kfd/proc/{pid}").glob("stats_*/evicted_ms")
    found = [value for path in paths if (value := integer(path)) is not None]
    return sum(found) if found else None


def memory(root: Path = ROOT) -> Capacity | None:
    """Return usage of the main memory, of the control group if its limit is lower; None if neither can be read."""
    total, available = _meminfo_bytes(root, "MemTotal"), _meminfo_bytes(root, "MemAvailable")
    if total is None or available is None:
        return None
    group = root / "sys/fs/cgroup"
    limit, used = integer(group / "memory.max"), integer(group / "memory.current")
    if limit is not None and used is not None and limit < total:
        statistics = dict(line.split() for line in text(group / "memory.stat").splitlines())
        return Capacity(max(0, used - int(statistics.get("inactive_file", 0))), limit)
    return Capacity(total - available, total)


def swap_bytes(root: Path = ROOT) -> int:
    """Return the size of the swap space; 0 if it cannot be read."""
    return _meminfo_bytes(root, "SwapTotal") or 0


def _meminfo_bytes(root: Path, name: str) -> int | None:
    words = _fields(text(root / "proc/meminfo")).get(name, "").split()
    return int(words[0]) * 1024 if words and words[0].isdigit() else None


def disk(path: Path) -> Capacity | None:
    """Return usage of the file system that contains `path`; None if it cannot be read."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return Capacity(usage.total - usage.free, usage.total)


def processor_name(root: Path = ROOT) -> str:
    return _fields(text(root / "proc/cpuinfo")).get("model name", "")


def kernel_settings(root: Path = ROOT) -> KernelSettings:
    kernel = root / "proc/sys/kernel"
    numa, restricted = integer(kernel / "numa_balancing"), integer(kernel / "dmesg_restrict")
    huge_pages = text(root / "sys/kernel/mm/transparent_hugepage/enabled")  # as in: always [madvise] never
    return KernelSettings(
        huge_pages=huge_pages.partition("[")[2].partition("]")[0] or None,
        numa_balancing=None if numa is None else numa != 0,
        ptrace_scope=integer(kernel / "yama/ptrace_scope"),
        log_restricted=None if restricted is None else restricted != 0,
    )


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


def _fields(content: str) -> dict[str, str]:
    """Return the first value of every `name: value` line."""
    found: dict[str, str] = {}
    for line in content.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found
