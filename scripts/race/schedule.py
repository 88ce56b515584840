"""Which fault happens at which optimizer step: drawn from a seed, the same for every system."""

import random
from dataclasses import dataclass
from typing import Literal, get_args

from race.systems import STEPS_PER_EPOCH

Kind = Literal["kill", "hang", "save", "disk", "nan"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TITLES: dict[Kind, str] = {
    "kill": "SIGKILL",
    "hang": "loader hang",
    "save": "SIGKILL in a save",
    "disk": "full disk",
    "nan": "NaN",
}


@dataclass(frozen=True)
class Fault:
    """A fault that happens when `step` optimizer steps are done for the first time; a NaN is in this step itself."""

    kind: Kind
    step: int


def draw_schedule(kinds: tuple[Kind, ...], steps: int, seed: int) -> list[Fault]:
    """Return one fault of each kind, in a random order, at random steps of equal parts of the training.

    The first epoch has no fault, so that a checkpoint exists. No fault is in the last steps of its epoch, where the
    loader has delivered all batches and a hang would have no effect.

    Args:
        kinds: Kinds of faults, each at most once.
        steps: Optimizer steps of the training.
        seed: Seed of order and steps.

    Raises:
        ValueError: If the training is too short.
    """
    epochs = steps // STEPS_PER_EPOCH - 1
    if epochs < len(kinds):
        least = (len(kinds) + 1) * STEPS_PER_EPOCH
        raise ValueError(f"--steps must be >= {least} for {len(kinds)} faults, got {steps}")
    draw = random.Random(seed)
    order = draw.sample(kinds, len(kinds))
    bounds = [1 + epochs * number // len(kinds) for number in range(len(kinds) + 1)]
    faults = []
    for kind, first, end in zip(order, bounds, bounds[1:], strict=False):
        faults.append(Fault(kind, draw.randrange(first, end) * STEPS_PER_EPOCH + draw.randint(2, 5)))
    return faults
