"""Findings: the rules that judge a machine from its facts, before anything runs on it. Pure functions."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from yolo_lightning.commands.doctor.inspect_machine import (
    RUN_DISK,
    SHARED_MEMORY,
    MachineFacts,
    is_integrated,
    version_numbers,
)
from yolo_lightning.commands.doctor.read_hardware import PciGpu, Vendor
from yolo_lightning.utils.sensors import Capacity


class Severity(StrEnum):
    """Severity of a finding, in ascending order."""

    OK = "ok"
    NOTE = "note"  # worth knowing
    WARNING = "warning"  # makes trouble likely
    BAD = "bad"  # training does not run, computes wrong results or is unsafe


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check: a row of the report."""

    check: str  # name of the check
    result: str
    verdict: Severity = Severity.OK
    advice: str = ""  # what to do; empty if nothing needs to be done


def worst(findings: Iterable[Finding]) -> Severity:
    """Return the highest severity, or OK for no findings."""
    return max((finding.verdict for finding in findings), key=list(Severity).index, default=Severity.OK)


RDNA1 = frozenset({"gfx1010", "gfx1011", "gfx1012", "gfx1013"})
"""Architectures on which vendor convolutions hung, crashed or were wrong with some ROCm versions."""

FORK_BUG_SINCE = (6, 2)
FORK_BUG_UNTIL = (7, 1)
"""ROCm versions whose runtime removes the fork protection of host buffers of 2 MiB and more. Cause: madvise advice was
combined like a bit mask, fixed by rocm-systems #356. The limits are derived from release dates."""

OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
NO_LIBRARY = {
    "rocBLAS": (
        Severity.BAD,
        "matrix products fail, and with them both native and own convolutions: training is not possible",
    ),
    "MIOpen": (
        Severity.NOTE,
        "native convolutions are selected without measurements and compiled at first use, which takes minutes",
    ),
}
"""Severity and consequence if a library contains no file for the card."""

PLATFORMS = {Vendor.AMD: "ROCm", Vendor.NVIDIA: "CUDA"}
INSTALL = "install torch and torchvision together, with the command that pytorch.org shows for "

MALICIOUS_LIGHTNING = frozenset({"2.6.2", "2.6.3"})
"""Releases of 2026-04-30 that steal credentials at import; advisory GHSA-w37p-236h-pfx3."""

MIB = 1 << 20
GIB = 1 << 30
SCORING_BYTES = 6 * GIB
"""Memory for scoring the 43,850 validation frames of LTDv2 with 100 detections per frame."""

TINY_SHARED_BYTES = 64 * MIB
RUN_NEED = "a run with its predictions needs up to 6 GB"
DISK_RULES = {
    # 4 workers with 2 prefetched batches of 8 frames of 640 x 640 bytes each need 40 MiB. Docker's default is 64 MiB.
    SHARED_MEMORY: (
        {
            TINY_SHARED_BYTES: (Severity.WARNING, "workers that fill it crash with a bus error"),
            256 * MIB: (Severity.NOTE, "sufficient for batches of 8, not for much larger ones"),
        },
        "start the container with --shm-size 1g or --ipc host; otherwise data.loader.num_workers: 0",
    ),
    # The checkpoints of YOLOv8n need about 200 MB, the predictions of all splits 6 GB.
    RUN_DISK: (
        {GIB: (Severity.BAD, RUN_NEED), 5 * GIB: (Severity.WARNING, RUN_NEED)},
        "choose another folder with --run",
    ),
}
"""By check: severity and reason for less free space than the key, and the advice."""


def machine_findings(machine: MachineFacts) -> list[Finding]:
    """Return the findings of all rules, in the order of the report."""
    return [*_gpu_findings(machine), *_software_findings(machine), *_system_findings(machine)]


