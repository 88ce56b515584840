"""Rows 1 to 11, 26, 38 and 40: loader workers that hang, die, fail, need memory, or are killed with all."""

import signal

from faults.case import AT_ONCE_S, LOADER_DEATH_S, Case, Report
from faults.outside import (
    at_step,
    cannot_unshare,
    fill_shared_memory,
    in_phase,
    kill_group_of_trainer,
    remember_workers,
    stop_remembered_workers,
    to_worker,
)
from faults.run import Run
from yolo_lightning.supervision.classify import StallClass
from yolo_lightning.supervision.heartbeat import Phase

STALL, CRASH, UNKNOWN = StallClass.LOADER_STALL, StallClass.LOADER_CRASH, StallClass.UNKNOWN
FETCH = {"fetch_s": 3.0}
AT_FRAME = "@ frame 24"
"""A worker's second batch or third, in the first epoch."""


def stuck(name: str, fault: str, kind: str, *words: str) -> Case:
    """A worker that hangs while it reads a frame: one rung down, and on within the epoch."""
    report = Report(STALL, ("owes it and stands in", *words), "fetch")
    return Case(name, f"worker: {fault}", (f"{kind} {AT_FRAME}",), reports=(report,), short_s=FETCH, workers=1, rung=1)


def dies(name: str, fault: str, kind: str, *words: str) -> Case:
    """A worker that dies: the same rung again."""
    report = Report(CRASH, words, within_s=LOADER_DEATH_S)
    return Case(name, f"worker: {fault}", (f"{kind} {AT_FRAME}",), reports=(report,), workers=1)


def rungs_taken(run: Run) -> list[str]:
    """The ladder, rung by rung."""
    taken = [line.text.split(", ")[1] for line in run.lines if line.text.startswith("train loader:")]
    expected = ["4 workers by spawn", "2 workers by spawn", "no workers"]
    return [] if taken == expected else [f"the rungs were {taken} instead of {expected}"]


CASES = (
    stuck("1", "endless sleep", "sleep", "sleep (", "state S", "at the sample i"),
    stuck("2", "busy loop", "compute", "compute (", "state R", "at the sample i"),
    stuck("3", "C call that holds the interpreter lock", "c_call_with_lock", "c_call_with_lock (", "state S"),
    Case(
        "4",
        "worker: SIGSTOP",
        outside=(at_step(6, to_worker(signal.SIGSTOP)),),
        reports=(Report(STALL, ("stopped (T)", "owes it"), "fetch"),),
        short_s=FETCH,
        workers=2,
        rung=1,
    ),
    stuck("5", "state D", "d_state", "d_state (", "state D", "in the kernel in "),
    Case(
        "6a",
        "worker: SIGKILL, as when memory runs out",
        outside=(at_step(6, to_worker(signal.SIGKILL)),),
        # torch says "killed by signal" or "exited unexpectedly", or its socket breaks, whichever comes first.
        reports=(Report(CRASH, ("DataLoader worker",), within_s=LOADER_DEATH_S),),
        workers=2,
    ),
    Case(
        "6b",
        "worker: SIGKILL, twice in a row",
        outside=(at_step(6, to_worker(signal.SIGKILL)), at_step(12, to_worker(signal.SIGKILL))),
        reports=(Report(CRASH, ("DataLoader worker",), within_s=LOADER_DEATH_S),) * 2,
        workers=1,
        rung=1,
    ),
    dies("7a", "segmentation fault", "segfault", "is killed by signal: Segmentation fault"),
    dies("7b", "_exit(3)", "exit_3", "exited unexpectedly"),
    Case(
        "8a",
        "worker: a frame that is no image",
        options={"data.root": "{root}/damaged-data"},
        workers=1,
        exact=False,
        log=("frames/",),
    ),
    Case(
        "8b",
        "worker: an error at the same sample, always",
        ("error @ frame number 40 always",),
        reports=(Report(None, ("RuntimeError",), within_s=LOADER_DEATH_S),) * 2,
        workers=1,
        exact=False,
        lost_steps=None,
        log=("leaving out",),
    ),
    Case(
        "9",
        "all workers stopped while they are idle in a validation",
        outside=(at_step(4, remember_workers), in_phase(Phase.VALIDATE, stop_remembered_workers)),
        reports=(Report(STALL, ("_reset", "stopped (T)"), within_s=20.0),),  # not before the validation is over
        short_s=FETCH | {"epoch_end_s": 3.0},
        workers=2,
        rung=1,
    ),
    Case(
        "10a",
        "worker: hangs before the first batch",
        ("sleep @ worker start",),
        reports=(Report(STALL, ("sleep (",), "first batch"),),
        short_s={"first_batch_s": 20.0},
        workers=2,
    ),
    Case(
        "10b",
        "worker: hangs before the first batch, always",
        ("sleep @ worker start always",),
        reports=(Report(STALL, ("sleep (",), "first batch"),) * 2,
        short_s={"first_batch_s": 20.0},
        workers=1,
        rung=1,
    ),
    Case(
        "11",
        "validation worker: endless sleep",
        ("sleep @ validation frame 2",),
        reports=(Report(STALL, ("sleep (", "at the sample i"), "validate"),),
        short_s={"validate_s": 8.0},
        workers=1,
        rung=1,
    ),
    Case(
        "26",
        "worker: endless sleep on every rung",
        ("sleep @ frame 16 always",),
        reports=(Report(STALL, ("sleep (",), "fetch"),) * 3,
        codes=(76,),
        short_s={"fetch_s": 6.0},
        workers=4,
        rung=2,
        save_interval_steps=100,
        exact=False,
        lost_steps=None,
        log=("gave up: 3 attempts in a row",),
        check=rungs_taken,
    ),
    Case(
        "38a",
        "worker: memory leak up to a limit",
        (f"memory {AT_FRAME}",),
        reports=(Report(CRASH, ("MemoryError",), within_s=LOADER_DEATH_S),),
        workers=1,
        rung=1,
    ),
    Case(
        "40a",
        "trainer: SIGKILL to its whole process group, workers and resource tracker included",
        outside=(at_step(8, kill_group_of_trainer()),),
        reports=(Report(UNKNOWN, ("SIGKILL",), within_s=AT_ONCE_S),),
        workers=2,
    ),
    Case(
        "40b",
        "SIGKILL to supervisor, trainer, workers and resource tracker at once; then fit --resume",
        outside=(at_step(8, kill_group_of_trainer(and_supervisor=True)),),
        codes=(-signal.SIGKILL, 0),
        workers=2,
    ),
    Case(
        "40c",
        "without a supervisor: SIGKILL to the whole process group; then fit --resume",
        outside=(at_step(8, kill_group_of_trainer()),),
        codes=(-signal.SIGKILL, 0),
        options={"supervise": False},
        workers=2,
    ),
    Case(
        "38b",
        "/dev/shm full",
        outside=(at_step(6, fill_shared_memory),),
        reports=(Report(STALL, ("workers wait for work", "unable to allocate shared memory"), "fetch", 30.0),),
        short_s=FETCH,
        workers=2,
        rung=1,
        small_shared_memory=True,
        unavailable=cannot_unshare,
    ),
)
