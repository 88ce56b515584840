"""Passes through single convolutions of YOLOv8n."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from yolo_lightning.commands.benchmark.baselines import Variant, convert_layer
from yolo_lightning.commands.benchmark.benchmark_settings import Layers
from yolo_lightning.commands.benchmark.comparison import Result
from yolo_lightning.commands.benchmark.timing import Pass
from yolo_lightning.conv import Plan

SIX = ("model.0.conv", "model.1.conv", "model.2.m.0.cv1.conv", "model.22.cv2.0.0.conv", "model.6.m.0.cv1.conv",
       "model.21.cv1.conv")  # fmt: skip
"""A selection with both strides, 3x3 and 1x1 kernels, every resolution, the stem, the most frequent layer and the most
expensive one."""


@dataclass
class Layer:
    """The convolutions of one shape in the network."""

    name: str  # name of the first of them in the graph
    label: str  # channels, kernel size, stride and input side
    count: int  # number of convolutions of this shape
    input_size: tuple[int, ...]  # `(C, H, W)` of the input
    output_size: tuple[int, ...]  # `(O, H', W')` of the output
    needs_input_gradient: bool  # false for the first layer, whose input is the image
    operations: int  # floating point operations of a forward and backward pass: 2 or 3 products of equal size
    results: list[Result] = field(default_factory=list)  # result of each variant


def find_layers(graph: nn.Module, image_size: int, batch_size: int, which: Layers) -> list[Layer]:
    """Return the convolutions that run in a training step, one for each distinct shape.

    Args:
        graph: YOLOv8n graph with native convolutions, on the CPU.
        image_size: Side of the square input, pixels.
        batch_size: Images per step.
        which: `six` for the layers in `SIX`, `all` for every distinct shape, in the order of the graph.
    """
    found: dict[tuple[object, ...], Layer] = {}
    shape_of: dict[str, tuple[object, ...]] = {}

    def record(name: str, module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        input_size, output_size, needs_gradient = inputs[0].shape[1:], output.shape[1:], inputs[0].requires_grad
        parts = (module.kernel_size, module.stride, module.padding, module.dilation, module.groups)
        shape_of[name] = shape = (input_size, output_size, *parts, needs_gradient)
        if shape not in found:
            kernel = "x".join(map(str, module.kernel_size))
            label = f"{input_size[0]} to {output_size[0]}, {kernel}, stride {module.stride[0]}, {input_size[1]} px"
            multiplications = batch_size * output_size.numel() * module.weight[0].numel()
            operations = 2 * multiplications * (3 if needs_gradient else 2)
            found[shape] = Layer(name, label, 0, tuple(input_size), tuple(output_size), needs_gradient, operations)
        found[shape].count += 1

    # Shapes are enough: no data on the meta device. Batch norm in training needs more than one image.
    skeleton = copy.deepcopy(graph).to("meta").train()
    for name, module in skeleton.named_modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(partial(record, name))
    skeleton(torch.empty(2, 3, image_size, image_size, device="meta"))
    return list(found.values()) if which == "all" else [replace(found[shape_of[name]], name=name) for name in SIX]


def layer_pass(
    layer: Layer,
    graph: nn.Module,
    variant: Variant,
    plan: Plan,
    device: torch.device,
    batch_size: int,
    autocast: Callable[[], torch.autocast],
) -> Pass:
    """Return the forward and backward pass of one layer of the graph on random data, equal for every variant.

    The input of the layer counts as stored for the backward pass, the output gradient does not.
    """
    generator = torch.Generator().manual_seed(0)
    convolution = copy.deepcopy(graph.get_submodule(layer.name))
    assert isinstance(convolution, nn.Conv2d)
    convolution.__class__ = nn.Conv2d  # the graph may contain subclasses
    convert_layer(convolution, variant, plan)
    convolution.to(device)

    def random_images(size: tuple[int, ...]) -> Tensor:
        images = torch.randn(batch_size, *size, generator=generator).to(device)
        return images.contiguous(memory_format=variant.memory_format)

    images = random_images(layer.input_size).requires_grad_(layer.needs_input_gradient)
    gradient = random_images(layer.output_size)

    def forward(_: None) -> Any:
        with autocast():
            return convolution(images)

    def backward(output: Tensor) -> None:
        output.backward(gradient.to(output.dtype))  # type: ignore[no-untyped-call]
        images.grad = None
        convolution.zero_grad()

    return Pass((("forward", forward), ("backward", backward)), (*convolution.parameters(), gradient))
