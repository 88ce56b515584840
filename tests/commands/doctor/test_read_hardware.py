"""Fake /sys and /proc trees."""

from pathlib import Path

import pytest

from tests.commands.doctor.machines import write
from yolo_lightning.commands.doctor.read_hardware import (
    KernelSettings,
    PciGpu,
    Vendor,
    architecture_name,
    kernel_settings,
    pci_gpus,
)

AMD_CARD = {
    "sys/bus/pci/devices/0000:03:00.0/vendor": "0x1002",
    "sys/bus/pci/devices/0000:03:00.0/device": "0x731f",
    "sys/bus/pci/devices/0000:03:00.0/class": "0x030000",
    "sys/bus/pci/devices/0000:03:00.0/mem_info_vram_total": str(6 << 30),
    "sys/bus/pci/devices/0000:03:00.1/vendor": "0x1002",
    "sys/bus/pci/devices/0000:03:00.1/class": "0x040300",
    "sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 12\ngfx_target_version 0\nlocation_id 0",
    "sys/class/kfd/kfd/topology/nodes/1/name": "navi10",
    "sys/class/kfd/kfd/topology/nodes/1/properties": "gfx_target_version 100100\nlocation_id 768\ndomain 0",
}


@pytest.mark.parametrize(
    ("left_out", "card"),
    [
        ((), PciGpu(Vendor.AMD, "AMD navi10", "gfx1010", 6 << 30)),
        (("kfd", "vram"), PciGpu(Vendor.AMD, "AMD device 0x731f", "", None)),  # without its driver
    ],
)
def test_an_amd_card_with_and_without_its_driver(tmp_path: Path, left_out: tuple[str, ...], card: PciGpu) -> None:
    write(tmp_path, {name: text for name, text in AMD_CARD.items() if not any(part in name for part in left_out)})
    assert pci_gpus(tmp_path) == (card,)


@pytest.mark.parametrize(
    ("version", "name"), [(100100, "gfx1010"), (90010, "gfx90a"), (110501, "gfx1151"), (100300, "gfx1030")]
)
def test_architectures_are_called_as_compilers_do(version: int, name: str) -> None:
    assert architecture_name(version) == name


def test_kernel_settings(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never",
            "proc/sys/kernel/numa_balancing": "2",
            "proc/sys/kernel/yama/ptrace_scope": "1",
            "proc/sys/kernel/dmesg_restrict": "1",
        },
    )
    assert kernel_settings(tmp_path) == KernelSettings("always", True, 1, True)
