"""1x1 convolution with stride 1 and no padding: a matrix product over the channels, without lowering."""

from torch import Tensor

from yolo_lightning.conv.algorithms.algorithm import Algorithm, Operation
from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.shared import accumulation_dtype, add_products_, multiply, product_parts


def forward(input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    return _mix_channels(input, _matrices(weight, problem), problem).view(problem.output_size)


def input_gradient(grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    return _mix_channels(grad_output, _matrices(weight, problem).transpose(1, 2), problem).view(problem.input_size)


def weight_gradient(input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
    """Return the weight gradient, `problem.weight_size`; parts of half types are summed in float32.

    On an accelerator the sum over the pixels is divided into parts, see `product_parts`; without parts, few compute
    units would be used, because the result is small.
    """
    if problem.channels_last and problem.groups == 1:
        grads = _pixels_by_channels(grad_output)
        values = _pixels_by_channels(input)
        if input.device.type != "cpu":
            return _sum_of_parts(grads, values).view(problem.weight_size)
        total = input.new_zeros(problem.weight_size[:2], dtype=accumulation_dtype(input.dtype))
        add_products_(total, grads, values, input.size(0))
        return total.to(input.dtype).view(problem.weight_size)
    grouped_grads = _samples_by_groups(grad_output, problem.groups)
    grouped_values = _samples_by_groups(input, problem.groups)
    products = multiply(grouped_grads, grouped_values.transpose(2, 3))
    total = products.sum(0, dtype=accumulation_dtype(input.dtype))
    return total.to(input.dtype).view(problem.weight_size)


def _sum_of_parts(grads: Tensor, values: Tensor) -> Tensor:
    """Return `grads (pixels, O)` transposed times `values (pixels, C)`."""
    outputs = grads.size(1)
    channels = values.size(1)
    parts = product_parts(grads.size(0), outputs, channels)
    if parts == 1:
        return multiply(grads.t(), values)
    by_part = multiply(grads.view(parts, -1, outputs).transpose(1, 2), values.view(parts, -1, channels))
    return by_part.sum(0)


def _mix_channels(images: Tensor, matrices: Tensor, problem: Problem) -> Tensor:
    samples, _, height, width = images.shape
    groups, outputs, _ = matrices.shape
    if problem.channels_last and groups == 1:
        pixels = multiply(_pixels_by_channels(images), matrices[0].t())
        return pixels.view(samples, height, width, outputs).permute(0, 3, 1, 2)
    mixed = multiply(matrices, _samples_by_groups(images, groups))
    return mixed.view(samples, groups * outputs, height, width).contiguous(memory_format=problem.memory_format)


def _matrices(weight: Tensor, problem: Problem) -> Tensor:
    return weight.reshape(problem.groups, problem.weight_size[0] // problem.groups, problem.weight_size[1])


def _pixels_by_channels(images: Tensor) -> Tensor:
    return images.permute(0, 2, 3, 1).reshape(-1, images.size(1))


def _samples_by_groups(images: Tensor, groups: int) -> Tensor:
    samples, channels, height, width = images.shape
    return images.reshape(samples, groups, channels // groups, height * width)


ALGORITHM = Algorithm(
    "pointwise",
    {
        Operation.FORWARD: forward,
        Operation.INPUT_GRADIENT: input_gradient,
        Operation.WEIGHT_GRADIENT: weight_gradient,
    },
    lambda problem, dtype, device_type: problem.is_pointwise,
)
