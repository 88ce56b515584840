"""The convolutions of YOLOv8n, one by one."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from yolo_lightning.commands.benchmark.baselines import Variant, convert_layer
from yolo_lightning.commands.benchmark.benchmark_settings import Layers
from yolo_lightning.commands.benchmark.timing import Pass
from yolo_lightning.conv import Plan

SIX = ("model.0.conv", "model.1.conv", "model.2.m.0.cv1.conv", "model.22.cv2.0.0.conv", "model.6.m.0.cv1.conv",
       "model.21.cv1.conv")  # fmt: skip
"""Our choice: both strides, 3x3 and 1x1, every resolution, the stem, the most frequent layer and the dearest one."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One convolution of the network.

    Attributes:
        name: Of the first layer of this shape in the graph.
        count: How many layers have this shape.
        convolution: A native layer like it, on the CPU.
        input_size: `(C, H, W)` of its input.
        output_size: `(O, H', W')`.
        needs_input_gradient: False for the first layer, whose input is the image.
    """

    name: str
    count: int
    convolution: nn.Conv2d
    input_size: tuple[int, int, int]
    output_size: tuple[int, int, int]
    needs_input_gradient: bool

    @property
    def label(self) -> str:
        """Channels, kernel, stride and input side, in words."""
        kernel = "x".join(map(str, self.convolution.kernel_size))
        channels = f"{self.input_size[0]} to {self.output_size[0]}"
        return f"{channels}, {kernel}, stride {self.convolution.stride[0]}, {self.input_size[1]} px"

    def operations(self, batch_size: int) -> int:
        """Floating point operations of a forward and backward pass: 2 per multiplication, 2 or 3 equal products."""
        outputs, height, width = self.output_size
        products = batch_size * height * width * outputs * self.convolution.weight[0].numel()
        return 2 * products * (3 if self.needs_input_gradient else 2)


def find_layers(graph: nn.Module, image_size: int, which: Layers) -> list[Layer]:
    """The convolutions that a training step on `image_size` pixels square goes through, equal shapes once.

    Args:
        graph: A YOLOv8n graph with native convolutions, on the CPU.
        image_size: Pixels.
        which: `six` for those named in `SIX`, `all` for every distinct shape, in the order of the graph.
    """
    found: dict[tuple[object, ...], Layer] = {}
    shape_of: dict[str, tuple[object, ...]] = {}

    def watch(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def note(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            assert isinstance(module, nn.Conv2d)
            input_size, output_size = _size(inputs[0]), _size(output)
            parts = (module.kernel_size, module.stride, module.padding, module.dilation, module.groups)
            shape = (input_size, output_size, *parts, inputs[0].requires_grad)
            layer = Layer(name, 0, module, input_size, output_size, inputs[0].requires_grad)
            layer = found.get(shape, layer)
            found[shape] = replace(layer, count=layer.count + 1)
            shape_of[name] = shape

        return note

    # meta: shapes without numbers. Two images, as batch norm refuses a single value per channel.
    skeleton = copy.deepcopy(graph).to("meta").train()
    for name, module in skeleton.named_modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(watch(name))
    skeleton(torch.empty(2, 3, image_size, image_size, device="meta"))
    chosen = list(found.values()) if which == "all" else [replace(found[shape_of[n]], name=n) for n in SIX]
    real = dict(graph.named_modules())
    return [replace(layer, convolution=_plain(real[layer.name])) for layer in chosen]


def layer_pass(
    layer: Layer,
    variant: Variant,
    plan: Plan,
    device: torch.device,
    batch_size: int,
    autocast: Callable[[], torch.autocast],
) -> Pass:
    """Forward and backward pass of one layer on random numbers, the same for every variant.

    The layer's input counts as kept for the backward pass, its output gradient as in memory anyway.
    """
    generator = torch.Generator().manual_seed(0)
    convolution = copy.deepcopy(layer.convolution)
    convert_layer(convolution, variant, plan)
    convolution.to(device)
    images = torch.randn(batch_size, *layer.input_size, generator=generator).to(device)
    images = images.contiguous(memory_format=variant.memory_format).requires_grad_(layer.needs_input_gradient)
    gradient = torch.randn(batch_size, *layer.output_size, generator=generator).to(device)
    gradient = gradient.contiguous(memory_format=variant.memory_format)

    def forward(_: None) -> Tensor:
        with autocast():
            output: Tensor = convolution(images)
        return output

    def backward(output: Tensor) -> None:
        output.backward(gradient.to(output.dtype))  # type: ignore[no-untyped-call]
        images.grad = None
        convolution.zero_grad()

    return Pass((("forward", forward), ("backward", backward)), (*convolution.parameters(), gradient))


def _size(tensor: Tensor) -> tuple[int, int, int]:
    _, channels, height, width = tensor.shape
    return channels, height, width


def _plain(module: nn.Module) -> nn.Conv2d:
    """A convolution of the same shape and weights; the graph may hold subclasses."""
    assert isinstance(module, nn.Conv2d)
    plain = copy.deepcopy(module)
    plain.__class__ = nn.Conv2d
    return plain
