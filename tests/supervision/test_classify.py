import inspect
import multiprocessing.queues
import multiprocessing.reduction
from dataclasses import replace

import pytest
import torch.multiprocessing.reductions
from torch.utils.data import dataloader
from torch.utils.data._utils import fetch as torch_fetch, worker as torch_worker

from yolo_lightning.data.dataset import EvaluationDataset, TrainingDataset
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.supervision.classify import (
    FRAME_ID,
    GET_SAMPLE,
    LOADER_WAITS,
    QUEUE_GET,
    READ_FRAME,
    RECEIVE_TENSOR,
    SAMPLE_INDEX,
    WAITS_FOR_LOADER,
    WORKER_FETCH,
    WORKER_LOOP,
    Diagnosis,
    Evidence,
    Frame,
    ProcessEvidence,
    StallClass,
    classify,
    parse_faulthandler,
    parse_py_spy,
)
from yolo_lightning.supervision.heartbeat import Phase

TORCH = "torch/utils/data/dataloader.py:1"
IDLE = ("select (selectors.py:415)", "poll (multiprocessing/connection.py:257)", "get (multiprocessing/queues.py:113)")
LOOP = ("_worker_loop (torch/utils/data/_utils/worker.py:258)", "run (multiprocessing/process.py:108)")
WAITING = ("wait (threading.py:331)", "get (queue.py:180)", f"_try_get_data ({TORCH})", f"_next_data ({TORCH})")


def stack(*lines: str, **values: str) -> tuple[Frame, ...]:
    """Return frames from `function (place)`; `values` belong to the first."""
    frames = [Frame(line.partition(" (")[0], line.partition(" (")[2][:-1]) for line in lines]
    return (replace(frames[0], values=values), *frames[1:]) if frames else ()


def main_process(*lines: str, state: str = "S", channel: str = "") -> ProcessEvidence:
    return ProcessEvidence(10, "python -m yolo_lightning fit", state, channel, stack(*lines))


def worker(pid: int, *lines: str, state: str = "S", channel: str = "", **values: str) -> ProcessEvidence:
    command = "python -c from multiprocessing.spawn import spawn_main"
    return ProcessEvidence(pid, command, state, channel, stack(*lines, **values))


def judge(trainer: ProcessEvidence, *others: ProcessEvidence, phase: Phase = Phase.FETCH, **rest: object) -> Diagnosis:
    return classify(Evidence(phase, trainer, others, **rest))  # type: ignore[arg-type]


def test_names_of_the_contract_exist_in_the_code_that_they_point_to() -> None:
    for name in LOADER_WAITS:
        assert callable(getattr(dataloader._MultiProcessingDataLoaderIter, name))
    modules = (multiprocessing.reduction, torch.multiprocessing.reductions)
    assert all(callable(getattr(module, name)) for module, name in zip(modules, RECEIVE_TENSOR, strict=True))
    assert callable(getattr(torch_worker, WORKER_LOOP))
    assert callable(getattr(torch_fetch._MapDatasetFetcher, WORKER_FETCH))
    assert callable(getattr(multiprocessing.queues.Queue, QUEUE_GET))
    assert FRAME_ID in getattr(LabelledFrames, READ_FRAME).__code__.co_varnames
    for dataset in (TrainingDataset, EvaluationDataset):
        assert set(inspect.signature(getattr(dataset, GET_SAMPLE)).parameters) & set(SAMPLE_INDEX)


@pytest.mark.parametrize("function", sorted(WAITS_FOR_LOADER))
def test_each_wait_for_the_loader_is_a_loader_stall(function: str) -> None:
    assert judge(main_process(f"{function} ({TORCH})")).kind is StallClass.LOADER_STALL


@pytest.mark.parametrize("name", SAMPLE_INDEX)
def test_index_of_the_sample_is_the_suspect(name: str) -> None:
    stuck = worker(12, f"{GET_SAMPLE} (data/dataset.py:93)", *LOOP, **{name: "7"})
    assert judge(main_process(*WAITING), stuck).suspect == f"{name}=7"


