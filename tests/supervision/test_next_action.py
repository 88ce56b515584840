"""All decisions as one table, which docs/decisions.md contains, and properties of any history.

`python -m tests.supervision.test_next_action > docs/decisions.md` writes the page.
"""

import errno
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from yolo_lightning.supervision.classify import Diagnosis, StallClass
from yolo_lightning.supervision.failure_record import FailureRecord
from yolo_lightning.supervision.fallback_levels import (
    LOADER_LEVELS,
    ONE_LEVEL,
    FallbackState,
    Levels,
    LevelState,
    computation_levels,
    precision_levels,
)
from yolo_lightning.supervision.heartbeat import NOT_STARTED, Phase
from yolo_lightning.supervision.job import SuperviseSettings
from yolo_lightning.supervision.kill import Killed
from yolo_lightning.supervision.next_action import (
    LONGEST_PAUSE_S,
    Action,
    AttemptFacts,
    Finish,
    Lower,
    Quarantine,
    TestDevice as DeviceTest,
    Wait,
    cause_of,
    level_to_take_back,
    next_action,
)
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts
from yolo_lightning.utils.activity import Activity
from yolo_lightning.utils.exit_codes import ExitCode
from yolo_lightning.utils.process_identity import Process

PAGE = REPOSITORY / "docs" / "decisions.md"
SETTINGS = SuperviseSettings()
LEVELS = Levels(LOADER_LEVELS, computation_levels({}))
MIXED = replace(LEVELS, precision=precision_levels("bf16-mixed"))
HOUR_S = 3600.0
STARTED: dict[str, Any] = {"phase": Phase.STEP, "epoch": 1, "step": 41}
IN_WRITE = Killed(survivors={Process(7, "python", "D"): "D, waits in io_schedule"})
STUCK = Killed(survivors={Process(7, "python", "D"): "D"})


def facts(**changed: Any) -> AttemptFacts:
    """Return the facts of a run that has trained, at step 41 of its second epoch."""
    base = AttemptFacts(SETTINGS, Path("incident"), LEVELS, replace(NOT_STARTED, **STARTED), trained=True)
    return at(base, **changed)


def at(given: AttemptFacts, **changed: Any) -> AttemptFacts:
    """Return the facts with other values, also of the heartbeat."""
    position = {key: changed.pop(key) for key in ("phase", "activity", "epoch", "step", "samples") if key in changed}
    return replace(given, heartbeat=replace(given.heartbeat, **position), **changed)


def error(name: str, message: str = "", *bases: str, **fields: Any) -> FailureRecord:
    defaults = {"process": 7, "traceback": 'File "a.py", line 3, in b'}
    return FailureRecord(name, message, bases, **(defaults | fields))


def raises(name: str, message: str = "", *bases: str, **changed: Any) -> AttemptFacts:
    """Return the facts of a trainer that an exception has ended."""
    fields = {
        key: changed.pop(key) for key in ("errno", "samples", "is_user_error", "process", "activity") if key in changed
    }
    return facts(record=error(name, message, *bases, **fields), **({"code": 1, "phase": Phase.EXIT} | changed))


def os_error(number: int, path: str = "/data/a.png", **changed: Any) -> AttemptFacts:
    return raises("OSError", f"[Errno {number}] failed: '{path}'", errno=number, **changed)


def user_error(message: str, **changed: Any) -> AttemptFacts:
    return raises(
        "yolo_lightning.errors.UserError", message, "ValueError", is_user_error=True, **({"code": 2} | changed)
    )


def hangs(phase: Phase, activity: Activity = Activity.NONE, **changed: Any) -> AttemptFacts:
    """Return the facts of a stall."""
    return facts(waited_s=60.0, phase=phase, activity=activity, **changed)


def seen(kind: str, **fields: Any) -> Diagnosis:
    return Diagnosis(StallClass(kind), "", **fields)


def dies(code: int, activity: Activity = Activity.NONE, **changed: Any) -> AttemptFacts:
    return facts(code=code, activity=activity, **changed)


NEW: dict[str, Any] = {"trained": False, "is_watched": True, "epoch": 0, "step": 0}
"""A run that a person has just started, before its first step."""

RESUMED: dict[str, Any] = {"is_watched": True}
"""A run that has trained, and that a person has just resumed."""

