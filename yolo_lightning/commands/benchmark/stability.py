"""Whether many steps stay finite, repeat bit for bit and do not gather memory."""

import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from yolo_lightning.commands.benchmark.baselines import Variant
from yolo_lightning.commands.benchmark.network import Autocast, make_module, step_pass, synthetic_batch, variant_module
from yolo_lightning.conv import Plan
from yolo_lightning.data.batch import Batch
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.module import YOLOModule

SEED = 1
BATCHES = 4
WARM_UP_SHARE = 0.2
CPU_GROWTH_BYTES = 32 * 2**20
"""Allowed: the C library's heap comes and goes by some megabytes."""
DEVICE_GROWTH_BYTES = 2**20
STATM = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True)
class Stability:
    """Outcome of two equal trainings.

    Attributes:
        variant: The convolution.
        steps: Of each training.
        image_size: Pixels.
        first_loss: Per image, first step.
        last_loss: Per image, last step.
        finite: No loss was NaN or infinite.
        equal: Losses of both trainings are equal bit for bit.
        first_difference: First step (from 0) whose losses differ, or None.
        largest_difference: Largest relative difference of two losses.
        growth_bytes: Memory in use at the end of both above that after the warm-up; None where it cannot be read.
        allowed_growth_bytes: Up to this is no growth.
        failure: The error that ended a training, or None.
    """

    variant: Variant
    steps: int
    image_size: int
    first_loss: float
    last_loss: float
    finite: bool
    equal: bool
    first_difference: int | None
    largest_difference: float
    growth_bytes: int | None
    allowed_growth_bytes: int
    failure: str | None = None

    @property
    def grows(self) -> bool:
        """Whether memory in use grew."""
        return self.growth_bytes is not None and self.growth_bytes > self.allowed_growth_bytes

    @property
    def passed(self) -> bool:
        """Whether everything is as it should be."""
        return self.failure is None and self.finite and self.equal and not self.grows


def run_stability(
    variant: Variant,
    plan: Plan,
    device: torch.device,
    autocast: Autocast,
    *,
    steps: int,
    image_size: int,
    batch_size: int,
) -> Stability:
    """Train twice from the same seed on the same few batches, and compare.

    On an accelerator PyTorch's deterministic algorithms are chosen where they exist. An error fails the run.
    """
    memory: list[int] = []
    trainings: list[list[float]] = []
    failure = None
    try:
        with _deterministic(device):
            for _ in range(2):
                module = variant_module(make_module(SEED), variant, plan, device)
                seeds = range(SEED, SEED + BATCHES)
                batches = [synthetic_batch(batch_size, image_size, len(CLASS_NAMES), seed).to(device) for seed in seeds]
                trainings.append(_losses(module, batches, device, autocast, steps, memory))
    except Exception as error:  # whatever it is, it is the result
        failure = f"{type(error).__name__}: {error}".splitlines()[0]
        trainings = [[math.nan], [math.nan]]
    one, two = trainings
    differing = [step for step, pair in enumerate(zip(one, two, strict=True)) if pair[0] != pair[1]]
    return Stability(
        variant,
        steps,
        image_size,
        one[0],
        one[-1],
        all(map(math.isfinite, one + two)),
        not differing,
        differing[0] if differing else None,
        max((abs(one[step] - two[step]) / max(abs(one[step]), 1e-12) for step in differing), default=0.0),
        growth(memory, warm_up=math.ceil(steps * WARM_UP_SHARE)),
        CPU_GROWTH_BYTES if device.type == "cpu" else DEVICE_GROWTH_BYTES,
        failure,
    )


def growth(memory: list[int], warm_up: int) -> int | None:
    """How much higher the last tenth of `memory` (bytes after each step) lies than the tenth after the warm-up.

    Of each tenth the lowest value counts: what is given back again was no growth. None where too little is known.
    """
    settled = memory[warm_up:]
    if len(settled) < 2:
        return None
    tenth = max(len(settled) // 10, 1)
    return min(settled[-tenth:]) - min(settled[:tenth])


def _losses(
    module: YOLOModule,
    batches: list[Batch],
    device: torch.device,
    autocast: Autocast,
    steps: int,
    memory: list[int],
) -> list[float]:
    """Loss per image of every step; appends the bytes in use after each step to `memory`."""
    one_pass = step_pass(module, batches, autocast)
    losses = []
    for _ in range(steps):
        losses.append(float(one_pass.run()))
        if (used := _memory_in_use(device)) is not None:
            memory.append(used)
    return losses


def _memory_in_use(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


@contextmanager
def _deterministic(device: torch.device) -> Iterator[None]:
    if device.type == "cpu":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*deterministic.*")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
