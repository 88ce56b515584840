"""Measurement of variants of the same work in turns, in one process."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from yolo_lightning.commands.benchmark.conv_variants import Variant, settings_of
from yolo_lightning.commands.benchmark.result_texts import NOT_MEASURED, first_line, ms, table
from yolo_lightning.commands.benchmark.section import Section
from yolo_lightning.commands.benchmark.stage_record import StageRecord
from yolo_lightning.utils.accelerator import free_cached_memory, synchronize

Timer = Callable[[int], float]
"""Runs a work a number of times and returns the mean duration in seconds."""
Item = TypeVar("Item")

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
        """Median of the samples in seconds; NaN without samples."""
        return statistics.median(self.samples_s or [math.nan])


class Contender:
    """A variant in a comparison. The first turn prepares its work, each later turn is a sample.

    An error is the result of the variant and must not end the comparison.
    """

    def __init__(self, section: Section, variant: Variant, prepare: Callable[[], Timer], calls: int | None) -> None:
        self.result = Result(variant)
        self._device = section.device
        self._prepare = prepare
        self._timer: Timer | None = None
        self._calls = calls

    def take_turn(self) -> None:
        """Prepare the work, or add a sample to the result, unless the variant has failed."""
        variant = self.result.variant
        if self.result.failure:
            return
        try:
            with settings_of(variant):
                if self._timer is None:
                    self._warm_up()
                else:
                    self.result.samples_s.append(self._timer(self._calls or 1))
        except Exception as error:  # any failure of a baseline is a result
            self.result = Result(variant, failure=first_line(error))
            self._timer = None
            error.__traceback__ = None  # its frames refer to the tensors that may have filled the memory
        if self.result.failure:
            free_cached_memory(self._device)

    def _warm_up(self) -> None:
        timer = self._prepare()
        timer(1)
        if self._calls is None:
            fitting = math.ceil(MIN_SAMPLE_S / max(timer(1), 1e-9))
            self._calls = min(max(fitting, 1), MAX_CALLS_PER_SAMPLE)
        self._timer = timer


def compare(section: Section, works: Mapping[Variant, Callable[[], Timer]], calls: int | None = None) -> list[Result]:
    """Measure every variant once per round; the variant that starts changes from round to round.

    All variants are prepared before the first is timed. Later rounds are left out if the section has less time left
    than the longest round took. A variant that raises an error is excluded from later rounds, and its result contains
    the error. `works` prepares the work of each variant, `calls` is the number of calls per sample; None selects a
    number by the duration of a warm-up call.
    """
    contenders = [Contender(section, variant, prepare, calls) for variant, prepare in works.items()]
    longest_s = 0.0
    for number, order in enumerate([contenders, *rounds(contenders, section.rounds)]):
        began_s = time.monotonic()
        if number > 1 and section.remaining_s() < longest_s:
            break
        for contender in order:
            contender.take_turn()
        longest_s = max(longest_s, time.monotonic() - began_s)
    return [contender.result for contender in contenders]


def rounds(order: Sequence[Item], count: int) -> Iterator[list[Item]]:
    """Yield `count` rotations of `order`; each starts one item later than the previous one."""
    for number in range(count):
        start = number % max(len(order), 1)
        yield [*order[start:], *order[:start]]


def time_calls(device: torch.device, work: Callable[[], object], calls: int) -> float:
    """Run a function `calls` times and return the mean duration in seconds; the host waits before and after."""
    synchronize(device)
    began_s = time.perf_counter()
    for _ in range(calls):
        work()
    synchronize(device)
    return (time.perf_counter() - began_s) / calls


def fastest(results: Iterable[Result], *implementations: str) -> Result:
    """Return the fastest variant of the implementations; a result without samples if none was measured."""
    measured = [result for result in results if result.samples_s and result.variant.implementation in implementations]
    return min(measured, key=lambda result: result.median_s, default=Result(Variant(implementations[0])))


def ratio(result: Result, reference: Result) -> float:
    """Return the median over the rounds of the ratio of two times; a slowdown of a whole round cancels.

    The result is NaN if one of the two was not measured.
    """
    if not result.samples_s or not reference.samples_s:
        return math.nan
    pairs = zip(result.samples_s, reference.samples_s, strict=True)
    return statistics.median(time_s / reference_s for time_s, reference_s in pairs)


def ratio_text(value: float) -> str:
    """Return a ratio with two digits."""
    if math.isnan(value):
        return NOT_MEASURED
    return f"{value:.2f}"


def faster(value: float) -> str:
    """Return whether a ratio to native means faster: yes, no or unknown."""
    if math.isnan(value):
        return "unknown"
    return "yes" if value < 1 else "no"


def result_table(results: Sequence[Result], batch_size: int) -> list[str]:
    """Return a Markdown table of times, rates and ratios to the fastest native variant."""
    native = fastest(results, "native")
    headings = ["variant", "median ms", "range ms", "images/s", f"ratio to {native.variant}"]
    rows = []
    for result in results:
        if result.failure:
            rows.append([f"{result.variant} (failed)", *[NOT_MEASURED] * (len(headings) - 1)])
            continue
        limits = f"{ms(min(result.samples_s))} to {ms(max(result.samples_s))}"
        rate = f"{batch_size / result.median_s:.1f}"
        rows.append([str(result.variant), ms(result.median_s), limits, rate, ratio_text(ratio(result, native))])
    return table(headings, rows)


def record_failures(record: StageRecord, results: Iterable[Result]) -> None:
    """List the first error of each variant that failed; a variant of this package fails the stage."""
    failures: dict[Variant, str] = {}
    for result in results:
        if result.failure:
            failures.setdefault(result.variant, result.failure)
    record.add(*(f"- `{variant}` failed: {failure}" for variant, failure in failures.items()))
    gemm = [variant for variant in failures if variant.implementation == "gemm"]
    record.fail([f"{variant}: {failures[variant]}" for variant in gemm])
