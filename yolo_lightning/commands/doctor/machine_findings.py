"""Findings: the rules that judge a machine from its facts, before anything runs on it. Pure functions."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from yolo_lightning.commands.doctor.inspect_machine import (
    OPENCV,
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
    found: str
    verdict: Severity = Severity.OK
    advice: str = ""  # what to do; empty if nothing needs to be done


def worst(findings: Iterable[Finding]) -> Severity:
    """Return the highest severity, or OK for no findings."""
    return max((finding.verdict for finding in findings), key=list(Severity).index, default=Severity.OK)


RDNA1 = frozenset({"gfx1010", "gfx1011", "gfx1012", "gfx1013"})
"""Architectures on which vendor convolutions hung, crashed or were wrong with some ROCm versions."""

FORK_BUG_SINCE, FORK_BUG_UNTIL = (6, 2), (7, 1)
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

INSTALL = "install torch and torchvision together, with the command that pytorch.org shows for "

MALICIOUS_LIGHTNING = frozenset({"2.6.2", "2.6.3"})
"""Releases of 2026-04-30 that steal credentials at import; advisory GHSA-w37p-236h-pfx3."""

MIB, GIB = 1 << 20, 1 << 30
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
    torch_vendor = None if machine.torch is None else machine.torch.vendor
    if machine.has(Vendor.AMD) and torch_vendor is Vendor.AMD:
        yield _amd_access(machine.kfd_opens)
        yield _rocm(machine)
        yield from _libraries(machine)
    if machine.has(Vendor.NVIDIA) and machine.nvidia_driver:
        yield Finding("NVIDIA driver", machine.nvidia_driver)
    elif machine.has(Vendor.NVIDIA):
        verdict = Severity.BAD if torch_vendor is Vendor.NVIDIA else Severity.NOTE
        yield Finding("NVIDIA driver", "not loaded", verdict, "load it, or give the container access to the card")
    if machine.has(Vendor.AMD):
        yield _override(machine)


def _graphics_card(gpu: PciGpu) -> Finding:
    size = "" if gpu.memory_bytes is None else f"{gpu.memory_bytes / GIB:.1f} GiB"
    check, found = "graphics card", ", ".join(filter(None, [gpu.name, gpu.architecture, size]))
    if is_integrated(gpu):
        return Finding(check, f"{found}: integrated graphics with too little memory, ignored", Severity.NOTE)
    if gpu.architecture in RDNA1:
        advice = "vendor convolutions and float16 work with some ROCm versions only: see the tests of this command"
        return Finding(check, found, Severity.NOTE, advice)
    return Finding(check, found)


def _torch_build(machine: MachineFacts) -> Finding:
    check, torch = "torch build", machine.torch
    if torch is None:
        return Finding(check, "torch is not installed", Severity.BAD, INSTALL + "this machine")
    vendors = sorted({gpu.vendor for gpu in machine.cards})
    if torch.vendor in vendors or (not vendors and torch.vendor is None):
        return Finding(check, str(torch))
    if not vendors:
        return Finding(check, f"{torch}; without such a card it computes on the CPU", Severity.NOTE)
    platform = " or ".join("ROCm" if vendor is Vendor.AMD else "CUDA" for vendor in vendors)
    return Finding(
        check,
        f"{torch}, but the card is {' and '.join(vendors)}: training would run on the CPU",
        Severity.BAD,
        f"pip may have replaced torch during another installation: {INSTALL}{platform}; then run "
        "`make install VENV=...`, which installs the other packages and keeps these two",
    )


def _amd_access(kfd_opens: bool | None) -> Finding:
    load = "load the amdgpu driver; start a container with --device /dev/kfd --device /dev/dri"
    join = "add the user to the groups render and video, and log in again"
    found, severity, advice = {
        None: ("/dev/kfd does not exist", Severity.BAD, load),
        False: ("this user has no permission to open /dev/kfd", Severity.BAD, join),
        True: ("this user can open /dev/kfd", Severity.OK, ""),
    }[kfd_opens]
    return Finding("access to the card", found, severity, advice)


def _rocm(machine: MachineFacts) -> Finding:
    assert machine.torch is not None
    assert machine.torch.hip is not None
    check, version = "ROCm", version_numbers(machine.torch.hip)
    found = f"torch contains {machine.torch.hip}" + (f", the system has {machine.rocm}" if machine.rocm else "")
    if not FORK_BUG_SINCE <= version < FORK_BUG_UNTIL:
        return Finding(check, found)
    return Finding(
        check,
        f"{found}: a fork can stop the GPU's queues (bug with host buffers of 2 MiB and more)",
        Severity.WARNING,
        "the loader workers of this program are spawned; do not fork in other code of the training process; "
        "7.1 and newer should not have the bug",
    )


def _override(machine: MachineFacts) -> Finding:
    check, value = "override", machine.environment.get(OVERRIDE)
    if value is None:
        return Finding(check, f"{OVERRIDE} is not set: the card uses its own architecture")
    setting, version = f"{OVERRIDE}={value}", version_numbers(value)
    if len(version) != 3:
        return Finding(check, f"{setting} is no architecture", Severity.BAD, "unset it")
    (target,), real = used_architectures(machine), own_architectures(machine)
    if real == {target}:
        return Finding(check, f"{setting} is the architecture of the card already", Severity.NOTE, "unset it")
    return Finding(
        check,
        f"{setting}: {' and '.join(sorted(real)) or 'the card'} runs code for {target}, whose instructions it may "
        "lack; 10.3.0 is reported to crash an RX 5700",
        Severity.WARNING,
        "unset it" + (f"; {own_build(machine)}" if real & RDNA1 else ", with a torch build for the card itself"),
    )


def own_architectures(machine: MachineFacts) -> set[str]:
    """Return the architectures of the AMD cards, as far as the driver reports them."""
    return {gpu.architecture for gpu in machine.cards if gpu.vendor is Vendor.AMD and gpu.architecture}


def used_architectures(machine: MachineFacts) -> set[str]:
    """Return the architectures for which AMD's libraries compute: that of the override, else those of the cards."""
    version = version_numbers(machine.environment.get(OVERRIDE, ""))
    return {f"gfx{version[0]}{version[1]:x}{version[2]:x}"} if len(version) == 3 else own_architectures(machine)


