"""Memory and kernel launches of a pass: bytes stored for the backward pass, peak memory, launches."""

import os
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from yolo_lightning.commands.benchmark.timing import Pass, synchronize

METADATA_OPERATORS = frozenset(
    """
    alias as_strided as_strided_ broadcast_tensors chunk contiguous detach empty empty_like empty_strided expand
    expand_as flatten lift_fresh narrow new_empty new_empty_strided numpy_T permute reshape resize_ resolve_conj
    resolve_neg result_type select set_ size slice split split_with_sizes squeeze stride swapaxes t to transpose
    unbind unfold unsqueeze view view_as _reshape_alias _unsafe_view
    """.split()  # noqa: SIM905 - forty quoted words are harder to read
)
"""ATen operators that copy no data by themselves: views, shape queries and allocation."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory and launches of one forward and backward pass."""

    saved_bytes: int  # stored between forward and backward pass; each storage counts once, parameters do not count
    peak_bytes: int | None  # highest memory use above the use before the pass; None if it cannot be measured
    launches: int | None  # kernels and copies; on a CPU the innermost ATen operators that compute


def measure_footprint(one_pass: Pass, device: torch.device, profiled: bool) -> Footprint:
    """Run a pass two or three times, untimed, and return its memory and launches.

    Args:
        one_pass: Must have run before, so that gradients and caches exist.
        device: Device of the pass.
        profiled: Whether to run torch.profiler, which is needed for launches and for the peak memory of a CPU.
    """
    saved_bytes, peak_bytes = _saved_bytes(one_pass), None
    if device.type == "cuda":
        synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        one_pass.run()
        synchronize(device)
        peak_bytes = torch.cuda.max_memory_allocated(device) - before
    if not profiled:
        return Footprint(saved_bytes, peak_bytes, None)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    # Ultralytics sets a lower level, at which the profiler logs every start and stop on stderr.
    os.environ["KINETO_LOG_LEVEL"] = "99"
    with profile(activities=activities, profile_memory=device.type == "cpu") as trace:
        one_pass.run()
        synchronize(device)
    if device.type == "cpu":
        launches = sum(
            _computes(event) and not any(map(_contains_computation, event.cpu_children)) for event in trace.events()
        )
        return Footprint(saved_bytes, _traced_peak(trace), launches)
    return Footprint(saved_bytes, peak_bytes, sum(event.device_type.name == "CUDA" for event in trace.events()) or None)


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


def _traced_peak(trace: profile) -> int | None:
    """Return the peak of the allocator's events; the resident memory of the process is freed late or never."""
    if trace.profiler is None or trace.profiler.kineto_results is None:
        return None
    events: list[Any] = [event for event in trace.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    sizes: list[int] = [event.nbytes() for event in events]
    return max(accumulate(sizes, initial=0))


def _contains_computation(event: Any) -> bool:
    return _computes(event) or any(map(_contains_computation, event.cpu_children))


def _computes(event: Any) -> bool:
    namespace, _, name = event.name.partition("::")
    return namespace == "aten" and name not in METADATA_OPERATORS