def test_worker_that_has_not_delivered_the_batch_is_named_not_the_idle_one() -> None:
    stuck = worker(12, "__getitem__ (data/dataset.py:93)", "fetch (fetch.py:52)", *LOOP, index="4711", key="(0, 4711)")
    found = judge(main_process(*WAITING), worker(11, *IDLE, *LOOP), stuck, worker(13, *IDLE, *LOOP))
    assert (found.kind, found.suspect) == (StallClass.LOADER_STALL, "index=4711")
    assert found.sentence == (
        f"the trainer (process 10) waits for a batch in _try_get_data ({TORCH}); worker process 12 (state S) has "
        "not delivered the batch; it is in __getitem__ (data/dataset.py:93) at sample index=4711"
    )


def test_batch_that_no_idle_worker_could_hand_over_is_explained_by_the_log() -> None:
    said = "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_3>: No space left on device (28)"
    workers = (worker(11, *IDLE, *LOOP), worker(12, *IDLE, *LOOP))
    found = judge(main_process(*WAITING), *workers, log_lines=("epoch 1/2", said, "epoch 1/2, batch 3"))
    assert found.sentence.endswith(f"its 2 workers are idle; a batch may have been lost: {said}")
    assert "lost" not in judge(main_process(*WAITING), *workers, log_lines=("epoch 1/2",)).sentence


def test_trainer_that_reads_itself_is_named_with_the_sample_it_stands_at() -> None:
    reading = Frame(READ_FRAME, "data/dataset.py:60", {FRAME_ID: "'20200502114223915'"})
    trainer = main_process("sleep (codec.py:3)", "read (data/dataset.py:60)", f"_next_data ({TORCH})")
    trainer = replace(trainer, stack=(trainer.stack[0], reading, trainer.stack[2]))
    found = judge(trainer)
    assert (found.kind, found.suspect) == (StallClass.LOADER_STALL, "id=20200502114223915")
    assert found.sentence.endswith("it has no workers; it is in sleep (codec.py:3) at sample id=20200502114223915")


POLL = "poll (multiprocessing/connection.py:257)"


@pytest.mark.parametrize(
    ("frames", "workers", "words"),
    [
        (
            (*WAITING, f"_reset ({TORCH})", f"__iter__ ({TORCH})"),
            [worker(11, *IDLE, *LOOP, state="T")],
            "at the start of an epoch in _reset; worker process 11",
        ),
        (
            ("recvfds (multiprocessing/reduction.py:159)",),
            [worker(11, "imdecode (cv2.py:1)", "fetch (fetch.py:52)", *LOOP), worker(12, *IDLE, *LOOP, state="T")],
            "worker process 12 (stopped (T)) has not delivered the batch",
        ),
        (
            WAITING,
            [worker(11, *IDLE, *LOOP, state="D", channel="rpc_wait_bit_killable")],
            "in the kernel in rpc_wait_bit_killable",
        ),
        (WAITING, [worker(11, *IDLE, *LOOP), worker(12, *IDLE, *LOOP)], "its 2 workers are idle"),
        ((POLL, f"_reset ({TORCH})"), [], "_reset"),
        ((POLL, f"_shutdown_workers ({TORCH})"), [], "_shutdown_workers"),
        (
            WAITING,
            [worker(11, "open (storage.py:1)", "<module> (torch/__init__.py:1)")],
            "worker process 11 (state S) has not delivered the batch; it is in open",
        ),
    ],
    ids=["begin of an epoch", "stopped", "in the kernel", "idle", "fault 9", "fault 9, shutdown", "imports"],
)
def test_loader_stall_names_what_the_trainer_waits_for(
    frames: tuple[str, ...], workers: list[ProcessEvidence], words: str
) -> None:
    found = judge(main_process(*frames), *workers)
    assert (found.kind, found.suspect) == (StallClass.LOADER_STALL, "")
    assert words in found.sentence
    assert ("_reset" in found.sentence) == ("_reset" in "".join(frames))


def test_frame_that_is_read_is_suspected_not_the_sample_that_it_is_mixed_into() -> None:
    reading = Frame(READ_FRAME, "data/dataset.py:60", {"index": "5", FRAME_ID: '"20200502114223915"'})
    sample = Frame("__getitem__", "data/dataset.py:93", {"index": "4711"})
    frames = (Frame("read", "data/frames.py:40", {"name": '"a.jpg"'}), reading, sample, *stack(*LOOP))
    stuck = ProcessEvidence(12, "python -c from multiprocessing.spawn import spawn_main", "D", "", frames)
    assert judge(main_process(*WAITING), stuck).suspect == "id=20200502114223915"


