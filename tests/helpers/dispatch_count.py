"""Count launches, uploads, dispatches, traffic and time of a computation on the meta device."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.helpers.meta_device import VIEWS
from yolo_lightning.conv.kernels.fused_launch import PROCESSORS, tile_of
from yolo_lightning.conv.kernels.launcher import Launch, LaunchRecorder
from yolo_lightning.conv.kernels.verified import LAUNCHES

PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "addmm_": (1, 2), "baddbmm_": (1, 2)}
"""Positions of the two factors of a matrix product."""
UPLOADS = frozenset(("lift_fresh", "lift_fresh_copy", "lift"))
"""Operators that receive a tensor made from Python numbers: each is a blocking copy to the device."""


# A modelled RX 5600 XT: achievable bytes, floating-point operations of the BLAS and clock cycles of `KernelTile.clocks`
# per second, and the time of a launch.
BYTES_PER_S, FLOP_PER_S, LAUNCH_S = 288e9 * 0.8, 7.2e12 * 0.5, 12e-6
CLOCKS_PER_S = 7.2e12 / (2 * 128 * PROCESSORS) * 0.8


@dataclass
class DispatchCount(TorchDispatchMode):
    """Counts the operators that PyTorch dispatches. A kernel takes the longest of its traffic, products and launch.

    Products of the BLAS take a fixed share of the peak rate. `KernelTile.clocks` models those of this package: padding
    of the tiles, blocks that do not divide among the processors, other instructions, and the rate of the shared memory.

    An operator of PyTorch counts as one kernel. For an operator of this package, the function that launches its kernels
    runs with the tensors of the meta device: every launch counts as a kernel, with the tensors that it reads and
    writes, and so does every operator of PyTorch that the function needs.
    """

    kernels: Counter[str] = field(default_factory=Counter)
    dispatches: int = 0
    uploads: list[str] = field(default_factory=list)
    bytes: int = 0
    flop: int = 0
    seconds: float = 0.0
    dispatched: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(
        self, operator: Any, types: Any, arguments: tuple[Any, ...] = (), options: Mapping[str, Any] | None = None
    ) -> Any:
        name = str(operator).split(".")[1]
        self.dispatches += 1
        self.dispatched[name] += 1
        if operator in LAUNCHES:
            return self._launches(operator, name, arguments)
        result = operator(*arguments, **(options or {}))
        inputs = [leaf for leaf in tree_leaves((arguments, options)) if isinstance(leaf, Tensor)]
        tensors = [*inputs, *(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))]
        # A tensor on the CPU beside tensors on the device, for example an index made from a Python list.
        if name in UPLOADS or len({tensor.device for tensor in tensors if tensor.dim()}) > 1:
            self.uploads.append(name)
        if name in VIEWS:
            return result
        size = sum(
            tensor.numel() * tensor.element_size() for tensor in {id(tensor): tensor for tensor in tensors}.values()
        )
        flop = 0
        if name in PRODUCTS:
            first_factor, second_factor = (arguments[position] for position in PRODUCTS[name])
            flop = 2 * first_factor.numel() * second_factor.shape[-1]
        self._kernel(name, size, flop)
        return result

    def _launches(self, operator: Any, name: str, arguments: tuple[Any, ...]) -> Any:
        recorder = LaunchRecorder()
        with self:
            result = LAUNCHES[operator](recorder, *arguments)
        for launch in recorder.launches:
            kernel = launch.name.split("_n")[0].split("_by")[0]
            flop = fused_flop(name, arguments, result) // len(recorder.launches)
            self._kernel(kernel, launch.operands.bytes, flop, product_clocks(launch) if flop else 0.0)
        return result

    def _kernel(self, name: str, size: int, flop: int, clocks: float = 0.0) -> None:
        self.kernels[name] += 1
        self.bytes += size
        self.flop += flop
        self.seconds += max(size / BYTES_PER_S, clocks / CLOCKS_PER_S or flop / FLOP_PER_S, LAUNCH_S)


def dispatches_uploads_of_lists() -> bool:
    """Return whether PyTorch dispatches the upload of a tensor that is made from a list; torch 2.11 does not."""
    with DispatchCount() as count:
        torch.tensor([1.0], device="meta")
    return count.dispatches > 0


counts_lists = pytest.mark.skipif(
    not dispatches_uploads_of_lists(), reason=f"torch {torch.__version__} does not dispatch uploads of lists"
)


def fused_flop(name: str, arguments: tuple[Any, ...], result: Any) -> int:
    """Return the floating-point operations in the products of an operator of this package."""
    images, weight = {
        "fused_conv_forward": (result, arguments[1]),
        "fused_conv_input_gradient": (arguments[0], arguments[1]),
        "fused_conv_weight_gradient": (arguments[1], result),
    }.get(name, (None, None))
    return 0 if images is None or weight is None else 2 * images.numel() * weight[0].numel()


def product_clocks(launch: Launch) -> float:
    """Return the modelled clock cycles of a launch of a convolution kernel."""
    tile, (images, other) = tile_of(launch.name), launch.operands.reads
    assert images is not None
    assert other is not None
    if launch.name.startswith("correlate"):
        taps = 1 if tile.is_winograd else other.shape[2:].numel()
        return tile.clocks("correlate", prod(launch.grid), images.size(1) * taps // launch.grid[2])
    samples, _, height, width = other.shape
    pixels = -(-height // 2) * -(-width // 2) if tile.is_winograd else height * width
    return tile.clocks("sum_products", prod(launch.grid), samples * pixels // launch.grid[2])


def count_step(
    graph: torch.nn.Module, batch: int, size: int, channels: int = 1, dtype: torch.dtype = torch.float32
) -> DispatchCount:
    """Count the forward and backward pass of a detection graph on the meta device, with the sum of all predictions."""
    graph = graph.train().to("meta", dtype)
    images = torch.empty(batch, channels, size, size, device="meta", dtype=dtype)
    count = DispatchCount()
    with count:
        predictions = graph(images)
        (predictions["boxes"].sum() + predictions["scores"].sum()).backward()
    return count
