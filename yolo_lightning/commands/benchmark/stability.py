"""Stability run: two equal trainings must be finite, equal bit for bit, and must not leak memory."""

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch

from yolo_lightning.commands.benchmark.baselines import Variant
from yolo_lightning.commands.benchmark.passes import Autocast, make_module, step_pass, synthetic_batch, variant_module
from yolo_lightning.conv import Plan
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.utils.process_identity import read_process

VARIANT = Variant.GEMM_NHWC
"""The default convolution and layout."""
SEED = 1
BATCHES = 4
WARM_UP_FRACTION = 0.2
CPU_GROWTH_BYTES = 32 * 2**20
"""Tolerance on a CPU: the heap of the C library varies by some MiB."""
DEVICE_GROWTH_BYTES = 2**20


@dataclass(kw_only=True)
class Stability:
    """Result of two equal trainings."""

    steps: int  # steps of each training
    image_size: int | list[int]  # side of the square input, or height and width, pixels
    first_loss: float  # loss per image in the first step
    last_loss: float  # loss per image in the last step
    finite: bool  # whether all losses are finite
    equal: bool  # whether the losses of both trainings are equal bit for bit
    first_difference: int | None  # first step (from 0) whose losses differ, or None
    largest_difference: float  # largest relative difference of two losses
    growth_bytes: int | None  # memory use at the end minus that after the warm-up; None if it cannot be measured
    allowed_growth_bytes: int  # largest growth that passes
    failure: str | None = None  # error that ended a training, or None
    passed: bool = field(init=False)  # whether no check failed

    def __post_init__(self) -> None:
        grows = self.growth_bytes is not None and self.growth_bytes > self.allowed_growth_bytes
        self.passed = self.failure is None and self.finite and self.equal and not grows


def run_stability(
    plan: Plan,
    device: torch.device,
    autocast: Autocast,
    *,
    steps: int,
    image_size: int | Sequence[int],
    batch_size: int,
) -> Stability:
    """Train twice from one seed with `VARIANT` on the same batches and compare the losses. An error fails the run.

    On an accelerator, deterministic algorithms of PyTorch are enabled where they exist.
    """
    memory: list[int] = []

    def train() -> list[float]:
        module = variant_module(make_module(SEED), VARIANT, plan, device)
        seeds = range(SEED, SEED + BATCHES)
        batches = [synthetic_batch(batch_size, image_size, seed).to(device) for seed in seeds]
        one_pass = step_pass(module, batches, autocast)
        losses = []
        for _ in range(steps):
            losses.append(float(one_pass.run()))
            if device.type == "cuda":
                memory.append(torch.cuda.memory_allocated(device))
            elif (process := read_process(os.getpid())) is not None:
                memory.append(process.memory_bytes)
        return losses

    failure = None
    try:
        with nullcontext() if device.type == "cpu" else _deterministic():
            one, two = train(), train()
    except Exception as error:  # any error is a result
        failure = f"{type(error).__name__}: {error}".splitlines()[0]
        one = two = [math.nan]
    differing = [step for step, pair in enumerate(zip(one, two, strict=True)) if pair[0] != pair[1]]
    return Stability(
        steps=steps,
        image_size=ImageSize.of("image_size", image_size).plain(),
        first_loss=one[0],
        last_loss=one[-1],
        finite=all(map(math.isfinite, one + two)),
        equal=not differing,
        first_difference=differing[0] if differing else None,
        largest_difference=max((abs(one[i] - two[i]) / max(abs(one[i]), 1e-12) for i in differing), default=0.0),
        growth_bytes=growth(memory, warm_up=math.ceil(steps * WARM_UP_FRACTION)),
        allowed_growth_bytes=CPU_GROWTH_BYTES if device.type == "cpu" else DEVICE_GROWTH_BYTES,
        failure=failure,
    )


def growth(memory: list[int], warm_up: int) -> int | None:
    """Return the growth of the memory use after the warm-up, bytes, or None if there are fewer than two values.

    `memory` contains the bytes in use after each step, `warm_up` is a number of steps. Compares the minimum of the last
    tenth of the steps with the minimum of the first tenth, so that memory that is freed again does not count.
    """
    settled = memory[warm_up:]
    if len(settled) < 2:
        return None
    tenth = max(len(settled) // 10, 1)
    return min(settled[-tenth:]) - min(settled[:tenth])


@contextmanager
def _deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*deterministic.*")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
