"""Random cases of the fault matrix: faults below Python, signals, and faults of operators, drawn by a seed.

No fault uses a name of the package. System calls fail, block or are slow by `system_calls.c`, in a process that is
selected by its generation (0 is the supervisor, 1 are its children, 2 their children). Operators of torch hang, raise
or return wrong values by `operators.py`.
"""

import errno
import json
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from faults import traces
from faults.actions import (
    ALWAYS,
    TRAINING,
    Effect,
    at_step,
    effect,
    operator_fault,
    save_every,
    send,
    serve,
    stop_serving,
    when,
)
from faults.hangs import FIRED_FILE, record_fired
from faults.judge import FinalState, Verdict, differences, leftovers, restarts
from faults.run import EPOCHS, MARK_VARIABLE, REPOSITORY, STEPS_PER_EPOCH, Action, Case, Run, put
from yolo_lightning.supervision.heartbeat import Phase

CONTROL = struct.Struct("<8i3dq256s")
"""`struct control` of system_calls.c."""

FAMILIES = ("open", "read", "write", "fsync", "rename", "unlink", "stat", "mmap", "fork", "clock", "ioctl")
EFFECTS = ("fail", "block", "slow", "jump")
GENERATIONS = ("supervisor", "child of the supervisor", "grandchild of the supervisor")
ERRORS = {
    "open": ("EIO", "EMFILE", "ENFILE", "ENOENT", "ESTALE", "ENXIO", "EACCES"),
    "read": ("EIO", "ESTALE"),
    "write": ("EIO", "ENOSPC", "EDQUOT", "EROFS"),
    "fsync": ("EIO", "ENOSPC"),
    "rename": ("EIO", "EROFS", "ENOSPC"),
    "unlink": ("EIO", "EROFS"),
    "stat": ("EIO", "ESTALE", "EACCES"),
    "mmap": ("ENOMEM", "ENODEV"),
    "fork": ("EAGAIN", "ENOMEM"),
    "ioctl": ("EIO", "ENODEV"),
}
ANYWHERE = "any folder"
FOLDERS = {
    "open": (ANYWHERE, "run", "data", "tmp", "packages"),
    "read": (ANYWHERE, "run", "data", "packages"),
    "write": (ANYWHERE, "run"),
    "fsync": (ANYWHERE, "run"),
    "rename": ("run",),
    "unlink": ("run", "tmp"),
    "stat": (ANYWHERE, "run", "data", "tmp", "packages"),
    "mmap": (ANYWHERE, "data", "packages"),
}
"""Folders in which the calls of a family occur."""

BY_WORKERS = ("open", "read", "stat", "mmap", "clock")
DURATIONS_S = (0.0, 0.5, 5.0, 20.0)
FOREVER_S = 1e6
PRELOAD = {"FAULTS_CONTROL": "{folder}/control", "LD_PRELOAD": "{folder}/../system_calls.so"}
HOUR_S = 3600.0
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGTERM, signal.SIGHUP)
PERSISTENT = ("hang", "device error", "error of a library", "NaN")
ONCE = ("hang", "device error", "error of a library", "error without a cause", "out of memory", "a bug", "NaN", "wrong")
CHANGES_VALUES = frozenset({"NaN", "wrong", "out of memory", "device error", "error of a library"})
"""Effects after which values differ: the step is skipped, or the level of the computation is lowered at once."""

OPERATORS_PER_STEP = 3000
STEPS = EPOCHS * STEPS_PER_EPOCH
TIMEOUTS_S = {
    "first_batch_s": 60.0,
    "fetch_s": 4.0,
    "step_s": 4.0,
    "save_s": 5.0,
    "validate_s": 15.0,
    "metrics_s": 5.0,
    "epoch_end_s": 5.0,
}
LIMIT_S = 420.0
WEIGHTS = (6, 2, 2)  # of system calls, signals and operators
LATEST_STEP = STEPS - 6
"""A phase can be shorter than the interval at which the phases are read; from this step on, any phase is taken."""

Moment = Callable[[random.Random], tuple[str, Callable[[Effect], Action]]]
"""Returns the description and the trigger of a moment."""

WITHOUT_FAULT = frozenset({"started", "finished", "recovered"})
"""Notifications that name no fault."""