def _gpu_findings(machine: MachineFacts) -> Iterator[Finding]:
    """Yield findings about GPUs, the torch build, drivers, ROCm and the architecture override."""
    yield from map(_graphics_card, machine.gpus)
    if not machine.gpus:
        yield Finding("graphics card", "no AMD or NVIDIA card on the PCI bus", Severity.NOTE)
    yield _torch_build(machine)
    has_amd = machine.has(Vendor.AMD)
    if has_amd and machine.torch_vendor is Vendor.AMD:
        yield _amd_access(machine.kfd_opens)
        yield _rocm(machine)
        yield from _libraries(machine)
    if machine.has(Vendor.NVIDIA):
        yield _nvidia_driver(machine)
    if has_amd:
        yield _override(machine)


def _graphics_card(gpu: PciGpu) -> Finding:
    parts = [gpu.name, gpu.architecture]
    if gpu.memory_bytes is not None:
        parts.append(f"{gpu.memory_bytes / GIB:.1f} GiB")
    card = ", ".join(filter(None, parts))
    if is_integrated(gpu):
        return Finding("graphics card", f"{card}: integrated graphics with too little memory, ignored", Severity.NOTE)
    if gpu.architecture in RDNA1:
        advice = "vendor convolutions and float16 work with some ROCm versions only: see the tests of this command"
        return Finding("graphics card", card, Severity.NOTE, advice)
    return Finding("graphics card", card)


def _torch_build(machine: MachineFacts) -> Finding:
    torch = machine.torch
    if torch is None:
        return Finding("torch build", "torch is not installed", Severity.BAD, INSTALL + "this machine")
    vendors = sorted({gpu.vendor for gpu in machine.cards})
    if torch.vendor in vendors or (not vendors and torch.vendor is None):
        return Finding("torch build", str(torch))
    if not vendors:
        return Finding("torch build", f"{torch}; without such a card it computes on the CPU", Severity.NOTE)
    platform = " or ".join(PLATFORMS[vendor] for vendor in vendors)
    return Finding(
        "torch build",
        f"{torch}, but the card is {' and '.join(vendors)}: training would run on the CPU",
        Severity.BAD,
        f"pip may have replaced torch during another installation: {INSTALL}{platform}; then run "
        "`make install VENV=...`, which installs the other packages and keeps these two",
    )


def _amd_access(kfd_opens: bool | None) -> Finding:
    check = "access to the card"
    if kfd_opens is None:
        advice = "load the amdgpu driver; start a container with --device /dev/kfd --device /dev/dri"
        return Finding(check, "/dev/kfd does not exist", Severity.BAD, advice)
    if not kfd_opens:
        advice = "add the user to the groups render and video, and log in again"
        return Finding(check, "this user has no permission to open /dev/kfd", Severity.BAD, advice)
    return Finding(check, "this user can open /dev/kfd")


def _nvidia_driver(machine: MachineFacts) -> Finding:
    if machine.nvidia_driver:
        return Finding("NVIDIA driver", machine.nvidia_driver)
    severity = Severity.BAD if machine.torch_vendor is Vendor.NVIDIA else Severity.NOTE
    return Finding("NVIDIA driver", "not loaded", severity, "load it, or give the container access to the card")


def _rocm(machine: MachineFacts) -> Finding:
    assert machine.torch is not None
    assert machine.torch.hip is not None
    versions = f"torch contains {machine.torch.hip}"
    if machine.rocm:
        versions += f", the system has {machine.rocm}"
    if not FORK_BUG_SINCE <= version_numbers(machine.torch.hip) < FORK_BUG_UNTIL:
        return Finding("ROCm", versions)
    return Finding(
        "ROCm",
        f"{versions}: a fork can stop the GPU's queues (bug with host buffers of 2 MiB and more)",
        Severity.WARNING,
        "the loader workers of this program are spawned; do not fork in other code of the training process; "
        "7.1 and newer should not have the bug",
    )


def _override(machine: MachineFacts) -> Finding:
    value = machine.environment.get(OVERRIDE)
    if value is None:
        return Finding("override", f"{OVERRIDE} is not set: the card uses its own architecture")
    setting = f"{OVERRIDE}={value}"
    target = overriding_architecture(machine)
    if target is None:
        return Finding("override", f"{setting} is no architecture", Severity.BAD, "unset it")
    real = own_architectures(machine)
    if real == {target}:
        return Finding("override", f"{setting} is the architecture of the card already", Severity.NOTE, "unset it")
    advice = "unset it, with a torch build for the card itself"
    if real & RDNA1:
        advice = f"unset it; {own_build(machine)}"
    return Finding(
        "override",
        f"{setting}: {' and '.join(sorted(real)) or 'the card'} runs code for {target}, whose instructions it may "
        "lack; 10.3.0 is reported to crash an RX 5700",
        Severity.WARNING,
        advice,
    )


