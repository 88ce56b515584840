"""Classification of a stall from the collected evidence; pure functions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.supervision.processes import STOPPED
from yolo_lightning.utils.process_identity import GONE

# Contract: names of functions and variables that classification searches in Python stacks. They belong to torch, to the
# standard library and to the data room. tests/supervision/test_classify.py checks that each name exists there.
WORKER_LOOP, WORKER_FETCH, QUEUE_GET = "_worker_loop", "fetch", "get"
"""Main loop of a DataLoader worker; load of a batch in this loop; wait for the next list of samples."""

LOADER_WAITS = ("_try_get_data", "_get_data", "_next_data", "_reset", "_shutdown_workers")
"""Methods of torch's `_MultiProcessingDataLoaderIter` in which the trainer waits for workers."""

EPOCH_RESET = "_reset"
RECEIVE_TENSOR = ("recvfds", "rebuild_storage_fd")
"""Functions of `multiprocessing.reduction` and `torch.multiprocessing.reductions`: receipt of a batch from a worker."""

READ_FRAME, FRAME_ID = "read", "image_id"
"""Method `LabelledFrames.read` in `data/labelled_frames.py`, and its local variable that holds the id of the frame."""

GET_SAMPLE, SAMPLE_INDEX = "__getitem__", ("index", "idx", "i", "key")
"""Method of every dataset, and the usual names of its argument."""

WAITS_FOR_LOADER = frozenset({*LOADER_WAITS, *RECEIVE_TENSOR})
WAITS_FOR_GPU = frozenset({"synchronize", "item", "cpu", "tolist", "numpy"})
KERNEL_CALLS = frozenset({"_conv_forward", "_engine_run_backward"})
"""Functions of torch, innermost of the stack while a convolution or a backward pass computes."""

ENGINE = re.compile(r"yolo_lightning/conv/")
WRITES = frozenset({"fsync", "flush", "write", "write_bytes", "write_text", "save", "_save", "link", "replace"})

LIBRARY = re.compile(r"(^|/)(multiprocessing|threading\.py|selectors\.py|queue\.py|socket\.py|subprocess\.py)")
COMPUTES = frozenset({Phase.FIRST_BATCH, Phase.STEP, Phase.VALIDATE, Phase.METRICS})
GPU_IN_KERNEL = re.compile(r"amdgpu|kfd|dup_mmap|nvidia|uvm")
WRITES_IN_KERNEL = re.compile(
    r"fsync|io_schedule|jbd2|wait_on_page|folio_wait|balance_dirty|nfs|rpc_wait|fuse|percpu_rwsem"
)
LOOKS_FOR_KILL = re.compile(r"out of memory|oom-kill|killed process|segfault", re.IGNORECASE)
LOST_BATCH = re.compile(r"^\w*(Error|Exception): ")
"""Error of a worker's thread that cannot deliver a batch (no shared memory, no socket). The worker keeps running."""

DEAD_WORKER = re.compile(r"DataLoader worker \(pid\(?s?\)? ?[\d, ]+\)|ConnectionResetError")


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
    def function(self) -> str:
        """Innermost function that is no waiting function of the standard library."""
        if not self.stack:
            return "an unknown function"
        return str(next((one for one in self.stack if not LIBRARY.search(one.place)), self.stack[0]))

    @property
    def described_state(self) -> str:
        return "stopped (T)" if self.state in STOPPED else f"state {self.state}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """State of a stalled trainer."""

    phase: Phase
    trainer: ProcessEvidence
    others: tuple[ProcessEvidence, ...] = ()  # all descendants
    evicted_ms: int | None = None  # time of stopped GPU queues (AMD) during the collection; None without an AMD GPU
    kernel_lines: tuple[str, ...] = ()  # relevant lines of the kernel log
    log_lines: tuple[str, ...] = ()  # last lines of the trainer's output


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Result of the classification."""

    kind: StallClass
    sentence: str  # description with process, function and worker
    suspect: str = ""  # sample at which a worker hangs; empty if unknown
    evicted: bool = False  # whether the kernel has stopped the GPU queues of the trainer


def classify(evidence: Evidence) -> Diagnosis:
    """Return the diagnosis of the first matching rule; the strongest evidence is tested first."""
    for rule in (_loader_crash, _loader_stall, _gpu_stall, storage):
        diagnosis = rule(evidence)
        if diagnosis is not None:
            return diagnosis
    trainer = evidence.trainer
    sentence = f"the trainer (process {trainer.pid}, {trainer.described_state}) is in {trainer.function}"
    return Diagnosis(StallClass.UNKNOWN, sentence)


def _loader_crash(evidence: Evidence) -> Diagnosis | None:
    """Detect a worker that has ended while the trainer waits for it."""
    waits = innermost(evidence.trainer, WAITS_FOR_LOADER, depth=len(evidence.trainer.stack)) is not None
    dead = [process for process in evidence.others if process.state in GONE and waits]
    reported = [line for line in evidence.log_lines if DEAD_WORKER.search(line)]
    if not dead and not reported:
        return None
    killed = [line for line in evidence.kernel_lines if LOOKS_FOR_KILL.search(line)]
    what = f"worker process {dead[0].pid} is dead" if dead else reported[-1].strip()
    return Diagnosis(StallClass.LOADER_CRASH, what + (f"; kernel log: {killed[-1].strip()}" if killed else ""))


