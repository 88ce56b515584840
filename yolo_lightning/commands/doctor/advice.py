"""Recommended settings for this machine, with reasons. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass

from yolo_lightning.commands.doctor.machine import SHARED_MEMORY, MachineFacts
from yolo_lightning.commands.doctor.machine_findings import OVERRIDE, RDNA1, TINY_SHARED_BYTES
from yolo_lightning.commands.doctor.probes import Outcome, Probe, ProbeOutcome
from yolo_lightning.utils.sensors import Vendor

MAX_WORKERS = 4
WORKER_BYTES = 600 << 20
"""Memory of a spawned worker: about 300 MB for a CUDA or ROCm build of torch, and its batches."""

BFLOAT16_CAPABILITY = 8
"""Major compute capability of the first NVIDIA GPUs with bfloat16 units."""

Value = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Option:
    """A recommended configuration key, as `data.loader.num_workers`, and its value."""

    key: str
    value: Value
    reason: str


@dataclass(frozen=True, slots=True)
class Command:
    """A recommended shell command: an environment variable or a system setting."""

    text: str
    reason: str


def recommended_options(machine: MachineFacts, results: Sequence[ProbeOutcome]) -> list[Option]:
    """Return the recommended configuration of a machine; without probe results, the safest settings."""
    by_probe = {result.probe: result for result in results}
    gpu = by_probe.get(Probe.DEVICE)
    if gpu is not None and (not gpu.works or str(gpu.facts.get("device", "cpu")).startswith("cpu")):
        gpu = None
    options = [
        Option("trainer.precision", *_precision(machine, gpu, by_probe.get(Probe.MATMUL_BFLOAT16))),
        Option("model.conv_backend", *_convolution(gpu, by_probe)),
        Option("data.loader.num_workers", *_workers(machine, by_probe.get(Probe.LOADER))),
    ]
    if options[-1].value:
        reason = "forked workers inherit locks and stop ROCm queues"
        options.append(Option("data.loader.multiprocessing_context", "spawn", reason))
    pins = machine.has(Vendor.AMD) and gpu is not None
    reason = "unmapping pageable batches stops the GPU's queues" if pins else "pinned when training on a GPU"
    return [*options, Option("data.loader.pin_memory", True if pins else None, reason)]


def _precision(machine: MachineFacts, gpu: ProbeOutcome | None, bfloat16: ProbeOutcome | None) -> tuple[Value, str]:
    if gpu is None:
        return "32-true", "works on every device"
    capability = gpu.facts.get("capability")
    if capability and capability[0] >= BFLOAT16_CAPABILITY and bfloat16 is not None and bfloat16.works:
        return "bf16-mixed", "this card has bfloat16 units; 32-true is as accurate, but slower"
    if any(card.architecture in RDNA1 for card in machine.cards):
        return "32-true", "gfx101x: float16 convolutions fail, no bfloat16 units"
    return "32-true", "the precision of the training recipe"


def _convolution(gpu: ProbeOutcome | None, by_probe: dict[Probe, ProbeOutcome]) -> tuple[Value, str]:
    vendor, own = by_probe.get(Probe.CONVOLUTION), by_probe.get(Probe.OWN_CONVOLUTION)
    if gpu is None:
        return "auto", "native on a CPU; on a GPU it tests them first"
    if own is not None and own.failed:
        return "native", f"the own convolution {own.outcome} here"
    if vendor is None or vendor.outcome is Outcome.NOT_TRIED:
        return "gemm", "the vendor convolution could not be tested"
    if vendor.outcome is Outcome.WORKS:
        return "auto", "the vendor convolution works here, auto will select it"
    return "gemm", f"the vendor convolution {vendor.outcome} here"


def _workers(machine: MachineFacts, loader: ProbeOutcome | None) -> tuple[int, str]:
    if loader is not None and loader.failed:
        return 0, f"the loader with workers {loader.outcome} here"
    shared = machine.disks.get(SHARED_MEMORY)
    if shared is None or shared.free_bytes < TINY_SHARED_BYTES:
        return 0, "/dev/shm is too small for the batches of workers"
    by_cores = max(1, min(MAX_WORKERS, machine.cores - 1))
    by_memory = max(1, machine.memory.free_bytes // 4 // WORKER_BYTES)
    if by_memory < by_cores:
        return by_memory, "each needs about 600 MB of memory"
    if by_cores < MAX_WORKERS:
        return by_cores, f"{machine.cores} {'core' if machine.cores == 1 else 'cores'}, one of which trains"
    return by_cores, "as in the recipe; use more only if the GPU waits for batches"


def recommended_commands(machine: MachineFacts, results: Sequence[ProbeOutcome]) -> list[Command]:
    """Return the recommended shell commands; only AMD GPUs need any."""
    if not machine.has(Vendor.AMD):
        return []
    supported = {name for result in results for name in result.facts.get("architectures", ())}
    cards = {gpu.architecture for gpu in machine.cards if gpu.vendor is Vendor.AMD and gpu.architecture}
    lacking, has_override, commands = cards - supported, OVERRIDE in machine.environment, []
    if supported and cards and not lacking and has_override:
        commands.append(Command(f"unset {OVERRIDE}", f"this torch build supports {' and '.join(sorted(cards))}"))
    elif lacking & RDNA1 and not has_override and "gfx1030" in supported:
        reason = f"this torch build does not support {' and '.join(sorted(lacking))}; prefer one that does"
        commands.append(Command(f"export {OVERRIDE}=10.3.0", reason))
    reason = "fewer pages move under registered buffers"
    if machine.kernel.huge_pages == "always":
        commands.append(Command("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled", reason))
    if machine.kernel.numa_balancing:
        commands.append(Command("sudo sysctl kernel.numa_balancing=0", reason))
    return commands
