"""Rows 12 to 20, 27, 28, 34 to 37, 43: the training process hangs, dies, is stopped, is slow, computes NaN."""

import signal

from faults.case import AT_ONCE_S, Case, Report
from faults.outside import at_step, in_phase, to_group, to_trainer, while_saving
from faults.run import Act, Run
from yolo_lightning.supervision.classify import StallClass
from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.supervision.settings import SuperviseSettings

UNKNOWN, GPU, LIVELOCK = StallClass.UNKNOWN, StallClass.GPU_STALL, StallClass.LIVELOCK
STEP = {"step_s": 2.0}
DEFAULTS = SuperviseSettings()


def hangs(name: str, fault: str, kind: str, *words: str, stall_class: StallClass = UNKNOWN) -> Case:
    """The trainer hangs in a step: the same rung again."""
    report = Report(stall_class, (f"{kind} (", *words), "step")
    return Case(name, f"trainer: {fault}", (f"{kind} @ step 8",), reports=(report,), short_s=STEP)


def dies(name: str, fault: str, kind: str, *words: str, step: int = 8) -> Case:
    """The trainer dies in a step."""
    report = Report(UNKNOWN, words, "step", AT_ONCE_S)
    return Case(name, f"trainer: {fault}", (f"{kind} @ step {step}",), reports=(report,))


def killed(name: str, fault: str, *places: str) -> Case:
    """The trainer is killed at hooks of the loop."""
    report = Report(UNKNOWN, ("SIGKILL",), within_s=AT_ONCE_S)
    inside = tuple(f"kill @ {place}" for place in places)
    return Case(name, f"trainer: SIGKILL {fault}", inside, reports=(report,) * len(places))


def by_default_in_time(run: Run) -> list[str]:
    """From the stall to the next step: the allowance, 20 s until the kill, at most 20 s to be back."""
    (fired_s,) = run.fired_s()
    first = run.beats[0].process
    trained = [beat.at_s for beat in run.beats if beat.process != first and beat.step > 8]
    run.notes["stall to next step"] = took_s = trained[0] - fired_s
    allowed_s = run.case.short_s["step_s"] + DEFAULTS.kill_after_s + 20.0 * run.busyness
    return (
        [] if took_s <= allowed_s else [f"{took_s:.1f} s from the stall to the step after, allowed are {allowed_s:g}"]
    )


def one_trainer(run: Run) -> list[str]:
    """Whether nothing was started again."""
    count = len({beat.process for beat in run.beats})
    return [] if count == 1 else [f"{count} trainers instead of one"]


def stopped(name: str, fault: str, number: signal.Signals, act: Act) -> Case:
    """A fit without a supervisor, with workers, is stopped, and resumed without losing a step."""
    return Case(
        name,
        f"without a supervisor: {fault}; then fit --resume",
        outside=(act,),
        codes=(128 + number, 0),
        options={"supervise": False},
        workers=2,
        lost_steps=0,
        log=(f"stopped by {number.name} after step", "resume with: "),
    )