def random_cases(count: int, seed: int, first: int = 0) -> tuple[Case, ...]:
    """Return `count` cases of a seed from the number `first` on; a case depends on the seed and its number alone."""
    return tuple(random_case(f"{seed}-{number}") for number in range(first, first + count))


def random_case(name: str) -> Case:
    generator = random.Random(name)
    draw = generator.choices((system_call, any_signal, operator), WEIGHTS)[0]
    case = draw(name, generator)
    return replace(
        case,
        name=name,
        timeouts_s=TIMEOUTS_S,
        limit_s=LIMIT_S,
        lost_steps=None,
        prepare=partial(prepare, of_case=case.prepare),
        clean_up=stop_serving,
    )


def prepare(run: Run, of_case: Callable[[Run], None]) -> None:
    """Record the notifications of a case, and do what the case itself prepares."""
    put(run.configuration, "supervision.notify.webhook", serve(run, 200))
    of_case(run)


def long_case(minutes: float, count: int, seed: int) -> Case:
    """Return a run of some minutes with `count` random faults at equal distances, finished without intervention."""
    generator = random.Random(f"{float(minutes)}-{count}-{seed}")
    parts = []
    for number in range(1, count + 1):
        draw = generator.choices((system_call, descendant_signal, operator), WEIGHTS)[0]
        parts.append(draw(str(number), generator, after_first_step(minutes * 60 * number / (count + 1))))

    faults = "; ".join(part.fault for part in parts)

    def prepare_parts(run: Run) -> None:
        make_control(run)
        save_every(50)(run)
        for part in parts:
            part.prepare(run)

    return Case(
        "long",
        f"{count} random faults in a run of {minutes:g} minutes, seed {seed}: {faults}",
        outside=tuple(action for part in parts for action in part.outside),
        config={"max_hours": minutes / 60},
        timeouts_s=TIMEOUTS_S,
        workers=2,
        environment=PRELOAD,
        limit_s=120 * minutes + LIMIT_S,
        prepare=partial(prepare, of_case=prepare_parts),
        clean_up=stop_serving,
        exact=False,
    )


def after_first_step(seconds: float) -> Moment:
    """Return the moment of a running training that is `seconds` after its first step, whatever has happened before."""

    def has_come(run: Run) -> bool:
        heartbeat = run.record
        if heartbeat is None or heartbeat.step == 0 or heartbeat.phase not in TRAINING:
            return False
        begin_s: float = run.notes.setdefault("first step", time.monotonic())
        return time.monotonic() >= begin_s + seconds

    return lambda generator: (f"after {seconds:.0f} s", partial(when, has_come))


def random_moment(generator: random.Random) -> tuple[str, Callable[[Effect], Action]]:
    """Return the description and the trigger of a random moment after the first step."""
    step = generator.randrange(1, STEPS - 2)
    phase = generator.choice((None, None, None, Phase.SAVE, Phase.VALIDATE, Phase.EPOCH_END))
    if phase is None:
        return f"at step {step}", lambda effect: at_step(step, effect)

    def has_come(run: Run) -> bool:
        heartbeat = run.fresh
        return (
            heartbeat is not None and heartbeat.step > 0 and (heartbeat.phase is phase or heartbeat.step >= LATEST_STEP)
        )

    return f"in the phase {phase.label}", lambda effect: when(has_come, effect)


