"""Every rule by a machine that it is about."""

from dataclasses import replace
from typing import Any

import pytest
from machines import CPU, CUDA, GIB, H200, NAVI, OLD_ROCM, PLAIN, ROCM, finding

from yolo_lightning.diagnosis.finding import Finding, Verdict, worst
from yolo_lightning.diagnosis.findings import findings
from yolo_lightning.diagnosis.machine import Gpu, KernelSettings, Machine, Memory, Space, TorchBuild, Vendor

OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
GOOD_AMD = replace(PLAIN, gpus=(NAVI,), torch=ROCM, kfd_opens=True)
GOOD_NVIDIA = replace(PLAIN, gpus=(H200,), torch=CUDA, nvidia_driver="575.57.08")
BOTH_OPENCV = {"opencv-python": "5.0.0.93", "opencv-python-headless": "5.0.0.93"}


def with_packages(**versions: str) -> Machine:
    return replace(PLAIN, packages=PLAIN.packages | {name.replace("_", "-"): one for name, one in versions.items()})


def without(package: str) -> Machine:
    return replace(PLAIN, packages={name: one for name, one in PLAIN.packages.items() if name != package})


def kernel(machine: Machine, **settings: Any) -> Machine:
    return replace(machine, kernel=replace(machine.kernel, **settings))