CASES = (
    hangs("12a", "C call that releases the interpreter lock", "c_call", "state S"),
    hangs("12b", "the same under the name of a GPU's", "synchronize", "waits for the GPU", stall_class=GPU),
    Case(
        "12c",
        "trainer: C call, the supervisor as patient as by default",
        ("c_call @ step 8",),
        reports=(Report(UNKNOWN, ("c_call (",), "step"),),
        short_s={"step_s": 30.0},
        supervision={name: getattr(DEFAULTS, name) for name in ("poll_s", "kill_after_s", "pause_s", "resample_s")},
        check=by_default_in_time,
    ),
    hangs("13", "C call that holds the interpreter lock", "c_call_with_lock", "state S"),
    hangs("14a", "state D", "d_state", "state D"),
    hangs("14b", "state D, holding the interpreter lock", "d_state_with_lock", "state D"),
    Case(
        "15",
        "trainer: SIGSTOP",
        outside=(at_step(8, to_trainer(signal.SIGSTOP)),),
        reports=(Report(UNKNOWN, ("stopped (T)",)),),
        short_s=STEP | {"fetch_s": 2.0, "save_s": 2.0},
    ),
    hangs("16a", "busy loop", "compute", stall_class=LIVELOCK),
    hangs("16b", "lock that nobody releases", "lock"),
    Case(
        "16c",
        "trainer: regular expression without end",
        ("backtrack @ step 8",),
        reports=(Report(LIVELOCK, ("match (re/",), "step"),),
        short_s=STEP,
    ),
    Case(
        "17a",
        "trainer: SIGKILL",
        outside=(at_step(13, to_trainer(signal.SIGKILL)),),
        reports=(Report(UNKNOWN, ("SIGKILL",), within_s=AT_ONCE_S),),
    ),
    dies("17b", "segmentation fault", "segfault", "SIGSEGV"),
    dies("17c", "abort", "abort", "SIGABRT", step=19),
    Case(
        "18a",
        "trainer: SIGKILL as a save begins",
        outside=(at_step(6), while_saving(1, to_trainer(signal.SIGKILL))),
        reports=(Report(UNKNOWN, ("SIGKILL",), within_s=AT_ONCE_S),),
    ),
    Case(
        "18b",
        "trainer: SIGKILL within a save, TMPDIR on another file system",
        outside=(at_step(17), while_saving(20_000_000, to_trainer(signal.SIGKILL))),
        reports=(Report(UNKNOWN, ("SIGKILL",), within_s=AT_ONCE_S),),
        environment={"TMPDIR": "/dev/shm/{name}"},
    ),
    killed("19a", "within a validation", "validation 0"),
    killed("19b", "on an epoch's last batch", "last batch 0"),
    killed("19c", "at an epoch's end", "epoch end 0"),
    killed("19d", "before the first batch of an epoch", "epoch start 1"),
    killed("20", "twice in one epoch, the second", "step 23", "step 29"),
    Case(
        "27",
        "trainer: hangs at the same step again and again, without workers",
        ("lock @ step 2 always",),
        reports=(Report(UNKNOWN, ("lock (",), "step"),) * 3,
        codes=(76,),
        short_s=STEP,
        exact=False,
        log=("gave up: 3 attempts in a row",),
    ),
    Case(
        "28",
        "slow but alive: first batch, a step of ten times the length, validation, save",
        ("slow @ step 0", "half_a_second @ step 9", "slow @ validation 0", "slow @ save 2"),
        short_s=STEP | {"fetch_s": 2.0},
        check=one_trainer,
    ),
    Case(
        "34",
        "trainer: SIGTERM from outside",
        outside=(at_step(9, to_trainer(signal.SIGTERM)),),
        reports=(Report(UNKNOWN, ("stopped by SIGTERM (exit code 143)",), within_s=5.0),),
        lost_steps=0,
    ),
    Case(
        "35a",
        "trainer: hangs at the interpreter's end",
        ("sleep_at_exit @ fit end",),
        reports=(Report(UNKNOWN, ("sleep (",), "exit"),),
        short_s={"exit_s": 3.0},
        check=one_trainer,
    ),
    Case(
        "35b",
        "trainer: waits for a child in state D at the interpreter's end",
        ("stuck_child_at_exit @ fit end",),
        reports=(Report(UNKNOWN, (), "exit", within_s=12.0),),
        short_s={"exit_s": 3.0},
        check=one_trainer,
    ),
    Case(
        "36a",
        "trainer: hangs in the import of a plug-in",
        reports=(Report(UNKNOWN, ("sleep (",), "import"),) * 2,
        codes=(76,),
        short_s={"import_s": 15.0},
        exact=False,
        plug_in="faults.hangs_at_import.PlugIn",
    ),
    Case(
        "36b",
        "trainer: hangs in the set-up",
        ("sleep @ setup always",),
        reports=(Report(UNKNOWN, ("sleep (",), "setup"),) * 2,
        codes=(76,),
        short_s={"setup_s": 6.0},
        exact=False,
    ),
    Case("37", "trainer: a loss that is not a number", ("poison @ step 20",), exact=False, log=("not finite",)),
    stopped("43a", "Ctrl-C to the group", signal.SIGINT, at_step(8, to_group(signal.SIGINT))),
    stopped("43b", "SIGTERM to the group", signal.SIGTERM, at_step(8, to_group(signal.SIGTERM))),
    stopped("43c", "SIGTERM to the main process", signal.SIGTERM, at_step(8, to_trainer(signal.SIGTERM))),
    stopped(
        "43d", "Ctrl-C to the group in a validation", signal.SIGINT, in_phase(Phase.VALIDATE, to_group(signal.SIGINT))
    ),
    Case(
        "43e",
        "without a supervisor: SIGTERM to the group before the first step",
        outside=(in_phase(Phase.FIRST_BATCH, to_group(signal.SIGTERM)),),
        codes=(128 + signal.SIGTERM,),
        options={"supervise": False},
        workers=2,
        exact=False,
        log=("stopped by SIGTERM before a step was trained: nothing to save",),
    ),
)