BATCH = ("a", "b")
OUTPUT: dict[str, Any] = {"process": 0, "phase": Phase.IMPORT, "trained": False, "levels": ONE_LEVEL}
"""A program without heartbeat and failure record: the error is read from its output."""

FORWARD, BACKWARD, DEVICE_WAIT = Activity.FORWARD, Activity.BACKWARD, Activity.DEVICE_WAIT
HIP = "HIP error: an illegal memory access was encountered"
LOW = FallbackState(LevelState(LOADER_LEVELS[-1].name), LevelState(LEVELS.computation[-1].name))

Row = tuple[str, AttemptFacts, int, str]
# What has happened, the facts, how often in succession, and the reaction to the last time.
ROWS: list[Row] = [
    ("the last epoch is trained", facts(finished=True, code=0), 1, "end: code 0"),
    ("the last epoch is trained, then a stop signal", facts(finished=True, stop_signal=15), 1, "end: code 0"),
    ("SIGTERM, Ctrl-C", facts(stop_signal=15, code=143), 1, "end: code 143"),
    ("SIGTERM while the run waits", os_error(errno.EIO, stop_signal=15), 1, "end: code 143"),
    ("stop signal, and a process survives SIGKILL", facts(stop_signal=15, killed=STUCK), 1, "end: code 77"),
    # A user's mistake.
    ("mistake of the user, first start", user_error("data.root does not exist", **NEW), 1, "end: code 2"),
    ("mistake of the user, resumed by a person", user_error("data.root does not exist", **RESUMED), 1, "end: code 2"),
    ("the same error at a restart: data root away", user_error("data.root does not exist"), 1, "wait 1 s"),
    ("options that Lightning refuses, first start", raises("MisconfigurationException", "No supported gpu backend found!", is_user_error=True, **NEW), 1, "end: code 2"),
    ("no device at a restart", raises("MisconfigurationException", "No supported gpu backend found!", is_user_error=True), 1, "wait 1 s"),
    ("no driver at a restart", raises("RuntimeError", "Found no NVIDIA driver on your system"), 1, "wait 1 s"),
    ("no device of ROCm at a restart", raises("RuntimeError", "No HIP GPUs are available"), 5, "wait 16 s"),
    # The outside world.
    ("EIO of a frame", os_error(errno.EIO), 1, "wait 1 s"),
    ("EIO of a frame", os_error(errno.EIO), 4, "wait 8 s"),
    ("EIO of a frame", os_error(errno.EIO), 20, "wait 300 s"),
    ("EIO of a frame that the record names", os_error(errno.EIO, samples=("id=a",)), 3, "wait 4 s"),
    ("stale NFS handle", os_error(errno.ESTALE), 1, "wait 1 s"),
    ("frame away", os_error(errno.ENOENT), 1, "wait 1 s"),
    ("too many open files", os_error(errno.EMFILE), 1, "wait 1 s"),
    ("run disk read-only", os_error(errno.EROFS, "run/status.json"), 1, "wait 1 s"),
    ("no inodes in the temporary folder", os_error(errno.ENOSPC, "/tmp/x"), 1, "wait 1 s"),
    ("quota of the run disk", os_error(errno.EDQUOT, "run/a", disk_is_full=True), 1, "wait 1 s"),
    ("run disk full", facts(code=74, disk_is_full=True), 1, "wait 1 s"),
    ("run disk full", facts(code=74, disk_is_full=True), 6, "wait 32 s"),
    ("run disk full, first start", facts(code=74, disk_is_full=True, **NEW), 1, "wait 1 s"),
    ("run disk full, but a wrong result", raises("WrongResultError", "layer 3", disk_is_full=True), 1, "lower the computation: gemm"),
    ("run disk hangs", hangs(Phase.FETCH, Activity.LOAD, disk_hangs=True), 3, "restart after 1 s"),
    ("network down", raises("ConnectionRefusedError", "[Errno 111] refused", "ConnectionError", "OSError", errno=111), 1, "wait 1 s"),
    ("an import fails at a restart", raises("ModuleNotFoundError", "No module named 'numpy'", "ImportError", phase=Phase.IMPORT), 1, "wait 1 s"),
    ("a file of the program is incomplete at a restart", raises("SyntaxError", "invalid syntax", phase=Phase.IMPORT), 1, "wait 1 s"),
    ("an import fails, first start", raises("ModuleNotFoundError", "No module named 'numpy'", "ImportError", **NEW), 1, "end: code 1"),
    ("no memory in the trainer", raises("MemoryError"), 1, "wait 1 s"),
    ("the trainer cannot be started: fork", raises("BlockingIOError", "[Errno 11] unavailable", "OSError", errno=errno.EAGAIN), 1, "wait 1 s"),
    ("EIO, first start", os_error(errno.EIO, **NEW), 1, "end: code 1"),
    ("EIO at the start of a service after a boot, nothing trained yet", os_error(errno.EIO, **(NEW | {"is_watched": False})), 1, "restart after 1 s"),
    ("EIO at the start of a service after a boot, nothing trained yet", os_error(errno.EIO, **(NEW | {"is_watched": False})), 3, "end: code 1"),
    ("EIO for longer than patience_h", os_error(errno.EIO, failing_s=24 * HOUR_S), 1, "end: code 76"),
    ("run disk full for longer than patience_h, nothing trained yet", dies(74, disk_is_full=True, failing_s=24 * HOUR_S, **NEW), 1, "end: code 76"),
    ("run disk hangs for longer than patience_h, nothing trained yet", facts(waited_s=60.0, disk_hangs=True, failing_s=24 * HOUR_S, **NEW), 1, "end: code 76"),
    # The computation.
    ("device hangs in a step", hangs(Phase.STEP, DEVICE_WAIT, samples=BATCH), 1, "lower the computation: gemm"),
    ("device hangs in a step", hangs(Phase.STEP, DEVICE_WAIT, samples=BATCH), 2, "lower the computation: gemm without GPU kernels"),
    ("a signal stops the trainer while it waits for the device", hangs(Phase.STEP, DEVICE_WAIT, evidence=seen("unknown")), 1, "restart after 1 s, twice the time for step"),
    ("device hangs in a step, no lower level", hangs(Phase.STEP, DEVICE_WAIT, samples=BATCH), 4, "restart after 1 s"),
    ("heartbeat deleted, then no sign of life", hangs(Phase.FETCH, Activity.UNKNOWN), 1, "restart after 1 s, twice the time for fetch"),
    ("the first rank waits for a rank that cannot be found", hangs(Phase.STEP, Activity.EXCHANGE), 1, "restart after 1 s, twice the time for step"),
    ("device hangs in a validation", hangs(Phase.VALIDATE, DEVICE_WAIT), 1, "lower the computation: gemm"),
    ("device hangs in the first batch", hangs(Phase.FIRST_BATCH, DEVICE_WAIT, **NEW), 1, "lower the computation: gemm"),
    ("device hangs, there is a test program", hangs(Phase.STEP, DEVICE_WAIT, can_test=True), 1, "test the device"),
    ("device hangs, the test passes", hangs(Phase.STEP, DEVICE_WAIT, can_test=True, device_answers=True), 1, "lower the computation: gemm"),
    ("device hangs, the test hangs", hangs(Phase.STEP, DEVICE_WAIT, can_test=True, device_answers=False), 1, "wait 1 s"),
    ("device hangs, the test hangs, nothing trained yet", hangs(Phase.FIRST_BATCH, DEVICE_WAIT, can_test=True, device_answers=False, **NEW), 1, "end: code 77"),
    ("device hangs, the kernel has stopped its queues", hangs(Phase.STEP, DEVICE_WAIT, evidence=seen("GPU stall", evicted=True)), 1, "lower the loader: 2 workers, not persistent"),
    ("device hangs, the kernel has stopped its queues", hangs(Phase.STEP, DEVICE_WAIT, evidence=seen("GPU stall", evicted=True)), 3, "lower the computation: gemm"),
    ("HIP error", raises("torch.AcceleratorError", HIP, "RuntimeError"), 1, "lower the computation: gemm"),
    ("HIP error of an older torch", raises("RuntimeError", HIP), 1, "lower the computation: gemm"),
    ("MIOpen error", raises("RuntimeError", "miopenStatusUnknownError"), 1, "lower the computation: gemm"),
    ("HIP error, then the teardown hangs", hangs(Phase.EXIT, record=error("torch.AcceleratorError", HIP)), 1, "lower the computation: gemm"),
    ("HIP error, then the teardown hangs, there is a test program", hangs(Phase.EXIT, record=error("torch.AcceleratorError", HIP), can_test=True), 1, "test the device"),
    ("wrong result of a layer", raises("WrongResultError", "layer model.3"), 1, "lower the computation: gemm"),
    ("wrong result whose message names a library", raises("WrongResultError", "layer model.3: MIOpen error 0.4"), 1, "lower the computation: gemm"),
    ("wrong result of a layer, no lower level", raises("WrongResultError", "layer model.3"), 7, "wait 1 s"),
    ("NaN after all rollbacks", raises("NonFiniteError", "5 consecutive non-finite values"), 1, "lower the computation: gemm"),
    ("NaN in mixed precision that returns", raises("NonFiniteError", "5 consecutive non-finite values", levels=MIXED), 1, "lower the precision: float32"),
    ("NaN in mixed precision that returns", raises("NonFiniteError", "5 consecutive non-finite values", levels=MIXED), 2, "lower the computation: gemm"),
    ("HIP error in mixed precision", raises("AcceleratorError", HIP, levels=MIXED), 4, "lower the precision: float32"),
    ("hang of the device in mixed precision", hangs(Phase.STEP, DEVICE_WAIT, levels=MIXED), 4, "lower the precision: float32"),
    ("SIGSEGV in the forward pass in mixed precision", dies(-11, FORWARD, levels=MIXED), 8, "lower the precision: float32"),
    ("unexpected exception after training in mixed precision, equal traceback and step", raises("TypeError", "x", levels=MIXED), 5, "lower the precision: float32"),
    ("NaN after all rollbacks", raises("NonFiniteError", "5 consecutive non-finite values"), 2, "lower the computation: gemm without GPU kernels"),
    ("device memory is full", raises("torch.OutOfMemoryError", "HIP out of memory", "RuntimeError"), 1, "lower the computation: half the images at once"),
    ("device memory is full, no lower level", raises("torch.OutOfMemoryError", "HIP out of memory"), 2, "restart after 1 s"),
    ("hang in the forward pass", hangs(Phase.STEP, FORWARD, samples=BATCH), 1, "restart after 1 s"),
    ("hang in the forward pass", hangs(Phase.STEP, FORWARD, samples=BATCH), 2, "lower the computation: gemm"),
    ("hang in the backward pass", hangs(Phase.STEP, BACKWARD), 2, "lower the computation: gemm"),
    ("hang in the optimizer", hangs(Phase.STEP, Activity.OPTIMIZER), 2, "lower the computation: gemm"),
    ("hang in the teardown", hangs(Phase.EXIT), 2, "lower the computation: gemm"),
    ("hang elsewhere in a step", hangs(Phase.STEP, samples=BATCH), 2, "lower the computation: gemm"),
    ("hang in a step, no lower level", hangs(Phase.STEP, FORWARD, samples=BATCH), 8, "restart after 10 s"),
    ("hang in a step, at the same batch, after all else", hangs(Phase.STEP, FORWARD, samples=BATCH), 10, "leave out id=a, id=b"),
    ("hang in a step, without this batch, too", hangs(Phase.STEP, FORWARD, samples=BATCH), 11, "wait 1 s, twice the time for step"),
    ("hang in the forward pass, first start", hangs(Phase.FIRST_BATCH, FORWARD, **NEW), 2, "lower the computation: gemm"),
    ("hang in the forward pass, first start, all levels", hangs(Phase.FIRST_BATCH, FORWARD, **NEW), 9, "end: code 76"),
    ("SIGSEGV in the forward pass", dies(-11, FORWARD), 1, "restart after 1 s"),
    ("SIGSEGV in the forward pass", dies(-11, FORWARD), 2, "lower the computation: gemm"),
    ("SIGABRT in the teardown", dies(-6, phase=Phase.EXIT), 2, "lower the computation: gemm"),
    ("SIGABRT after a message of ROCm", dies(-6, record=FailureRecord("RuntimeError", "Memory access fault by GPU node-1")), 1, "lower the computation: gemm"),
    ("SIGKILL from outside, no memory", dies(-9, FORWARD), 3, "restart after 20 s"),
    ("SIGKILL from outside, no memory", dies(-9, FORWARD), 4, "lower the loader: 2 workers, not persistent"),
    ("SIGTERM from outside", dies(143), 2, "restart after 10 s"),
    ("exit code 0 before the end", dies(0), 1, "restart after 1 s"),
    # The loader.
    ("no batch arrives", hangs(Phase.FETCH, Activity.LOAD), 1, "lower the loader: 2 workers, not persistent"),
    ("no batch arrives", hangs(Phase.FETCH, Activity.LOAD), 2, "lower the loader: no workers"),
    ("no batch arrives in a validation", hangs(Phase.VALIDATE, Activity.LOAD), 1, "lower the loader: 2 workers, not persistent"),
    ("no batch arrives, a worker hangs at one sample", hangs(Phase.FETCH, Activity.LOAD, evidence=seen("loader stall", suspect="id=a")), 3, "restart after 20 s"),
    ("no batch arrives, a worker hangs at one sample, after all else", hangs(Phase.FETCH, Activity.LOAD, evidence=seen("loader stall", suspect="id=a")), 4, "leave out id=a"),
    ("no first batch arrives", hangs(Phase.FIRST_BATCH, Activity.LOAD), 1, "restart after 1 s"),
    ("no first batch arrives", hangs(Phase.FIRST_BATCH, Activity.LOAD), 2, "lower the loader: 2 workers, not persistent"),
    ("a worker was killed", raises("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed."), 1, "restart after 1 s"),
    ("a worker was killed", raises("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed."), 2, "lower the loader: 2 workers, not persistent"),
    ("a worker was killed while the trainer received its batch", raises("ConnectionResetError", "[Errno 104]", "OSError", errno=104, activity="load"), 2, "lower the loader: 2 workers, not persistent"),
    ("a worker has no memory", raises("MemoryError", "Caught MemoryError in DataLoader worker process 0."), 1, "lower the loader: 2 workers, not persistent"),
    ("no shared memory", raises("RuntimeError", "DataLoader worker (pid 7) ... insufficient shared memory (shm)"), 1, "lower the loader: 2 workers, not persistent"),
    ("SIGSEGV of a trainer that decodes", dies(-11, Activity.LOAD, phase=Phase.FETCH), 2, "lower the loader: 2 workers, not persistent"),
    ("a sample cannot be decoded", raises("RuntimeError", "broken codec", samples=("id=a",)), 1, "restart after 1 s"),
    ("a sample cannot be decoded", raises("RuntimeError", "broken codec", samples=("id=a",)), 2, "leave out id=a"),
    # Slow or hung.
    ("save longer than its timeout", hangs(Phase.SAVE, Activity.WRITE), 1, "restart after 1 s, twice the time for save"),
    ("save longer than its timeout", hangs(Phase.SAVE, Activity.WRITE), 4, "wait 1 s, twice the time for save"),
    ("scores longer than their timeout", hangs(Phase.METRICS), 1, "restart after 1 s, twice the time for metrics"),
    ("hang of the imports at a restart", hangs(Phase.IMPORT), 1, "restart after 1 s, twice the time for import"),
    ("hang of the imports at a restart", hangs(Phase.IMPORT), 4, "wait 1 s, twice the time for import"),
    ("hang of the imports, first start", hangs(Phase.IMPORT, **NEW), 2, "end: code 76"),
    # A mistake of this package, or of another program.
    ("unexpected exception, first start", raises("KeyError", "'x'", **NEW), 1, "end: code 1"),
    ("unexpected exception, resumed by a person", raises("KeyError", "'x'", **RESUMED), 1, "end: code 1"),
    ("unexpected exception after training", raises("KeyError", "'x'"), 1, "restart after 1 s"),
    ("unexpected exception after training, equal traceback and step", raises("KeyError", "'x'"), 2, "lower the computation: gemm"),
    ("unexpected exception after training, at every level", raises("KeyError", "'x'"), 8, "wait 1 s"),
    ("a program's ValueError at the end of its output", raises("ValueError", "bad", **OUTPUT), 1, "end: code 1"),
    ("a program's RuntimeError at the end of its output", raises("RuntimeError", "bad", **OUTPUT), 1, "restart after 1 s"),
    ("a program's RuntimeError, equal traceback", raises("RuntimeError", "bad", **OUTPUT), 2, "end: code 1"),
    ("no batch arrives, a program without activities", hangs(Phase.FETCH), 1, "lower the loader: 2 workers, not persistent"),
    ("hang in the forward pass, the kernel has stopped its queues", hangs(Phase.STEP, FORWARD, evidence=seen("computation stall", evicted=True)), 1, "lower the loader: 2 workers, not persistent"),
    ("hang in a step, first start, without lower levels", hangs(Phase.STEP, levels=ONE_LEVEL, **NEW), 3, "end: code 76"),
    ("process survives SIGKILL", facts(waited_s=60.0, killed=STUCK), 2, "wait 2 s"),
    ("process survives SIGKILL, nothing trained yet", hangs(Phase.STEP, killed=STUCK, **NEW), 1, "end: code 77"),
    ("process survives SIGKILL, waits for a disk, nothing trained yet", hangs(Phase.STEP, killed=IN_WRITE, **NEW), 1, "wait 1 s"),
    ("process survives SIGKILL for longer than patience_h", facts(waited_s=60.0, killed=STUCK, failing_s=24 * HOUR_S), 1, "end: code 77"),
]  # fmt: skip


