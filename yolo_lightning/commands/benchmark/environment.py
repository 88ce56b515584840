"""Machine and software of a benchmark, and the peak rate of its matrix products."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import torch

from yolo_lightning.commands.benchmark.timing import Clock
from yolo_lightning.conv.autotune_cache import describe_environment

CPU_SIZES = (512, 1024, 2048)
ACCELERATOR_SIZES = (1024, 2048, 4096, 8192)
TRIES = 5


@dataclass(frozen=True, slots=True)
class GemmCeiling:
    """Highest measured rate of a square matrix product.

    Attributes:
        gflops: 1e9 floating point operations per second.
        size: Rows and columns of both matrices.
        dtype: Data type of the product.
    """

    gflops: float
    size: int
    dtype: str


def describe_hardware(device: torch.device) -> dict[str, str]:
    """Return device type and name, driver and torch version of this process, and the current time (ISO 8601)."""
    return {"date": datetime.now().astimezone().isoformat(timespec="seconds"), **describe_environment(device)._asdict()}


def measure_gemm_ceiling(device: torch.device, autocast: Callable[[], torch.autocast]) -> GemmCeiling:
    """Return the highest rate over square matrix products of several sizes; the shortest run of each size counts."""
    best, clock = GemmCeiling(0.0, 0, ""), Clock(device)
    for size in CPU_SIZES if device.type == "cpu" else ACCELERATOR_SIZES:
        with autocast():
            left, right = (torch.randn(size, size, device=device) for _ in range(2))
            # Cast once: autocast would repeat the cast in every product.
            dtype = torch.mm(left, right).dtype
            left, right = left.to(dtype), right.to(dtype)
            times = []
            for _ in range(TRIES):
                clock.mark(None)
                torch.mm(left, right)
                clock.mark("product")
                times.append(clock.read()["product"])
        gflops = 2 * size**3 / min(times) / 1e9
        if gflops > best.gflops:
            best = GemmCeiling(gflops, size, str(dtype).removeprefix("torch."))
    return best