def own_architectures(machine: MachineFacts) -> set[str]:
    """Return the architectures of the AMD cards, as far as the driver reports them."""
    return {gpu.architecture for gpu in machine.cards if gpu.vendor is Vendor.AMD and gpu.architecture}


def overriding_architecture(machine: MachineFacts) -> str | None:
    """Return the architecture that the variable `OVERRIDE` names, or None without a valid one."""
    version = version_numbers(machine.environment.get(OVERRIDE, ""))
    if len(version) != 3:
        return None
    return f"gfx{version[0]}{version[1]:x}{version[2]:x}"


def own_build(machine: MachineFacts) -> str:
    """Return where a torch build for gfx101x cards comes from."""
    extras = ",".join(f"device-{name}" for name in sorted(own_architectures(machine) & RDNA1))
    wheels = f"pip install 'torch[{extras}]' 'torchvision[{extras}]' with TheRock's multi-architecture wheels"
    return f"{wheels}, or on Arch Linux the package python-pytorch-rocm; neither needs an override"


def _libraries(machine: MachineFacts) -> Iterator[Finding]:
    """Yield one finding for each library of AMD whose files name the architectures of GPUs."""
    target = overriding_architecture(machine)
    used = [target] if target else sorted(own_architectures(machine))
    for library, available in machine.libraries.items():
        if available is None:
            yield Finding(library, "no files beside torch or in /opt/rocm")
            continue
        if not used:
            yield Finding(library, "the card is unknown")
            continue
        # A file name may continue with the number of compute units.
        lacking = [name for name in used if not any(file_name.startswith(name) for file_name in available)]
        if not lacking:
            yield Finding(library, f"contains files for {', '.join(used)}")
            continue
        severity, consequence = NO_LIBRARY[library]
        problem = f"contains no file for {', '.join(lacking)}"
        if available:
            problem += f" (only {', '.join(available)})"
        advice = INSTALL + "this card"
        if own_architectures(machine) & RDNA1:
            advice = own_build(machine)
        yield Finding(library, f"{problem}: {consequence}", severity, advice)


def _software_findings(machine: MachineFacts) -> Iterator[Finding]:
    """Yield findings about packages and environment variables."""
    yield _lightning(machine.packages)
    yield _torchvision(machine)
    yield _py_spy(machine)
    variables = machine.environment
    settings = ", ".join(f"{name}={value[:60]}" for name, value in variables.items())
    hiding = [name for name in variables if name.endswith("_VISIBLE_DEVICES") and variables[name].strip() in ("", "-1")]
    if hiding:
        yield Finding("environment", f"{settings}: hides all GPUs", Severity.WARNING, f"unset {' '.join(hiding)}")
    elif variables:
        yield Finding("environment", settings)


def _lightning(packages: dict[str, str]) -> Finding:
    versions = {name: packages[name] for name in ("lightning", "pytorch-lightning") if name in packages}
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    if MALICIOUS_LIGHTNING & set(versions.values()):
        listed += ": malicious release, steals credentials at import (GHSA-w37p-236h-pfx3)"
        advice = "do not start Python with it; uninstall it, and change all passwords and tokens stored on this machine"
        return Finding("lightning", listed, Severity.BAD, advice)
    if "lightning" not in versions:
        return Finding("lightning", listed or "not installed", Severity.BAD, "pip install 'lightning>=2.6.4'")
    return Finding("lightning", listed)


def _torchvision(machine: MachineFacts) -> Finding:
    version = machine.packages.get("torchvision")
    if version is None:
        return Finding("torchvision", "not installed", Severity.BAD, "install the build that matches torch")
    torch = machine.torch.version if machine.torch else ""
    local = version.partition("+")[2]
    torch_local = torch.partition("+")[2]
    if local and torch_local and local != torch_local:
        advice = "install both together, from the same index"
        return Finding("torchvision", f"{version} does not match torch {torch}", Severity.BAD, advice)
    return Finding("torchvision", version)


