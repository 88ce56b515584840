"""One run that is killed again and again at random moments, and rows of random faults."""

import random
import signal
import time

from faults.case import AT_ONCE_S, Case, Report
from faults.outside import Deed, at_step, edit, in_phase, to_trainer, to_worker, while_saving
from faults.run import KILLS, Act, Run
from faults.workshop import STEPS_PER_EPOCH, epochs_option
from yolo_lightning.supervision.classify import StallClass
from yolo_lightning.supervision.heartbeat import Phase

EPOCHS = 4
STEPS = STEPS_PER_EPOCH * EPOCHS
CHECKPOINT_BYTES = 36_000_000
LARGEST_PAUSE_S = 0.1
HANGS = ("sleep", "lock", "compute", "c_call", "c_call_with_lock", "d_state")
DEATHS = ("kill", "segfault", "abort", "exit_3")
WORKER_SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
MOMENTS = ("a step", "a save", "a validation", "the end of an epoch", "soon after the kill before")


def soak(kills: int, seed: int) -> Case:
    """One run of four epochs, killed at random moments of all kinds, each time with another number of workers.

    Args:
        kills: How many.
        seed: Decides the moments.
    """
    generator = random.Random(seed)
    # The last epoch is left for what a kill before has put off: not every moment comes again at once.
    steps = sorted(generator.randrange(1, STEPS - STEPS_PER_EPOCH) for _ in range(kills))
    moments = [generator.choice(MOMENTS) for _ in steps]
    acts = tuple(kill(moment, step, generator) for moment, step in zip(moments, steps, strict=True))
    return Case(
        f"soak{kills}",
        f"{kills} kills at random moments of one run, seed {seed}",
        outside=acts,
        reports=(Report(StallClass.UNKNOWN, ("SIGKILL",), within_s=AT_ONCE_S),) * kills,
        supervision={"attempts": 10 * kills},
        options=epochs_option(EPOCHS),
        limit_s=120.0 * (kills + 1),
    )


def kill(moment: str, step: int, generator: random.Random) -> Act:
    """One of them, not before `step`."""
    begin = step // STEPS_PER_EPOCH * STEPS_PER_EPOCH
    deeds: tuple[Deed, ...] = (
        pause(generator.uniform(0, LARGEST_PAUSE_S)),
        edit(data__loader__num_workers=generator.choice((0, 0, 1, 2))),
        note_moment(moment),
        to_trainer(signal.SIGKILL),
    )
    if moment == "a save":
        return while_saving(generator.randrange(CHECKPOINT_BYTES), together(*deeds[1:]))
    if moment == "a validation":
        return in_phase(Phase.VALIDATE, *deeds, step=begin)
    if moment == "the end of an epoch":
        return in_phase(Phase.EPOCH_END, *deeds, step=begin)
    return at_step(0 if moment == MOMENTS[-1] else step, *deeds)


def pause(seconds: float) -> Deed:
    """So that the moment is none that the harness could choose."""
    return lambda run: time.sleep(seconds)


def together(*deeds: Deed) -> Deed:
    """Several as one."""

    def deed(run: Run) -> None:
        for one in deeds:
            one(run)

    return deed


def note_moment(moment: str) -> Deed:
    """For the table."""

    def deed(run: Run) -> None:
        assert run.record is not None
        place = (moment, run.record.phase.name.lower().replace("_", " "), run.record.epoch, run.record.step)
        run.notes.setdefault(KILLS, []).append(place)

    return deed


def random_case(seed: int) -> Case:
    """Row 42: two faults of the trainer and one of a worker, at random steps of one run."""
    generator = random.Random(seed)
    first, second, third = generator.randrange(3, 9), generator.randrange(12, 18), generator.randrange(21, 27)
    kinds = [generator.choice(HANGS + DEATHS) for _ in range(2)]
    number = generator.choice(WORKER_SIGNALS)
    inside = tuple(f"{kind} @ step {step}" for kind, step in zip(kinds, (first, second), strict=True))
    return Case(
        f"42{chr(ord('a') + seed)}",
        f"random: {', then '.join(inside)}, then {number.name} to a worker at step {third}",
        inside,
        outside=(at_step(third, to_worker(number)),),
        reports=(Report(None),) * 3,
        short_s={"step_s": 3.0, "fetch_s": 3.0, "save_s": 5.0},
        workers=2,
        rung=int(number is signal.SIGSTOP),
    )


RANDOM_CASES = tuple(random_case(seed) for seed in range(3))