def system_call(name: str, generator: random.Random, moment: Moment = random_moment) -> Case:
    """Return a case in which one family of system calls is faulty for some time."""
    generation = generator.randrange(3)
    family = generator.choice(BY_WORKERS if generation == 2 else FAMILIES)
    duration_s = generator.choice(DURATIONS_S)
    each_s = 0.0
    if family == "clock":
        how = "jump"
        each_s = generator.choice((-HOUR_S, HOUR_S))
        duration_s = 10.0
    else:
        how = generator.choice(("fail", "fail", "fail", "block", "slow"))
    error = generator.choice(ERRORS[family]) if how == "fail" else ""
    if how == "block":
        duration_s = 15.0 if generation == 0 else generator.choice((15.0, FOREVER_S))
    if how == "slow":
        each_s = generator.uniform(0.05, 0.5)
        duration_s = 10.0
    folder = generator.choice(FOLDERS.get(family, (ANYWHERE,)))
    if generation == 2 and folder in ("run", "tmp"):
        folder = "data"
    skip = generator.choice((0, 0, generator.randrange(30)))
    needs_start = folder in ("data", "packages") or family == "fork"  # most of these calls occur when a trainer starts
    restarts_trainer = generator.random() < (0.7 if needs_start else 0.2)
    moment_name, trigger = moment(generator)
    fault = (
        f"{family} {error or how} for {duration_s:g} s, {folder}, {GENERATIONS[generation]}, call {skip}, {moment_name}"
    )
    if restarts_trainer:
        fault += ", with SIGKILL to the trainer"
    workers = 2 if generation == 2 else generator.choice((0, 1, 2))
    armed = arm(generation, family, how, error, skip, duration_s, each_s, folder, restarts_trainer)
    return Case(
        name,
        fault,
        outside=(trigger(armed),),
        workers=workers,
        environment=PRELOAD,
        prepare=make_control,
    )


def make_control(run: Run) -> None:
    (run.folder / "control").write_bytes(bytes(CONTROL.size))


@effect
def arm(
    run: Run,
    generation: int,
    family: str,
    how: str,
    error: str,
    skip: int,
    duration_s: float,
    each_s: float,
    folder: str,
    restarts_trainer: bool,
) -> None:
    """Switch the fault on, in all processes of the case at once."""
    run.begin_fault(f"{family} {error or how}, {folder}, {GENERATIONS[generation]}")
    places = {
        ANYWHERE: "",
        "run": str(run.run_folder),
        "data": str(run.root / "data"),
        "tmp": str(run.temporary),
        "packages": sysconfig.get_path("purelib"),
    }
    number = getattr(errno, error) if error else 0
    values = (0, run.process.pid, generation, FAMILIES.index(family), EFFECTS.index(how), number, skip, 0)
    content = CONTROL.pack(*values, duration_s, each_s, 0.0, 0, places[folder].encode())
    with (run.folder / "control").open("r+b") as file, mmap.mmap(file.fileno(), CONTROL.size) as control:
        control[:] = content
        control[:4] = struct.pack("<i", 1)
    if restarts_trainer:
        os.kill(run.trainer, signal.SIGKILL)


def any_signal(name: str, generator: random.Random) -> Case:
    """Return a case in which a random process of the tree receives a signal."""
    moment_name, trigger = random_moment(generator)
    if generator.random() < 0.2:
        number = generator.choice((signal.SIGKILL, signal.SIGABRT))
        fault = f"{number.name} to the supervisor {moment_name}"
        # Without a supervisor, a run that has saved nothing cannot be resumed.
        effects = (when(has_saved), trigger(send(number, "supervisor")))
        return Case(name, fault, outside=effects, codes=(-number, 0), workers=1)
    return descendant_signal(name, generator, lambda generator: (moment_name, trigger))


def descendant_signal(name: str, generator: random.Random, moment: Moment) -> Case:
    """Return a case in which a random process that the supervisor has started receives a signal."""
    moment_name, trigger = moment(generator)
    number = generator.choice(SIGNALS)
    order = generator.random()
    workers = generator.choice((0, 1, 2))
    fault = f"{number.name} to a descendant of the supervisor {moment_name}"
    return Case(name, fault, outside=(trigger(to_descendant(number, order)),), workers=workers)


def has_saved(run: Run) -> bool:
    return any((run.run_folder / "checkpoints").glob("*.ckpt"))