def own_build(machine: MachineFacts) -> str:
    """Return where a torch build for gfx101x cards comes from."""
    extras = ",".join(f"device-{name}" for name in sorted(own_architectures(machine) & RDNA1))
    wheels = f"install torch[{extras}] from TheRock's multi-architecture wheels"
    return f"{wheels}, or on Arch Linux the package python-pytorch-rocm; neither needs an override"


def _libraries(machine: MachineFacts) -> Iterator[Finding]:
    """Yield one finding for each library of AMD whose files name the architectures of GPUs."""
    used = sorted(used_architectures(machine))
    for name, found in machine.libraries.items():
        if found is None or not used:
            yield Finding(name, "no files beside torch or in /opt/rocm" if found is None else "the card is unknown")
            continue
        # A file name may continue with the number of compute units.
        lacking = [one for one in used if not any(other.startswith(one) for other in found)]
        if not lacking:
            yield Finding(name, f"contains files for {', '.join(used)}")
            continue
        severity, consequence = NO_LIBRARY[name]
        listed = f" (only {', '.join(found)})" if found else ""
        advice = own_build(machine) if own_architectures(machine) & RDNA1 else INSTALL + "this card"
        yield Finding(name, f"contains no file for {', '.join(lacking)}{listed}: {consequence}", severity, advice)


def _software_findings(machine: MachineFacts) -> Iterator[Finding]:
    """Yield findings about Python, packages and environment variables."""
    yield Finding("Python", ".".join(map(str, machine.python)))
    yield _lightning(*_versions(machine, "lightning", "pytorch-lightning"))
    yield _torchvision(machine)
    yield _opencv(*_versions(machine, *OPENCV))
    yield _py_spy(machine)
    variables = machine.environment
    found = ", ".join(f"{name}={value[:60]}" for name, value in variables.items())
    hiding = [name for name in variables if name.endswith("_VISIBLE_DEVICES") and variables[name].strip() in ("", "-1")]
    if hiding:
        yield Finding("environment", f"{found}: hides all GPUs", Severity.WARNING, f"unset {' '.join(hiding)}")
    elif variables:
        yield Finding("environment", found)


def _versions(machine: MachineFacts, *names: str) -> tuple[dict[str, str], str]:
    """Return the versions of those packages that are installed, and the same as text."""
    versions = {name: machine.packages[name] for name in names if name in machine.packages}
    return versions, ", ".join(f"{name} {version}" for name, version in versions.items())


def _lightning(versions: dict[str, str], found: str) -> Finding:
    check = "lightning"
    if MALICIOUS_LIGHTNING & set(versions.values()):
        found += ": malicious release, steals credentials at import (GHSA-w37p-236h-pfx3)"
        advice = "do not start Python with it; uninstall it, and change all passwords and tokens stored on this machine"
        return Finding(check, found, Severity.BAD, advice)
    if "lightning" not in versions:
        return Finding(check, found or "not installed", Severity.BAD, "pip install 'lightning>=2.6.4'")
    return Finding(check, found)


