"""One run that is killed repeatedly at random moments, and the rows of random faults."""

import random
import signal
import time

from faults.actions import TRAINING, at_step, edit, in_phase, send, while_saving
from faults.run import STEPS_PER_EPOCH, Action, Case, Report
from yolo_lightning.supervision.classify import StallClass
from yolo_lightning.supervision.heartbeat import Phase

KILLED_EPOCHS = 4
CHECKPOINT_BYTES = 36_000_000
LARGEST_PAUSE_S = 0.1
HANGS = ("sleep", "lock", "compute", "c_call", "c_call_with_lock", "d_state")
DEATHS = ("kill", "segfault", "abort", "exit_3")
TRIGGERS = ("step", "save", "validation", "end of an epoch", "soon after the previous kill")


def random_kills(kills: int, seed: int) -> Case:
    """Return a run of four epochs that is killed `kills` times, each time with another number of workers."""
    generator = random.Random(seed)
    # The last epoch is reserved for kills that are delayed, because a validation or an epoch end comes once per epoch.
    steps = sorted(generator.randrange(1, STEPS_PER_EPOCH * (KILLED_EPOCHS - 1)) for _ in range(kills))
    triggers = [generator.choice(TRIGGERS) for _ in steps]
    return Case(
        f"kills{kills}",
        f"{kills} kills at random moments of one run, seed {seed}",
        outside=tuple(kill(trigger, step, generator) for trigger, step in zip(triggers, steps, strict=True)),
        reports=(Report(StallClass.KILLED, ("SIGKILL",), within_s=1.0),) * kills,
        supervision={"attempts": 10 * kills},
        config={"trainer.max_epochs": KILLED_EPOCHS},
        limit_s=120.0 * (kills + 1),
    )


def kill(trigger: str, step: int, generator: random.Random) -> Action:
    """Return one kill, not before `step`."""
    pause_s = generator.uniform(0, LARGEST_PAUSE_S)  # at a moment that this script does not choose
    effects = (edit(data__loader__num_workers=generator.choice((0, 0, 1, 2))), send(signal.SIGKILL, "trainer"))
    if trigger == "save":
        return while_saving(generator.randrange(CHECKPOINT_BYTES), *effects)
    first_step = {"step": step, TRIGGERS[-1]: 0}.get(trigger, step // STEPS_PER_EPOCH * STEPS_PER_EPOCH)
    phase = {"validation": Phase.VALIDATE, "end of an epoch": Phase.EPOCH_END}.get(trigger, TRAINING)
    return in_phase(phase, lambda run: time.sleep(pause_s), *effects, step=first_step)


def _random_case(seed: int) -> Case:
    """Return a case of row 42: two faults of the trainer and one of a worker, at random steps of one run."""
    generator = random.Random(seed)
    first, second, third = generator.randrange(3, 9), generator.randrange(12, 18), generator.randrange(21, 27)
    kinds = [generator.choice(HANGS + DEATHS) for _ in range(2)]
    number = generator.choice((signal.SIGKILL, signal.SIGSTOP))
    inside = tuple(f"{kind} @ step {step}" for kind, step in zip(kinds, (first, second), strict=True))
    return Case(
        f"42{chr(ord('a') + seed)}",
        f"random: {', then '.join(inside)}, then {number.name} to a worker at step {third}",
        inside,
        (at_step(third, send(number, "worker")),),
        (Report(None),) * 3,
        timeouts_s={"step_s": 3.0, "fetch_s": 3.0, "save_s": 5.0},
        workers=2,
        fallback_level=int(number is signal.SIGSTOP),
        computation="gemm",  # two failures of the computation count, also with a checkpoint between
        exact=False,
    )


RANDOM_CASES = tuple(_random_case(seed) for seed in range(3))
