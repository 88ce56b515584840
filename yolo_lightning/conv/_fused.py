"""Implicit matrix multiplication in a kernel of our own (fused.cu): windows never reach memory. Optional.

Chetlur et al.: cuDNN: Efficient Primitives for Deep Learning (2014), section 3. A roofline model, not a measurement, of
all convolutions in a training step of YOLOv8n on an RX 5600 XT (batch 8, 640 pixels, float32): 31 ms, where lowering
rows takes 51 and im2col 60.

Off until `enable` is called. The kernels are compiled when the first problem asks for them. The first result for every
problem is compared with that of `_rows_channels_last`; after one that differs, or a launch that fails, the kernels are
not used any more in this process and the other algorithm computes what was meant for them.
"""

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from yolo_lightning.conv import _fused_build, _fused_launch, _rows_channels_last
from yolo_lightning.conv._arguments import Problem
from yolo_lightning.conv._fused_kernels import Launcher
from yolo_lightning.conv._fused_launch import MOST_ELEMENTS

# Largest difference between two right results, as a share of the largest value. Sums of 100 000 float32 products in
# another order differ by 5e-5, and by more where they cancel; products in TF32, which the other algorithm may use, by
# 1e-3. A wrong address shows as more than 0.1.
LARGEST_DIFFERENCE = 1e-3
LARGEST_DIFFERENCE_TF32 = 1e-2


class _Product(NamedTuple):
    """One product of a convolution: how the kernels compute it, and what checks them."""

    name: str
    fused: Callable[[Launcher, Tensor, Tensor, Problem], Tensor]
    reference: Callable[[Tensor, Tensor, Problem], Tensor]


_FORWARD = _Product("forward", _fused_launch.forward, _rows_channels_last.forward)
_INPUT_GRADIENT = _Product("input_gradient", _fused_launch.input_gradient, _rows_channels_last.input_gradient)
_WEIGHT_GRADIENT = _Product("weight_gradient", _fused_launch.weight_gradient, _rows_channels_last.weight_gradient)


