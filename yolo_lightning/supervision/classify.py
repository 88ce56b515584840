"""What kind of stall it is, from the evidence alone: a pure function."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.supervision.processes import GONE, STOPPED


class StallClass(StrEnum):
    """Where the cause lies; decides what is tried next."""

    LOADER_CRASH = "loader crash"
    LOADER_STALL = "loader stall"
    GPU_STALL = "GPU stall"
    STORAGE = "storage stall"
    DISK_FULL = "disk full"
    LIVELOCK = "livelock"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a Python stack.

    Attributes:
        function: Its name.
        place: `file:line`.
        values: Arguments and local variables, where they are known, as text.
    """

    function: str
    place: str
    values: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.function} ({self.place})"

    @property
    def location(self) -> tuple[str, str]:
        """Function and file: a loop goes from line to line."""
        return self.function, self.place.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class ProcessEvidence:
    """What was seen of one process.

    Attributes:
        pid: Its id.
        command: Its words.
        state: Letter of the kernel, of its main thread.
        wait_channel: Function of the kernel that it waits in; empty if unknown.
        stack: Python stack of its main thread, innermost first; empty if unknown.
        later_stack: The same a while later.
    """

    pid: int
    command: str
    state: str
    wait_channel: str = ""
    stack: tuple[Frame, ...] = ()
    later_stack: tuple[Frame, ...] = ()

    @property
    def is_worker(self) -> bool:
        """Whether it prepares batches."""
        return "multiprocessing.spawn" in self.command or any(frame.function == "_worker_loop" for frame in self.stack)

    @property
    def function(self) -> str:
        """Where it stands: the innermost function that is not the library's own way of waiting."""
        if not self.stack:
            return "an unknown function"
        return str(next((one for one in self.stack if not LIBRARY.search(one.place)), self.stack[0]))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen of a stalled trainer.

    Attributes:
        phase: That it is in.
        trainer: Its main process.
        others: All below it.
        evicted_ms: Growth, while it was watched, of the time for which the kernel had stopped its GPU queues; None
            without an AMD GPU.
        kernel_lines: Of the kernel's log, that may matter.
        log_lines: Last lines that the trainer wrote.
    """

    phase: Phase
    trainer: ProcessEvidence
    others: tuple[ProcessEvidence, ...] = ()
    evicted_ms: int | None = None
    kernel_lines: tuple[str, ...] = ()
    log_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The judgement.

    Attributes:
        kind: Class of the stall.
        sentence: For a person: process, function, worker.
        moves_down: Whether the next rung of the loader ladder may help.
        suspect: What names the sample that a worker hangs at; empty if none does.
    """

    kind: StallClass
    sentence: str
    moves_down: bool = False
    suspect: str = ""


LIBRARY = re.compile(r"(^|/)(multiprocessing|threading\.py|selectors\.py|queue\.py|socket\.py|subprocess\.py)")
WAITS_FOR_LOADER = frozenset(
    {
        *("_try_get_data", "_get_data", "_next_data", "recvfds", "rebuild_storage_fd", "_reset", "_shutdown_workers"),
        "_await_core",  # of yolo_lightning.data.worker_processes
    }
)
WAITS_FOR_GPU = frozenset({"synchronize", "item", "cpu", "tolist", "numpy"})
COMPUTES = frozenset({Phase.FIRST_BATCH, Phase.STEP, Phase.SANITY, Phase.VALIDATE, Phase.METRICS})
GPU_IN_KERNEL = re.compile(r"amdgpu|kfd|dup_mmap|nvidia|uvm")
WRITES = frozenset({"fsync", "flush", "write", "write_bytes", "write_text", "save", "_save", "link", "replace"})
WRITES_IN_KERNEL = re.compile(
    r"fsync|io_schedule|jbd2|wait_on_page|folio_wait|balance_dirty|nfs|rpc_wait|fuse|percpu_rwsem"
)
LOOKS_FOR_KILL = re.compile(r"out of memory|oom-kill|killed process|segfault", re.IGNORECASE)
LOST_BATCH = re.compile(r"^\w*(Error|Exception): ")
"""What a worker's thread says when it cannot hand a batch over: no shared memory, no socket. The worker lives on."""

