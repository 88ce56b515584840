"""Warnings about a run and its machine. Pure functions."""

from collections.abc import Iterator

from yolo_lightning.commands.monitor.run_state import ALIVE, RunState, RunVerdict
from yolo_lightning.commands.monitor.wording import duration, share
from yolo_lightning.supervision.heartbeat import Phase

TRAINING = frozenset({Phase.FIRST_BATCH, Phase.FETCH, Phase.STEP})
WORKER_STATES = {"T": "stopped", "t": "held by a debugger", "D": "waiting in the kernel", "Z": "dead", "X": "dead"}
MAX_BATCH_S = 120.0
MAX_TEMPERATURE_C = 80.0
MAX_MEMORY_SHARE, MAX_GPU_MEMORY_SHARE = 0.9, 0.97
MIN_DISK_FREE_SHARE = 0.1


def red_flags(state: RunState) -> list[str]:
    """Return one line per warning: first about the training, then about the machine."""
    return [*training_flags(state), *machine_flags(state)]


def training_flags(state: RunState) -> Iterator[str]:
    """Yield warnings about missing progress, losses and loader workers."""
    is_waiting = state.judgement.verdict in ALIVE and state.phase in TRAINING
    if is_waiting and state.phase_s is not None and state.phase_s > MAX_BATCH_S:
        yield f"no batch for {duration(state.phase_s)}"
    if state.status is not None and (names := state.status.not_finite()):
        yield f"loss not finite: {', '.join(names)}"
    for worker in state.workers:
        if worker.state in WORKER_STATES:
            yield f"loader worker {worker.pid} is {WORKER_STATES[worker.state]} ({worker.state})"


def machine_flags(state: RunState) -> Iterator[str]:
    """Yield warnings about sensors, GPUs, memory and disk."""
    machine = state.machine
    if machine.silent_s:
        yield f"the sensors have not answered for {duration(machine.silent_s)}"
    uses_gpu = state.status is not None and state.status.device.startswith("cuda")
    is_training = state.judgement.verdict in (RunVerdict.RUNNING, RunVerdict.STALLED)
    busy = [gpu.busy_share for gpu in machine.gpus if gpu.busy_share is not None]
    if uses_gpu and is_training and state.phase in (Phase.FETCH, Phase.STEP) and busy and not any(busy):
        yield "GPU at 0 %"
    for gpu in machine.gpus:
        if gpu.temperature_c is not None and gpu.temperature_c > MAX_TEMPERATURE_C:
            yield f"{gpu.name} at {gpu.temperature_c:.0f} °C"
        if gpu.memory_bytes and (gpu.memory_used_bytes or 0) > MAX_GPU_MEMORY_SHARE * gpu.memory_bytes:
            yield f"memory of {gpu.name} {share((gpu.memory_used_bytes or 0) / gpu.memory_bytes)} full"
    if machine.memory is not None and 1 - machine.memory.free_share > MAX_MEMORY_SHARE:
        yield f"memory {share(1 - machine.memory.free_share)} full"
    if machine.disk is not None and machine.disk.free_share < MIN_DISK_FREE_SHARE:
        yield f"disk {share(1 - machine.disk.free_share)} full"
