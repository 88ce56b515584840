"""Work to be measured, on random images: single convolutions of YOLOv8n, and the network."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from yolo_lightning.commands.benchmark.comparison import Timer, time_calls
from yolo_lightning.commands.benchmark.conv_variants import Variant, convert
from yolo_lightning.commands.benchmark.section import Section
from yolo_lightning.data.batch import Batch
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.model.conv_backend import ConvolutionSettings
from yolo_lightning.module import YOLOModule


@dataclass
class Layer:
    """Convolutions of the network with equal channels, kernel, stride and input size."""

    name: str  # name of the first one in the graph
    label: str  # channels, kernel size, stride and input size
    input_size: tuple[int, ...]  # `(C, H, W)` of the input
    output_size: tuple[int, ...]  # `(O, H', W')` of the output
    needs_input_gradient: bool  # false for the first layer, whose input is the image
    operations: int  # floating point operations of a forward and backward pass: 2 or 3 products of equal size
    kernel: int  # height and width of the kernel; the padding is half of it
    stride: int  # step between outputs, pixels
    count: int = 1  # number of equal convolutions in the network


def find_layers(graph: nn.Module, image_size: ImageSize, batch_size: int) -> list[Layer]:
    """Return the distinct convolutions that a YOLOv8 graph with native convolutions uses in training."""
    found: dict[str, Layer] = {}

    def record(name: str, module: nn.Conv2d, inputs: tuple[Tensor], output: Tensor) -> None:
        (_, channels, *sides), needs_gradient = inputs[0].shape, inputs[0].requires_grad
        kernel = "x".join(map(str, module.kernel_size))
        label = f"{channels} to {output.size(1)}, {kernel}, stride {module.stride[0]}, {ImageSize(*sides)} px"
        if label in found:
            found[label].count += 1
            return
        multiplications = batch_size * output[0].numel() * module.weight[0].numel()
        operations = 2 * multiplications * (3 if needs_gradient else 2)
        sizes = tuple(inputs[0].shape[1:]), tuple(output.shape[1:])
        found[label] = Layer(name, label, *sizes, needs_gradient, operations, module.kernel_size[0], module.stride[0])

    # Shapes are enough: no data on the meta device. Batch norm in training needs more than one image.
    skeleton = copy.deepcopy(graph).to("meta").train()
    for name, module in skeleton.named_modules():
        if isinstance(module, nn.Conv2d) and not name.endswith(".dfl.conv"):
            module.register_forward_hook(partial(record, name))
    skeleton(torch.empty(2, 3, *image_size, device="meta"))
    return [*found.values()]


def time_layer(section: Section, layer: Layer, graph: nn.Module, variant: Variant) -> Timer:
    """Return a timer of the forward and backward pass of one layer on random data, equal for every variant."""
    generator = torch.Generator().manual_seed(0)
    convolution = copy.deepcopy(graph.get_submodule(layer.name))
    assert isinstance(convolution, nn.Conv2d)
    convolution.__class__ = nn.Conv2d  # the graph may contain subclasses
    convert(convolution, variant)
    convolution.to(section.device)

    def random_images(size: tuple[int, ...]) -> Tensor:
        images = torch.randn(section.batch_size, *size, generator=generator).to(section.device)
        return images.contiguous(memory_format=variant.memory_format)

    images = random_images(layer.input_size).requires_grad_(layer.needs_input_gradient)
    gradient = random_images(layer.output_size)

    def run() -> None:
        with section.autocast():
            output = convolution(images)
        output.backward(gradient.to(output.dtype))
        images.grad = None
        convolution.zero_grad()

    return partial(time_calls, section.device, run)


def time_graph(section: Section, *order: Variant) -> dict[Variant, Callable[[], Timer]]:
    """Return functions that prepare timers of the network, forward and backward; the sum of its outputs is the loss.

    All variants have equal weights and inputs. Variants that the section does not measure are left out.
    """
    images = synthetic_batch(section.batch_size, section.image_size, 0).images.to(section.device)

    def prepare(variant: Variant) -> Timer:
        section.announce(f"network, {variant}, {section.conditions}")
        module = make_module()
        convert(module.graph, variant)
        module.to(section.device)

        def run() -> None:
            with section.autocast():
                raw = module(images)
            (raw["boxes"].float().sum() + raw["scores"].float().sum()).backward()
            module.graph.zero_grad()

        return partial(time_calls, section.device, run)

    return {variant: partial(prepare, variant) for variant in section.variants(*order)}


def synthetic_batch(batch_size: int, image_size: ImageSize, seed: int) -> Batch:
    """Return noise images with 5 to 13 boxes each, whose sides are 2 to 20 % of those of the image; on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(5, 14, (batch_size,), generator=generator)
    number = int(counts.sum())
    sides = 0.02 + 0.18 * torch.rand(number, 2, generator=generator)
    centres = sides / 2 + (1 - sides) * torch.rand(number, 2, generator=generator)
    height, width = image_size
    return Batch(
        images=torch.randint(0, 256, (batch_size, 1, height, width), dtype=torch.uint8, generator=generator),
        boxes=torch.cat((centres, sides), dim=1),
        labels=torch.randint(0, len(CLASS_NAMES), (number,), generator=generator),
        sample_index=torch.arange(batch_size).repeat_interleave(counts),
        image_ids=tuple(map(str, range(batch_size))),
        frame_shapes=((height, width),) * batch_size,
        letterboxes=(Letterbox(1.0, 0, 0),) * batch_size,
        readable=(True,) * batch_size,
    )


def make_module(**options: Any) -> YOLOModule:
    """Return YOLOv8n with native convolutions and equal random weights, in training mode on the CPU.

    `options` are further arguments of `YOLOModule`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return YOLOModule("yolov8n", **options, convolution=ConvolutionSettings(backend="native")).train()
