"""What there is to say about graphics cards, their drivers, and the torch that is to use them. Pure."""

from collections.abc import Iterator

from yolo_lightning.commands.doctor.finding import Finding, Severity
from yolo_lightning.commands.doctor.machine import MachineFacts, PciGpu, Vendor, numbers

RDNA1 = frozenset({"gfx1010", "gfx1011", "gfx1012", "gfx1013"})
"""Architectures on which vendor convolutions hang or crash, and fp16 convolutions are broken."""

FORK_BUG_SINCE, FORK_BUG_UNTIL = (6, 2), (7, 1)
"""ROCm releases whose runtime takes the fork protection from host buffers of 2 MiB and more: madvise advice combined
as if it were a bit mask, mended by rocm-systems #356. The limits are our reading of the dates, not of every release."""

OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
INSTALL = "install torch and torchvision together, as the selector of pytorch.org says for "
HOLD = "; then `make install VENV=...` adds the other packages and holds these two"


def gpu_findings(machine: MachineFacts) -> Iterator[Finding]:
    """Cards, torch's build, access to the card, ROCm's age and the override of the architecture."""
    yield from map(_card, machine.gpus)
    if not machine.gpus:
        yield Finding("graphics card", "no AMD or NVIDIA card on the PCI bus", Severity.NOTE)
    yield _build(machine)
    if machine.has(Vendor.AMD) and machine.torch is not None and machine.torch.vendor is Vendor.AMD:
        yield _amd_access(machine)
        yield _rocm_age(machine)
    if machine.has(Vendor.NVIDIA):
        yield _nvidia_driver(machine)
    if OVERRIDE in machine.environment or machine.has(Vendor.AMD):
        yield _override(machine)


def _card(gpu: PciGpu) -> Finding:
    parts = [gpu.name, *filter(None, [gpu.architecture])]
    if gpu.memory_bytes is not None:
        parts.append(f"{gpu.memory_bytes / 2**30:.1f} GiB")
    found = ", ".join(parts)
    if gpu.is_small:
        return Finding("graphics card", f"{found}: too little memory of its own, not counted", Severity.NOTE)
    if gpu.architecture in RDNA1:
        return Finding("graphics card", f"{found}: vendor convolutions may hang here, fp16 ones fail", Severity.NOTE)
    return Finding("graphics card", found, Severity.OK)


def _build(machine: MachineFacts) -> Finding:
    check, torch = "torch build", machine.torch
    if torch is None:
        return Finding(check, "torch is not installed", Severity.BAD, INSTALL + "this machine")
    if not machine.cards:
        if torch.vendor is None:
            return Finding(check, str(torch), Severity.OK)
        return Finding(check, f"{torch}; without such a card it computes on the CPU", Severity.NOTE)
    vendors = sorted({gpu.vendor for gpu in machine.cards})
    if torch.vendor in vendors:
        return Finding(check, str(torch), Severity.OK)
    found = f"{torch}, but the card is {' and '.join(vendors)}: training would run on the CPU"
    platform = " or ".join("ROCm" if vendor is Vendor.AMD else "CUDA" for vendor in vendors)
    return Finding(
        check,
        found,
        Severity.BAD,
        f"pip may have replaced it while it installed something else: {INSTALL}{platform}{HOLD}",
    )


def _amd_access(machine: MachineFacts) -> Finding:
    if machine.kfd_opens is None:
        advice = "load the amdgpu driver; start a container with --device /dev/kfd --device /dev/dri"
        return Finding("access to the card", "/dev/kfd is not there", Severity.BAD, advice)
    if not machine.kfd_opens:
        advice = "add the user to the groups render and video, and log in again"
        return Finding("access to the card", "this user may not open /dev/kfd", Severity.BAD, advice)
    return Finding("access to the card", "/dev/kfd may be opened", Severity.OK)


def _nvidia_driver(machine: MachineFacts) -> Finding:
    if machine.nvidia_driver:
        return Finding("NVIDIA driver", machine.nvidia_driver, Severity.OK)
    uses_it = machine.torch is not None and machine.torch.vendor is Vendor.NVIDIA
    verdict = Severity.BAD if uses_it else Severity.NOTE
    return Finding("NVIDIA driver", "not loaded", verdict, "load it, or give the container access to the card")


def _rocm_age(machine: MachineFacts) -> Finding:
    assert machine.torch is not None
    assert machine.torch.hip is not None
    check, version = "ROCm", numbers(machine.torch.hip)
    found = f"torch's {machine.torch.hip}" + (f", installed {machine.rocm}" if machine.rocm else "")
    if len(version) < 2:
        return Finding(check, f"{found}: cannot be compared", Severity.NOTE)
    if version >= FORK_BUG_UNTIL:
        return Finding(check, found, Severity.OK)
    if version < FORK_BUG_SINCE:
        return Finding(check, f"{found}: older than what these pages know of", Severity.NOTE, "prefer 7.1 or newer")
    forks = machine.start_method == "fork"
    return Finding(
        check,
        f"{found}: a fork may stall the GPU's queues (bug with host buffers of 2 MiB and more)"
        + (", and Python here forks unless told otherwise" if forks else ""),
        Severity.WARNING if forks else Severity.NOTE,
        "loader workers of this program never fork; let no other code in the training process do so; "
        "from 7.1 on the bug should be gone",
    )


def _override(machine: MachineFacts) -> Finding:
    check, value = "override", machine.environment.get(OVERRIDE)
    if value is None:
        return Finding(check, f"{OVERRIDE} is not set: the card computes as what it is", Severity.OK)
    setting = f"{OVERRIDE}={value}"
    if not machine.has(Vendor.AMD):
        return Finding(check, f"{setting}, without effect here", Severity.NOTE)
    version = numbers(value)
    if len(version) != 3:
        return Finding(check, f"{setting} names no architecture", Severity.BAD, "allowed are three numbers, as 10.3.0")
    pretended = f"gfx{version[0]}{version[1]:x}{version[2]:x}"
    real = {gpu.architecture for gpu in machine.cards if gpu.vendor is Vendor.AMD and gpu.architecture}
    if real == {pretended}:
        return Finding(check, f"{setting}: what the card is anyway", Severity.NOTE, "unset it")
    return Finding(
        check,
        f"{setting}: {' and '.join(sorted(real)) or 'the card'} computes as {pretended} and may lack its instructions",
        Severity.WARNING,
        "a torch built for the card's own architecture needs none (ROCm has gfx101X wheels again since 2026); "
        "with another torch keep it, and compare by `benchmark`",
    )
