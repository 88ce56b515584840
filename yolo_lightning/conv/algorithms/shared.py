"""What the algorithms share: zeros around an image, the pixels that a tap meets, tile sizes and exact sums."""

import torch
from torch import Tensor
from torch.nn import functional as F

from yolo_lightning.conv.algorithms.problem import Problem

# Lowered elements that a CPU core still finds in its cache when the multiplication reads them.
CPU_TILE_ELEMENTS = 1 << 18
# Bounds the scratch memory on an accelerator (256 MiB in float32), which has no use for smaller pieces.
ACCELERATOR_TILE_ELEMENTS = 1 << 26


def pad(input: Tensor, problem: Problem) -> Tensor:
    """The padded input `(N, C, padded height, padded width)`, dense in `problem.memory_format`; may be the input."""
    top, bottom, left, right = problem.padding
    padded = F.pad(input, (left, right, top, bottom)) if any(problem.padding) else input
    return padded.contiguous(memory_format=problem.memory_format)


def crop(grad_padded: Tensor, problem: Problem) -> Tensor:
    """The gradient of `pad`: drops the border, dense in `problem.memory_format`."""
    top, _, left, _ = problem.padding
    _, _, height, width = problem.input_size
    inner = grad_padded[:, :, top : top + height, left : left + width]
    return inner.contiguous(memory_format=problem.memory_format)


def tap(axis: int, index: int, problem: Problem) -> slice:
    """The padded rows (axis 0) or columns (axis 1) that kernel tap `index` meets, one for each output."""
    start = index * problem.dilation[axis]
    return slice(start, start + (problem.output_size[2 + axis] - 1) * problem.stride[axis] + 1, problem.stride[axis])


def items_per_tile(elements_per_item: int, items: int, device: torch.device) -> int:
    """How many items (samples or image rows) to lower at once."""
    cpu_tile = CPU_TILE_ELEMENTS * torch.get_num_threads()
    budget = cpu_tile if device.type == "cpu" else ACCELERATOR_TILE_ELEMENTS
    return max(1, min(items, budget // max(1, elements_per_item)))


def add_products_(total: Tensor, grads: Tensor, values: Tensor, samples: int) -> None:
    """Add `grads` transposed times `values` to `total`.

    An accelerator multiplies each sample on its own and then sums: one product with a small result and a very long
    inner dimension would keep few of its units busy.

    Args:
        total: `(O, K)`, in the accumulation dtype; changed in place.
        grads: `(pixels, O)`.
        values: `(pixels, K)`.
        samples: How many samples the pixels belong to; divides their number.
    """
    if grads.device.type == "cpu" and total.dtype == grads.dtype:
        total.addmm_(grads.t(), values)
        return
    by_sample = grads.view(samples, -1, grads.size(1)).transpose(1, 2)
    total += torch.bmm(by_sample, values.view(samples, -1, values.size(1))).sum(0, dtype=total.dtype)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which partial sums are kept: float32 for the half types."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
