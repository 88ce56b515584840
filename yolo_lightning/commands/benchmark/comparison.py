"""Measures variants of the same work against each other, taking turns, in one process."""

import gc
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from yolo_lightning.commands.benchmark.baselines import Variant
from yolo_lightning.commands.benchmark.footprint import Footprint, measure_footprint
from yolo_lightning.commands.benchmark.timing import Clock, Pass, Spread, rounds

SHORTEST_SAMPLE_S = 0.01
MOST_PASSES_PER_SAMPLE = 20

REFERENCES = ("native", "slow", "unfold", "gemm")
"""Rivals that ratios may refer to, best first."""

Switches = Callable[[Variant], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Result:
    """What one variant needed, or why it failed.

    Attributes:
        variant: Which.
        stages: Time of each stage of a pass.
        total: Time of the pass; None if it failed.
        footprint: Memory and launches; None if it failed or was not asked for.
        failure: First line of the error, or None.
    """

    variant: Variant
    stages: dict[str, Spread]
    total: Spread | None
    footprint: Footprint | None = None
    failure: str | None = None


def compare(
    passes: Mapping[Variant, Callable[[], Pass]],
    switches: Switches,
    device: torch.device,
    *,
    repeats: int,
    footprints: bool,
    profiled: bool,
) -> list[Result]:
    """Measure every variant `repeats` times, taking turns; the one to begin changes from round to round.

    A variant that raises an error is out from then on, and its result says why.

    Args:
        passes: Prepares the work of a variant; all are prepared before the first is timed.
        switches: Gives the context in which a variant runs.
        device: Where.
        repeats: Measured rounds, after one warm-up pass that decides how many passes make a sample.
        footprints: Whether memory is accounted for.
        profiled: Whether `footprints` may use the profiler.
    """
    contest = _Contest(switches, device)
    for variant, prepare in passes.items():
        contest.enter(variant, prepare, footprints, profiled)
    for order in rounds(list(passes), repeats):
        for variant in order:
            contest.sample(variant)
    return [contest.result(variant) for variant in passes]


class _Contest:
    def __init__(self, switches: Switches, device: torch.device) -> None:
        self._switches = switches
        self._device = device
        self._clock = Clock(device)
        self._passes: dict[Variant, Pass] = {}
        self._calls: dict[Variant, int] = {}
        self._samples: dict[Variant, list[dict[str, float]]] = {}
        self._footprints: dict[Variant, Footprint] = {}
        self._failures: dict[Variant, str] = {}

    def enter(self, variant: Variant, prepare: Callable[[], Pass], footprints: bool, profiled: bool) -> None:
        def warm_up() -> None:
            one_pass = prepare()
            one_pass.run()
            if footprints:
                self._footprints[variant] = measure_footprint(one_pass, self._device, profiled)
            one_pass.run(self._clock)
            warm_s = sum(self._clock.read().values())
            calls = math.ceil(SHORTEST_SAMPLE_S / max(warm_s, 1e-9))
            self._calls[variant] = min(max(calls, 1), MOST_PASSES_PER_SAMPLE)
            self._passes[variant] = one_pass
            self._samples[variant] = []

        self._guarded(variant, warm_up)

    def sample(self, variant: Variant) -> None:
        def take() -> None:
            for _ in range(self._calls[variant]):
                self._passes[variant].run(self._clock)
            durations = self._clock.read()
            self._samples[variant].append({name: total / self._calls[variant] for name, total in durations.items()})

        if variant not in self._failures:
            self._guarded(variant, take)

    def result(self, variant: Variant) -> Result:
        if variant in self._failures:
            return Result(variant, {}, None, None, self._failures[variant])
        samples = self._samples[variant]
        stages = {name: Spread(tuple(sample[name] for sample in samples)) for name in samples[0]}
        total = Spread(tuple(sum(sample.values()) for sample in samples))
        return Result(variant, stages, total, self._footprints.get(variant))

    def _guarded(self, variant: Variant, action: Callable[[], None]) -> None:
        try:
            with self._switches(variant):
                action()
        except Exception as error:  # a rival may fail in any way, and must not end the comparison
            lines = str(error).strip().splitlines() or [""]
            self._failures[variant] = f"{type(error).__name__}: {lines[0]}".rstrip(": ")
            self._passes.pop(variant, None)
            self._clock = Clock(self._device)
            error.__traceback__ = None  # its frames hold the tensors that may have filled the memory
        if variant in self._failures:
            gc.collect()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()


def reference(results: list[Result], rivals: tuple[str, ...] = REFERENCES) -> Result | None:
    """The fastest variant of the first of `rivals` that was measured."""
    for rival in rivals:
        own = [result for result in results if result.variant.rival == rival and result.total is not None]
        if own:
            return min(own, key=lambda result: result.total.median_s if result.total else math.inf)
    return None


def ratio(result: Result, to: Result | None) -> float | None:
    """How many times as long `result` takes as `to`; None where one of them has no time."""
    if to is None or to.total is None or result.total is None:
        return None
    return result.total.ratio_to(to.total)
