"""Descriptions of machines for the tests of the doctor."""

from dataclasses import replace
from pathlib import Path

from yolo_lightning.commands.doctor.inspect_machine import RUN_DISK, SHARED_MEMORY, MachineFacts, TorchBuild
from yolo_lightning.commands.doctor.machine_findings import Finding, machine_findings
from yolo_lightning.commands.doctor.probes import Outcome, Probe, ProbeOutcome
from yolo_lightning.commands.doctor.read_hardware import KernelSettings, PciGpu, Vendor
from yolo_lightning.utils.sensors import Capacity

GIB = 1 << 30
NAVI = PciGpu(Vendor.AMD, "AMD Navi 10 [Radeon RX 5600 XT]", "gfx1010", 6 * GIB)
H200 = PciGpu(Vendor.NVIDIA, "NVIDIA H200")
ROCM = TorchBuild("2.9.1+rocm7.1", hip="7.1.52802")
OLD_ROCM = TorchBuild("2.6.0+rocm6.2.4", hip="6.2.41134-65d174c3e")
CUDA = TorchBuild("2.15.0+cu132", cuda="13.2")
CPU = TorchBuild("2.13.0+cpu")

PLAIN = MachineFacts(
    system="Linux 6.18.0",
    processor="AMD EPYC",
    cores=8,
    memory=Capacity(8 * GIB, 32 * GIB),
    swap_bytes=0,
    disks={SHARED_MEMORY: Capacity(GIB, 16 * GIB), RUN_DISK: Capacity(200 * GIB, 500 * GIB)},
    torch=CPU,
    packages={
        "lightning": "2.6.6",
        "pytorch-lightning": "2.6.6",
        "torchvision": "0.29.2",
        "opencv-python": "5.0.0.93",
        "py-spy": "0.4.3",
    },
    kernel=KernelSettings("madvise", False, 1, False),
)
"""A machine without a GPU and without problems."""


def with_disk(machine: MachineFacts, check: str, total_bytes: int, free_bytes: int) -> MachineFacts:
    """Return the machine with another file system."""
    return replace(machine, disks=machine.disks | {check: Capacity(total_bytes - free_bytes, total_bytes)})


def finding(machine: MachineFacts, check: str) -> Finding:
    """Return the only finding of a check."""
    (result,) = [entry for entry in machine_findings(machine) if entry.check == check]
    return result


def results(on: str = "cuda", **outcomes: Outcome) -> list[ProbeOutcome]:
    """Return results in which every probe works except the given ones."""
    return [
        ProbeOutcome(probe, outcomes.get(probe, Outcome.WORKS), device=on if probe is Probe.DEVICE else "")
        for probe in Probe
    ]


def write(root: Path, files: dict[str, str]) -> None:
    """Write files below `root`, in the format of proc and sys."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
