"""What a person must see at once: a pure function."""

from collections.abc import Iterator
from dataclasses import dataclass

from yolo_lightning.commands.monitor.run_state import ALIVE, RunState, RunVerdict
from yolo_lightning.commands.monitor.wording import duration, share
from yolo_lightning.supervision.heartbeat import Phase

TRAINING = frozenset({Phase.FIRST_BATCH, Phase.FETCH, Phase.STEP})
STATES = {"T": "stopped", "t": "held by a debugger", "D": "waiting in the kernel", "Z": "dead", "X": "dead"}


@dataclass(frozen=True, slots=True)
class RedFlagLimits:
    """Beyond which something is wrong.

    Attributes:
        batch_s: Seconds without a batch.
        temperature_c: Of a GPU, degrees Celsius.
        memory_share: Of the main memory in use, 0 to 1.
        gpu_memory_share: Of a GPU's memory in use, 0 to 1.
        disk_free_share: Of the disk that must be free, 0 to 1.
    """

    batch_s: float = 120.0
    temperature_c: float = 80.0
    memory_share: float = 0.9
    gpu_memory_share: float = 0.97
    disk_free_share: float = 0.1


def red_flags(state: RunState, limits: RedFlagLimits | None = None) -> list[str]:
    """One line each, the worst first."""
    limits = limits or RedFlagLimits()
    return [*of_training(state, limits), *of_machine(state, limits)]


def of_training(state: RunState, limits: RedFlagLimits) -> Iterator[str]:
    """What the run itself shows."""
    lives = state.judgement.verdict in ALIVE
    waits = state.phase in TRAINING and state.phase_s is not None and state.phase_s > limits.batch_s
    if lives and waits and state.phase_s is not None:
        yield f"no batch for {duration(state.phase_s)}"
    if state.status is not None and (names := state.status.not_finite()):
        yield f"not finite: {', '.join(names)}"
    for worker in state.workers:
        if worker.state in STATES:
            yield f"loader worker {worker.pid} is {STATES[worker.state]} ({worker.state})"


def of_machine(state: RunState, limits: RedFlagLimits) -> Iterator[str]:
    """What the machine shows; of a GPU that nobody uses, no idleness."""
    machine = state.machine
    if machine.silent_s:
        yield f"the sensors have not answered for {duration(machine.silent_s)}"
    uses_gpu = state.status is not None and state.status.device.startswith("cuda")
    trains = state.judgement.verdict in (RunVerdict.RUNNING, RunVerdict.STALLED) and state.phase in (
        Phase.FETCH,
        Phase.STEP,
    )
    busy = [gpu.busy_share for gpu in machine.gpus if gpu.busy_share is not None]
    if uses_gpu and trains and busy and not any(busy):
        yield "GPU at 0 %"
    for gpu in machine.gpus:
        if gpu.temperature_c is not None and gpu.temperature_c > limits.temperature_c:
            yield f"{gpu.name} at {gpu.temperature_c:.0f} °C"
        if gpu.memory_bytes and (gpu.memory_used_bytes or 0) > limits.gpu_memory_share * gpu.memory_bytes:
            yield f"memory of {gpu.name} {share((gpu.memory_used_bytes or 0) / gpu.memory_bytes)} full"
    if machine.memory is not None and 1 - machine.memory.free_share > limits.memory_share:
        yield f"memory {share(1 - machine.memory.free_share)} full"
    if machine.disk is not None and machine.disk.free_share < limits.disk_free_share:
        yield f"disk {share(1 - machine.disk.free_share)} full"