def test_dead_worker_is_a_crash_with_the_kernels_word() -> None:
    lines = ("nothing", "Out of memory: Killed process 11 (python)")
    found = judge(main_process(*WAITING), worker(11, state="Z"), worker(12, *IDLE, *LOOP), kernel_lines=lines)
    assert found.kind is StallClass.LOADER_CRASH
    assert found.sentence == "worker process 11 is dead; kernel log: Out of memory: Killed process 11 (python)"


@pytest.mark.parametrize(
    ("line", "crash"),
    [
        ("RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed.", True),
        ("RuntimeError: DataLoader worker (pid(s) 77, 78) exited unexpectedly", True),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", True),
        ("DataLoader workers: 4", False),
    ],
)
def test_words_of_a_dead_worker(line: str, crash: bool) -> None:
    found = judge(main_process("training_step (module.py:1)"), phase=Phase.STEP, log_lines=(line,))
    assert (found.kind is StallClass.LOADER_CRASH) == crash


@pytest.mark.parametrize(
    ("trainer", "evicted_ms", "down"),
    [
        (main_process("training_step (module.py:1)"), 5000, True),
        (main_process("training_step (module.py:1)", state="D", channel="amdgpu_cs_wait"), 0, False),
        (main_process("training_step (module.py:1)", state="D", channel="dup_mmap"), None, False),
        (main_process("training_step (module.py:1)", channel="call of /dev/kfd"), None, False),
        (main_process("synchronize (torch/cuda/__init__.py:1)"), None, False),
    ],
    ids=["evicted", "amdgpu", "dup_mmap", "call of the device", "synchronize"],
)
def test_fault_12_gpu_stall_names_stopped_queues_only_with_evidence(
    trainer: ProcessEvidence, evicted_ms: int | None, down: bool
) -> None:
    found = judge(trainer, phase=Phase.STEP, evicted_ms=evicted_ms)
    assert (found.kind, found.evicted) == (StallClass.GPU_STALL, down)
    assert ("5000 ms" in found.sentence) == down


@pytest.mark.parametrize(
    ("trainer", "kind"),
    [
        (main_process("flush (yolo_lightning/utils/files.py:41)", "replacing (a.py:33)"), StallClass.STORAGE),
        (main_process("save (torch/serialization.py:900)"), StallClass.STORAGE),
        (main_process("anything (x.py:1)", state="D", channel="jbd2_log_wait_commit"), StallClass.STORAGE),
    ],
)
def test_stall_of_the_trainer_itself(trainer: ProcessEvidence, kind: StallClass) -> None:
    found = judge(trainer, phase=Phase.SAVE)
    assert found.kind is kind


def test_nothing_known_is_unknown_and_says_so() -> None:
    found = judge(main_process(state="T"), phase=Phase.STEP)
    assert found == Diagnosis(StallClass.UNKNOWN, "the trainer (process 10, stopped (T)) is in an unknown function")


PY_SPY = """Process 5: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 6 (idle): "pin memory"
    wait (threading.py:331)
Thread 5 (active): "MainThread"
    Dataset.__getitem__ (data/dataset.py:93)
        Arguments:
            key: (0, 7)
        Locals:
            index: 7
    <module> (train.py:4)
"""


def test_main_threads_stack_from_py_spy() -> None:
    assert parse_py_spy(PY_SPY) == (
        Frame("__getitem__", "data/dataset.py:93", {"key": "(0, 7)", "index": "7"}),
        Frame("<module>", "train.py:4"),
    )
    assert parse_py_spy("") == parse_py_spy("Error: no permission") == ()


FAULTHANDLER = """Current thread 0x01 (most recent call first):
  File "/a/pin.py", line 3 in pin

Thread 0x02 (most recent call first):
  File "/a/module.py", line 31 in YOLOModule.training_step
  File "/a/train.py", line ??? in <module>
"""


def test_main_threads_stack_from_faulthandler() -> None:
    assert parse_faulthandler(FAULTHANDLER) == (
        Frame("training_step", "/a/module.py:31"),
        Frame("<module>", "/a/train.py:???"),
    )
    assert parse_faulthandler("") == ()
