"""Result table of the hang study and the conclusions about its prediction. Pure functions.

The prediction of the mechanism called H3: a copy of pageable memory registers the batch with the GPU. When the mapping
of that memory changes, the driver stops all queues of the process until the memory is registered again; `evicted_ms`
counts that time. Therefore `evicted_ms` grows with every start of forked workers and with every pageable batch, and
stays near zero with spawned workers and pinned batches. A hang during which it does not grow has another cause.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from common import markdown_table

ARMS = tuple(f"{start}-{copy}" for start in ("fork", "spawn") for copy in ("pinned", "pageable", "staged"))
"""Start method of the workers and copy mode of the batches. Staged batches are pageable and smaller than the size from
which the ROCm runtime registers memory."""
GROWS_SHARE = 1e-4  # share of the time for which queues must be stopped to count as growth: 0.36 s in an hour
STALL_SHARE = 0.5  # share of a stall for which queues must be stopped to explain the stall
HEAD = (
    *("arm", "end", "hours", "steps", "worker starts", "evicted ms", "per step", "per start"),
    *("step p50 ms", "step p99 ms", "kernel lines"),
)


class End(StrEnum):
    """End of an arm."""

    COMPLETE = "complete"
    HANG = "hang"
    CRASH = "crash"


@dataclass(frozen=True, slots=True)
class ArmResult:
    """Measurements of an arm."""

    arm: str
    end: End
    seconds: float  # from the first step on
    steps: int
    worker_starts: int
    evicted_ms: int | None  # time for which the GPU queues were stopped; None if the driver does not report it
    stalled_s: float  # without a step before a hang was declared; 0 without a hang
    stall_evicted_ms: int | None  # growth of `evicted_ms` during the stall
    step_p50_ms: float | None  # of copy, computation and synchronisation
    step_p99_ms: float | None
    kernel_lines: int  # new lines of the kernel log about amdgpu or kfd
    detail: str = ""  # last error line of an arm that crashed

    @property
    def grows(self) -> bool | None:
        """Whether queues were stopped for a relevant time; None if unknown or if no step was done."""
        if self.evicted_ms is None or not self.steps:
            return None
        return self.evicted_ms > GROWS_SHARE * 1000 * self.seconds

    def evicted_per(self, count: int) -> str:
        """Return `evicted_ms` divided by a count, or a question mark."""
        return "?" if self.evicted_ms is None or not count else f"{self.evicted_ms / count:.2g}"


def conclude(results: Sequence[ArmResult]) -> list[str]:
    """Return sentences about the prediction and about each hang."""
    by_arm = {result.arm: result for result in results}
    finished = [arm for arm in ARMS if arm in by_arm and by_arm[arm].end is not End.CRASH]
    hung = [result for result in results if result.end is End.HANG]
    safe = [arm for arm in finished if by_arm[arm].end is End.COMPLETE]
    sentences = []
    if len(finished) < len(ARMS):
        missing = ", ".join(arm for arm in ARMS if arm not in finished)
        sentences.append(f"Not finished: {missing}. The following conclusions are preliminary.")
    if all(result.evicted_ms is None for result in results):
        sentences.append("The driver does not report evicted_ms, so the prediction cannot be tested.")
    else:
        sentences += _judge_prediction(by_arm)
    sentences += map(_judge_hang, hung)
    if hung and safe:
        sentences.append(f"Without a hang: {', '.join(safe)}.")
    elif len(finished) == len(ARMS):
        sentences.append("Every arm hung." if hung else "No arm hung.")
    return sentences


def _judge_prediction(by_arm: dict[str, ArmResult]) -> list[str]:
    sentences = []
    expected = {"spawn-pinned": False, "fork-pinned": True, "spawn-pageable": True}
    found = {name: by_arm[name].grows if name in by_arm else None for name in expected}
    texts = {True: "grows", False: "does not grow"}
    wrong = [f"{name} {texts[grown]}" for name, grown in found.items() if grown not in (None, expected[name])]
    if found == expected:
        sentences.append(
            "As predicted: forks and pageable batches stop the queues, spawned workers with pinned batches do not. "
            "Use data.loader.multiprocessing_context: spawn and data.loader.pin_memory: true."
        )
    elif None not in found.values():
        sentences.append(f"Not as predicted: {', '.join(wrong)}. Another cause stops the queues, or none does.")
    if found["spawn-pinned"] is not False:
        return sentences
    if found["fork-pinned"]:
        per_start = by_arm["fork-pinned"].evicted_per(by_arm["fork-pinned"].worker_starts)
        sentences.append(f"Each start of forked workers stops the queues for {per_start} ms.")
    if found["spawn-pageable"]:
        per_batch = by_arm["spawn-pageable"].evicted_per(by_arm["spawn-pageable"].steps)
        sentences.append(f"Each pageable batch stops the queues for {per_batch} ms.")
        if "spawn-staged" in by_arm and (staged := by_arm["spawn-staged"].grows) is not None:
            sentences.append(f"GPU_PINNED_MIN_XFER_SIZE {'does not help' if staged else 'prevents this'}.")
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


def markdown(results: Sequence[ArmResult], title: str) -> str:
    """Return the result table and the conclusions as Markdown; `title` names device and conditions."""
    rows = []
    for one in results:
        evicted = "unknown" if one.evicted_ms is None else f"{one.evicted_ms:,}"
        per = [one.evicted_per(one.steps), one.evicted_per(one.worker_starts)]
        times = ["?" if value is None else f"{value:.1f}" for value in (one.step_p50_ms, one.step_p99_ms)]
        counts = [f"{one.seconds / 3600:.2f}", f"{one.steps:,}", f"{one.worker_starts:,}"]
        rows.append([one.arm, one.end, *counts, evicted, *per, *times, str(one.kernel_lines)])
    lines = ["# Hang study", "", title, "", markdown_table(HEAD, rows), ""]
    lines += [f"- {sentence}" for sentence in conclude(results)]
    lines += [f"- {result.arm} crashed: {result.detail}" for result in results if result.end is End.CRASH]
    return "\n".join(lines) + "\n"
