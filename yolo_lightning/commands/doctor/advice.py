"""What to write into the configuration and the environment of this machine, and why. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from yolo_lightning.commands.doctor.judge_gpu import OVERRIDE, RDNA1
from yolo_lightning.commands.doctor.judge_system import TINY_SHARED_BYTES
from yolo_lightning.commands.doctor.machine import MachineFacts, Vendor
from yolo_lightning.commands.doctor.probes import Outcome, Probe, ProbeOutcome

MOST_WORKERS = 4
WORKER_BYTES = 600 << 20
"""A spawned worker with a CUDA or ROCm build of torch: 300 MB and its batches, rounded up."""
BFLOAT16_SINCE = 8
"""Compute capability of the first NVIDIA cards with bfloat16 units."""
Value = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Option:
    """A line of the configuration.

    Attributes:
        key: Names from the top of the file, joined by dots.
        value: As YAML takes it.
        reason: In a few words.
    """

    key: str
    value: Value
    reason: str


@dataclass(frozen=True, slots=True)
class Command:
    """A line for a shell: a variable to set before a training, or a setting of the system.

    Attributes:
        text: What to type.
        reason: In a few words.
    """

    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What is recommended for a machine.

    Attributes:
        options: Lines of the configuration.
        commands: Lines for a shell; none where nothing needs changing.
    """

    options: tuple[Option, ...]
    commands: tuple[Command, ...] = ()


def advise(machine: MachineFacts, results: Sequence[ProbeOutcome]) -> Advice:
    """What suits a machine, as far as the probes tell; without them the careful choice."""
    by_probe = {result.probe: result for result in results}
    workers = _workers(machine, by_probe.get(Probe.LOADER))
    options = [_precision(machine, by_probe), _convolution(by_probe), workers]
    if workers.value:
        options.append(Option("data.loader.start_method", "spawn", "forked workers inherit locks and stall ROCm"))
    options.append(_pinning(machine, by_probe))
    return Advice(tuple(options), tuple(_commands(machine, by_probe)))


def _on_card(by_probe: dict[Probe, ProbeOutcome]) -> bool:
    device = by_probe.get(Probe.DEVICE)
    return device is not None and device.works and not str(device.facts.get("device", "cpu")).startswith("cpu")


def _precision(machine: MachineFacts, by_probe: dict[Probe, ProbeOutcome]) -> Option:
    key = "trainer.precision"
    if not _on_card(by_probe):
        return Option(key, "32-true", "what works everywhere")
    capability = by_probe[Probe.DEVICE].facts.get("capability")
    product = by_probe.get(Probe.MATMUL_BFLOAT16)
    if capability and capability[0] >= BFLOAT16_SINCE and product is not None and product.works:
        return Option(key, "bf16-mixed", "this card has bfloat16 units; 32-true is as right, and slower")
    if any(gpu.architecture in RDNA1 for gpu in machine.cards):
        return Option(key, "32-true", "fp16 convolutions fail on gfx101x, bfloat16 it has not")
    return Option(key, "32-true", "the precision that the recipe was made with")


def _convolution(by_probe: dict[Probe, ProbeOutcome]) -> Option:
    key, vendor, own = "model.conv", by_probe.get(Probe.CONVOLUTION), by_probe.get(Probe.OWN_CONVOLUTION)
    if not _on_card(by_probe):
        return Option(key, "auto", "native on a CPU; on a GPU it tries them first")
    if own is not None and own.failed:
        return Option(key, "native", f"ours, tried here: {own.outcome}")
    if vendor is None or vendor.outcome is Outcome.NOT_TRIED:
        return Option(key, "gemm", "PyTorch's own could not be tried")
    if vendor.outcome is Outcome.WORKS:
        return Option(key, "auto", "PyTorch's own work here, which auto finds by itself")
    return Option(key, "gemm", f"PyTorch's own, tried here: {vendor.outcome}")


def _workers(machine: MachineFacts, result: ProbeOutcome | None) -> Option:
    key = "data.loader.workers"
    if result is not None and result.failed:
        return Option(key, 0, f"workers, tried here: {result.outcome}")
    shared = machine.shared_memory
    if shared is None or shared.free_bytes is None or shared.free_bytes < TINY_SHARED_BYTES:
        return Option(key, 0, "/dev/shm is too small for batches of workers")
    by_cores = max(1, min(MOST_WORKERS, machine.cores - 1))
    by_memory = max(1, machine.memory.available_bytes // 4 // WORKER_BYTES)
    if by_memory < by_cores:
        return Option(key, by_memory, "each takes some 600 MB of memory")
    if by_cores < MOST_WORKERS:
        return Option(key, by_cores, f"of {machine.cores} {'core' if machine.cores == 1 else 'cores'}, one trains")
    return Option(key, by_cores, "as in the recipe; more only if the GPU waits for batches")


def _pinning(machine: MachineFacts, by_probe: dict[Probe, ProbeOutcome]) -> Option:
    key = "data.loader.pin_memory"
    if machine.has(Vendor.AMD) and _on_card(by_probe):
        return Option(key, True, "unmapping pageable batches stops the GPU's queues")
    return Option(key, None, "pinned exactly when training on a GPU")


def _commands(machine: MachineFacts, by_probe: dict[Probe, ProbeOutcome]) -> list[Command]:
    if not machine.has(Vendor.AMD):
        return []
    commands = []
    override = _override(machine, by_probe)
    if override is not None:
        commands.append(override)
    if machine.kernel.huge_pages == "always":
        path = "/sys/kernel/mm/transparent_hugepage/enabled"
        commands.append(Command(f"echo madvise | sudo tee {path}", "fewer pages move under registered buffers"))
    if machine.kernel.numa_balancing:
        commands.append(Command("sudo sysctl kernel.numa_balancing=0", "fewer pages move under registered buffers"))
    return commands


def _override(machine: MachineFacts, by_probe: dict[Probe, ProbeOutcome]) -> Command | None:
    device = by_probe.get(Probe.DEVICE)
    known = () if device is None else tuple(device.facts.get("architectures", ()))
    cards = {gpu.architecture for gpu in machine.cards if gpu.vendor is Vendor.AMD and gpu.architecture}
    if not known or not cards:
        return None
    if cards <= set(known) and OVERRIDE in machine.environment:
        return Command(f"unset {OVERRIDE}", f"this torch is built for {' and '.join(sorted(cards))} itself")
    lacking = cards - set(known)
    if lacking & RDNA1 and OVERRIDE not in machine.environment and "gfx1030" in known:
        reason = f"this torch is not built for {' and '.join(sorted(lacking))}; one that is, is the better way"
        return Command(f"export {OVERRIDE}=10.3.0", reason)
    return None