@effect
def to_descendant(run: Run, number: signal.Signals, order: float) -> None:
    """Send a signal to one of the processes that the supervisor has started, directly or not."""
    processes = sorted(set(traces.marked(MARK_VARIABLE, run.mark)) - {run.process.pid})
    process = processes[int(order * len(processes))]
    run.begin_fault(f"{number.name} to {process}")
    record_fired(run.folder, Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")[:200])
    os.kill(process, number)


def operator(name: str, generator: random.Random, moment: Moment | None = None) -> Case:
    """Return a case in which an operator of torch is faulty, once or until the computation does without it.

    The fault begins at a random step, or at `moment`.
    """
    persists = generator.random() < 0.4
    how = generator.choice(PERSISTENT if persists else ONCE)
    step = generator.randrange(1, STEPS - 4)
    call = generator.randrange(100 if persists else OPERATORS_PER_STEP)
    part = "convolution" if persists else ""
    often = "always" if persists else "once"
    place = f"after step {step}"
    begin = ""
    outside: tuple[Action, ...] = ()
    if moment is not None:
        place, trigger = moment(generator)
        step = 0
        begin = f"begin of fault {name}"
        outside = (trigger(lambda run: (run.folder / begin).touch()),)
    attempts = ALWAYS if persists else 0
    return Case(
        name,
        f"{how}, {often}, in {part or 'any operator'}, call {call} {place}",
        outside=outside,
        workers=generator.choice((0, 1)),
        prepare=operator_fault(effect=how, name=part, step=step, call=call, attempts=attempts, begin=begin),
        exact=not persists and how not in CHANGES_VALUES,
    )


def judge_random(run: Run, expected: FinalState | None) -> Verdict:
    """Return the verdict on a random case.

    A pass means: training has finished without intervention, with the documented exit codes, with the final state of an
    uninterrupted run where the fault does not change values; nothing is left behind; and the notifications name a fault
    if there was a restart, and the end.
    """
    case = run.case
    remaining = leftovers(run)
    wrong = [f"did not end within {case.limit_s:g} s"] if run.hung else []
    if tuple(run.codes) != case.codes:
        wrong.append(f"exit codes {run.codes} instead of {list(case.codes)}")
    if remaining:
        wrong.append(f"left behind: {', '.join(remaining)}")
    try:
        final = FinalState.read(run.run_folder)
    except (OSError, KeyError) as error:
        wrong.append(f"no final state: {error}")
    else:
        # A hang in which the process waits for the device lowers the computation, which then rounds differently.
        is_hang = case.fault.startswith("hang")
        is_lowered = is_hang and any("computation: gemm" in text for _, text in run.notes["messages"])
        if case.exact and expected is not None and not is_lowered:
            wrong += differences(final, expected)
        elif final.steps != STEPS and "max_hours" not in case.config:
            wrong.append(f"{final.steps} steps trained instead of {STEPS}")
    wrong += wrong_messages(run, [text for _, text in run.notes["messages"]])
    lost, recovered = restarts(run.beats, run.lines)
    incidents = run.incidents()
    return Verdict(
        case.name,
        case.fault if run.fired_s() else f"{case.fault} (did not happen)",
        reported=incidents[-1]["sentence"].replace(f"{run.folder}/", "") if incidents else "",
        lost_steps=max(lost, default=None),
        recovered_s=max(recovered, default=None),
        leftovers=tuple(remaining),
        codes=tuple(run.codes),
        wrong=tuple(wrong),
    )


def wrong_messages(run: Run, messages: list[str]) -> list[str]:
    """Return what is missing in the notifications of a case."""
    if run.codes and run.codes[-1] == 0 and not any(": finished" in message for message in messages):
        return ["the end was not notified"]
    trainers = {beat.process for beat in run.beats}
    restarts_by_case = len(run.codes)
    named = [message for message in messages if not any(f": {event}" in message for event in WITHOUT_FAULT)]
    if len(trainers) > restarts_by_case and not named:
        return [f"{len(trainers)} trainers, and no notification names a fault"]
    return []


def judge_long(run: Run, expected: FinalState | None) -> Verdict:
    """Return the verdict on a long run, and print its faults, its notifications and the screen of `monitor`."""
    verdict = judge_random(run, expected)
    begin_s: float = run.notes["first step"]
    print("Faults, in seconds after the first step:")
    for line in (run.folder / FIRED_FILE).read_text().splitlines():
        fired = json.loads(line)
        print(f"{fired['at_s'] - begin_s:6.0f}  {fired['fault']}")
    print("\nNotifications:")
    for at_s, content in run.notes["messages"]:
        print(f"{at_s - begin_s:6.0f}  {content}")
    monitor = [sys.executable, "-m", "yolo_lightning", "monitor", str(run.run_folder), "--once"]
    print(f"\n{subprocess.run(monitor, cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout}")
    return verdict