def _torchvision(machine: MachineFacts) -> Finding:
    check, version = "torchvision", machine.packages.get("torchvision")
    torch = "" if machine.torch is None else machine.torch.version
    if version is None:
        return Finding(check, "not installed", Severity.BAD, "install the build that matches torch")
    local, torch_local = version.partition("+")[2], torch.partition("+")[2]
    if local and torch_local and local != torch_local:
        advice = "install both together, from the same index"
        return Finding(check, f"{version} does not match torch {torch}", Severity.BAD, advice)
    return Finding(check, version)


def _opencv(versions: dict[str, str], found: str) -> Finding:
    if len(versions) < 2:
        return Finding("OpenCV", found or "no pip package found")
    text = f"{found} install into the same folder, which contains the one installed last"
    severity = Severity.NOTE if len(set(versions.values())) == 1 else Severity.WARNING
    return Finding("OpenCV", text, severity, f"pip uninstall {' '.join(versions)}, then install one of them")


def _py_spy(machine: MachineFacts) -> Finding:
    check, version, scope = "py-spy", machine.packages.get("py-spy"), machine.kernel.ptrace_scope
    if version is None:
        advice = "pip install py-spy: without it a blocked worker cannot be distinguished from an idle one"
        return Finding(check, "not installed", Severity.WARNING, advice)
    found = version if scope is None else f"{version}, ptrace_scope {scope}"
    if scope in (None, 0, 1) or (scope == 2 and machine.is_root):
        # Scope 1 restricts a process to its descendants, which include the workers.
        return Finding(check, f"{found}: the supervisor can read the stacks of blocked processes")
    advice = "sudo sysctl kernel.yama.ptrace_scope=1, for 3 after a reboot, adds stacks of workers to incident reports"
    return Finding(check, f"{found}: this user cannot read the stacks of processes", Severity.WARNING, advice)


def _system_findings(machine: MachineFacts) -> Iterator[Finding]:
    """Yield findings about processor, memory, disks and kernel settings."""
    memory, kernel = machine.memory, machine.kernel
    found = f"{machine.processor}, {machine.cores} {'core' if machine.cores == 1 else 'cores'} for this process"
    if machine.cores == 1:
        yield Finding("processor", f"{found}: workers and training share one core", Severity.WARNING)
    else:
        yield Finding("processor", found, Severity.NOTE if machine.cores < 4 else Severity.OK)
    found = f"{_gib(memory.free_bytes)} of {_gib(memory.total_bytes)} free"
    if memory.free_bytes < SCORING_BYTES:
        found += f": scoring LTDv2's validation frames needs {_gib(SCORING_BYTES)}"
        yield Finding("memory", found, Severity.WARNING, "lower model.detections.max_detections, or free memory")
    else:
        yield Finding("memory", found)
    numa_balancing = {None: "not supported by this kernel", True: "on", False: "off"}[kernel.numa_balancing]
    huge_pages, swap = kernel.huge_pages or "not supported by this kernel", machine.swap_bytes
    for check, found, moves_pages, advice in (
        ("swap", _gib(swap) if swap else "none", swap > 0, "sudo swapoff -a, if memory is sufficient"),
        ("huge pages", huge_pages, kernel.huge_pages == "always", "see the commands below"),
        ("NUMA balancing", numa_balancing, kernel.numa_balancing, "see the commands below"),
    ):
        if moves_pages and machine.has(Vendor.AMD):
            yield Finding(check, f"{found}: moving pages can stop the queues of an AMD GPU", Severity.NOTE, advice)
        else:
            yield Finding(check, found)
    for check, space in machine.disks.items():
        yield _free_space(check, space)
    advice = "sudo usermod -aG systemd-journal $USER adds lines of the kernel log to incident reports"
    if kernel.log_restricted and not machine.is_root and not machine.reads_journal:
        yield Finding("kernel log", "readable by root only", Severity.NOTE, advice)
    else:
        yield Finding("kernel log", "readable")
    if machine.lingers is not None:
        found = "services of this user " + ("survive a logout" if machine.lingers else "end with the last logout")
        advice = "" if machine.lingers else "loginctl enable-linger, for runs that a service starts or restarts"
        yield Finding("linger", found, Severity.OK if machine.lingers else Severity.NOTE, advice)


def _gib(size_bytes: int) -> str:
    """Return a size in GiB, or in MiB below one GiB."""
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{size_bytes / MIB:.0f} MiB"


def _free_space(check: str, space: Capacity | None) -> Finding:
    limits, advice = DISK_RULES[check]
    if space is None:
        return Finding(check, "does not exist or does not answer", Severity.BAD, advice)
    found = f"{_gib(space.free_bytes)} of {_gib(space.total_bytes)} free"
    for limit_bytes, (severity, reason) in limits.items():
        if space.free_bytes < limit_bytes:
            return Finding(check, f"{found}: {reason}", severity, advice)
    return Finding(check, found)
