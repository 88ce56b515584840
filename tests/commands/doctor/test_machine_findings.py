"""Every rule of the doctor, on a machine to which the rule applies."""

from dataclasses import replace
from typing import Any

import pytest

from tests.commands.doctor.machines import CPU, CUDA, GIB, H200, NAVI, OLD_ROCM, PLAIN, ROCM, finding, with_disk
from yolo_lightning.commands.doctor.inspect_machine import RUN_DISK, SHARED_MEMORY, MachineFacts, TorchBuild
from yolo_lightning.commands.doctor.machine_findings import Finding, Severity, machine_findings, worst
from yolo_lightning.commands.doctor.read_hardware import KernelSettings, PciGpu, Vendor
from yolo_lightning.utils.sensors import Capacity

OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
LIBRARIES = {"rocBLAS": ("gfx1010", "gfx1030"), "MIOpen": ("gfx1030",)}
GOOD_AMD = replace(PLAIN, gpus=(NAVI,), torch=ROCM, kfd_opens=True, libraries=LIBRARIES)
OVERRIDDEN = replace(GOOD_AMD, environment={OVERRIDE: "10.3.0"})
GOOD_NVIDIA = replace(PLAIN, gpus=(H200,), torch=CUDA, nvidia_driver="575.57.08")


def with_packages(**versions: str) -> MachineFacts:
    return replace(
        PLAIN, packages=PLAIN.packages | {name.replace("_", "-"): version for name, version in versions.items()}
    )


def without(package: str) -> MachineFacts:
    return replace(PLAIN, packages={name: version for name, version in PLAIN.packages.items() if name != package})


def kernel(machine: MachineFacts, **settings: Any) -> MachineFacts:
    return replace(machine, kernel=replace(machine.kernel, **settings))