DEAD_WORKER = re.compile(r"DataLoader worker \(pid\(?s?\)? ?[\d, ]+\)|ConnectionResetError")


def classify(evidence: Evidence) -> Diagnosis:
    """The first that fits, in the order of how much each sign proves."""
    for rule in (loader_crash, loader_stall, gpu_stall, storage, livelock):
        diagnosis = rule(evidence)
        if diagnosis is not None:
            return diagnosis
    trainer = evidence.trainer
    state = "stopped (T)" if trainer.state in STOPPED else f"state {trainer.state}"
    return Diagnosis(StallClass.UNKNOWN, f"the trainer (process {trainer.pid}, {state}) stands in {trainer.function}")


def loader_crash(evidence: Evidence) -> Diagnosis | None:
    """A worker has ended while training goes on."""
    waits = innermost(evidence.trainer, WAITS_FOR_LOADER, depth=len(evidence.trainer.stack)) is not None
    dead = [process for process in evidence.others if process.state in GONE and waits]
    reported = [line for line in evidence.log_lines if DEAD_WORKER.search(line)]
    if not dead and not reported:
        return None
    killed = [line for line in evidence.kernel_lines if LOOKS_FOR_KILL.search(line)]
    what = f"worker process {dead[0].pid} is dead" if dead else reported[-1].strip()
    return Diagnosis(StallClass.LOADER_CRASH, what + (f"; the kernel says: {killed[-1].strip()}" if killed else ""))


def loader_stall(evidence: Evidence) -> Diagnosis | None:
    """The trainer waits for a batch, and a worker does not bring it."""
    waiting = innermost(evidence.trainer, WAITS_FOR_LOADER, depth=len(evidence.trainer.stack))
    if waiting is None:
        return None
    workers = [process for process in evidence.others if process.is_worker and process.state not in GONE]
    down = evidence.phase is not Phase.FIRST_BATCH
    busy = sorted((one for one in workers if not waits_for_work(one)), key=lambda one: one.state not in STOPPED)
    where = f"the trainer (process {evidence.trainer.pid}) waits for a batch in {waiting}"
    if any(frame.function == "_reset" for frame in evidence.trainer.stack):
        where += ", at an epoch's begin in _reset: its workers were idle before"
    if not workers:
        suspect = sample_of(evidence.trainer)
        named = f" at the sample {suspect}" if suspect else ""
        sentence = f"{where}; it has no workers and stands in {evidence.trainer.function}{named}"
        return Diagnosis(StallClass.LOADER_STALL, sentence, moves_down=down, suspect=suspect)
    if not busy:
        idle = f"; its {len(workers)} workers wait for work"
        lost = [line.strip() for line in evidence.log_lines if LOST_BATCH.match(line)]
        idle += f"; a batch may have been lost on its way: {lost[-1]}" if lost else ""
        return Diagnosis(StallClass.LOADER_STALL, where + idle, moves_down=down)
    owing = busy[0]
    state = "stopped (T)" if owing.state in STOPPED else f"state {owing.state}"
    kernel = f", in the kernel in {owing.wait_channel}" if owing.state == "D" and owing.wait_channel else ""
    suspect = sample_of(owing)
    named = f" at the sample {suspect}" if suspect else ""
    sentence = f"{where}; worker process {owing.pid}, {state}, owes it and stands in {owing.function}{kernel}{named}"
    return Diagnosis(StallClass.LOADER_STALL, sentence, moves_down=down, suspect=suspect)


