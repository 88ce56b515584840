"""From the time of a step to the time of a training."""

import math
from dataclasses import dataclass

from yolo_lightning.commands.benchmark.timing import Spread


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long a training would take if nothing but steps took time: no loader, no validation, no checkpoints.

    Attributes:
        epoch_s: Seconds per epoch at the median step.
        epoch_range_s: The same at the shortest and at the longest step.
        run_s: Seconds for all epochs at the median step.
        run_range_s: The same at the shortest and at the longest step.
    """

    epoch_s: float
    epoch_range_s: tuple[float, float]
    run_s: float
    run_range_s: tuple[float, float]


def estimate(step: Spread, batch_size: int, frames: int, epochs: int) -> Estimate:
    """The time of `epochs` times all `frames`, in steps of `batch_size` frames; a last smaller batch is a full step."""
    steps = math.ceil(frames / batch_size)
    shortest, median, longest = (steps * time_s for time_s in (step.minimum_s, step.median_s, step.maximum_s))
    return Estimate(median, (shortest, longest), epochs * median, (epochs * shortest, epochs * longest))
