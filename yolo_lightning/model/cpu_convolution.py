"""Convolutions of a training on a CPU for `model.conv_backend: auto`: the fastest path by a short measurement.

The paths are the compiled loops of `conv`, which verify their first result for each problem, and PyTorch's convolutions
in either memory format. Which is fastest depends on the processor, the number of threads and the version of torch. The
result is stored in the user's cache folder, and the path of a run in its checkpoints, because paths differ by rounding.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from yolo_lightning.conv import Plan
from yolo_lightning.conv.kernels import compiled
from yolo_lightning.conv.measurement_cache import MeasurementCache, describe_environment
from yolo_lightning.model.graph import build_graph
from yolo_lightning.model.layers import Convolution, MemoryFormat, arrange
from yolo_lightning.utils.files import cache_folder

CpuPath = Literal["compiled", "channels_last", "contiguous"]
PATHS: dict[CpuPath, tuple[Convolution, MemoryFormat]] = {
    "compiled": ("gemm", "channels_last"),
    "channels_last": ("native", "channels_last"),
    "contiguous": ("native", "contiguous"),
}
"""Convolution and memory format of each path; `compiled` has its loops in addition."""
DEFAULT: CpuPath = "contiguous"

BATCH, IMAGE_SIZE = 2, 320
"""Images and their side in pixels, of a measured pass through YOLOv8n: 0.2 s on one core."""
ROUNDS = 4
LEAST_ROUNDS = 3
LIMIT_S = 6.0
"""Time limit of the measurement after `LEAST_ROUNDS` rounds. After twice as long it ends without a choice."""
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
    """Return the shortest time of a forward and backward pass of YOLOv8n for each path, seconds.

    The paths take turns, after a round that is not counted. With one thread, the time is that of the processor, which
    hardly depends on other processes. None if the machine is too busy for `LEAST_ROUNDS` rounds within the time limit.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    images = torch.rand(BATCH, 1, IMAGE_SIZE, IMAGE_SIZE, generator=torch.Generator().manual_seed(0))
    has_loops = enable_loops()
    try:
        networks = {path: make_network(path) for path in PATHS if path != "compiled" or has_loops}
        seconds = dict.fromkeys(networks, float("inf"))
        started = time.perf_counter()
        for number in range(1 + ROUNDS):
            for path, network in networks.items():
                begun = clock()
                run_pass(network, images)
                if number > 0:
                    seconds[path] = min(seconds[path], clock() - begun)
            spent_s = time.perf_counter() - started
            if spent_s > LIMIT_S and number >= LEAST_ROUNDS:
                return seconds
            if spent_s > 2 * LIMIT_S:
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


def make_network(path: CpuPath) -> nn.Module:
    """Return YOLOv8n for a path, with equal weights for all; the global random generator keeps its state."""
    convolution, memory_format = PATHS[path]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build_graph("yolov8n", ("object",), convolution)
    arrange(network, convolution, plan=Plan(), memory_format=memory_format)
    return network.train()


def run_pass(network: nn.Module, images: Tensor) -> list[Tensor]:
    """Return the gradients of all parameters for the sum of the squared outputs."""
    outputs = [output for output in network(images).values() if isinstance(output, Tensor)]
    loss = torch.stack([output.square().mean() for output in outputs]).sum()
    return list(torch.autograd.grad(loss, [one for one in network.parameters() if one.requires_grad]))