CASES = [
    # graphics card
    (PLAIN, "graphics card", Severity.NOTE, "no AMD or NVIDIA card"),
    (GOOD_AMD, "graphics card", Severity.NOTE, "gfx1010, 6.0 GiB"),
    (GOOD_NVIDIA, "graphics card", Severity.OK, "H200"),
    # torch build
    (replace(PLAIN, torch=CUDA), "torch build", Severity.NOTE, "computes on the CPU"),
    (replace(PLAIN, torch=ROCM), "torch build", Severity.NOTE, "computes on the CPU"),
    (replace(PLAIN, torch=None), "torch build", Severity.BAD, "not installed"),
    (GOOD_AMD, "torch build", Severity.OK, "ROCm, HIP 7.1"),
    (replace(GOOD_AMD, torch=CUDA), "torch build", Severity.BAD, "the card is AMD"),
    (replace(GOOD_NVIDIA, torch=ROCM), "torch build", Severity.BAD, "the card is NVIDIA"),
    (replace(GOOD_NVIDIA, torch=CPU), "torch build", Severity.BAD, "the card is NVIDIA"),
    (replace(GOOD_NVIDIA, gpus=(NAVI, H200)), "torch build", Severity.OK, "CUDA 13.2"),
    (
        replace(PLAIN, gpus=(PciGpu(Vendor.AMD, "AMD Raphael", "gfx1036", GIB // 2),)),
        "torch build",
        Severity.OK,
        "CPU only",
    ),
    # access and drivers
    (replace(GOOD_AMD, kfd_opens=False), "access to the card", Severity.BAD, "no permission to open"),
    (replace(GOOD_AMD, kfd_opens=None), "access to the card", Severity.BAD, "/dev/kfd does not exist"),
    (replace(GOOD_NVIDIA, nvidia_driver=""), "NVIDIA driver", Severity.BAD, "not loaded"),
    (replace(GOOD_NVIDIA, nvidia_driver="", torch=CPU), "NVIDIA driver", Severity.NOTE, "not loaded"),
    # ROCm version
    (replace(GOOD_AMD, torch=OLD_ROCM), "ROCm", Severity.WARNING, "fork"),
    (replace(GOOD_AMD, torch=TorchBuild("2", hip="7.0.9")), "ROCm", Severity.WARNING, "fork"),
    (replace(GOOD_AMD, torch=TorchBuild("2", hip="unknown")), "ROCm", Severity.OK, "unknown"),
    # override
    (OVERRIDDEN, "override", Severity.WARNING, "gfx1010 runs code for gfx1030"),
    (OVERRIDDEN, "override", Severity.WARNING, "crash an RX 5700"),
    (
        replace(GOOD_AMD, environment={OVERRIDE: "10.1.0"}),
        "override",
        Severity.NOTE,
        "architecture of the card already",
    ),
    (replace(GOOD_AMD, environment={OVERRIDE: "gfx1030"}), "override", Severity.BAD, "=gfx1030 is no architecture"),
    # libraries of AMD
    (GOOD_AMD, "rocBLAS", Severity.OK, "files for gfx1010"),
    (GOOD_AMD, "MIOpen", Severity.NOTE, "no file for gfx1010 (only gfx1030)"),
    (replace(GOOD_AMD, libraries={"rocBLAS": ("gfx90a",)}), "rocBLAS", Severity.BAD, "training is not possible"),
    (replace(GOOD_AMD, libraries={"rocBLAS": ("gfx101018",)}), "rocBLAS", Severity.OK, "files for gfx1010"),
    (replace(OVERRIDDEN, libraries={"rocBLAS": ("gfx1010",)}), "rocBLAS", Severity.BAD, "no file for gfx1030"),
    (replace(GOOD_AMD, libraries={"rocBLAS": None}), "rocBLAS", Severity.OK, "no files beside torch"),
    # packages
    (with_packages(lightning="2.6.2"), "lightning", Severity.BAD, "malicious"),
    (with_packages(pytorch_lightning="2.6.3"), "lightning", Severity.BAD, "malicious"),
    (without("lightning"), "lightning", Severity.BAD, "pytorch-lightning 2.6.6"),
    (without("torchvision"), "torchvision", Severity.BAD, "not installed"),
    (with_packages(torchvision="0.29.2+cu132"), "torchvision", Severity.BAD, "does not match torch 2.13.0+cpu"),
    (with_packages(torchvision="0.29.2+cpu"), "torchvision", Severity.OK, "0.29.2+cpu"),
    (without("py-spy"), "py-spy", Severity.WARNING, "not installed"),
    (kernel(PLAIN, ptrace_scope=1), "py-spy", Severity.OK, "can read the stacks"),
    (kernel(PLAIN, ptrace_scope=2), "py-spy", Severity.WARNING, "cannot read the stacks"),
    (kernel(PLAIN, ptrace_scope=3), "py-spy", Severity.WARNING, "cannot read the stacks"),
    (replace(kernel(PLAIN, ptrace_scope=2), is_root=True), "py-spy", Severity.OK, "ptrace_scope 2"),
    (replace(PLAIN, environment={"MIOPEN_FIND_MODE": "FAST"}), "environment", Severity.OK, "MIOPEN_FIND_MODE=FAST"),
    (replace(PLAIN, environment={"CUDA_VISIBLE_DEVICES": ""}), "environment", Severity.WARNING, "hides all GPUs"),
    # system
    (replace(PLAIN, cores=2), "processor", Severity.NOTE, "2 cores"),
    (replace(PLAIN, cores=1), "processor", Severity.WARNING, "1 core for"),
    (replace(PLAIN, memory=Capacity(3 * GIB, 8 * GIB)), "memory", Severity.WARNING, "scoring"),
    (replace(GOOD_AMD, swap_bytes=GIB), "swap", Severity.NOTE, "stop the queues"),
    (replace(PLAIN, disks={SHARED_MEMORY: None}), "/dev/shm", Severity.BAD, "does not exist"),
    (with_disk(PLAIN, SHARED_MEMORY, 64 << 20, 63 << 20), "/dev/shm", Severity.WARNING, "bus error"),
    (with_disk(PLAIN, SHARED_MEMORY, 64 << 20, 64 << 20), "/dev/shm", Severity.NOTE, "batches of 8"),
    (replace(PLAIN, disks={RUN_DISK: None}), RUN_DISK, Severity.BAD, "does not answer"),
    (with_disk(PLAIN, RUN_DISK, GIB, GIB - 1), RUN_DISK, Severity.BAD, "of 1.0 GiB free"),
    (with_disk(PLAIN, RUN_DISK, 5 * GIB, 4 * GIB), "disk for runs", Severity.WARNING, "4.0 GiB"),
    (kernel(GOOD_AMD, huge_pages="always"), "huge pages", Severity.NOTE, "stop the queues"),
    (kernel(GOOD_AMD, numa_balancing=True), "NUMA balancing", Severity.NOTE, "stop the queues"),
    (kernel(PLAIN, log_restricted=True), "kernel log", Severity.NOTE, "readable by root only"),
]


@pytest.mark.parametrize(("machine", "check", "verdict", "phrase"), CASES)
def test_rule(machine: MachineFacts, check: str, verdict: Severity, phrase: str) -> None:
    actual = finding(machine, check)
    assert actual.verdict is verdict
    assert phrase in actual.result
    assert actual.advice or verdict is not Severity.BAD


@pytest.mark.parametrize("machine", [PLAIN, GOOD_AMD, GOOD_NVIDIA])
def test_a_good_machine_causes_no_warning(machine: MachineFacts) -> None:
    assert worst(machine_findings(machine)) in (Severity.OK, Severity.NOTE)


@pytest.mark.parametrize("check", ["override", "rocBLAS"])
def test_a_card_without_code_is_told_which_builds_have_it(check: str) -> None:
    actual = finding(replace(OVERRIDDEN, libraries={"rocBLAS": ()}), check)
    assert "torch[device-gfx1010]" in actual.advice
    assert "python-pytorch-rocm" in actual.advice


@pytest.mark.parametrize(
    "machine",
    [
        GOOD_AMD,
        replace(GOOD_AMD, kernel=KernelSettings()),
        kernel(PLAIN, huge_pages="always", numa_balancing=True),
        replace(kernel(PLAIN, log_restricted=True), is_root=True),
        replace(kernel(PLAIN, log_restricted=True), reads_journal=True),
    ],
)
def test_kernel_settings_without_consequence_are_not_listed(machine: MachineFacts) -> None:
    checks = {finding.check for finding in machine_findings(machine)}
    assert not checks & {"swap", "huge pages", "NUMA balancing", "kernel log"}


def test_worst_returns_the_highest_severity() -> None:
    findings = [Finding("a", "", verdict) for verdict in (Severity.NOTE, Severity.BAD, Severity.WARNING)]
    assert worst(findings) is Severity.BAD
    assert worst(findings[:1]) is Severity.NOTE
    assert worst([]) is Severity.OK
