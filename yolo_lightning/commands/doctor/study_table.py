"""The result of the hang study: a table, and what it says about the prediction. Pure.

The prediction, of the mechanism called H3: a pageable copy registers the batch's memory with the GPU, and any change of
that mapping stops all queues of the process until it is registered again; `evicted_ms` counts that time. So it should
grow with every start of workers where they are forked, with every step where batches are pageable, and stay near zero
with spawned workers and pinned batches. Where it stays zero in a hang, the hang was something else.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

STEP = struct.Struct("<dd")
"""How an arm writes a step: seconds of copy, computation and synchronisation; starts of workers so far."""
GROWS_SHARE = 1e-4
"""Share of the time that queues must have been stopped to count as growth: 0.36 s in an hour."""
STALL_SHARE = 0.5
"""Share of a stall that queues must have been stopped for it to explain the stall."""


class ArmStart(StrEnum):
    """How loader workers start."""

    FORK = "fork"
    SPAWN = "spawn"


class Copy(StrEnum):
    """How a batch gets to the device."""

    PINNED = "pinned"
    PAGEABLE = "pageable"
    STAGED = "staged"
    """Pageable, with the size from which the runtime registers memory raised beyond the batch."""


class End(StrEnum):
    """How an arm ended."""

    COMPLETE = "complete"
    HANG = "hang"
    CRASH = "crash"


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the six arms."""

    start: ArmStart
    copy: Copy

    def __str__(self) -> str:
        return f"{self.start}-{self.copy}"


ARMS = tuple(Arm(start, copy) for start in ArmStart for copy in Copy)


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What an arm found.

    Attributes:
        arm: Its name.
        end: How it ended.
        seconds: That it ran, from the first step on.
        steps: Steps done.
        worker_starts: Times that workers were started.
        evicted_ms: For how long the GPU's queues were stopped; None where the driver does not count it.
        stalled_s: Seconds without a step at the end; 0 unless it hung.
        stall_evicted_ms: Growth of `evicted_ms` within them; None as above.
        step_p50_ms: Median time of copy, computation and synchronisation.
        step_p99_ms: 99th percentile.
        kernel_lines: Lines of the kernel's log about amdgpu or kfd that came meanwhile.
        detail: The last words of one that crashed.
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
        """Whether queues were stopped for a time that counts; None where that is unknown or nothing was trained."""
        if self.evicted_ms is None or not self.steps:
            return None
        return self.evicted_ms > GROWS_SHARE * 1000 * self.seconds


def conclude(results: Sequence[ArmResult]) -> list[str]:
    """What the results say about the prediction, and about each hang, in sentences."""
    by_arm = {result.arm: result for result in results}
    missing = [str(arm) for arm in ARMS if str(arm) not in by_arm or by_arm[str(arm)].end is End.CRASH]
    sentences = []
    if missing:
        sentences.append(f"Not finished: {', '.join(missing)}. What follows is preliminary.")
    if all(result.evicted_ms is None for result in results):
        sentences.append("The driver does not count evicted_ms here, so the prediction cannot be judged.")
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
                "As predicted: queues are stopped by forks and by pageable batches, and not with spawned workers and "
                "pinned batches. Use data.loader.start_method: spawn and data.loader.pin_memory: true."
            )
        else:
            wrong = [f"{name} {'grows' if grows[name] else 'does not grow'}" for name in known if name not in kept]
            sentences.append(
                f"Not as predicted: {', '.join(wrong)}. Something else stops queues here, or nothing does."
            )
    if grows.get("fork-pinned") and calm is False:
        per_start = _per(by_arm["fork-pinned"].evicted_ms, by_arm["fork-pinned"].worker_starts)
        sentences.append(f"Each start of forked workers stops the queues for {per_start} ms.")
    if grows.get("spawn-pageable") and calm is False:
        per_step = _per(by_arm["spawn-pageable"].evicted_ms, by_arm["spawn-pageable"].steps)
        sentences.append(f"Each pageable batch stops them for {per_step} ms.")
        staged = grows.get("spawn-staged")
        if staged is not None:
            helps = "does not help" if staged else "prevents that"
            sentences.append(f"GPU_PINNED_MIN_XFER_SIZE {helps}.")
    return sentences


def _judge_hang(result: ArmResult) -> str:
    said = f"{result.arm} hung after {result.steps:,} steps"
    if result.stall_evicted_ms is None:
        return f"{said}; whether queues were stopped is unknown."
    stopped = f"queues were stopped for {result.stall_evicted_ms / 1000:.1f} s of the {result.stalled_s:.0f} s it stood"
    if result.stall_evicted_ms >= STALL_SHARE * 1000 * result.stalled_s:
        return f"{said}: {stopped}. This is the stall of registered memory (H3)."
    if result.stall_evicted_ms == 0:
        return f"{said}: {stopped}. This was not H3; look at the stacks of workers and at the kernel's lines."
    return f"{said}: {stopped}. That explains a part of it at most."


def _per(value: int | None, count: int) -> str:
    return "?" if value is None or not count else f"{value / count:.2g}"


HEAD = (
    *("arm", "end", "hours", "steps", "worker starts", "evicted ms", "per step", "per start"),
    *("step p50 ms", "step p99 ms", "kernel lines"),
)


def markdown(results: Sequence[ArmResult], title: str) -> str:
    """The table and the conclusion.

    Args:
        results: Of the arms that have been run.
        title: What it ran on, in a line.
    """
    lines = ["# Hang study", "", title, "", _row(HEAD), _row(["---"] * len(HEAD))]
    for one in results:
        evicted = "unknown" if one.evicted_ms is None else f"{one.evicted_ms:,}"
        per = [_per(one.evicted_ms, one.steps), _per(one.evicted_ms, one.worker_starts)]
        times = ["?" if value is None else f"{value:.1f}" for value in (one.step_p50_ms, one.step_p99_ms)]
        counts = [f"{one.steps:,}", f"{one.worker_starts:,}"]
        hours = f"{one.seconds / 3600:.2f}"
        lines.append(_row([one.arm, one.end, hours, *counts, evicted, *per, *times, str(one.kernel_lines)]))
    lines += ["", *(f"- {sentence}" for sentence in conclude(results))]
    lines += [f"- {one.arm} crashed: {one.detail}" for one in results if one.end is End.CRASH]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
