"""Evidence in stacks and in the state of processes about a stall, as a sentence for a person; pure functions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from yolo_lightning.supervision.processes import STOPPED, STOPPED_BY_SIGNAL
from yolo_lightning.utils.process_identity import GONE

# Contract: names of functions and variables that are searched in Python stacks. They belong to torch, to the standard
# library and to the data room. tests/supervision/test_classify.py checks that each name exists there.
WORKER_LOOP = "_worker_loop"  # main loop of a DataLoader worker
READ_FRAME = "read"  # method `LabelledFrames.read` in `data/labelled_frames.py`
FRAME_ID = "image_id"  # its local variable that holds the id of the frame
GET_SAMPLE = "__getitem__"  # method of every dataset
SAMPLE_INDEX = ("index", "idx", "i", "key")  # usual names of its argument

LIBRARY = re.compile(r"(^|/)(multiprocessing|threading\.py|selectors\.py|queue\.py|socket\.py|subprocess\.py)")
WRITES_IN_KERNEL = re.compile(
    r"fsync|io_schedule|jbd2|wait_on_page|folio_wait|balance_dirty|nfs|rpc_wait|fuse|percpu_rwsem"
)
LOOKS_FOR_KILL = re.compile(r"out of memory|oom-kill|killed process|segfault", re.IGNORECASE)
LOST_BATCH = re.compile(r"^\w*(Error|Exception): ")
"""Error of a worker's thread that cannot deliver a batch (no shared memory, no socket). The worker keeps running."""


class StallClass(StrEnum):
    """Cause of a stall or of an unexpected exit; decides the reaction (`next_action`)."""

    USER_ERROR = "user error"
    ERROR = "error"
    SAMPLE = "sample"
    ENVIRONMENT = "environment"
    KILLED = "killed"
    LOADER_CRASH = "loader crash"
    LOADER_STALL = "loader stall"
    GPU_STALL = "GPU stall"
    COMPUTATION = "computation stall"
    DEVICE_ERROR = "device error"
    WRONG_RESULT = "wrong result"
    NOT_FINITE = "not finite"
    OUT_OF_MEMORY = "out of memory"
    CRASH = "crash"
    STORAGE = "storage stall"
    DISK_FULL = "disk full"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a Python stack."""

    function: str
    place: str  # `file:line`
    values: dict[str, str] = field(default_factory=dict)  # arguments and local variables as text, if known

    def __str__(self) -> str:
        return f"{self.function} ({self.place})"


@dataclass(frozen=True, slots=True)
class ProcessEvidence:
    """State of one process."""

    pid: int
    command: str
    state: str  # state of the main thread, as in `Process`
    wait_channel: str = ""  # kernel function in which the process waits; empty if unknown
    stack: tuple[Frame, ...] = ()  # Python stack of the main thread, innermost first; empty if unknown

    @property
    def is_worker(self) -> bool:
        """Whether the process is a DataLoader worker."""
        return "multiprocessing.spawn" in self.command or any(frame.function == WORKER_LOOP for frame in self.stack)

    @property
    def is_idle(self) -> bool:
        """Whether a running worker waits for the next list of samples, in a queue of the standard library."""
        functions = [frame.function for frame in self.stack]
        if self.state not in "SR" or WORKER_LOOP not in functions:
            return False
        called_by_loop = self.stack[: functions.index(WORKER_LOOP)]
        return all(LIBRARY.search(frame.place) for frame in called_by_loop)

    @property
    def place(self) -> str:
        """Innermost function that is no waiting function of the standard library, and the place in the kernel."""
        frames = [frame for frame in self.stack if not LIBRARY.search(frame.place)]
        function = str([*frames, *self.stack, "an unknown function"][0])
        if self.wait_channel:
            return f"{function}, in the kernel in {self.wait_channel}"
        return function

    @property
    def sample(self) -> str:
        """Sample that the process loads, from the variables on its stack; empty if unknown.

        `id=` of the frame that is being read, which can be any frame of a mosaic, else `index=N` of the dataset's
        sample.
        """
        for frame in self.stack:
            if frame.function == READ_FRAME and FRAME_ID in frame.values:
                return "id=" + frame.values[FRAME_ID].strip("'\"")
            if frame.function == GET_SAMPLE:
                for name in SAMPLE_INDEX:
                    if name in frame.values:
                        return f"{name}={frame.values[name]}"
        return ""

    @property
    def described_state(self) -> str:
        return "stopped (T)" if self.state in STOPPED else f"state {self.state}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """State of a stalled trainer."""

    trainer: ProcessEvidence
    children: tuple[ProcessEvidence, ...] = ()  # all descendants
    evicted_ms: int = 0  # time of stopped GPU queues (AMD) during the collection
    kernel_lines: tuple[str, ...] = ()  # relevant lines of the kernel log
    log_lines: tuple[str, ...] = ()  # last lines of the trainer's output


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Result of the classification."""

    kind: StallClass
    sentence: str  # description with process, function and worker
    suspect: str = ""  # sample at which a worker hangs; empty if unknown
    evicted: bool = False  # whether the kernel has stopped the GPU queues of the trainer


