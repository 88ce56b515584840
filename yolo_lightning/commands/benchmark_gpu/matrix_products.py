"""Stage `products`: the rate of the matrix products that the convolutions of YOLOv8n issue, forward and backward."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from yolo_lightning.commands.benchmark.baselines import Variant, libraries, make_plan
from yolo_lightning.commands.benchmark.comparison import Pass
from yolo_lightning.commands.benchmark.passes import graph_pass, make_module, synthetic_batch, variant_module
from yolo_lightning.commands.benchmark_gpu.devices import open_device
from yolo_lightning.commands.benchmark_gpu.stage_process import StageContext

PRODUCTS = {"aten::mm": torch.mm, "aten::bmm": torch.bmm}
"""Other products (addmm, baddbmm) are measured as these: they differ in one further read of the result."""
SAME_AS = {
    **dict.fromkeys(("aten::addmm", "aten::addmm_"), "aten::mm"),
    **dict.fromkeys(("aten::baddbmm", "aten::baddbmm_"), "aten::bmm"),
}
FULL, QUICK = (8, 640), (2, 64)
"""Images per batch and pixels."""
SAMPLE_S, MOST_CALLS, ROUNDS = 0.02, 200, 5
SQUARE = 4096
QUICK_SQUARE = 256


@dataclass(frozen=True)
class MatrixProduct:
    """Operands of one matrix product, without data."""

    operator: str
    sizes: tuple[tuple[int, ...], ...]  # of the two operands
    strides: tuple[tuple[int, ...], ...]  # of the two operands

    @property
    def operations(self) -> int:
        """Floating point operations."""
        return 2 * math.prod(self.sizes[0]) * self.sizes[1][-1]

    @property
    def shape(self) -> str:
        """Sizes as `B x M x K @ K x N`; `^T` marks an operand whose rows are not contiguous."""
        marks = ["" if strides[-1] == 1 else "^T" for strides in self.strides]
        left, right = ("x".join(map(str, sizes)) + mark for sizes, mark in zip(self.sizes, marks, strict=True))
        return f"{left} @ {right}"


def measure(context: StageContext) -> dict[str, Any]:
    """Return time and rate of each product of one forward and backward pass, and of one large square product."""
    device = open_device(context.device)
    batch_size, image_size = QUICK if context.quick else FULL
    context.announce("recording the products of the network")
    counts = issued_products(device, batch_size, image_size)
    side = QUICK_SQUARE if context.quick else SQUARE
    square = MatrixProduct("aten::mm", ((side, side),) * 2, ((side, 1),) * 2)
    result: dict[str, Any] = {"batch": batch_size, "image_size": image_size, "square": {}, "rows": []}
    with libraries(Variant.GEMM_NHWC, device, False):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            context.announce(f"square product, {dtype}")
            result["square"][str(dtype).removeprefix("torch.")] = _row(square, 1, dtype, device)
        if device.type == "cuda" and not torch.version.hip:
            with libraries(Variant.GEMM_TF32, device, False):
                result["square"]["float32 with TF32"] = _row(square, 1, torch.float32, device)
        for product, count in sorted(counts.items(), key=lambda pair: -pair[0].operations * pair[1]):
            if context.left_s() < 0:
                break
            context.announce(product.shape)
            result["rows"].append(_row(product, count, torch.float32, device))
            context.save(result)
    result["products"] = sum(counts.values())
    result["shapes"] = len(counts)
    return result | {"passed": True}


def issued_products(device: torch.device, batch_size: int, image_size: int) -> Counter[MatrixProduct]:
    """Return how often one forward and backward pass issues each product, by the algorithms of the table."""
    variant = Variant.GEMM_NHWC
    module = variant_module(make_module(0), variant, make_plan(variant, 0.0), device)
    batch = synthetic_batch(batch_size, image_size, 0).to(device)
    one_pass = graph_pass(module, batch, partial(torch.autocast, device.type, torch.bfloat16, enabled=False))
    one_pass.run()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as trace:
        one_pass.run()
    # The tree of events contains strides, which the public list of events does not.
    assert trace.profiler is not None
    assert trace.profiler.kineto_results is not None
    return Counter(_products_in(trace.profiler.kineto_results.experimental_event_tree()))


def _products_in(events: Any) -> Iterator[MatrixProduct]:
    for event in events:
        operator = SAME_AS.get(event.name, event.name)
        if operator not in PRODUCTS:
            yield from _products_in(event.children)
            continue
        dimensions = 2 if operator == "aten::mm" else 3
        inputs = [one for one in event.extra_fields.inputs if len(getattr(one, "sizes", ())) == dimensions]
        first = len(inputs) > 2 and event.name in SAME_AS  # the added matrix comes before the operands
        operands = inputs[first : first + 2]
        yield MatrixProduct(
            operator, tuple(tuple(one.sizes) for one in operands), tuple(tuple(one.strides) for one in operands)
        )


def _row(product: MatrixProduct, count: int, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Return the median time of a product and its rate."""

    def operand(sizes: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
        span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        return torch.randn(span, device=device).to(dtype).as_strided(sizes, strides)

    row: dict[str, Any] = {"product": product.shape, "operator": product.operator.removeprefix("aten::")}
    row |= {"count": count, "operations": product.operations}
    try:
        left, right = (operand(*one) for one in zip(product.sizes, product.strides, strict=True))
        function = PRODUCTS[product.operator]
        work = Pass((("product", lambda _: function(left, right)),), ())
        work.run()
        calls = max(1, min(int(SAMPLE_S / max(work.time(device)["product"], 1e-9)), MOST_CALLS))
        samples = sorted(work.time(device, calls)["product"] for _ in range(ROUNDS))
    except RuntimeError as error:
        return row | {"failure": str(error).partition("\n")[0]}
    median_s = samples[len(samples) // 2]
    return row | {"median_s": median_s, "operations_per_s": product.operations / median_s}
