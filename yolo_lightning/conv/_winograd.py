"""Winograd's minimal filtering F(2x2, 3x3) for channels_last tensors: 16 multiplications instead of 36 for 4 outputs.

Lavin, Gray: Fast Algorithms for Convolutional Neural Networks (CVPR 2016, arXiv 1509.09308), section 4.1; the gradient
for the weight is the adjoint of the forward pass. Stride 1, no dilation, one group, float32 and float64: the transforms
only add, subtract and halve, so float32 stays as accurate as with plain products, but half types would not.

Every 4x4 patch of the padded input, two pixels from the next, becomes 16 numbers per channel. Number by number, the
patches of some rows are multiplied with the transformed weight, and each 16 products give 2x2 outputs. The numbers of a
few rows at a time stay in the cache of a CPU between the transforms and the products. All tiles but the last have one
shape, so what a transform reads and writes is prepared once.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from yolo_lightning.conv._arguments import Problem
from yolo_lightning.conv._mirror import correlation, mirrored_weight
from yolo_lightning.conv._shared import items_per_tile
from yolo_lightning.conv._tiles import Tile, tiles
from yolo_lightning.conv._winograd_transforms import NUMBERS, Workspace


def accepts(problem: Problem) -> bool:
    """Whether the problem has the one form that this algorithm is made for."""
    return problem.kernel == (3, 3) and problem.stride == problem.dilation == (1, 1) and problem.groups == 1


def forward(input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    """The output, `problem.output_size`."""
    output, _ = _convolve(input, weight, None, problem)
    return output


def weight_gradient(input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
    """The gradient for the weight, `problem.weight_size`."""
    _, grad_weight = _convolve(input, None, grad_output, problem)
    return grad_weight


def gradients(input: Tensor, grad_output: Tensor, weight: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """The gradients for the input and for the weight, from one transform of the output gradient.

    The input gradient is a convolution of the output gradient with the mirrored weight. Seen from there, the input
    stands where an output gradient would stand.
    """
    mirrored = mirrored_weight(weight, groups=1)
    grad_input, grad_mirrored = _convolve(grad_output, mirrored, input, correlation(problem))
    return grad_input, mirrored_weight(grad_mirrored, groups=1)


def _convolve(
    input: Tensor, weight: Tensor | None, grad_output: Tensor | None, problem: Problem
) -> tuple[Tensor, Tensor]:
    """The output if there is a weight, and the weight's gradient if there is one of the output; empty otherwise."""
    images = input.permute(0, 2, 3, 1)
    samples, outputs, height, width = problem.output_size
    transform = _weight_transform(input)
    matrices = pixels = total = input.new_empty(0)
    if weight is not None:
        matrices = (transform @ weight.permute(2, 3, 1, 0).reshape(9, -1)).view(NUMBERS, -1, outputs)
        pixels = input.new_empty(samples, height, width, outputs)
    if grad_output is not None:
        total = input.new_zeros(NUMBERS, images.size(3), outputs)
    grads = None if grad_output is None else grad_output.permute(0, 2, 3, 1)
    for tile, work in _tiles_with_workspace(images, problem):
        rows = slice(2 * tile.rows.start, 2 * tile.rows.stop)
        patches = work.transform(images[tile.samples], 2 * tile.rows.start)
        if weight is not None:
            torch.bmm(patches, matrices, out=work.products)
            work.collect(pixels[tile.samples, rows])
        if grads is not None:
            total.baddbmm_(patches.transpose(1, 2), work.spread(grads[tile.samples, rows]))
    output = pixels.permute(0, 3, 1, 2) if weight is not None else pixels
    if grads is None:
        return output, total
    by_tap = (transform.t() @ total.view(NUMBERS, -1)).view(3, 3, -1, outputs)
    return output, by_tap.permute(3, 2, 0, 1).contiguous()


def _tiles_with_workspace(images: Tensor, problem: Problem) -> Iterator[tuple[Tile, Workspace]]:
    """Tiles of rows of patches, each with the scratch memory that tiles of its shape share."""
    patch_rows, columns = ((size + 1) // 2 for size in problem.output_size[2:])
    step = items_per_tile(NUMBERS * columns * images.size(3) // 2, images.size(0) * patch_rows, images.device)
    by_shape: dict[tuple[int, int], Workspace] = {}
    for tile in tiles(images.size(0), patch_rows, step):
        shape = tile.samples.stop - tile.samples.start, tile.rows.stop - tile.rows.start
        if shape not in by_shape:
            by_shape[shape] = Workspace(images, (*shape, columns), problem)
        yield tile, by_shape[shape]


def _weight_transform(like: Tensor) -> Tensor:
    """`(16, 9)`: from the taps of a kernel to the numbers that meet those of a patch, for both axes at once."""
    axis = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0.0, 0.0, 1.0]])
    return torch.kron(axis, axis).to(like)
