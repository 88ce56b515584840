"""Graphics cards on the PCI bus, drivers, processor and kernel settings, from /proc and /sys.

`root` is the folder that contains `proc` and `sys`; tests pass another one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from yolo_lightning.utils.sensors import AMD_VENDOR, ROOT, fields_of, integer, text

PCI_CLASSES = ("0x03", "0x1200")  # display controllers, and accelerators without display outputs such as AMD Instinct


class Vendor(StrEnum):
    """GPU vendors for which torch builds exist."""

    AMD = "AMD"
    NVIDIA = "NVIDIA"


PCI_VENDORS = {AMD_VENDOR: Vendor.AMD, "0x10de": Vendor.NVIDIA}


@dataclass(frozen=True, slots=True)
class PciGpu:
    """A GPU on the PCI bus, with or without a loaded driver."""

    vendor: Vendor
    name: str
    architecture: str = ""  # compiler name such as gfx1010; empty if the driver does not report one
    memory_bytes: int | None = None  # dedicated memory; None if the driver does not report it


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
    gpus = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor = PCI_VENDORS.get(text(device / "vendor"))
        if vendor is None or not text(device / "class").startswith(PCI_CLASSES):
            continue
        driver_name, architecture = drivers.get(device.name, ("", ""))
        information = fields_of(text(root / "proc/driver/nvidia/gpus" / device.name / "information"))
        name = (
            information.get("Model", "")
            or text(device / "product_name")
            or driver_name
            or f"device {text(device / 'device')}"
        )
        if not name.startswith(vendor):
            name = f"{vendor} {name}"
        gpus.append(PciGpu(vendor, name, architecture, integer(device / "mem_info_vram_total")))
    return tuple(gpus)


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
        version = values.get("gfx_target_version", 0)
        location = values.get("location_id", 0)
        if version:
            slot = f"{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 0x7}"
            yield f"{values.get('domain', 0):04x}:{slot}", (text(node / "name"), architecture_name(version))


def nvidia_driver_version(root: Path = ROOT) -> str:
    """Return the version of the loaded NVIDIA driver, or an empty string."""
    words = text(root / "proc/driver/nvidia/version").partition("\n")[0].split()
    return next((word for word in words if word[0].isdigit() and "." in word), "")


def kernel_settings(root: Path = ROOT) -> KernelSettings:
    kernel = root / "proc/sys/kernel"
    huge_pages = text(root / "sys/kernel/mm/transparent_hugepage/enabled")  # as in: always [madvise] never
    return KernelSettings(
        huge_pages=huge_pages.partition("[")[2].partition("]")[0] or None,
        numa_balancing=_switch(kernel / "numa_balancing"),
        ptrace_scope=integer(kernel / "yama/ptrace_scope"),
        log_restricted=_switch(kernel / "dmesg_restrict"),
    )


def _switch(file: Path) -> bool | None:
    """Return whether the number in a file is not 0; None if there is none."""
    number = integer(file)
    return None if number is None else number != 0
