import inspect
from dataclasses import replace

import pytest
from torch.utils.data._utils import worker as torch_worker

from yolo_lightning.data.dataset import EvaluationDataset, TrainingDataset
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.supervision.classify import (
    FRAME_ID,
    GET_SAMPLE,
    READ_FRAME,
    SAMPLE_INDEX,
    WORKER_LOOP,
    Diagnosis,
    Evidence,
    Frame,
    ProcessEvidence,
    StallClass,
    describe,
    parse_faulthandler,
    parse_py_spy,
)

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


def judge(
    trainer: ProcessEvidence,
    *children: ProcessEvidence,
    kind: StallClass = StallClass.LOADER_STALL,
    **rest: object,
) -> Diagnosis:
    return describe(Evidence(trainer, children, **rest), kind)  # type: ignore[arg-type]


def test_names_of_the_contract_exist_in_the_code_that_they_point_to() -> None:
    assert callable(getattr(torch_worker, WORKER_LOOP))
    assert FRAME_ID in getattr(LabelledFrames, READ_FRAME).__code__.co_varnames
    for dataset in (TrainingDataset, EvaluationDataset):
        assert set(inspect.signature(getattr(dataset, GET_SAMPLE)).parameters) & set(SAMPLE_INDEX)


@pytest.mark.parametrize("name", SAMPLE_INDEX)
def test_index_of_the_sample_is_the_suspect(name: str) -> None:
    stuck = worker(12, f"{GET_SAMPLE} (data/dataset.py:93)", "fetch (fetch.py:52)", *LOOP, **{name: "7"})
    assert judge(main_process(*WAITING), stuck).suspect == f"{name}=7"


def test_worker_that_has_not_delivered_the_batch_is_named_not_the_idle_one() -> None:
    stuck = worker(12, "__getitem__ (data/dataset.py:93)", "fetch (fetch.py:52)", *LOOP, index="4711", key="(0, 4711)")
    diagnosis = judge(main_process(*WAITING), worker(11, *IDLE, *LOOP), stuck, worker(13, *IDLE, *LOOP))
    assert (diagnosis.kind, diagnosis.suspect) == (StallClass.LOADER_STALL, "index=4711")
    assert diagnosis.sentence == (
        f"the trainer (process 10, state S) waits for a batch in _try_get_data ({TORCH}); worker process 12 (state S) "
        "has not delivered the batch; it is in __getitem__ (data/dataset.py:93) at sample index=4711"
    )


def test_trainer_that_a_signal_has_stopped_says_nothing_about_the_loader() -> None:
    diagnosis = judge(main_process(*WAITING, state="T"), worker(11, *IDLE, *LOOP))
    assert diagnosis.kind is StallClass.UNKNOWN
    assert diagnosis.sentence == f"the trainer (process 10, stopped (T)) is in _try_get_data ({TORCH})"


def test_batch_that_no_idle_worker_could_hand_over_is_explained_by_the_log() -> None:
    said = "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_3>: No space left on device (28)"
    workers = (worker(11, *IDLE, *LOOP), worker(12, *IDLE, *LOOP))
    diagnosis = judge(main_process(*WAITING), *workers, log_lines=("epoch 1/2", said, "epoch 1/2, batch 3"))
    assert diagnosis.sentence.endswith(f"its 2 workers are idle; a batch may have been lost: {said}")
    assert "lost" not in judge(main_process(*WAITING), *workers, log_lines=("epoch 1/2",)).sentence


def test_trainer_that_reads_itself_is_named_with_the_sample() -> None:
    reading = Frame(READ_FRAME, "data/dataset.py:60", {FRAME_ID: "'20200502114223915'"})
    trainer = main_process("sleep (codec.py:3)", "read (data/dataset.py:60)", f"_next_data ({TORCH})")
    trainer = replace(trainer, stack=(trainer.stack[0], reading, trainer.stack[2]))
    diagnosis = judge(trainer)
    assert diagnosis.suspect == "id=20200502114223915"
    assert "waits for a batch in sleep (codec.py:3); it has no workers at sample id=2020050" in diagnosis.sentence


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        (
            [worker(11, "imdecode (cv2.py:1)", "fetch (fetch.py:52)", *LOOP), worker(12, *IDLE, *LOOP, state="T")],
            "worker process 12 (stopped (T)) has not delivered the batch",
        ),
        (
            [worker(11, *IDLE, *LOOP, state="D", channel="rpc_wait_bit_killable")],
            "in the kernel in rpc_wait_bit_killable",
        ),
        ([worker(11, *IDLE, *LOOP), worker(12, *IDLE, *LOOP)], "its 2 workers are idle"),
        (
            [worker(11, "open (storage.py:1)", "<module> (torch/__init__.py:1)")],
            "worker process 11 (state S) has not delivered the batch; it is in open",
        ),
        (
            [worker(11, "connect (user.py:3)", *LOOP), worker(12, *IDLE, *LOOP)],  # the user's `worker_init_fn`
            "worker process 11 (state S) has not delivered the batch; it is in connect",
        ),
    ],
    ids=["stopped", "in the kernel", "idle", "imports", "start"],
)
def test_loader_stall_names_what_the_trainer_waits_for(workers: list[ProcessEvidence], words: str) -> None:
    diagnosis = judge(main_process(*WAITING), *workers)
    assert diagnosis.suspect == ""
    assert words in diagnosis.sentence


def test_frame_that_is_read_is_suspected_not_the_sample_that_it_is_mixed_into() -> None:
    reading = Frame(READ_FRAME, "data/dataset.py:60", {"index": "5", FRAME_ID: '"20200502114223915"'})
    sample = Frame("__getitem__", "data/dataset.py:93", {"index": "4711"})
    frames = (Frame("read", "data/frames.py:40", {"name": '"a.jpg"'}), reading, sample, *stack(*LOOP))
    stuck = ProcessEvidence(12, "python -c from multiprocessing.spawn import spawn_main", "D", "", frames)
    assert judge(main_process(*WAITING), stuck).suspect == "id=20200502114223915"


def test_dead_worker_is_named_with_the_kernels_word() -> None:
    lines = ("nothing", "Out of memory: Killed process 11 (python)")
    diagnosis = judge(main_process(*WAITING), worker(11, state="Z"), worker(12, *IDLE, *LOOP), kernel_lines=lines)
    assert "worker process 11 is dead; kernel log: Out of memory: Killed process 11 (python)" in diagnosis.sentence


def test_fault_12_stopped_queues_are_named() -> None:
    trainer = main_process("training_step (module.py:1)", state="D", channel="amdgpu_cs_wait")
    diagnosis = judge(trainer, kind=StallClass.GPU_STALL, evicted_ms=5000)
    assert diagnosis.evicted
    assert diagnosis.sentence == (
        "the trainer (process 10, state D) waits for the GPU in training_step (module.py:1), in the kernel in "
        "amdgpu_cs_wait; the kernel has stopped its GPU queues for 5000 ms more"
    )
    assert not judge(trainer, kind=StallClass.GPU_STALL, evicted_ms=0).evicted


def test_nothing_known_is_said() -> None:
    diagnosis = judge(main_process(state="S"), kind=StallClass.COMPUTATION)
    expected = "the trainer (process 10, state S) is in an unknown function"
    assert diagnosis == Diagnosis(StallClass.COMPUTATION, expected)


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