WAITS = {
    StallClass.LOADER_STALL: "waits for a batch in",
    StallClass.GPU_STALL: "waits for the GPU in",
    StallClass.STORAGE: "waits for storage in",
}


def describe(evidence: Evidence, kind: StallClass) -> Diagnosis:
    """Return what the evidence says about a stall whose class is known from the last heartbeat.

    The class of a trainer that a signal has stopped is `UNKNOWN`: it says nothing about loader, device and disk.
    """
    trainer = evidence.trainer
    if trainer.state == STOPPED_BY_SIGNAL:
        kind = StallClass.UNKNOWN
    place = f"the trainer (process {trainer.pid}, {trainer.described_state}) {WAITS.get(kind, 'is in')}"
    parts = [f"{place} {trainer.place}"]
    suspect = ""
    if evidence.evicted_ms:
        parts.append(f"the kernel has stopped its GPU queues for {evidence.evicted_ms} ms more")
    if kind is StallClass.LOADER_STALL:
        suspect = _describe_workers(evidence, parts)
    return Diagnosis(kind, "; ".join(parts), suspect=suspect, evicted=evidence.evicted_ms > 0)


def _describe_workers(evidence: Evidence, parts: list[str]) -> str:
    """Append what is known about the loader workers; return the sample at which one of them hangs, or an empty text."""
    dead = [process for process in evidence.children if process.state in GONE]
    if dead:
        parts.append(f"worker process {dead[0].pid} is dead")
        killed = [line for line in evidence.kernel_lines if LOOKS_FOR_KILL.search(line)]
        parts += [f"kernel log: {line.strip()}" for line in killed[-1:]]
    workers = [process for process in evidence.children if process.is_worker and process.state not in GONE]
    busy = [worker for worker in workers if not worker.is_idle]
    if workers and not busy:
        parts.append(f"its {len(workers)} workers are idle")
        lost = [line for line in evidence.log_lines if LOST_BATCH.match(line)]
        parts += [f"a batch may have been lost: {line.strip()}" for line in lost[-1:]]
        return ""
    culprit = min(busy, key=lambda worker: worker.state not in STOPPED, default=evidence.trainer)
    if busy:
        parts.append(f"worker process {culprit.pid} ({culprit.described_state}) has not delivered the batch")
        parts.append(f"it is in {culprit.place}")
    else:
        parts.append("it has no workers")
    if culprit.sample:
        parts[-1] += f" at sample {culprit.sample}"
    return culprit.sample


def parse_py_spy(text: str) -> tuple[Frame, ...]:
    """Return the main thread's stack in the output of `py-spy dump`, innermost first; else that of the only thread."""
    blocks = re.split(r"^Thread ", text, flags=re.MULTILINE)[1:]
    main_thread = [block for block in blocks if '"MainThread"' in block.split("\n", 1)[0]]
    frames: list[Frame] = []
    block = [*main_thread, *blocks, ""][0]
    for line in block.splitlines()[1:]:
        function = re.fullmatch(r"    (\S.*) \((.*)\)", line)
        variable = re.fullmatch(r" {12}(\w+): (.*)", line)
        if function:
            frames.append(Frame(function[1].rpartition(".")[2], function[2]))
        elif variable and frames:
            frames[-1].values[variable[1]] = variable[2]
    return tuple(frames)


def parse_faulthandler(text: str) -> tuple[Frame, ...]:
    """Return the main thread's stack in the output of faulthandler, which writes the oldest thread last."""
    blocks: Sequence[str] = re.split(r"^(?:Current thread|Thread) 0x.*$", text, flags=re.MULTILINE)
    places = re.findall(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$', blocks[-1], flags=re.MULTILINE)
    return tuple(Frame(function.rpartition(".")[2], f"{file}:{line}") for file, line, function in places)