def _py_spy(machine: MachineFacts) -> Finding:
    version = machine.packages.get("py-spy")
    if version is None:
        advice = "pip install py-spy: without it a blocked worker cannot be distinguished from an idle one"
        return Finding("py-spy", "not installed", Severity.WARNING, advice)
    scope = machine.kernel.ptrace_scope
    if scope is not None:
        version += f", ptrace_scope {scope}"
    if scope in (None, 0, 1) or (scope == 2 and machine.is_root):
        # Scope 1 restricts a process to its descendants, which include the workers.
        return Finding("py-spy", f"{version}: the supervisor can read the stacks of blocked processes")
    advice = "sudo sysctl kernel.yama.ptrace_scope=1, for 3 after a reboot, adds stacks of workers to incident reports"
    return Finding("py-spy", f"{version}: this user cannot read the stacks of processes", Severity.WARNING, advice)


def _system_findings(machine: MachineFacts) -> Iterator[Finding]:
    """Yield findings about processor, memory, disks and kernel settings."""
    yield _processor(machine)
    yield _memory(machine.memory)
    if machine.has(Vendor.AMD):
        yield from _moved_pages(machine)
    for check, space in machine.disks.items():
        yield _free_space(check, space)
    if machine.kernel.log_restricted and not machine.is_root and not machine.reads_journal:
        advice = "sudo usermod -aG systemd-journal $USER adds lines of the kernel log to incident reports"
        yield Finding("kernel log", "readable by root only", Severity.NOTE, advice)


def _processor(machine: MachineFacts) -> Finding:
    if machine.cores == 1:
        return Finding(
            "processor",
            f"{machine.processor}, 1 core for this process: workers and training share one core",
            Severity.WARNING,
        )
    severity = Severity.NOTE if machine.cores < 4 else Severity.OK
    return Finding("processor", f"{machine.processor}, {machine.cores} cores for this process", severity)


def _memory(memory: Capacity) -> Finding:
    free = f"{_gib(memory.free_bytes)} of {_gib(memory.total_bytes)} free"
    if memory.free_bytes >= SCORING_BYTES:
        return Finding("memory", free)
    return Finding(
        "memory",
        f"{free}: scoring LTDv2's validation frames needs {_gib(SCORING_BYTES)}",
        Severity.WARNING,
        "lower model.detections.max_detections, or free memory",
    )


def _moved_pages(machine: MachineFacts) -> Iterator[Finding]:
    """Yield findings about swap and kernel settings that move pages, which can stop the queues of an AMD GPU."""
    settings = []
    if machine.swap_bytes:
        settings.append(("swap", _gib(machine.swap_bytes), "sudo swapoff -a, if memory is sufficient"))
    if machine.kernel.huge_pages == "always":
        advice = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
        settings.append(("huge pages", "always", advice))
    if machine.kernel.numa_balancing:
        settings.append(("NUMA balancing", "on", "sudo sysctl kernel.numa_balancing=0"))
    for check, setting, advice in settings:
        yield Finding(check, f"{setting}: moving pages can stop the queues of an AMD GPU", Severity.NOTE, advice)


def _gib(size_bytes: int) -> str:
    """Return a size in GiB, or in MiB below one GiB."""
    if size_bytes >= GIB:
        return f"{size_bytes / GIB:.1f} GiB"
    return f"{size_bytes / MIB:.0f} MiB"


def _free_space(check: str, space: Capacity | None) -> Finding:
    limits, advice = DISK_RULES[check]
    if space is None:
        return Finding(check, "does not exist or does not answer", Severity.BAD, advice)
    free = f"{_gib(space.free_bytes)} of {_gib(space.total_bytes)} free"
    for limit_bytes, (severity, reason) in limits.items():
        if space.free_bytes < limit_bytes:
            return Finding(check, f"{free}: {reason}", severity, advice)
    return Finding(check, free)
