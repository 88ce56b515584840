"""Result table of the hang study and the conclusions about its prediction. Pure functions.

The prediction of the mechanism called H3: a copy of pageable memory registers the batch with the GPU. When the mapping
of that memory changes, the driver stops all queues of the process until the memory is registered again; `evicted_ms`
counts that time. Therefore `evicted_ms` grows with every start of forked workers and with every pageable batch, and
stays near zero with spawned workers and pinned batches. A hang during which it does not grow has another cause.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from hang_experiment.arm import ArmStart, Copy

GROWS_SHARE = 1e-4
"""Share of the time for which queues must be stopped to count as growth: 0.36 s in an hour."""

STALL_SHARE = 0.5
"""Share of a stall for which queues must be stopped to explain the stall."""


class End(StrEnum):
    """End of an arm."""

    COMPLETE = "complete"
    HANG = "hang"
    CRASH = "crash"


@dataclass(frozen=True, slots=True)
class Arm:
    """Start method and copy mode of an arm."""

    start: ArmStart
    copy: Copy

    def __str__(self) -> str:
        return f"{self.start}-{self.copy}"


ARMS = tuple(Arm(start, copy) for start in ArmStart for copy in Copy)


@dataclass(frozen=True, slots=True)
class ArmResult:
    """Measurements of an arm.

    Attributes:
        arm: Name of the arm.
        end: How the arm ended.
        seconds: Duration from the first step on.
        steps: Number of steps.
        worker_starts: Number of worker starts.
        evicted_ms: Time for which the GPU queues were stopped; None if the driver does not report it.
        stalled_s: Seconds without a step before a hang was declared; 0 without a hang.
        stall_evicted_ms: Growth of `evicted_ms` during the stall; None if the driver does not report it.
        step_p50_ms: Median duration of copy, computation and synchronisation.
        step_p99_ms: 99th percentile of that duration.
        kernel_lines: Number of new kernel log lines about amdgpu or kfd.
        detail: Last error line of an arm that crashed.
    """

    arm: str
    end: End
    seconds: float
    steps: int
    worker_starts: int
    evicted_ms: int | None
    stalled_s: float
    stall_evicted_ms: int | None
    step_p50_ms: float | None
    step_p99_ms: float | None
    kernel_lines: int
    detail: str = ""

    @property
    def grows(self) -> bool | None:
        """Whether queues were stopped for a relevant time; None if unknown or if no step was done."""
        if self.evicted_ms is None or not self.steps:
            return None
        return self.evicted_ms > GROWS_SHARE * 1000 * self.seconds


def conclude(results: Sequence[ArmResult]) -> list[str]:
    """Return sentences about the prediction and about each hang."""
    by_arm = {result.arm: result for result in results}
    missing = [str(arm) for arm in ARMS if str(arm) not in by_arm or by_arm[str(arm)].end is End.CRASH]
    sentences = []
    if missing:
        sentences.append(f"Not finished: {', '.join(missing)}. The following conclusions are preliminary.")
    if all(result.evicted_ms is None for result in results):
        sentences.append("The driver does not report evicted_ms, so the prediction cannot be tested.")
    else:
        sentences += _judge_prediction(by_arm)
    sentences += [_judge_hang(result) for result in results if result.end is End.HANG]
    hung = {result.arm for result in results if result.end is End.HANG}
    safe = [str(arm) for arm in ARMS if str(arm) not in hung and str(arm) not in missing]
    if hung and safe:
        sentences.append(f"Without a hang: {', '.join(safe)}.")
    elif not missing:
        sentences.append("Every arm hung." if hung else "No arm hung.")
    return sentences


def _judge_prediction(by_arm: dict[str, ArmResult]) -> list[str]:
    sentences = []
    grows = {name: result.grows for name, result in by_arm.items()}
    calm = grows.get("spawn-pinned")
    expected = {"spawn-pinned": False, "fork-pinned": True, "spawn-pageable": True}
    known = [name for name in expected if grows.get(name) is not None]
    kept = [name for name in known if grows[name] is expected[name]]
    if len(known) == len(expected):
        if len(kept) == len(known):
            sentences.append(
                "As predicted: forks and pageable batches stop the queues, spawned workers with pinned batches do not. "
                "Use data.loader.multiprocessing_context: spawn and data.loader.pin_memory: true."
            )
        else:
            wrong = [f"{name} {'grows' if grows[name] else 'does not grow'}" for name in known if name not in kept]
            sentences.append(f"Not as predicted: {', '.join(wrong)}. Another cause stops the queues, or none does.")
    if grows.get("fork-pinned") and calm is False:
        per_start = _per(by_arm["fork-pinned"].evicted_ms, by_arm["fork-pinned"].worker_starts)
        sentences.append(f"Each start of forked workers stops the queues for {per_start} ms.")
    if grows.get("spawn-pageable") and calm is False:
        per_step = _per(by_arm["spawn-pageable"].evicted_ms, by_arm["spawn-pageable"].steps)
        sentences.append(f"Each pageable batch stops the queues for {per_step} ms.")
        staged = grows.get("spawn-staged")
        if staged is not None:
            helps = "does not help" if staged else "prevents this"
            sentences.append(f"GPU_PINNED_MIN_XFER_SIZE {helps}.")
    return sentences


def _judge_hang(result: ArmResult) -> str:
    hang = f"{result.arm} hung after {result.steps:,} steps"
    if result.stall_evicted_ms is None:
        return f"{hang}; whether queues were stopped is unknown."
    stopped = f"queues were stopped for {result.stall_evicted_ms / 1000:.1f} s of the {result.stalled_s:.0f} s stall"
    if result.stall_evicted_ms >= STALL_SHARE * 1000 * result.stalled_s:
        return f"{hang}: {stopped}. The cause is registered memory (H3)."
    if result.stall_evicted_ms == 0:
        return f"{hang}: {stopped}. The cause is not H3; read the stacks of the workers and the kernel log."
    return f"{hang}: {stopped}. H3 explains at most a part of the stall."


def _per(value: int | None, count: int) -> str:
    return "?" if value is None or not count else f"{value / count:.2g}"


HEAD = (
    *("arm", "end", "hours", "steps", "worker starts", "evicted ms", "per step", "per start"),
    *("step p50 ms", "step p99 ms", "kernel lines"),
)


def markdown(results: Sequence[ArmResult], title: str) -> str:
    """Return the result table and the conclusions as Markdown; `title` names device and conditions."""
    lines = ["# Hang study", "", title, "", _row(HEAD), _row(["---"] * len(HEAD))]
    for result in results:
        evicted = "unknown" if result.evicted_ms is None else f"{result.evicted_ms:,}"
        per = [_per(result.evicted_ms, result.steps), _per(result.evicted_ms, result.worker_starts)]
        times = ["?" if value is None else f"{value:.1f}" for value in (result.step_p50_ms, result.step_p99_ms)]
        counts = [f"{result.steps:,}", f"{result.worker_starts:,}"]
        hours = f"{result.seconds / 3600:.2f}"
        lines.append(_row([result.arm, result.end, hours, *counts, evicted, *per, *times, str(result.kernel_lines)]))
    lines += ["", *(f"- {sentence}" for sentence in conclude(results))]
    lines += [f"- {result.arm} crashed: {result.detail}" for result in results if result.end is End.CRASH]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
