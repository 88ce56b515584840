"""Stage `layers`: each distinct convolution of YOLOv8n, forward and backward, on random images."""

import copy
from collections import defaultdict
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor, nn

from yolo_lightning.commands.benchmark.comparison import (
    Result,
    Timer,
    compare,
    faster,
    fastest,
    ratio,
    ratio_text,
    record_failures,
    time_calls,
)
from yolo_lightning.commands.benchmark.conv_variants import Variant, convert
from yolo_lightning.commands.benchmark.result_texts import ms, table
from yolo_lightning.commands.benchmark.section import Section
from yolo_lightning.commands.benchmark.training_step import make_module
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.utils.announced_operations import announce

QUICK_LAYERS = 2


@dataclass
class Layer:
    """Convolutions of the network with equal channels, kernel, stride and input size."""

    name: str  # name of the first one in the graph
    label: str  # channels, kernel size, stride and input size
    input_size: tuple[int, ...]  # `(C, H, W)` of the input
    output_size: tuple[int, ...]  # `(O, H', W')` of the output
    needs_input_gradient: bool  # false for the first layer, whose input is the image
    kernel: int  # height and width of the kernel; the padding is half of it
    stride: int  # step between outputs, pixels
    count: int = 1  # number of equal convolutions in the network


def find_layers(graph: nn.Module, image_size: ImageSize) -> list[Layer]:
    """Return the distinct convolutions that a YOLOv8 graph with native convolutions uses in training."""
    layers: dict[str, Layer] = {}

    def record(name: str, module: nn.Conv2d, inputs: tuple[Tensor], output: Tensor) -> None:
        _, channels, height, width = inputs[0].shape
        kernel = module.kernel_size[0]
        stride = module.stride[0]
        label = f"{channels} to {output.size(1)}, {kernel}x{kernel}, stride {stride}, {ImageSize(height, width)} px"
        if label in layers:
            layers[label].count += 1
            return
        layers[label] = Layer(
            name,
            label,
            input_size=(channels, height, width),
            output_size=tuple(output.shape[1:]),
            needs_input_gradient=inputs[0].requires_grad,
            kernel=kernel,
            stride=stride,
        )

    # Shapes are enough: no data on the meta device. Batch norm in training needs more than one image.
    skeleton = copy.deepcopy(graph).to("meta").train()
    for name, module in skeleton.named_modules():
        if isinstance(module, nn.Conv2d) and not name.endswith(".dfl.conv"):
            module.register_forward_hook(partial(record, name))
    skeleton(torch.empty(2, 3, *image_size, device="meta"))
    return list(layers.values())


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
        convolution(images).backward(gradient)
        images.grad = None
        convolution.zero_grad()

    return partial(time_calls, section.device, run)


def layers(section: Section) -> None:
    """Measure every distinct convolution of YOLOv8n alone in float32, forward and backward."""
    of_networks = (Variant.GEMM_CHECKPOINTING, Variant.NATIVE_GRAPH)
    variants = section.variants(variant for variant in Variant if variant not in of_networks)
    graph = make_module().graph
    measured = []
    rows = []
    failed: list[Result] = []
    sums_s: defaultdict[str, float] = defaultdict(float)  # of each variant, and of the fastest ones of each layer
    selected = find_layers(graph, section.image_size)
    if section.quick:
        del selected[QUICK_LAYERS:]
    for layer in selected:
        announce(f"layer {layer.label}")
        works = {variant: partial(time_layer, section, layer, graph, variant) for variant in variants}
        results = compare(section, works)
        gemm = fastest(results, "gemm")
        native = fastest(results, "native")
        for result in results:
            sums_s[result.variant] += layer.count * result.median_s
        sums_s["fastest gemm"] += layer.count * gemm.median_s
        sums_s["fastest native"] += layer.count * native.median_s
        relative = ratio(gemm, native)
        cells = [ms(result.median_s) for result in results]
        rows.append([layer.label, layer.count, *cells, ratio_text(relative)])
        failed += [result for result in results if result.failure]
        measured.append(asdict(layer) | {"results": [asdict(result) for result in results], "ratio": relative})
        section.save(layers=measured)
        if section.remaining_s() < 0:
            break
    total = sums_s["fastest gemm"] / sums_s["fastest native"]
    count = sum(row["count"] for row in measured)
    rows.append(["sum", count, *(ms(sums_s[variant]) for variant in variants), ratio_text(total)])
    section.record.add(f"Single convolutions, forward and backward, float32, {section.images}.")
    headings = ["layer", "count", *(f"{variant} ms" for variant in variants), "fastest gemm / native"]
    section.record.add(*table(headings, rows))
    record_failures(section.record, failed)
    slower = sum(row["ratio"] > 1 for row in measured)
    section.record.verdict = faster(total)
    section.record.answer = (
        f"the convolutions take {ratio_text(total)} times as long as native; "
        f"{slower} of {len(measured)} layers are slower"
    )
