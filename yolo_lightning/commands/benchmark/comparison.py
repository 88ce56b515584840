"""Measurement of variants of the same work in turns, in one process: times, memory and kernel launches."""

import gc
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from yolo_lightning.commands.benchmark.baselines import Variant, libraries

T = TypeVar("T")

MIN_SAMPLE_S = 0.01
MAX_PASSES_PER_SAMPLE = 20

REFERENCES = ("native", "slow", "unfold", "gemm")
"""Implementations that ratios may refer to; the first one that was measured is the reference."""

METADATA_OPERATORS = frozenset(
    """
    alias as_strided as_strided_ broadcast_tensors chunk contiguous detach empty empty_like empty_strided expand
    expand_as flatten lift_fresh narrow new_empty new_empty_strided numpy_T permute reshape resize_ resolve_conj
    resolve_neg result_type select set_ size slice split split_with_sizes squeeze stride swapaxes t to transpose
    unbind unfold unsqueeze view view_as _reshape_alias _unsafe_view
    """.split()  # noqa: SIM905 - forty quoted words are harder to read
)
"""ATen operators that copy no data by themselves: views, shape queries and allocation."""


@dataclass
class Spread:
    """Repeated measurements of one duration: one value per round, their median, minimum and maximum, in seconds."""

    samples_s: tuple[float, ...]
    median_s: float = field(init=False)
    minimum_s: float = field(init=False)
    maximum_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.median_s = statistics.median(self.samples_s)
        self.minimum_s, self.maximum_s = min(self.samples_s), max(self.samples_s)

    def ratio_to(self, other: "Spread") -> float:
        """Return the median over the rounds of `self / other`; a slowdown of a whole round cancels."""
        return statistics.median(own / theirs for own, theirs in zip(self.samples_s, other.samples_s, strict=True))


@dataclass(frozen=True, slots=True)
class Pass:
    """Work to be measured."""

    # Name and function of each stage. A function receives the result of the previous stage, the first None.
    stages: tuple[tuple[str, Callable[[Any], Any]], ...]
    parameters: tuple[Tensor, ...]  # tensors that are in memory before and after the pass

    def run(self) -> Any:
        """Run all stages once and return the result of the last one."""
        value = None
        for _, function in self.stages:
            value = function(value)
        return value

    def time(self, device: torch.device, calls: int = 1) -> dict[str, float]:
        """Run the pass `calls` times and return the mean seconds of each stage.

        On CUDA and ROCm, events on the stream record the time, so that the host does not wait between stages. On other
        devices the host waits for the device after every stage.
        """

        def mark() -> Any:
            if device.type == "cuda":
                event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                event.record()
                return event
            synchronize(device)
            return time.perf_counter()

        marks: list[tuple[str, Any, Any]] = []
        for _ in range(calls):
            start, value = mark(), None
            for name, function in self.stages:
                value = function(value)
                end = mark()
                marks.append((name, start, end))
                start = end
        synchronize(device)
        totals_s = dict.fromkeys((name for name, _ in self.stages), 0.0)
        for name, start, end in marks:
            totals_s[name] += end - start if isinstance(end, float) else start.elapsed_time(end) / 1000
        return {name: total_s / calls for name, total_s in totals_s.items()}


def synchronize(device: torch.device) -> None:
    """Wait for all queued work of an accelerator; return at once for a CPU."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def rounds(order: Sequence[T], count: int) -> Iterator[tuple[T, ...]]:
    """Yield `count` rotations of `order`; each starts one item later than the previous one."""
    for position in range(count):
        start = position % len(order) if order else 0
        yield (*order[start:], *order[:start])


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory and launches of one forward and backward pass."""

    saved_bytes: int  # stored between forward and backward pass; each storage counts once, parameters do not count
    peak_bytes: int | None  # highest GPU memory use above the use before the pass; None on other devices
    launches: int | None  # kernels and copies; on a CPU the innermost ATen operators that compute


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
    device: torch.device,
    *,
    repeats: int,
    footprints: bool,
    profiled: bool,
    vendor_search: bool = False,
) -> list[Result]:
    """Measure every variant once per round; the variant that starts changes from round to round.

    All variants are prepared by the functions in `passes` before the first is timed. A warm-up pass determines the
    number of passes per sample; `repeats` rounds follow. With `footprints`, memory and launches are measured, too, the
    launches only if `profiled`. A variant that raises an error is excluded from later rounds, and its result contains
    the error.
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
                with libraries(variant, device, vendor_search):
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
    """Return the fastest variant without TF32 of the first implementation that was measured, or None if none was."""
    comparable = [result for result in results if not result.variant.uses_tf32]
    for implementation in implementations:
        own = [(r.total.median_s, r) for r in comparable if r.variant.implementation == implementation and r.total]
        if own:
            return min(own, key=lambda pair: pair[0])[1]
    return None


def ratio(result: Result, to: Result | None) -> float | None:
    """Return the time of `result` divided by the time of `to`, or None if one of them was not measured."""
    return result.total.ratio_to(to.total) if result.total and to and to.total else None


def measure_footprint(one_pass: Pass, device: torch.device, profiled: bool) -> Footprint:
    """Run a pass up to three times, untimed, and return its memory and, if `profiled`, its launches.

    The pass must have run before, so that gradients and caches exist.
    """
    saved_bytes, peak_bytes = _saved_bytes(one_pass), None
    if device.type == "cuda":
        synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        one_pass.run()
        synchronize(device)
        peak_bytes = torch.cuda.max_memory_allocated(device) - before
    return Footprint(saved_bytes, peak_bytes, _launches(one_pass, device) if profiled else None)


def _saved_bytes(one_pass: Pass) -> int:
    """Return the size of the storages that the first stage saves; storages of later stages do not count."""
    parameters = {tensor.untyped_storage().data_ptr() for tensor in one_pass.parameters}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    (_, forward), *others = one_pass.stages
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        value = forward(None)
    for _, function in others:
        value = function(value)
    return sum(size for pointer, size in saved.items() if pointer not in parameters)


def _launches(one_pass: Pass, device: torch.device) -> int | None:
    def computes(event: Any) -> bool:
        namespace, _, name = event.name.partition("::")
        return namespace == "aten" and name not in METADATA_OPERATORS

    def contains_computation(event: Any) -> bool:
        return computes(event) or any(map(contains_computation, event.cpu_children))

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    # Ultralytics sets a lower level, at which the profiler logs every start and stop on stderr.
    os.environ["KINETO_LOG_LEVEL"] = "99"
    with profile(activities=activities) as trace:
        one_pass.run()
        synchronize(device)
    if device.type == "cpu":
        return sum(
            computes(event) and not any(map(contains_computation, event.cpu_children)) for event in trace.events()
        )
    return sum(event.device_type.name == "CUDA" for event in trace.events()) or None