def reaction(action: Action) -> str:
    """Return a reaction in words."""
    if isinstance(action, Finish):
        return f"end: code {action.code}"
    if isinstance(action, DeviceTest):
        return "test the device"
    if isinstance(action, Quarantine):
        return f"leave out {', '.join(action.samples)}"
    longer = f", twice the time for {action.longer.label}" if action.longer else ""
    if isinstance(action, Wait):
        return f"wait {action.pause_s:g} s{longer}"
    if isinstance(action, Lower):
        return f"lower the {action.part}: {action.state.parts[action.part].name}"
    return f"restart after {action.pause_s:g} s{longer}"


def after(given: AttemptFacts, times: int, state: FallbackState | None = None) -> Action:
    """Return the reaction to the last of several equal failures."""
    action = next_action(state or FallbackState(), given)
    for _ in range(times - 1):
        action = next_action(action.state, given)
    return action


def page() -> str:
    lines = [
        "# Decisions of the supervisor",
        "",
        "Written by `python -m tests.supervision.test_next_action > docs/decisions.md`. Each situation is a test.",
        "`yolo_lightning/supervision/next_action.py` contains all rules as one function without input and output.",
        "",
        "- Unless a row says *first start*, the run has trained at least one step.",
        "- *times* is the number of equal failures in succession without a new checkpoint.",
        "- Every reaction except `end` is followed by another attempt.",
        "- A `wait` is doubled from 1 s to 5 min, and counts no attempt. After `supervision.patience_h` (24 h) without a new",
        "  checkpoint, the run ends with code 76.",
        "",
        "| what has happened | cause | times | reaction |",
        "| --- | --- | --- | --- |",
    ]
    situations: dict[tuple[str, int, str], list[str]] = {}
    for what, given, times, expected in ROWS:
        cause = "" if given.finished or given.stop_signal else str(cause_of(given))
        situations.setdefault((cause, times, expected), []).append(what)
    for (cause, times, expected), texts in situations.items():
        lines.append(f"| {'; '.join(texts)} | {cause} | {times} | {expected} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("what", "given", "times", "expected"), ROWS, ids=[f"{row[0]}-{row[2]}" for row in ROWS])
def test_row(what: str, given: AttemptFacts, times: int, expected: str) -> None:
    assert reaction(after(given, times)) == expected


def test_incident_of_an_error_names_the_place_at_which_it_was_raised() -> None:
    record = error("RuntimeError", "x", phase="step", activity="backward")
    incident = facts(record=record, code=1, phase=Phase.EXIT).incident(seen("error"))
    assert incident.sentence().startswith("error: in phase step (backward):")
    incident = facts(record=record, waited_s=9.0, phase=Phase.EXIT).incident(seen("error"))
    assert incident.sentence().startswith("error: no progress for 9.0 s in phase exit:"), "the teardown hangs"
    incident = facts(record=error("RuntimeError", phase="of a damaged file"), phase=Phase.EXIT).incident(seen("error"))
    assert incident.sentence().startswith("error: in phase exit:")


def test_page_is_current() -> None:
    assert PAGE.read_text() == page()


def test_wrong_result_is_never_taken_back() -> None:
    state = after(raises("WrongResultError", "layer"), 1).state
    assert level_to_take_back(state, LEVELS) is None
    state = after(hangs(Phase.STEP, DEVICE_WAIT), 1).state
    assert level_to_take_back(state, LEVELS) == ("computation", "as configured")


def taken_back(state: FallbackState) -> FallbackState:
    return next_action(state, facts(climbs=True)).state


def test_levels_are_taken_back_one_by_one_the_loader_first() -> None:
    state = after(hangs(Phase.FETCH, Activity.LOAD), 1).state
    state = after(hangs(Phase.STEP, DEVICE_WAIT), 2, state).state
    names = []
    while level_to_take_back(state, LEVELS) is not None:
        state = taken_back(state)
        names.append((state.on_trial, state.loader.name, state.computation.name))
    assert names == [
        ("loader", "as configured", "gemm without GPU kernels"),
        ("computation", "as configured", "gemm"),
        ("computation", "as configured", "as configured"),
    ]


def test_waits_and_failures_before_the_progress_do_not_count_after_a_level_was_taken_back() -> None:
    state = after(hangs(Phase.STEP, DEVICE_WAIT), 1).state
    state = after(os_error(errno.EIO), 10, state).state
    assert reaction(after(os_error(errno.EIO), 1, state)) == "wait 300 s"
    state = next_action(state, facts(climbs=True, saved=True)).state
    assert state.on_trial == "computation"
    assert reaction(after(os_error(errno.EIO), 1, state)) == "wait 1 s"


def test_a_level_that_failed_twice_is_not_tried_again() -> None:
    hang = hangs(Phase.STEP, DEVICE_WAIT)
    state = taken_back(after(hang, 1).state)
    assert (state.computation.name, state.failed_climbs) == ("as configured", 0)
    state = after(replace(hang, saved=True), 1, state).state
    assert (state.computation.name, state.failed_climbs) == ("gemm", 1)
    assert level_to_take_back(state, LEVELS) is None


def test_any_failure_of_the_run_before_a_checkpoint_lowers_a_level_that_was_taken_back() -> None:
    state = taken_back(after(hangs(Phase.STEP, DEVICE_WAIT), 1).state)
    assert reaction(after(dies(-9), 1, state)) == "lower the computation: gemm"
    assert reaction(after(dies(-9, saved=True), 1, state)) == "restart after 1 s"
    assert reaction(after(os_error(errno.EIO), 1, state)) == "wait 1 s"


def test_rare_failures_of_the_computation_count_across_checkpoints() -> None:
    hang = hangs(Phase.STEP, FORWARD, saved=True)
    assert reaction(after(hang, 2)) == "lower the computation: gemm"
    worker = raises("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed.", saved=True)
    assert reaction(after(worker, 5)) == "restart after 1 s"


@pytest.mark.parametrize("other", [dies(0), raises("RuntimeError", "x"), hangs(Phase.METRICS)])
def test_a_failure_of_another_cause_does_not_count_as_one_of_the_computation(other: AttemptFacts) -> None:
    state = after(other, 1).state
    crash = dies(-11, FORWARD, saved=True)
    assert reaction(after(crash, 1, state)) == "restart after 1 s"
    assert reaction(after(crash, 2, state)) == "lower the computation: gemm"


@pytest.mark.parametrize("activity", [Activity.NONE, BACKWARD, DEVICE_WAIT, Activity.LOAD])
def test_a_slow_step_gets_more_time_after_all_else_and_a_hang_not_much(activity: Activity) -> None:
    timeouts = AdaptiveTimeouts(SETTINGS.phase_timeouts, {})
    state = FallbackState()
    timeouts_s = []
    for _ in range(40):
        timeouts_s.append(timeouts.seconds(Phase.STEP))
        action = next_action(state, replace(hangs(Phase.STEP, activity), waited_s=timeouts_s[-1]))
        if action.longer is not None:
            timeouts = timeouts.doubled(action.longer)
        state = action.state
    assert timeouts_s[:4] == [60.0] * 4, "first, everything else is tried"
    assert timeouts_s[-1] == timeouts_s[-10] == 1920.0


@pytest.mark.parametrize("phase", [Phase.STEP, Phase.SAVE, Phase.METRICS])
def test_a_hang_that_returns_after_progress_never_takes_hours(phase: Phase) -> None:
    timeouts = AdaptiveTimeouts(SETTINGS.phase_timeouts, {})
    state = FallbackState()
    hang = hangs(phase, Activity.EXCHANGE)
    for day in range(20):
        given = replace(hang, waited_s=timeouts.seconds(phase), saved=True)
        action = next_action(state, at(given, step=1000 * day))
        if action.longer is not None:
            timeouts = timeouts.doubled(action.longer)
        state = action.state
    assert timeouts.seconds(phase) <= HOUR_S
    without_progress = next_action(state, replace(hang, waited_s=timeouts.seconds(phase)))
    assert without_progress.longer is phase


def test_a_kill_from_outside_does_not_count_as_a_crash_of_a_worker() -> None:
    state = after(dies(-15), 1).state
    worker = raises("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed.")
    assert reaction(after(worker, 1, state)) == "restart after 10 s"
    assert reaction(after(worker, 2, state)) == "lower the loader: 2 workers, not persistent"


def test_a_sample_is_left_out_after_two_failures_in_one_epoch() -> None:
    broken = raises("RuntimeError", "broken codec", samples=("id=a",), saved=True)
    other = raises("RuntimeError", "broken codec", samples=("id=b",), saved=True)
    state = after(broken, 1).state
    assert reaction(after(at(broken, epoch=2), 1, state)) == "restart after 1 s"
    state = after(other, 1, state).state
    assert reaction(after(broken, 1, state)) == "leave out id=a"
    state = after(broken, 1, state).state
    assert state.quarantined == ("id=a",)
    assert reaction(after(broken, 1, state)) == "restart after 1 s"


def test_another_traceback_is_another_cause() -> None:
    first = raises("KeyError", "'x'")
    state = after(first, 1).state
    other = replace(first, record=error("KeyError", "'y'", traceback='File "a.py", line 4, in b'))
    assert reaction(after(other, 1, state)) == "restart after 10 s"
    assert reaction(after(at(first, step=42), 1, state)) == "restart after 10 s"


def any_facts(draw: random.Random) -> AttemptFacts:
    """Return random facts of a run that has trained."""
    given = draw.choice(ROWS)[1]
    return at(
        given,
        phase=draw.choice(list(Phase)),
        activity=draw.choice(list(Activity)),
        saved=draw.random() < 0.2,
        trained=True,
        is_watched=False,
        finished=False,
        stop_signal=0,
        failing_s=0.0,
        step=draw.randrange(3),
        can_test=draw.random() < 0.1,
    )


@pytest.mark.parametrize("seed", range(20))
def test_any_history_continues_with_pauses_and_progress_resets_them(seed: int) -> None:
    draw = random.Random(seed)
    state = FallbackState()
    lowered = 0
    for _ in range(300):
        given = any_facts(draw)
        action = next_action(state, given)
        if isinstance(action, DeviceTest):
            given = replace(given, device_answers=draw.random() < 0.5)
            action = next_action(state, given)
        assert not isinstance(action, Finish | DeviceTest), "a run that has trained does not end"
        assert 0 < action.pause_s <= LONGEST_PAUSE_S
        if given.saved:
            assert action.state.attempts <= 1
            assert action.pause_s == 1
        lowered += action.state.loader != state.loader or action.state.computation != state.computation
        state = action.state
        assert isinstance(next_action(state, replace(given, failing_s=24 * HOUR_S)), Finish)
        assert reaction(next_action(state, replace(given, finished=True))) == "end: code 0"
    assert lowered <= len(LEVELS.loader) + len(LEVELS.computation) - 2
    assert FallbackState().for_new_supervisor() == replace(FallbackState(), failures={})


def test_any_history_before_the_first_step_ends() -> None:
    for seed in range(50):
        draw = random.Random(seed)
        state = FallbackState()
        for number in range(100):
            given = replace(any_facts(draw), trained=False, is_watched=number == 0, saved=False, disk_is_full=False)
            given = replace(given, disk_hangs=False)
            action = next_action(state, given)
            if isinstance(action, DeviceTest):
                action = next_action(state, replace(given, device_answers=True))
            if isinstance(action, Finish):
                break
            assert action.pause_s > 0
            state = action.state
        assert isinstance(action, Finish)
        assert action.code in (ExitCode.FAILED, ExitCode.USAGE, ExitCode.GAVE_UP, ExitCode.NEEDS_REBOOT)


if __name__ == "__main__":
    print(page(), end="")
