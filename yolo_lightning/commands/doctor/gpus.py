"""The graphics cards of a machine, from the PCI bus: seen without a driver, a GPU context or a vendor's library."""

from collections.abc import Iterator
from pathlib import Path

from yolo_lightning.commands.doctor.machine import PciGpu, Vendor
from yolo_lightning.utils.sensors import integer, text

VENDORS = {"0x1002": Vendor.AMD, "0x10de": Vendor.NVIDIA}
DISPLAY_CLASS = "0x03"
"""PCI class of display controllers; 0x1200, an accelerator without displays, is an AMD Instinct."""
ACCELERATOR_CLASS = "0x1200"
PCI_NAMES = ("usr/share/hwdata/pci.ids", "usr/share/misc/pci.ids")


def find_gpus(root: Path) -> tuple[PciGpu, ...]:
    """All cards of known vendors, in the order of the bus.

    Args:
        root: Where proc and sys are mounted: the root of the file system, or a copy of its parts.
    """
    architectures = dict(_architectures(root))
    found = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor = VENDORS.get(text(device / "vendor"))
        if vendor is None or not text(device / "class").startswith((DISPLAY_CLASS, ACCELERATOR_CLASS)):
            continue
        known, architecture = architectures.get(device.name, ("", ""))
        found.append(
            PciGpu(
                vendor=vendor,
                name=_name(root, device, vendor, known),
                architecture=architecture,
                memory_bytes=integer(device / "mem_info_vram_total"),
            )
        )
    return tuple(found)


def architecture_name(version: int) -> str:
    """The name of `gfx_target_version`, as 100100: two digits each for generation, variant and step, the last in hex.

    Source: the kernel's `kfd_device.c` and LLVM's AMDGPU user guide; 90010 is gfx90a.
    """
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _architectures(root: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    """PCI address, and the driver's name and architecture of each AMD card."""
    for node in (root / "sys/class/kfd/kfd/topology/nodes").glob("*"):
        pairs = (line.split() for line in text(node / "properties").splitlines())
        values = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
        version, location = values.get("gfx_target_version", 0), values.get("location_id", 0)
        if version:
            where = f"{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 0x7}"
            yield f"{values.get('domain', 0):04x}:{where}", (text(node / "name"), architecture_name(version))


def _name(root: Path, device: Path, vendor: Vendor, known: str) -> str:
    if vendor is Vendor.NVIDIA:
        for line in text(root / "proc/driver/nvidia/gpus" / device.name / "information").splitlines():
            if line.startswith("Model:"):
                return line.partition(":")[2].strip()
    listed = _listed_name(root, text(device / "vendor")[2:], text(device / "device")[2:])
    name = text(device / "product_name") or listed or known or f"device {text(device / 'device')}"
    return name if name.startswith(vendor) else f"{vendor} {name}"


def _listed_name(root: Path, vendor: str, device: str) -> str:
    """From the list of PCI names that most systems have; empty where it is not there."""
    lines = next((listed for name in PCI_NAMES if (listed := text(root / name).splitlines())), [])
    within = False
    for line in lines:
        if not line.startswith(("\t", "#")):
            within = line.startswith(f"{vendor} ")
        elif within and line.startswith(f"\t{device} "):
            return line.partition("  ")[2].strip()
    return ""