def gpu_stall(evidence: Evidence) -> Diagnosis | None:
    """The trainer waits for the GPU; only a growing time of eviction proves that the kernel holds its queues back."""
    trainer = evidence.trainer
    evicted = bool(evidence.evicted_ms)
    in_kernel = bool(GPU_IN_KERNEL.search(trainer.wait_channel))
    waits = innermost(trainer, WAITS_FOR_GPU) if evidence.phase in COMPUTES else None
    if not (evicted or in_kernel or waits):
        return None
    cause = f"; the kernel has kept its GPU queues stopped for {evidence.evicted_ms} ms more" if evicted else ""
    kernel = f", in the kernel in {trainer.wait_channel}" if trainer.wait_channel else ""
    sentence = (
        f"the trainer (process {trainer.pid}, state {trainer.state}) waits for the GPU in {waits or trainer.function}"
    )
    return Diagnosis(StallClass.GPU_STALL, sentence + kernel + cause, moves_down=evicted)


def storage(evidence: Evidence) -> Diagnosis | None:
    """The trainer waits for a disk."""
    trainer = evidence.trainer
    frame = innermost(trainer, WRITES)
    if frame is None and not WRITES_IN_KERNEL.search(trainer.wait_channel):
        return None
    return Diagnosis(
        StallClass.STORAGE,
        f"the trainer (process {trainer.pid}, state {trainer.state}) waits for storage in {frame or trainer.function}",
    )


def livelock(evidence: Evidence) -> Diagnosis | None:
    """It computes, and stands in the same function each time it is looked at."""
    trainer = evidence.trainer
    if trainer.state != "R" or not trainer.stack or not trainer.later_stack:
        return None
    if trainer.stack[0].location != trainer.later_stack[0].location:
        return None
    return Diagnosis(
        StallClass.LIVELOCK, f"the trainer (process {trainer.pid}) computes without end in {trainer.function}"
    )


def waits_for_work(worker: ProcessEvidence) -> bool:
    """Whether a worker is idle: its loop waits for the next list of samples, and nobody has stopped it."""
    functions = [frame.function for frame in worker.stack]
    if worker.state in STOPPED or worker.state == "D" or "_worker_loop" not in functions:
        return False
    return "get" in functions[: functions.index("_worker_loop")] and "fetch" not in functions


def innermost(process: ProcessEvidence, functions: frozenset[str], depth: int = 3) -> Frame | None:
    """The one of the innermost frames that is one of `functions`."""
    return next((frame for frame in process.stack[:depth] if frame.function in functions), None)


def sample_of(worker: ProcessEvidence) -> str:
    """What names the sample that a worker stands at, from the variables on its stack; empty if they are not known.

    `id=` of the frame that is being read, which a mosaic may have chosen, or else `index=N` of `__getitem__`.
    """
    for frame in worker.stack:
        if frame.function == "read" and "image_id" in frame.values:
            return "id=" + frame.values["image_id"].strip("'\"")
        if frame.function == "__getitem__":
            for name in ("index", "idx", "i", "key"):
                if name in frame.values:
                    return f"{name}={frame.values[name]}"
    return ""


def parse_py_spy(text: str) -> tuple[Frame, ...]:
    """The main thread's stack from `py-spy dump`, innermost first; the only thread's where none bears that name."""
    blocks = re.split(r"^Thread ", text, flags=re.MULTILINE)[1:]
    block = next((one for one in blocks if '"MainThread"' in one.split("\n", 1)[0]), blocks[0] if blocks else "")
    frames: list[Frame] = []
    for line in block.splitlines()[1:]:
        if match := re.fullmatch(r"    (\S.*) \((.*)\)", line):
            frames.append(Frame(match[1].rpartition(".")[2], match[2]))
        elif frames and (match := re.fullmatch(r" {12}(\w+): (.*)", line)):
            frames[-1].values[match[1]] = match[2]
    return tuple(frames)


def parse_faulthandler(text: str) -> tuple[Frame, ...]:
    """The main thread's stack, innermost first: faulthandler writes the oldest thread last."""
    blocks: Sequence[str] = re.split(r"^(?:Current thread|Thread) 0x.*$", text, flags=re.MULTILINE)
    found = re.findall(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$', blocks[-1], flags=re.MULTILINE)
    return tuple(Frame(function.rpartition(".")[2], f"{file}:{line}") for file, line, function in found)
