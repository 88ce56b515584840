"""Convolutions of a training on a CPU for `model.conv_backend: auto`: the fastest path by a short measurement.

The paths are the compiled loops of `conv`, which verify their first result for each problem, and PyTorch's convolutions
in either memory format. Which is fastest depends on the processor, the number of threads and the version of torch. The
result is stored in the user's cache folder, and the path of a run in its checkpoints, because paths differ by rounding.
"""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from yolo_lightning.conv import Plan, swap_convs
from yolo_lightning.conv.kernels import compiled
from yolo_lightning.conv.measurement_cache import MeasurementCache, describe_environment
from yolo_lightning.conv.plan import run_seconds
from yolo_lightning.model.layers import Convolution, MemoryFormat
from yolo_lightning.utils.files import cache_folder

CpuPath = Literal["compiled", "channels_last", "contiguous"]
PATHS: dict[CpuPath, tuple[Convolution, MemoryFormat]] = {
    "compiled": ("gemm", "channels_last"),
    "channels_last": ("native", "channels_last"),
    "contiguous": ("native", "contiguous"),
}
"""Convolution and memory format of each path; `compiled` has its loops in addition."""
DEFAULT: CpuPath = "contiguous"

LAYERS = ((3, 16, 3, 2, 160), (16, 32, 3, 2, 80), (32, 32, 3, 1, 40), (64, 64, 1, 1, 40), (64, 64, 3, 1, 20))
"""Input and output channels, kernel size, stride and image size of the measured layers, as in YOLOv8n at 320 px."""
BATCH = 4
ROUNDS = 7
LEAST_ROUNDS = 3
LIMIT_S = 4.0
"""Time limit of the measurement; with fewer than `LEAST_ROUNDS` rounds, on a busy machine, nothing is chosen."""
NOISE = 0.05
"""A path must be faster than `DEFAULT` by more than this fraction."""


def choose_path(memory_format: MemoryFormat, cache_file: Path | None = None) -> CpuPath:
    """Return the fastest path with this memory format, and log it; measure if `cache_file` has no result.

    `cache_file` None is a file in the user's cache folder. The first call on a machine also compiles the loops.
    """
    allowed = allowed_paths(memory_format)
    cache = MeasurementCache(cache_file or cache_folder() / "convolution_cpu.json")
    environment = " | ".join([*describe_environment(torch.device("cpu")).values(), f"compiler {compiled.compiler()}"])
    seconds, source = known_seconds(cache.load(environment)), "stored result"
    if seconds is None:
        seconds, source = measure(), "measured"
        if seconds is not None:
            cache.store(environment, {"seconds": seconds})
    if seconds is None:
        path = DEFAULT if DEFAULT in allowed else allowed[-1]
        rank_zero_info(f"model.conv_backend auto: {describe(path)}, because the machine was too busy for a measurement")
        return path
    path = fastest({name: value for name, value in seconds.items() if name in allowed})
    times = ", ".join(f"{describe(name)} {value * 1e3:.1f} ms" for name, value in seconds.items())
    rank_zero_info(f"model.conv_backend auto: {describe(path)} ({source}: {times})")
    return path


def allowed_paths(memory_format: MemoryFormat) -> list[CpuPath]:
    """Return the paths with this memory format."""
    return [path for path, (_, format) in PATHS.items() if memory_format in ("auto", format)]


def fastest(seconds: Mapping[CpuPath, float]) -> CpuPath:
    """Return the path with the shortest time; `DEFAULT` if no other path is clearly faster."""
    return min(seconds, key=lambda path: seconds[path] * (1 - NOISE if path == DEFAULT else 1))


def use_path(path: CpuPath, arrange_graph: Callable[..., None]) -> bool:
    """Call `arrange_graph` with the settings of `path`; return False if the compiled loops cannot be built.

    `arrange_graph` takes `convolution`, `plan` and `memory_format` of `layers.arrange`.
    """
    convolution, memory_format = PATHS[path]
    if path == "compiled" and not enable_loops():
        return False
    # A plan of its own: the shared one may have decided before the loops were enabled.
    arrange_graph(convolution=convolution, plan=Plan(), memory_format=memory_format)
    return True


def describe(path: CpuPath) -> str:
    return "gemm, compiled loops" if path == "compiled" else f"native, {path}"


def known_seconds(entry: Mapping[str, Any]) -> dict[CpuPath, float] | None:
    """Return the times of a cache entry, or None if it has none that are valid."""
    stored = entry.get("seconds")
    known = {path: stored.get(path) for path in get_args(CpuPath)} if isinstance(stored, dict) else {}
    seconds = {path: value for path, value in known.items() if isinstance(value, float) and value > 0}
    return seconds if {"channels_last", "contiguous"} <= seconds.keys() else None


def measure() -> dict[CpuPath, float] | None:
    """Return the shortest time of a forward and backward pass through `LAYERS` for each path, seconds.

    The paths take turns, after a round that is not counted. None if the machine is too busy.
    """
    has_loops = enable_loops()
    try:
        passes = {path: make_pass(path) for path in PATHS if path != "compiled" or has_loops}
        seconds = dict.fromkeys(passes, float("inf"))
        started = time.perf_counter()
        for number in range(1 + ROUNDS):
            for path, (layers, inputs) in passes.items():
                run_s = run_seconds(partial(run_pass, layers, inputs), torch.device("cpu"))
                if number > 0:
                    seconds[path] = min(seconds[path], run_s)
            if number >= LEAST_ROUNDS and time.perf_counter() - started > LIMIT_S:
                return seconds
            if time.perf_counter() - started > 2 * LIMIT_S:
                return None
        return seconds
    finally:
        compiled.disable()


def enable_loops() -> bool:
    """Enable the compiled loops; return whether they work, and log the reason if they do not."""
    compiled.enable(cache_folder() / "kernels")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        works = compiled.available()
    for warning in caught:
        rank_zero_info(str(warning.message))
    if not works:
        compiled.disable()
    return works


def make_pass(path: CpuPath) -> tuple[list[nn.Module], list[Tensor]]:
    """Return the layers of a path and their inputs, without changing the state of the global random generator."""
    convolution, memory_format = PATHS[path]
    format = torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
    generator = torch.Generator().manual_seed(0)
    layers: list[nn.Module] = []
    inputs: list[Tensor] = []
    for channels, outputs, kernel, stride, size in LAYERS:
        with torch.random.fork_rng(devices=[]):
            layer = nn.Sequential(
                nn.Conv2d(channels, outputs, kernel, stride, kernel // 2, bias=False),
                nn.BatchNorm2d(outputs),
                nn.SiLU(),
            )
        if convolution == "gemm":
            swap_convs(layer, plan=Plan())
        layers.append(layer.to(memory_format=format))
        inputs.append(torch.randn(BATCH, channels, size, size, generator=generator).contiguous(memory_format=format))
    return layers, inputs


def run_pass(layers: Sequence[nn.Module], inputs: Sequence[Tensor]) -> None:
    for layer, input in zip(layers, inputs, strict=True):
        torch.autograd.grad(layer(input.requires_grad_()).square().sum(), [input, *layer.parameters()])
