"""How fast this device multiplies matrices: the ceiling of every convolution by matrix products."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from yolo_lightning.commands.benchmark.timing import Clock

CPU_SIZES = (512, 1024, 2048)
ACCELERATOR_SIZES = (1024, 2048, 4096, 8192)
TRIES = 5


@dataclass(frozen=True, slots=True)
class GemmCeiling:
    """The best square matrix product found.

    Attributes:
        gflops: Floating point operations per second, 1e9.
        size: Rows and columns of both matrices.
        dtype: Of the product.
    """

    gflops: float
    size: int
    dtype: str


def measure_gemm_ceiling(device: torch.device, autocast: Callable[[], torch.autocast]) -> GemmCeiling:
    """Multiply square matrices of several sizes; the shortest of several tries counts, after one warm-up each."""
    best = GemmCeiling(0.0, 0, "")
    clock = Clock(device)
    for size in CPU_SIZES if device.type == "cpu" else ACCELERATOR_SIZES:
        left, right = (torch.randn(size, size, device=device) for _ in range(2))
        with autocast():
            # Cast before, as autocast would do it anew for every product.
            dtype = torch.mm(left, right).dtype
            left, right = left.to(dtype), right.to(dtype)
            times = []
            for _ in range(TRIES):
                clock.begin()
                torch.mm(left, right)
                clock.mark("product")
                times.append(clock.read()["product"])
        gflops = 2 * size**3 / min(times) / 1e9
        if gflops > best.gflops:
            best = GemmCeiling(gflops, size, str(dtype).removeprefix("torch."))
    return best
