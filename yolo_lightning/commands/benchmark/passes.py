"""Work to be measured, on random images: single convolutions of YOLOv8n, the network and the training step."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from yolo_lightning.commands.benchmark.baselines import Variant, convert
from yolo_lightning.commands.benchmark.comparison import Pass, Result
from yolo_lightning.conv import Plan
from yolo_lightning.data.batch import Batch
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.model.layers import ConvolutionSettings
from yolo_lightning.module import YOLOModule

Autocast = Callable[[], torch.autocast]

BOXES_PER_FRAME = 9
STAGES = ("forward", "loss", "backward", "optimizer")

SIX = ("model.0.conv", "model.1.conv", "model.2.m.0.cv1.conv", "model.22.cv2.0.0.conv", "model.6.m.0.cv1.conv",
       "model.21.cv1.conv")  # fmt: skip
"""A selection with both strides, 3x3 and 1x1 kernels, every resolution, the stem, the most frequent layer and the most
expensive one."""


@dataclass
class Layer:
    """A convolution of the network."""

    name: str  # name in the graph
    label: str  # channels, kernel size, stride and input size
    input_size: tuple[int, ...]  # `(C, H, W)` of the input
    output_size: tuple[int, ...]  # `(O, H', W')` of the output
    needs_input_gradient: bool  # false for the first layer, whose input is the image
    operations: int  # floating point operations of a forward and backward pass: 2 or 3 products of equal size
    kernel: int  # height and width of the kernel; the padding is half of it
    stride: int  # step between outputs, pixels
    results: list[Result] = field(default_factory=list)  # result of each variant


def convolution_names(graph: nn.Module) -> tuple[str, ...]:
    """Return the names of the convolutions that a YOLOv8 graph uses in training."""
    named = [name for name, module in graph.named_modules() if isinstance(module, nn.Conv2d)]
    return tuple(name for name in named if not name.endswith(".dfl.conv"))


def find_layers(
    graph: nn.Module, image_size: int | Sequence[int], batch_size: int, names: Sequence[str] = SIX
) -> list[Layer]:
    """Return the named convolutions of a YOLOv8n graph with native convolutions."""
    found = {}

    def record(name: str, module: nn.Conv2d, inputs: tuple[Tensor], output: Tensor) -> None:
        (_, channels, *sides), needs_gradient = inputs[0].shape, inputs[0].requires_grad
        kernel = "x".join(map(str, module.kernel_size))
        label = f"{channels} to {output.size(1)}, {kernel}, stride {module.stride[0]}, {ImageSize(*sides)} px"
        multiplications = batch_size * output[0].numel() * module.weight[0].numel()
        operations = 2 * multiplications * (3 if needs_gradient else 2)
        sizes = tuple(inputs[0].shape[1:]), tuple(output.shape[1:])
        found[name] = Layer(
            name, label, *sizes, needs_gradient, operations, kernel=module.kernel_size[0], stride=module.stride[0]
        )

    # Shapes are enough: no data on the meta device. Batch norm in training needs more than one image.
    skeleton = copy.deepcopy(graph).to("meta").train()
    for name in names:
        skeleton.get_submodule(name).register_forward_hook(partial(record, name))
    skeleton(torch.empty(2, 3, *ImageSize.of("image_size", image_size), device="meta"))
    return [found[name] for name in names]


def layer_pass(
    layer: Layer,
    graph: nn.Module,
    variant: Variant,
    plan: Plan,
    device: torch.device,
    batch_size: int,
    autocast: Autocast,
) -> Pass:
    """Return the forward and backward pass of one layer of the graph on random data, equal for every variant.

    The input of the layer counts as stored for the backward pass, the output gradient does not.
    """
    generator = torch.Generator().manual_seed(0)
    convolution = copy.deepcopy(graph.get_submodule(layer.name))
    assert isinstance(convolution, nn.Conv2d)
    convolution.__class__ = nn.Conv2d  # the graph may contain subclasses
    convert(convolution, variant, plan)
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


def synthetic_batch(batch_size: int, image_size: int | Sequence[int], seed: int) -> Batch:
    """Return noise images with 5 to 13 boxes each, whose sides are 2 to 20 % of those of the image; on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(BOXES_PER_FRAME - 4, BOXES_PER_FRAME + 5, (batch_size,), generator=generator)
    number = int(counts.sum())
    sides = 0.02 + 0.18 * torch.rand(number, 2, generator=generator)
    centres = sides / 2 + (1 - sides) * torch.rand(number, 2, generator=generator)
    height, width = ImageSize.of("image_size", image_size)
    shape = (batch_size, 1, height, width)
    return Batch(
        images=torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator),
        boxes=torch.cat((centres, sides), dim=1),
        labels=torch.randint(0, len(CLASS_NAMES), (number,), generator=generator),
        sample_index=torch.arange(batch_size).repeat_interleave(counts),
        image_ids=tuple(map(str, range(batch_size))),
        frame_shapes=((height, width),) * batch_size,
        letterboxes=(Letterbox(1.0, 0, 0),) * batch_size,
        readable=(True,) * batch_size,
    )


def make_module(seed: int, **options: Any) -> YOLOModule:
    """Return YOLOv8n with native convolutions and random weights, in training mode on the CPU.

    `options` are further arguments of `YOLOModule`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return YOLOModule("yolov8n", **options, convolution=ConvolutionSettings(backend="native")).train()


def variant_module(plain: YOLOModule, variant: Variant, plan: Plan, device: torch.device) -> YOLOModule:
    """Return a copy of `plain` with equal weights and the convolutions of `variant`."""
    module = copy.deepcopy(plain)
    convert(module.graph, variant, plan)
    return module.to(device)


def graph_pass(module: YOLOModule, batch: Batch, autocast: Autocast) -> Pass:
    """Return the forward and backward pass of the network; the sum of the outputs replaces the loss."""

    def forward(_: None) -> Tensor:
        with autocast():
            raw = module(batch.images)
        return torch.stack([raw[name].float().sum() for name in ("boxes", "scores")]).sum()

    def backward(total: Tensor) -> None:
        total.backward()  # type: ignore[no-untyped-call]
        module.graph.zero_grad()

    return Pass((("forward", forward), ("backward", backward)), tuple(module.graph.parameters()))


def step_pass(module: YOLOModule, batches: list[Batch], autocast: Autocast) -> Pass:
    """Return a training step that cycles through `batches`: forward, loss, backward, optimizer step with clipping.

    The pass returns the loss per image as a 0-d tensor. The recipe accumulates gradients over several steps, so a
    training spends less time in the optimizer.
    """
    optimizer = module.configure_optimizers()
    steps = 0

    def forward(_: None) -> tuple[Any, Batch]:
        nonlocal steps
        batch = batches[steps % len(batches)]
        steps += 1
        with autocast():
            return module(batch.images), batch

    def loss(state: tuple[Any, Batch]) -> Tensor:
        raw, batch = state
        with autocast():
            total, _ = module.detection_loss(raw, batch)
        return total / len(batch)

    def backward(mean: Tensor) -> Tensor:
        (mean * len(batches[0])).backward()  # type: ignore[no-untyped-call]
        return mean.detach()

    def optimizer_step(mean: Tensor) -> Tensor:
        clip_grad_norm_(module.graph.parameters(), module.recipe.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        return mean

    functions: tuple[Callable[[Any], Any], ...] = (forward, loss, backward, optimizer_step)
    return Pass(tuple(zip(STAGES, functions, strict=True)), tuple(module.graph.parameters()))
