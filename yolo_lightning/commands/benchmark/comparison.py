"""Measurement of variants of the same work in turns, in one process."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from yolo_lightning.commands.benchmark.conv_variants import Variant, settings_of
from yolo_lightning.commands.benchmark.findings import NOT_MEASURED, Findings, first_line, ms, table
from yolo_lightning.commands.benchmark.section import Section, free_cached_memory

Timer = Callable[[int], float]
"""Runs a work a number of times and returns the mean duration in seconds."""

MIN_SAMPLE_S = 0.01
MAX_CALLS_PER_SAMPLE = 20


@dataclass(slots=True)
class Result:
    """Times of one variant, or its failure."""

    variant: Variant
    samples_s: list[float] = field(default_factory=list)  # one value per round, seconds; empty after a failure
    failure: str | None = None  # type and first line of the error, or None

    @property
    def median_s(self) -> float:
        """Median of the samples in seconds; NaN after a failure."""
        return statistics.median(self.samples_s or [math.nan])


def time_calls(device: torch.device, work: Callable[[], object], calls: int) -> float:
    """Run a function `calls` times and return the mean duration in seconds; the host waits before and after."""
    synchronize(device)
    began_s = time.perf_counter()
    for _ in range(calls):
        work()
    synchronize(device)
    return (time.perf_counter() - began_s) / calls


def synchronize(device: torch.device) -> None:
    """Wait for all queued work of an accelerator; return at once for a CPU."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def rounds(order: Sequence[Any], count: int) -> Iterator[tuple[Any, ...]]:
    """Yield `count` rotations of `order`; each starts one item later than the previous one."""
    for position in range(count):
        start = position % len(order) if order else 0
        yield (*order[start:], *order[:start])


def compare(section: Section, works: Mapping[Variant, Callable[[], Timer]], calls: int | None = None) -> list[Result]:
    """Measure every variant once per round; the variant that starts changes from round to round.

    All variants are prepared before the first is timed. Later rounds are left out if the section has less time left
    than the longest round took. A variant that raises an error is excluded from later rounds, and its result contains
    the error. `works` prepares the work of each variant, `calls` is the number of calls per measurement; None selects a
    number by the duration of a warm-up call.
    """
    results = {variant: Result(variant) for variant in works}
    prepared: dict[Variant, tuple[Timer, int]] = {}
    longest_s = 0.0

    def measure(variant: Variant) -> None:
        if variant in prepared:
            timer, number = prepared[variant]
            results[variant].samples_s.append(timer(number))
            return
        timer = works[variant]()
        timer(1)
        fitting = 0 if calls else math.ceil(MIN_SAMPLE_S / max(timer(1), 1e-9))
        prepared[variant] = timer, calls or min(max(fitting, 1), MAX_CALLS_PER_SAMPLE)

    for number, order in enumerate((tuple(works), *rounds(tuple(works), section.rounds))):
        began_s = time.monotonic()
        if number > 1 and section.left_s() < longest_s:
            break
        for variant in order:
            if results[variant].failure:
                continue
            try:
                with settings_of(variant, section.device):
                    measure(variant)
            except Exception as error:  # any failure of a baseline is a result and must not end the comparison
                results[variant] = Result(variant, failure=first_line(error))
                prepared.pop(variant, None)
                error.__traceback__ = None  # its frames refer to the tensors that may have filled the memory
            if results[variant].failure:
                free_cached_memory(section.device)
        longest_s = max(longest_s, time.monotonic() - began_s)
    return [*results.values()]


def fastest(results: Sequence[Result], *implementations: str) -> Result | None:
    """Return the fastest variant of the implementations, or None if none was measured."""
    own = [one for one in results if one.samples_s and one.variant.implementation in implementations]
    return min(own, key=lambda one: one.median_s, default=None)


def ratio(result: Result | None, to: Result | None) -> float:
    """Return the median over the rounds of the ratio of two times; a slowdown of a whole round cancels.

    The result is NaN if one of the two was not measured.
    """
    if result is None or to is None or not result.samples_s or not to.samples_s:
        return math.nan
    return statistics.median(own / other for own, other in zip(result.samples_s, to.samples_s, strict=True))


def result_table(results: Sequence[Result], batch_size: int) -> list[str]:
    """Return a Markdown table of times, rates and ratios to the fastest native and slow variants."""
    references = [one for name in ("native", "slow") if (one := fastest(results, name)) is not None]
    headings = ["variant", "median ms", "range ms", "images/s", *(f"ratio to {one.variant}" for one in references)]
    rows = []
    for one in results:
        if one.failure:
            rows.append([f"{one.variant} (failed)", *[NOT_MEASURED] * (len(headings) - 1)])
            continue
        cells = [ms(one.median_s), f"{ms(min(one.samples_s))} to {ms(max(one.samples_s))}"]
        rates = [f"{batch_size / one.median_s:.1f}", *(f"{ratio(one, to):.2f}" for to in references)]
        rows.append([one.variant.value, *cells, *rates])
    return table(headings, rows)


def record_failures(findings: Findings, results: Iterable[Result]) -> None:
    """List the first error of each variant that failed; a variant of this package fails the section."""
    failures: dict[Variant, str] = {}
    for one in results:
        if one.failure:
            failures.setdefault(one.variant, one.failure)
    findings.add(*(f"- `{variant}` failed: {failure}" for variant, failure in failures.items()))
    ours = [f"{variant}: {failure}" for variant, failure in failures.items() if variant.implementation == "gemm"]
    findings.fail(ours)