class FusedConvolution:
    """The kernels of one process, once they were built, and what is known about them.

    Args:
        build: Makes a launcher for a device; called once for each, at first use.
    """

    def __init__(self, build: Callable[[torch.device], Launcher]) -> None:
        self._build = build
        self._launchers: dict[torch.device, Launcher | None] = {}
        self._checked: set[tuple[str, Problem, torch.device]] = set()
        self._is_struck = False
        # Backward runs in threads of its own.
        self._lock = threading.Lock()

    def works_on(self, device: torch.device) -> bool:
        """Whether the kernels were or can be built, and have not failed. Builds them; warns once if that fails."""
        return self._launcher(device) is not None

    def forward(self, input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        """The output, `problem.output_size`, channels_last."""
        return self._compute(_FORWARD, input, weight, problem)

    def input_gradient(self, grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        """The gradient for the input, `problem.input_size`, channels_last."""
        return self._compute(_INPUT_GRADIENT, grad_output, weight, problem)

    def weight_gradient(self, input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
        """The gradient for the weight, `problem.weight_size`, contiguous."""
        return self._compute(_WEIGHT_GRADIENT, input, grad_output, problem)

    def _compute(self, product: _Product, first: Tensor, second: Tensor, problem: Problem) -> Tensor:
        key = product.name, problem, first.device
        launcher = self._launcher(first.device) if _have_addresses(first, second) else None
        is_checked = key in self._checked
        if launcher is None or not (is_checked or _can_be_compared(first.device)):
            return product.reference(first, second, problem)
        try:
            found = product.fused(launcher, first, second, problem)
        except Exception as error:  # a private interface of torch may say anything
            # What follows a lack of memory is for the caller to decide; the kernels are not to blame.
            if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error):
                raise
            self._strike(f"{product.name} failed for {problem}: {error}")
            return product.reference(first, second, problem)
        return found if is_checked else self._check(key, found, product.reference(first, second, problem))

    def _check(self, key: tuple[str, Problem, torch.device], found: Tensor, expected: Tensor) -> Tensor:
        """The result to use. A comparison with zeros, infinities or NaN says nothing, and is done again next time."""
        # One transfer; a kernel that failed while it ran is reported here, as a RuntimeError that nothing can mend.
        largest, difference = torch.stack((expected.abs().max(), (found - expected).abs().max())).tolist()
        if not 0 < largest < float("inf"):
            return expected
        if difference <= largest * _tolerance():
            self._checked.add(key)
            return found
        name, problem, device = key
        self._strike(f"{name} on {device} is off by {difference / largest:.2g} of the largest value for {problem}")
        return expected

    def _strike(self, reason: str) -> None:
        self._is_struck = True
        warnings.warn(f"the fused convolution kernels are not used any more: {reason}", stacklevel=2)

    def _launcher(self, device: torch.device) -> Launcher | None:
        with self._lock:
            if self._is_struck:
                return None
            if device not in self._launchers:
                self._launchers[device] = self._built(device)
            return self._launchers[device]

    def _built(self, device: torch.device) -> Launcher | None:
        try:
            return self._build(device)
        except _fused_build.BuildError as error:
            warnings.warn(f"no fused convolution kernels on {device}: {error}", stacklevel=2)
            return None


class _Switch:
    """What `enable` sets, for the process: compiled kernels are loaded once for all models in it."""

    convolution: FusedConvolution | None = None


def enable(build_folder: Path) -> None:
    """Let fused kernels be candidates from here on, also after earlier ones failed; does not build them yet.

    Args:
        build_folder: Where a toolkit builds them, if the runtime compiler cannot; several processes may share it.
    """
    _Switch.convolution = FusedConvolution(lambda device: _fused_build.make_launcher(device, build_folder))


def disable() -> None:
    """Undo `enable`. Problems that were given to fused kernels are computed by `_rows_channels_last`."""
    _Switch.convolution = None


def available(device: torch.device) -> bool:
    """Whether the kernels are enabled and run on this device; builds them, and warns once if that fails."""
    if _Switch.convolution is None or device.type != "cuda":
        return False
    index = torch.cuda.current_device() if device.index is None else device.index
    return _Switch.convolution.works_on(torch.device("cuda", index))


def accepts(problem: Problem, dtype: torch.dtype, device_type: str) -> bool:
    """Whether the kernels can compute a problem: channels_last, one group, float32 and offsets of 32 bits."""
    sizes = (problem.input_size, problem.output_size, problem.weight_size)
    most = max(_elements(size) for size in sizes)
    return (
        device_type == "cuda"
        and dtype == torch.float32
        and problem.channels_last
        and problem.groups == 1
        and min(min(size) for size in sizes) > 0
        and most <= MOST_ELEMENTS
    )


def forward(input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    """The output, `problem.output_size`."""
    return (_Switch.convolution or _rows_channels_last).forward(input, weight, problem)


def input_gradient(grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    """The gradient for the input, `problem.input_size`."""
    return (_Switch.convolution or _rows_channels_last).input_gradient(grad_output, weight, problem)


def weight_gradient(input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
    """The gradient for the weight, `problem.weight_size`."""
    return (_Switch.convolution or _rows_channels_last).weight_gradient(input, grad_output, problem)


def _elements(size: tuple[int, ...]) -> int:
    return torch.Size(size).numel()


def _have_addresses(*tensors: Tensor) -> bool:
    """Whether the tensors are numbers in memory, and not symbols in a graph that is being recorded."""
    return (
        all(type(tensor) in (Tensor, nn.Parameter) for tensor in tensors)
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and not torch.compiler.is_compiling()
    )


def _can_be_compared(device: torch.device) -> bool:
    # A stream that is being captured computes nothing yet.
    return not (device.type == "cuda" and torch.cuda.is_current_stream_capturing())


def _tolerance() -> float:
    try:
        is_exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:
        # What torch says where TF32 was set for one backend alone.
        is_exact = False
    return LARGEST_DIFFERENCE if is_exact else LARGEST_DIFFERENCE_TF32
