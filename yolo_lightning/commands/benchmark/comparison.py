"""Measurement of several variants of the same work in turns, in one process."""

import gc
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch

from yolo_lightning.commands.benchmark.baselines import Variant
from yolo_lightning.commands.benchmark.footprint import Footprint, measure_footprint
from yolo_lightning.commands.benchmark.timing import Clock, Pass, Spread, rounds

MIN_SAMPLE_S = 0.01
MAX_PASSES_PER_SAMPLE = 20

REFERENCES = ("native", "slow", "unfold", "gemm")
"""Implementations that ratios may refer to; the first one that was measured is the reference."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Duration of a training that consists of training steps only: no data loading, validation or checkpoints.

    Attributes:
        epoch_s: Seconds per epoch at the median step.
        epoch_range_s: Seconds per epoch at the shortest and at the longest step.
        run_s: Seconds for all epochs at the median step.
        run_range_s: Seconds for all epochs at the shortest and at the longest step.
    """

    epoch_s: float
    epoch_range_s: tuple[float, float]
    run_s: float
    run_range_s: tuple[float, float]


@dataclass(slots=True)
class Result:
    """Times of one variant, or its failure.

    Attributes:
        variant: The measured variant.
        stages: Time of each stage of a pass; empty if the variant failed.
        total: Time of the pass; None if the variant failed, and so are all values below that depend on it.
        footprint: Memory and launches; None if they were not requested.
        failure: Type and first line of the error, or None.
        reference: Variant that `ratio_to_reference` refers to.
        ratio_to_reference: Time divided by the time of the reference.
        ratio_to_slow: Time divided by the time of `slow`.
        gflops: Rate of a layer, 1e9 operations per second.
        share_of_gemm: `gflops` divided by the GEMM ceiling.
        estimate: Duration of a training with the step time `total`.
    """

    variant: Variant
    stages: dict[str, Spread]
    total: Spread | None
    footprint: Footprint | None = None
    failure: str | None = None
    reference: Variant | None = None
    ratio_to_reference: float | None = None
    ratio_to_slow: float | None = None
    gflops: float | None = None
    share_of_gemm: float | None = None
    estimate: Estimate | None = None


@dataclass
class _PreparedVariant:
    """A prepared variant: its pass, the passes per sample, and the samples so far in seconds per stage."""

    work: Pass
    clock: Clock
    footprint: Footprint | None = None
    calls: int = 1
    samples: list[dict[str, float]] = field(default_factory=list)

    def sample(self) -> dict[str, float]:
        for _ in range(self.calls):
            self.work.run(self.clock)
        return {name: total / self.calls for name, total in self.clock.read().items()}


def compare(
    passes: Mapping[Variant, Callable[[], Pass]],
    switches: Callable[[Variant], AbstractContextManager[None]],
    device: torch.device,
    *,
    repeats: int,
    footprints: bool,
    profiled: bool,
) -> list[Result]:
    """Measure every variant once per round; the variant that starts changes from round to round.

    A variant that raises an error is excluded from later rounds, and its result contains the error.

    Args:
        passes: Functions that prepare the work of a variant; all are prepared before the first is timed.
        switches: Returns the context in which a variant runs.
        device: Device of the work.
        repeats: Number of measured rounds, after one warm-up pass that determines the passes per sample.
        footprints: Whether to measure memory and launches.
        profiled: Whether `footprints` may use the profiler.
    """
    runners: dict[Variant, _PreparedVariant] = {}
    failures: dict[Variant, str] = {}

    def prepare(variant: Variant) -> None:
        runner = _PreparedVariant(passes[variant](), Clock(device))
        runner.work.run()
        if footprints:
            runner.footprint = measure_footprint(runner.work, device, profiled)
        warm_s = sum(runner.sample().values())
        runner.calls = min(max(math.ceil(MIN_SAMPLE_S / max(warm_s, 1e-9)), 1), MAX_PASSES_PER_SAMPLE)
        runners[variant] = runner

    def sample(variant: Variant) -> None:
        runners[variant].samples.append(runners[variant].sample())

    def guarded(action: Callable[[Variant], None], variant: Variant) -> None:
        try:
            with switches(variant):
                action(variant)
        except Exception as error:  # any failure of a baseline is a result and must not end the comparison
            lines = str(error).strip().splitlines() or [""]
            failures[variant] = f"{type(error).__name__}: {lines[0]}".rstrip(": ")
            runners.pop(variant, None)
            error.__traceback__ = None  # its frames refer to the tensors that may have filled the memory
        if variant in failures:
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()

    for variant in passes:
        guarded(prepare, variant)
    for order in rounds(list(passes), repeats):
        for variant in order:
            if variant not in failures:
                guarded(sample, variant)
    results = []
    for variant in passes:
        if variant in failures:
            results.append(Result(variant, {}, None, failure=failures[variant]))
            continue
        samples = runners[variant].samples
        stages = {name: Spread(tuple(sample[name] for sample in samples)) for name in samples[0]}
        total = Spread(tuple(sum(sample.values()) for sample in samples))
        results.append(Result(variant, stages, total, runners[variant].footprint))
    native, slow = reference(results), reference(results, ("slow",))
    for result in results:
        result.reference = None if native is None else native.variant
        result.ratio_to_reference, result.ratio_to_slow = ratio(result, native), ratio(result, slow)
    return results


def reference(results: list[Result], implementations: tuple[str, ...] = REFERENCES) -> Result | None:
    """Return the fastest variant of the first implementation that was measured, or None if none was."""
    for implementation in implementations:
        own = [(r.total.median_s, r) for r in results if r.variant.implementation == implementation and r.total]
        if own:
            return min(own, key=lambda pair: pair[0])[1]
    return None


def ratio(result: Result, to: Result | None) -> float | None:
    """Return the time of `result` divided by the time of `to`, or None if one of them was not measured."""
    return result.total.ratio_to(to.total) if result.total and to and to.total else None


def estimate(step: Spread, batch_size: int, frames: int, epochs: int) -> Estimate:
    """Return the duration of `epochs` over `frames` frames; a smaller last batch counts as a full step."""
    steps = math.ceil(frames / batch_size)
    shortest, median, longest = (steps * time_s for time_s in (step.minimum_s, step.median_s, step.maximum_s))
    return Estimate(median, (shortest, longest), epochs * median, (epochs * shortest, epochs * longest))
