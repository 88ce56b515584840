"""Launches of the kernels in batch_norm.cu for a batch normalization followed by SiLU."""

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from yolo_lightning.conv.kernels.launcher import (
    ELEMENTS,
    THREADS,
    Launcher,
    Operands,
    counters,
    empty_images,
    evenly_spaced,
    reads_by_four,
)

# Blocks of a reduction. The value, and therefore the order of the sums, is equal on every device.
REDUCTION_BLOCKS = 320
# Blocks of a kernel that computes elements.
ELEMENT_BLOCKS = 2048
# Minimum number of accesses per thread.
LEAST_ACCESSES = 8
# Largest number of vectors of channels that a block computes next to each other.
MOST_LANES = 64

KERNELS = ("batch_statistics", "normalize_silu", "silu_gradient_sums", "normalize_silu_gradient")


def _kernel_name(kernel: str, channels_last: bool, by_four: bool, dtype: torch.dtype) -> str:
    """Return the name of an instance of one of `KERNELS`."""
    layout = "nhwc" if channels_last else "nchw"
    width = "by_four" if by_four else "by_one"
    return f"{kernel}_{layout}_{width}{ELEMENTS[dtype].suffix}"


def instances() -> dict[str, str]:
    """Return the C++ line that defines each kernel, by kernel name."""
    lines = {}
    for dtype, kernel, channels_last, by_four in product(ELEMENTS, KERNELS, (True, False), (True, False)):
        name = _kernel_name(kernel, channels_last, by_four, dtype)
        layout = str(channels_last).lower()
        width = 4 if by_four else 1
        lines[name] = f"{kernel.upper()}({name}, {ELEMENTS[dtype].cpp_type}, {layout}, {width})"
    return lines


class _Layout(NamedTuple):
    """Arrangement of images in memory and of threads; see `Part` in batch_norm.cu."""

    channels_last: bool
    by_four: bool
    dtype: torch.dtype
    positions: int  # samples * height * width
    channels: int
    plane: int  # height * width

    def name(self, kernel: str) -> str:
        return _kernel_name(kernel, self.channels_last, self.by_four, self.dtype)

    def lanes(self) -> tuple[int, int]:
        """Return the number of threads along the channels and the number of blocks along the channels."""
        if not self.channels_last:
            return 1, self.channels
        vectors = -(-self.channels // (4 if self.by_four else 1))
        blocks = -(-vectors // MOST_LANES)
        return -(-vectors // blocks), blocks

    def per_split(self, most_blocks: int) -> int:
        """Return the number of positions of a split, a multiple of four."""
        lanes, blocks = self.lanes()
        at_once = THREADS // lanes * (4 if self.by_four and not self.channels_last else 1)
        splits = max(1, min(most_blocks // blocks, self.positions // (at_once * LEAST_ACCESSES)))
        return -(-self.positions // (splits * 4)) * 4

    def grid(self, per_split: int) -> tuple[int, int, int]:
        return -(-self.positions // per_split), self.lanes()[1], 1

    def partials(self, per_split: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return memory for two numbers per split and channel, and a counter per block along the channels."""
        splits, blocks, _ = self.grid(per_split)
        return like.new_empty(splits, 2, self.channels), counters(like, blocks)

    def numbers(self, per_split: int) -> tuple[int, ...]:
        return self.positions, self.channels, self.plane, self.lanes()[0], per_split


def is_channels_last(input: Tensor) -> bool:
    """Return whether the kernels read and write NHWC."""
    return input.size(1) > 1 and input.stride(1) == 1 and not input.is_contiguous()


def forward(
    launch: Launcher,
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    num_batches_tracked: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Return the output and `(2, C)` mean and 1 / standard deviation; update the running statistics in place.

    `num_batches_tracked` (int64, one element) is incremented.
    """
    (images,), layout = _arranged(input)
    per_split = layout.per_split(REDUCTION_BLOCKS)
    statistics = weight.new_empty(2, layout.channels)
    stride = _stride(images, layout)
    operands = Operands(
        (images,), (statistics, running_mean, running_var, num_batches_tracked), *layout.partials(per_split, weight)
    )
    numbers = (*layout.numbers(per_split), stride, float(momentum), float(eps))
    launch(layout.name("batch_statistics"), layout.grid(per_split), operands, numbers)
    output = _empty_like(images, layout)
    per_split = layout.per_split(ELEMENT_BLOCKS)
    operands = Operands((images, statistics, weight, bias), (output,))
    launch(layout.name("normalize_silu"), layout.grid(per_split), operands, (*layout.numbers(per_split), stride))
    return output, statistics


def backward(
    launch: Launcher, grad_output: Tensor, input: Tensor, weight: Tensor, bias: Tensor, statistics: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the input gradient and `(2, C)` the gradients of bias and weight."""
    (images, grads), layout = _arranged(input, grad_output)
    per_split = layout.per_split(REDUCTION_BLOCKS)
    sums = weight.new_empty(2, layout.channels)
    strides = (_stride(images, layout), _stride(grads, layout))
    reads = (images, grads, statistics, weight, bias)
    operands = Operands(reads, (sums,), *layout.partials(per_split, weight))
    launch(layout.name("silu_gradient_sums"), layout.grid(per_split), operands, (*layout.numbers(per_split), *strides))
    grad_input = _empty_like(images, layout)
    per_split = layout.per_split(ELEMENT_BLOCKS)
    operands = Operands((*reads, sums), (grad_input,))
    numbers = (*layout.numbers(per_split), *strides)
    launch(layout.name("normalize_silu_gradient"), layout.grid(per_split), operands, numbers)
    return grad_input, sums


def _arranged(*tensors: Tensor) -> tuple[list[Tensor], _Layout]:
    """Return all tensors as NHWC or all as NCHW in memory, like the first one, and their layout."""
    samples, channels, height, width = tensors[0].shape
    channels_last = is_channels_last(tensors[0])
    steps: tuple[int, ...]
    if channels_last:
        images = [evenly_spaced(tensor) for tensor in tensors]
        steps = (channels, *(image.stride(3) for image in images))
    else:
        images = [tensor.contiguous() for tensor in tensors]
        steps = (height * width,)
    by_four = reads_by_four(steps, images)
    sizes = (samples * height * width, channels, height * width)
    return images, _Layout(channels_last, by_four, tensors[0].dtype, *sizes)


def _stride(images: Tensor, layout: _Layout) -> int:
    return images.stride(3) if layout.channels_last else 0


def _empty_like(images: Tensor, layout: _Layout) -> Tensor:
    if layout.channels_last:
        return empty_images(images, images.shape)
    return images.new_empty(images.shape)
