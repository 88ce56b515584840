"""Calls of the loops in winograd.cpp and windows.cpp: sizes, tiles and memory of a convolution."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms import winograd
from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.shared import correlation, mirrored_weight, scratch_of
from yolo_lightning.conv.algorithms.winograd_transforms import OUTPUTS, PATCH_VALUES

TILE_ELEMENTS = 1 << 18
"""Input elements that a lane processes at once: 1 MiB, which fits into the cache of a core."""
VECTOR = 8
"""Channels per vector in winograd.cpp."""
WINOGRAD_CHANNELS = 16
"""With fewer input or output channels the matrix products are too small to compensate for the transforms."""


class KernelSizes(ctypes.Structure):
    """Must be equal to `Sizes` in compiled.h."""

    _fields_ = [
        (name, ctypes.c_int)
        for name in (
            *("samples", "height", "width", "channels", "out_height", "out_width", "outputs"),
            *("kernel_height", "kernel_width", "stride_y", "stride_x", "dilation_y", "dilation_x"),
            *("top", "left", "lanes", "tile"),
        )
    ]


@dataclass(frozen=True)
class Loops:
    """The compiled functions."""

    library: ctypes.CDLL  # library with the functions of winograd.cpp and windows.cpp
    sgemm: int  # address of the BLAS function that the loops call

    def __post_init__(self) -> None:
        self.library.winograd_scratch.restype = ctypes.c_long

    def __call__(self, name: str, sizes: KernelSizes, *values: Tensor | bool | None) -> None:
        """Call a function with the sizes, the BLAS function and further arguments."""
        getattr(self.library, name)(ctypes.byref(sizes), ctypes.c_void_p(self.sgemm), *map(_argument, values))


def _argument(value: Tensor | bool | None) -> ctypes.c_void_p | ctypes.c_bool:
    if isinstance(value, bool):
        return ctypes.c_bool(value)
    return ctypes.c_void_p(None if value is None else value.data_ptr())


def forward(loops: Loops, input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    if _is_winograd(problem):
        output, _ = _winograd_loops(loops, input, winograd.transform_weight(weight), True, None, problem)
    else:
        output, _ = _window_loops(loops, input, _matrix(weight), None, problem)
    return output


def input_gradient(loops: Loops, grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    if problem.stride == (1, 1):
        return forward(loops, grad_output, mirrored_weight(weight, 1), correlation(problem))
    sizes, matrix = _sizes(problem, TILE_ELEMENTS // prod(weight.shape[1:])), _matrix(weight)
    images = _empty_images(grad_output, problem.input_size)
    scratch = scratch_of(grad_output)("compiled", sizes.lanes * max(sizes.tile, sizes.out_width) * matrix.size(0))
    loops("windows_input_gradient", sizes, _dense(grad_output), matrix, images, scratch)
    return images


def weight_gradient(loops: Loops, input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
    if _is_winograd(problem):
        _, total = _winograd_loops(loops, input, None, False, grad_output, problem)
        return winograd.weight_gradient_of(total)
    _, total = _window_loops(loops, input, None, grad_output, problem)
    return total.view(*problem.kernel, -1, problem.weight_size[0]).permute(3, 2, 0, 1).contiguous()


def gradients(
    loops: Loops, input: Tensor, grad_output: Tensor, weight: Tensor, problem: Problem
) -> tuple[Tensor, Tensor]:
    """Return the input gradient and the weight gradient; see `winograd.gradients`."""
    if not _is_winograd(problem):
        return (
            input_gradient(loops, grad_output, weight, problem),
            weight_gradient(loops, input, grad_output, problem),
        )
    numbers = winograd.transform_weight(weight, mirrored=True)
    grad_input, total = _winograd_loops(loops, grad_output, numbers, False, input, correlation(problem))
    return grad_input, winograd.weight_gradient_of(total, mirrored=True)


def _is_winograd(problem: Problem) -> bool:
    channels = problem.weight_size[:2]
    return (
        winograd.accepts(problem)
        and min(channels) >= WINOGRAD_CHANNELS
        and not any(count % VECTOR for count in channels)
    )


def _winograd_loops(
    loops: Loops, input: Tensor, matrices: Tensor | None, transposed: bool, grads: Tensor | None, problem: Problem
) -> tuple[Tensor, Tensor]:
    """Return the output and the gradient of the transformed weight; empty if `matrices` or `grads` is None."""
    samples, outputs, height, width = problem.output_size
    channels = problem.input_size[1]
    patches = samples * -(-height // OUTPUTS) * -(-width // OUTPUTS)
    sizes = _sizes(problem, TILE_ELEMENTS * 2 // (PATCH_VALUES * max(channels, outputs)), patches)
    pixels = _empty_images(input, problem.output_size if matrices is not None else (0, outputs, 0, 0))
    lanes = sizes.lanes if grads is not None else 0
    totals = input.new_zeros(lanes, PATCH_VALUES, channels, outputs)
    scratch = scratch_of(input)("compiled", sizes.lanes * loops.library.winograd_scratch(ctypes.byref(sizes)))
    dense_grads = None if grads is None else _dense(grads)
    loops("winograd", sizes, _dense(input), matrices, transposed, dense_grads, pixels, totals, scratch)
    return pixels, totals if grads is None else totals.sum(0)


def _window_loops(
    loops: Loops, input: Tensor, matrix: Tensor | None, grads: Tensor | None, problem: Problem
) -> tuple[Tensor, Tensor]:
    """Return the output and the gradient of the matrix; empty if `matrix` or `grads` is None."""
    outputs, window = problem.output_size[1], prod(problem.weight_size[1:])
    sizes = _sizes(problem, TILE_ELEMENTS // window)
    pixels = _empty_images(input, problem.output_size if matrix is not None else (0, outputs, 0, 0))
    lanes = sizes.lanes if grads is not None else 0
    totals = input.new_zeros(lanes, window, outputs)
    scratch = scratch_of(input)("compiled", sizes.lanes * sizes.tile * window)
    dense_grads = None if grads is None else _dense(grads)
    loops("windows", sizes, _dense(input), matrix, dense_grads, pixels, totals, scratch)
    return pixels, totals if grads is None else totals.sum(0)


def _sizes(problem: Problem, most: int, items: int = 0) -> KernelSizes:
    """Return sizes with tiles of at most `most` items, so that all lanes have the same number of tiles."""
    (samples, channels, *size), (_, outputs, *out_size) = problem.input_size, problem.output_size
    items = items or samples * out_size[0] * out_size[1]
    lanes = torch.get_num_threads()
    tiles = -(-items // max(1, most))
    tile = -(-items // (-(-tiles // lanes) * lanes))
    top, _, left, _ = problem.padding
    return KernelSizes(
        *(samples, *size, channels, *out_size, outputs),
        *(*problem.kernel, *problem.stride, *problem.dilation),
        *(top, left, lanes, tile),
    )


def _matrix(weight: Tensor) -> Tensor:
    """Return the weight as `(kernel taps * C, O)`."""
    return weight.permute(2, 3, 1, 0).reshape(-1, weight.size(0)).contiguous()


def _dense(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def _empty_images(like: Tensor, size: Sequence[int]) -> Tensor:
    samples, channels, height, width = size
    return like.new_empty(samples, height, width, channels).permute(0, 3, 1, 2)
