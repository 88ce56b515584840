"""Winograd's minimal filtering F(4x4, 3x3) for channels_last tensors: 36 multiplications instead of 144 for 16 outputs.

Lavin, Gray: Fast Algorithms for Convolutional Neural Networks (CVPR 2016, arXiv 1509.09308), section 4.1; the gradient
for the weight is the adjoint of the forward pass. Stride 1, no dilation, one group, float32 and float64; half types
would lose too much in the transforms. What float32 loses depends on the points where polynomials are evaluated, see
`_winograd_transforms`.

Every 6x6 patch of the padded input, four pixels from the next, becomes 36 numbers per channel. Number by number, the
patches of some rows are multiplied with the transformed weight, and each 36 products give 4x4 outputs. The numbers of a
few rows at a time stay in the cache of a CPU between the transforms and the products. What a transform reads and writes
is prepared once for all tiles of a shape, and kept for the next call.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.mirrored_weight import correlation
from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.scratch import scratch_of
from yolo_lightning.conv.algorithms.shared import items_per_tile
from yolo_lightning.conv.algorithms.tiles import Tile, tiles
from yolo_lightning.conv.algorithms.winograd_transforms import KERNEL_TRANSFORM, NUMBERS, OUTPUTS, Workspace


def accepts(problem: Problem) -> bool:
    """Whether the problem has the one form that this algorithm is made for."""
    return problem.kernel == (3, 3) and problem.stride == problem.dilation == (1, 1) and problem.groups == 1


def forward(input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    """The output, `problem.output_size`."""
    output, _ = _convolve(input, numbers_of(weight).transpose(1, 2), None, problem)
    return output


def weight_gradient(input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
    """The gradient for the weight, `problem.weight_size`."""
    _, total = _convolve(input, None, grad_output, problem)
    return weight_of(total)


def gradients(input: Tensor, grad_output: Tensor, weight: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """The gradients for the input and for the weight, from one transform of the output gradient.

    The input gradient is a convolution of the output gradient with the mirrored weight. Seen from there, the input
    stands where an output gradient would stand.
    """
    grad_input, total = _convolve(grad_output, mirrored_numbers_of(weight), input, correlation(problem))
    return grad_input, mirrored_weight_of(total)


def numbers_of(weight: Tensor) -> Tensor:
    """The numbers of the kernels, `(36, O, C)`."""
    return _matrices(weight, _transform(weight))


def weight_of(total: Tensor) -> Tensor:
    """The gradient for the weight `(O, C, 3, 3)` from that for its numbers `(36, C, O)`."""
    return _taps(total, _transform(total)).permute(3, 2, 0, 1).contiguous()


def mirrored_numbers_of(weight: Tensor) -> Tensor:
    """The numbers of the kernels turned by 180 degrees, `(36, O, C)`."""
    return _matrices(weight, _transform(weight).flip(1))


def mirrored_weight_of(total: Tensor) -> Tensor:
    """The gradient for the weight `(O, C, 3, 3)` from that for `mirrored_numbers_of`, `(36, O, C)`."""
    return _taps(total, _transform(total).flip(1)).permute(2, 3, 0, 1).contiguous()


def _transform(like: Tensor) -> Tensor:
    return like.new_tensor(KERNEL_TRANSFORM)


def _convolve(
    input: Tensor, matrices: Tensor | None, grad_output: Tensor | None, problem: Problem
) -> tuple[Tensor, Tensor]:
    """The output where there are matrices, and the weight's gradient where there is one of the output; else empty.

    Args:
        input: `(N, C, H, W)`.
        matrices: The numbers of the weight, `(36, C, O)`, any strides.
        grad_output: `(N, O, output height, output width)`.
        problem: The convolution.

    Returns:
        `problem.output_size`, and the gradient for the numbers of the weight, `(36, C, O)`.
    """
    images = input.permute(0, 2, 3, 1)
    samples, outputs, height, width = problem.output_size
    pixels = total = input.new_empty(0)
    if matrices is not None:
        pixels = input.new_empty(samples, height, width, outputs)
    grads = None
    if grad_output is not None:
        total = input.new_zeros(NUMBERS, images.size(3), outputs)
        grads = grad_output.permute(0, 2, 3, 1)
    for tile, work in _tiles_with_workspace(images, problem):
        rows = slice(OUTPUTS * tile.rows.start, OUTPUTS * tile.rows.stop)
        patches = work.transform(images[tile.samples], rows.start)
        if matrices is not None:
            torch.bmm(patches, matrices, out=work.products)
            work.collect(pixels[tile.samples, rows])
        if grads is not None:
            total.baddbmm_(patches.transpose(1, 2), work.spread(grads[tile.samples, rows]))
    return pixels.permute(0, 3, 1, 2) if matrices is not None else pixels, total


def _tiles_with_workspace(images: Tensor, problem: Problem) -> Iterator[tuple[Tile, Workspace]]:
    """Tiles of rows of patches, each with the prepared steps that tiles of its shape share."""
    patch_rows, columns = (-(-size // OUTPUTS) for size in problem.output_size[2:])
    channels, outputs = images.size(3), problem.output_size[1]
    numbers = NUMBERS * columns * max(channels, outputs)
    step = items_per_tile(numbers, images.size(0) * patch_rows, images.device)
    scratch = scratch_of(images)
    used: dict[tuple[int, int], Workspace] = {}
    for tile in tiles(images.size(0), patch_rows, step):
        shape = tile.samples.stop - tile.samples.start, tile.rows.stop - tile.rows.start
        if shape not in used:
            width, padding = images.size(2), problem.padding
            key = (*shape, columns, width, channels, outputs, padding[0], padding[2])
            make = partial(Workspace, scratch, (*shape, columns), width, channels, problem)
            used[shape] = scratch.prepared(key, make)
            used[shape].clear_borders()
        yield tile, used[shape]


def _matrices(weight: Tensor, transform: Tensor) -> Tensor:
    """The numbers of the kernels `(36, O, C)`."""
    outputs, channels = weight.shape[:2]
    return (transform @ weight.permute(2, 3, 0, 1).reshape(9, -1)).view(NUMBERS, outputs, channels)


def _taps(total: Tensor, transform: Tensor) -> Tensor:
    """The gradient for the taps `(3, 3, C, O)` from that for their numbers `(36, C, O)`; O and C in either order."""
    return (transform.t() @ total.view(NUMBERS, -1)).view(3, 3, *total.shape[1:])