def _loader_stall(evidence: Evidence) -> Diagnosis | None:
    """Detect a trainer that waits for a batch."""
    trainer = evidence.trainer
    waiting = innermost(trainer, WAITS_FOR_LOADER, depth=len(trainer.stack))
    if waiting is None:
        return None
    sentence = f"the trainer (process {trainer.pid}) waits for a batch in {waiting}"
    if any(frame.function == EPOCH_RESET for frame in trainer.stack):
        sentence += f", at the start of an epoch in {EPOCH_RESET}"
    workers = [process for process in evidence.others if process.is_worker and process.state not in GONE]
    busy = sorted((one for one in workers if not _is_idle(one)), key=lambda one: one.state not in STOPPED)
    suspect = ""
    if workers and not busy:
        sentence += f"; its {len(workers)} workers are idle"
        lost = [line.strip() for line in evidence.log_lines if LOST_BATCH.match(line)]
        sentence += f"; a batch may have been lost: {lost[-1]}" if lost else ""
    else:
        culprit = busy[0] if busy else trainer
        suspect = _sample_of(culprit)
        slow = f"worker process {culprit.pid} ({culprit.described_state}) has not delivered the batch"
        sentence += f"; {slow}" if busy else "; it has no workers"
        sentence += f"; it is in {culprit.function}"
        if busy and culprit.state == "D" and culprit.wait_channel:
            sentence += f", in the kernel in {culprit.wait_channel}"
        sentence += f" at sample {suspect}" if suspect else ""
    return Diagnosis(StallClass.LOADER_STALL, sentence, suspect=suspect)


def _gpu_stall(evidence: Evidence) -> Diagnosis | None:
    """Detect a trainer that waits for the GPU; only an increase of `evicted_ms` proves that its queues are stopped."""
    trainer = evidence.trainer
    evicted = bool(evidence.evicted_ms)
    in_kernel = bool(GPU_IN_KERNEL.search(trainer.wait_channel))
    waits = innermost(trainer, WAITS_FOR_GPU) if evidence.phase in COMPUTES else None
    if waits is None and evidence.phase in COMPUTES and trainer.state not in STOPPED:
        waits = kernel_call(trainer.stack)
    if not (evicted or in_kernel or waits):
        return None
    sentence = f"the trainer (process {trainer.pid}, state {trainer.state}) waits for the GPU"
    sentence += f" in {waits or trainer.function}"
    sentence += f", in the kernel in {trainer.wait_channel}" if trainer.wait_channel else ""
    sentence += f"; the kernel has stopped its GPU queues for {evidence.evicted_ms} ms more" if evicted else ""
    return Diagnosis(StallClass.GPU_STALL, sentence, evicted=evicted)


def storage(evidence: Evidence) -> Diagnosis | None:
    """Detect a trainer that waits for a disk."""
    trainer = evidence.trainer
    frame = innermost(trainer, WRITES)
    if frame is None and not WRITES_IN_KERNEL.search(trainer.wait_channel):
        return None
    place = frame or trainer.function
    sentence = f"the trainer (process {trainer.pid}, state {trainer.state}) waits for storage in {place}"
    return Diagnosis(StallClass.STORAGE, sentence)


def _is_idle(worker: ProcessEvidence) -> bool:
    """Return whether a running worker waits for the next list of samples."""
    functions = [frame.function for frame in worker.stack]
    if worker.state in STOPPED or worker.state == "D" or WORKER_LOOP not in functions:
        return False
    return QUEUE_GET in functions[: functions.index(WORKER_LOOP)] and WORKER_FETCH not in functions


def innermost(process: ProcessEvidence, functions: frozenset[str], depth: int = 3) -> Frame | None:
    """Return the innermost of the last `depth` frames whose function is one of `functions`."""
    return next((frame for frame in process.stack[:depth] if frame.function in functions), None)


def kernel_call(stack: Sequence[Frame], depth: int = 3) -> Frame | None:
    """Return the innermost frame of a convolution or of a backward pass among the last `depth` frames."""
    return next((one for one in stack[:depth] if one.function in KERNEL_CALLS or ENGINE.search(one.place)), None)


def _sample_of(process: ProcessEvidence) -> str:
    """Return the sample that a process loads, from the variables on its stack; empty if unknown.

    `id=` of the frame that is being read, which can be any frame of a mosaic, else `index=N` of the dataset's sample.
    """
    for frame in process.stack:
        if frame.function == READ_FRAME and FRAME_ID in frame.values:
            return "id=" + frame.values[FRAME_ID].strip("'\"")
        if frame.function == GET_SAMPLE:
            for name in SAMPLE_INDEX:
                if name in frame.values:
                    return f"{name}={frame.values[name]}"
    return ""


def parse_py_spy(text: str) -> tuple[Frame, ...]:
    """Return the main thread's stack in the output of `py-spy dump`, innermost first; else that of the only thread."""
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
    """Return the main thread's stack in the output of faulthandler, which writes the oldest thread last."""
    blocks: Sequence[str] = re.split(r"^(?:Current thread|Thread) 0x.*$", text, flags=re.MULTILINE)
    found = re.findall(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$', blocks[-1], flags=re.MULTILINE)
    return tuple(Frame(function.rpartition(".")[2], f"{file}:{line}") for file, line, function in found)
