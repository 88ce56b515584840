"""Measurement of several variants of the same work in turns, in one process."""

import gc
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch

from yolo_lightning.commands.benchmark.baselines import Variant
from yolo_lightning.commands.benchmark.footprint import Footprint, measure_footprint
from yolo_lightning.commands.benchmark.timing import Pass, Spread, rounds

MIN_SAMPLE_S = 0.01
MAX_PASSES_PER_SAMPLE = 20

REFERENCES = ("native", "slow", "unfold", "gemm")
"""Implementations that ratios may refer to; the first one that was measured is the reference."""


@dataclass(slots=True)
class Result:
    """Times of one variant, or its failure."""

    variant: Variant  # the measured variant
    stages: dict[str, Spread] = field(default_factory=dict)  # time of each stage of a pass; empty if the variant failed
    total: Spread | None = None  # time of the pass; None if the variant failed
    footprint: Footprint | None = None  # memory and launches; None if they were not requested
    failure: str | None = None  # type and first line of the error, or None
    reference: Variant | None = None  # variant that `ratio_to_reference` refers to
    ratio_to_reference: float | None = None  # none if one of the two was not measured
    ratio_to_slow: float | None = None  # none if one of the two was not measured


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
    results = {variant: Result(variant) for variant in passes}
    prepared: dict[Variant, tuple[Pass, int]] = {}
    samples: dict[Variant, list[dict[str, float]]] = {variant: [] for variant in passes}

    def measure(variant: Variant) -> None:
        if variant in prepared:
            work, calls = prepared[variant]
            samples[variant].append(work.time(device, calls))
            return
        work = passes[variant]()
        work.run()
        if footprints:
            results[variant].footprint = measure_footprint(work, device, profiled)
        warm_s = sum(work.time(device).values())
        calls = min(max(math.ceil(MIN_SAMPLE_S / max(warm_s, 1e-9)), 1), MAX_PASSES_PER_SAMPLE)
        prepared[variant] = work, calls

    for order in (tuple(passes), *rounds(tuple(passes), repeats)):
        for variant in order:
            if results[variant].failure is not None:
                continue
            try:
                with switches(variant):
                    measure(variant)
            except Exception as error:  # any failure of a baseline is a result and must not end the comparison
                lines = str(error).strip().splitlines() or [""]
                results[variant] = Result(variant, failure=f"{type(error).__name__}: {lines[0]}".rstrip(": "))
                prepared.pop(variant, None)
                error.__traceback__ = None  # its frames refer to the tensors that may have filled the memory
            if results[variant].failure is not None:
                gc.collect()
                if device.type == "cuda":
                    torch.cuda.empty_cache()
    for variant, result in results.items():
        if result.failure is None:
            stages = samples[variant][0]
            result.stages = {name: Spread(tuple(sample[name] for sample in samples[variant])) for name in stages}
            result.total = Spread(tuple(sum(sample.values()) for sample in samples[variant]))
    native, slow = reference([*results.values()]), reference([*results.values()], ("slow",))
    for result in results.values():
        result.reference = None if native is None else native.variant
        result.ratio_to_reference, result.ratio_to_slow = ratio(result, native), ratio(result, slow)
    return [*results.values()]


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