CASES = [
    # graphics card
    (PLAIN, "graphics card", Verdict.NOTE, "no AMD or NVIDIA card"),
    (GOOD_AMD, "graphics card", Verdict.NOTE, "gfx1010, 6.0 GiB"),
    (GOOD_NVIDIA, "graphics card", Verdict.OK, "H200"),
    # torch build
    (PLAIN, "torch build", Verdict.OK, "for the CPU alone"),
    (replace(PLAIN, torch=CUDA), "torch build", Verdict.NOTE, "computes on the CPU"),
    (replace(PLAIN, torch=ROCM), "torch build", Verdict.NOTE, "computes on the CPU"),
    (replace(PLAIN, torch=None), "torch build", Verdict.BAD, "not installed"),
    (GOOD_AMD, "torch build", Verdict.OK, "ROCm, HIP 7.1"),
    (replace(GOOD_AMD, torch=CUDA), "torch build", Verdict.BAD, "the card is AMD"),
    (replace(GOOD_NVIDIA, torch=ROCM), "torch build", Verdict.BAD, "the card is NVIDIA"),
    (replace(GOOD_NVIDIA, torch=CPU), "torch build", Verdict.BAD, "the card is NVIDIA"),
    (replace(GOOD_NVIDIA, gpus=(NAVI, H200)), "torch build", Verdict.OK, "CUDA 13.2"),
    (replace(PLAIN, gpus=(Gpu(Vendor.AMD, "AMD Raphael", "gfx1036", GIB // 2),)), "torch build", Verdict.OK, "CPU"),
    # access and drivers
    (GOOD_AMD, "access to the card", Verdict.OK, "may be opened"),
    (replace(GOOD_AMD, kfd_opens=False), "access to the card", Verdict.BAD, "may not open"),
    (replace(GOOD_AMD, kfd_opens=None), "access to the card", Verdict.BAD, "not there"),
    (replace(GOOD_NVIDIA, nvidia_driver=""), "NVIDIA driver", Verdict.BAD, "not loaded"),
    (replace(GOOD_NVIDIA, nvidia_driver="", torch=CPU), "NVIDIA driver", Verdict.NOTE, "not loaded"),
    # ROCm's age
    (GOOD_AMD, "ROCm", Verdict.OK, "7.1"),
    (replace(GOOD_AMD, torch=OLD_ROCM), "ROCm", Verdict.WARNING, "fork"),
    (replace(GOOD_AMD, torch=TorchBuild("2", hip="7.0.9")), "ROCm", Verdict.WARNING, "fork"),
    (replace(GOOD_AMD, torch=OLD_ROCM, start_method="forkserver"), "ROCm", Verdict.NOTE, "fork"),
    (replace(GOOD_AMD, torch=TorchBuild("1.13", hip="5.2.21153")), "ROCm", Verdict.NOTE, "older"),
    (replace(GOOD_AMD, torch=TorchBuild("2", hip="unknown")), "ROCm", Verdict.NOTE, "cannot be compared"),
    # override
    (GOOD_AMD, "override", Verdict.OK, "is not set"),
    (replace(GOOD_AMD, environment={OVERRIDE: "10.3.0"}), "override", Verdict.WARNING, "gfx1010 computes as gfx1030"),
    (replace(GOOD_AMD, environment={OVERRIDE: "10.1.0"}), "override", Verdict.NOTE, "anyway"),
    (replace(GOOD_AMD, environment={OVERRIDE: "gfx1030"}), "override", Verdict.BAD, "=gfx1030 names no"),
    (replace(PLAIN, environment={OVERRIDE: "10.3.0"}), "override", Verdict.NOTE, "without effect"),
    # packages
    (PLAIN, "Python", Verdict.OK, "3.11.7"),
    (replace(PLAIN, python=(3, 10, 12)), "Python", Verdict.BAD, "too old"),
    (with_packages(lightning="2.6.2"), "lightning", Verdict.BAD, "malicious"),
    (with_packages(pytorch_lightning="2.6.3"), "lightning", Verdict.BAD, "malicious"),
    (with_packages(lightning="2.6.5"), "lightning", Verdict.WARNING, "two versions"),
    (without("lightning"), "lightning", Verdict.BAD, "pytorch-lightning 2.6.6"),
    (PLAIN, "lightning", Verdict.OK, "2.6.6"),
    (with_packages(**BOTH_OPENCV), "OpenCV", Verdict.NOTE, "both write the same folder"),
    (with_packages(opencv_python_headless="4.9.0"), "OpenCV", Verdict.WARNING, "whichever came last"),
    (without("opencv-python"), "OpenCV", Verdict.NOTE, "no package"),
    (PLAIN, "OpenCV", Verdict.OK, "opencv-python 5.0.0.93"),
    (without("torchvision"), "torchvision", Verdict.BAD, "not installed"),
    (with_packages(torchvision="0.29.2+cu132"), "torchvision", Verdict.BAD, "does not belong to torch 2.13.0+cpu"),
    (with_packages(torchvision="0.29.2+cpu"), "torchvision", Verdict.OK, "0.29.2+cpu"),
    (without("py-spy"), "py-spy", Verdict.WARNING, "not installed"),
    (kernel(PLAIN, ptrace_scope=1), "py-spy", Verdict.OK, "descendants"),
    (kernel(PLAIN, ptrace_scope=2), "py-spy", Verdict.WARNING, "only root"),
    (kernel(PLAIN, ptrace_scope=3), "py-spy", Verdict.WARNING, "until a reboot"),
    (replace(kernel(PLAIN, ptrace_scope=2), is_root=True), "py-spy", Verdict.OK, "ptrace_scope 2"),
    (replace(PLAIN, environment={"MIOPEN_FIND_MODE": "FAST"}), "environment", Verdict.OK, "MIOPEN_FIND_MODE=FAST"),
    (replace(PLAIN, environment={"CUDA_VISIBLE_DEVICES": ""}), "environment", Verdict.WARNING, "hides every GPU"),
    # system
    (PLAIN, "processor", Verdict.OK, "8 cores"),
    (replace(PLAIN, cores=2), "processor", Verdict.NOTE, "2 cores"),
    (replace(PLAIN, cores=1), "processor", Verdict.WARNING, "1 core for"),
    (PLAIN, "memory", Verdict.OK, "24.0 GiB of 32.0 GiB"),
    (replace(PLAIN, memory=Memory(8 * GIB, 5 * GIB, 0)), "memory", Verdict.WARNING, "scoring"),
    (replace(PLAIN, memory=Memory(32 * GIB, 24 * GIB, GIB)), "swap", Verdict.OK, "1.0 GiB"),
    (replace(GOOD_AMD, memory=Memory(32 * GIB, 24 * GIB, GIB)), "swap", Verdict.NOTE, "stop the queues"),
    (replace(PLAIN, shared_memory=None), "/dev/shm", Verdict.BAD, "not there"),
    (replace(PLAIN, shared_memory=Space("/dev/shm", 64 << 20, 63 << 20)), "/dev/shm", Verdict.WARNING, "bus error"),
    (replace(PLAIN, shared_memory=Space("/dev/shm", 64 << 20, 64 << 20)), "/dev/shm", Verdict.NOTE, "batches of 8"),
    (replace(PLAIN, shared_memory=Space("/dev/shm", None, None)), "/dev/shm", Verdict.BAD, "does not answer"),
    (replace(PLAIN, run_disk=Space("runs", GIB, GIB - 1)), "disk for runs", Verdict.BAD, "at runs"),
    (replace(PLAIN, run_disk=Space("runs", GIB, 4 * GIB)), "disk for runs", Verdict.WARNING, "4.0 GiB"),
    (replace(PLAIN, run_disk=Space("runs", None, None)), "disk for runs", Verdict.BAD, "does not answer"),
    (replace(PLAIN, data_disk=Space("LTDv2", GIB, GIB)), "disk for data", Verdict.NOTE, "`prepare` needs 43.3 GiB"),
    (replace(PLAIN, data_disk=Space("LTDv2", 99 * GIB, 99 * GIB)), "disk for data", Verdict.OK, "99.0 GiB"),
    (kernel(PLAIN, huge_pages="always", numa_balancing=True), "huge pages", Verdict.OK, "always"),
    (kernel(GOOD_AMD, huge_pages="always"), "huge pages", Verdict.NOTE, "stop the queues"),
    (kernel(GOOD_AMD, numa_balancing=True), "NUMA balancing", Verdict.NOTE, "stop the queues"),
    (kernel(PLAIN, numa_balancing=True), "NUMA balancing", Verdict.OK, "on"),
    (kernel(PLAIN, log_restricted=True), "kernel log", Verdict.NOTE, "root only"),
    (replace(kernel(PLAIN, log_restricted=True), is_root=True), "kernel log", Verdict.OK, "may be read"),
]


@pytest.mark.parametrize(("machine", "check", "verdict", "phrase"), CASES)
def test_rule(machine: Machine, check: str, verdict: Verdict, phrase: str) -> None:
    found = finding(machine, check)
    assert found.verdict is verdict
    assert phrase in found.found


@pytest.mark.parametrize("machine", [PLAIN, GOOD_AMD, GOOD_NVIDIA])
def test_a_good_machine_has_nothing_to_be_warned_of(machine: Machine) -> None:
    assert worst(findings(machine)) in (Verdict.OK, Verdict.NOTE)


@pytest.mark.parametrize(("machine", "check"), [(machine, check) for machine, check, *_ in CASES])
def test_what_is_bad_says_what_to_do(machine: Machine, check: str) -> None:
    found = finding(machine, check)
    assert found.advice or found.verdict is not Verdict.BAD


def test_kernels_without_the_settings_are_judged() -> None:
    assert worst(findings(replace(GOOD_AMD, kernel=KernelSettings()))) is Verdict.NOTE


def test_the_worst_verdict_counts() -> None:
    found = [Finding("a", "", verdict) for verdict in (Verdict.NOTE, Verdict.BAD, Verdict.WARNING)]
    assert worst(found) is Verdict.BAD
    assert worst(found[:1]) is Verdict.NOTE
    assert worst([]) is Verdict.OK
