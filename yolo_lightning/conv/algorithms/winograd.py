"""Winograd's minimal filtering F(4x4, 3x3) for channels_last tensors: 36 multiplications instead of 144 for 16 outputs.

Lavin, Gray: Fast Algorithms for Convolutional Neural Networks (CVPR 2016, arXiv 1509.09308), section 4.1; the weight
gradient is the adjoint of the forward pass. Stride 1, no dilation, one group, float32 and float64; the transforms would
lose too much accuracy in half types. The accuracy in float32 depends on the interpolation points, see
`winograd_transforms`.

The input transform maps each 6x6 patch of the padded input, with a distance of 4 pixels, to 36 values per channel. For
each of the 36 positions, one matrix product multiplies the values of all patches with the transformed weight. The
output transform maps the 36 products to 4x4 outputs. Tiles of a few rows stay in the cache of a CPU between these
steps.
"""

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.algorithm import Algorithm, Operation
from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.shared import correlation, items_per_tile, tiles
from yolo_lightning.conv.algorithms.winograd_transforms import (
    KERNEL_TRANSFORM,
    OUTPUTS,
    PATCH_VALUES,
    Scratch,
    transform_input,
    transform_output,
    transform_output_gradient,
)


def forward(input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    output, _ = _convolve(input, _transform_weight(weight).transpose(1, 2), None, problem)
    return output


def weight_gradient(input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
    _, total = _convolve(input, None, grad_output, problem)
    return _weight_gradient_of(total)


def gradients(input: Tensor, grad_output: Tensor, weight: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the input gradient and the weight gradient, which share the transformed output gradient.

    The input gradient is a convolution of the output gradient with the mirrored weight. In that convolution the input
    has the role of the output gradient.
    """
    grad_input, total = _convolve(grad_output, _transform_weight(weight, mirrored=True), input, correlation(problem))
    return grad_input, _weight_gradient_of(total, mirrored=True)


def _transform_weight(weight: Tensor, mirrored: bool = False) -> Tensor:
    """Return the transformed weight, `(36, O, C)`; `mirrored` rotates the weight by 180 degrees first."""
    outputs, channels = weight.shape[:2]
    taps = weight.permute(2, 3, 0, 1).reshape(9, -1)
    return (_transform(weight, mirrored) @ taps).view(PATCH_VALUES, outputs, channels)


def _weight_gradient_of(total: Tensor, mirrored: bool = False) -> Tensor:
    """Return the weight gradient `(O, C, 3, 3)` from that of the transformed weight.

    The latter is `(36, C, O)`, or `(36, O, C)` for a mirrored weight.
    """
    taps = (_transform(total, mirrored).t() @ total.view(PATCH_VALUES, -1)).view(3, 3, *total.shape[1:])
    grad_weight = taps.permute(2, 3, 0, 1) if mirrored else taps.permute(3, 2, 0, 1)
    return grad_weight.contiguous(memory_format=torch.channels_last)


def _transform(like: Tensor, mirrored: bool) -> Tensor:
    transform = like.new_tensor(KERNEL_TRANSFORM)
    return transform.flip(1) if mirrored else transform


def _convolve(
    input: Tensor, matrices: Tensor | None, grad_output: Tensor | None, problem: Problem
) -> tuple[Tensor, Tensor]:
    """Return the output and the gradient of the transformed weight, `(36, C, O)`.

    `matrices` is the transformed weight, `(36, C, O)`, of any strides. Without `matrices` the output, and without
    `grad_output` the gradient, is an empty tensor.
    """
    images = input.permute(0, 2, 3, 1)
    samples, outputs, height, width = problem.output_size
    pixels = total = input.new_empty(0)
    if matrices is not None:
        pixels = input.new_empty(samples, height, width, outputs)
    grads = None
    if grad_output is not None:
        total = input.new_zeros(PATCH_VALUES, images.size(3), outputs)
        grads = grad_output.permute(0, 2, 3, 1)
    patch_rows, columns = (-(-size // OUTPUTS) for size in (height, width))
    numbers = PATCH_VALUES * columns * max(images.size(3), outputs)
    scratch = Scratch(input)
    for tile in tiles(samples, patch_rows, items_per_tile(numbers, samples * patch_rows, images.device)):
        shape = tile.samples.stop - tile.samples.start, tile.rows.stop - tile.rows.start, columns
        rows = slice(OUTPUTS * tile.rows.start, OUTPUTS * tile.rows.stop)
        patches = transform_input(images[tile.samples], scratch, shape, rows.start, problem.padding[::2])
        if matrices is not None:
            products = scratch("products", PATCH_VALUES, patches.size(1), outputs)
            torch.bmm(patches, matrices, out=products)
            transform_output(products, scratch, shape, pixels[tile.samples, rows])
        if grads is not None:
            spread = transform_output_gradient(grads[tile.samples, rows], scratch, shape)
            total.baddbmm_(patches.transpose(1, 2), spread)
    return pixels.permute(0, 3, 1, 2) if matrices is not None else pixels, total


def _serves(problem: Problem, dtype: torch.dtype, device_type: str) -> bool:
    # On a CPU the transforms run in the cache and cost less than the saved products; an accelerator is memory-bound.
    is_plain = problem.kernel == (3, 3) and problem.stride == problem.dilation == (1, 1) and problem.groups == 1
    return device_type == "cpu" and problem.channels_last and is_plain and dtype in (torch.float32, torch.float64)


ALGORITHM = Algorithm(
    "winograd",
    {Operation.FORWARD: forward, Operation.WEIGHT_GRADIENT: weight_gradient, Operation.GRADIENTS: gradients},
    _serves,
)
