"""Stage `correctness`: every convolution algorithm and kernel against float64, on the shapes of YOLOv8n."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from yolo_lightning.commands.benchmark.passes import Layer, convolution_names, find_layers, make_module
from yolo_lightning.commands.benchmark_gpu.devices import open_device, supports_float64
from yolo_lightning.commands.benchmark_gpu.stage_process import StageContext
from yolo_lightning.conv import enable_gpu_kernels
from yolo_lightning.conv.algorithms.algorithm import Operation
from yolo_lightning.conv.algorithms.problem import Tensors, make_problem
from yolo_lightning.conv.algorithms.table import Candidate, candidates
from yolo_lightning.conv.kernels import fused_norm
from yolo_lightning.conv.kernels.verified import is_accelerator
from yolo_lightning.utils.files import cache_folder

BATCH = 2
FULL_PIXELS, QUICK_PIXELS = 640, 64
TOLERANCES = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest correct error, relative to the largest value: that of the order of sums for float32 (see
`conv.kernels.verified`), a few roundings of the result for half types. A wrong address gives more than 0.1."""
FORMATS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
SAVE_EVERY = 4
FUSED, NORMALIZATION = "fused", "batch normalization with SiLU"
"""GPU kernels of this package: the name of their algorithm for convolutions, and of the row of normalizations."""


@dataclass
class AlgorithmErrors:
    """Errors of one algorithm in one dtype, over all operations, layouts and shapes."""

    algorithm: str
    dtype: str
    cases: int = 0
    largest_error: float = 0.0  # relative to the largest value of the product; infinite for NaN
    worst: str = ""  # operation, layout and shape of `largest_error`
    refusals: int = 0  # cases that the algorithm refused or that ran out of memory
    refusal: str = ""  # first line of the last such error

    def add(self, error: float, case: str) -> None:
        self.cases += 1
        # The comparison also selects a NaN.
        if not error <= self.largest_error:
            self.largest_error, self.worst = (error if error == error else float("inf")), case


@dataclass(frozen=True)
class ReferenceProducts:
    """Operands of one shape, exact in every dtype, and the products in float64."""

    label: str
    stride: int
    padding: int
    operands: dict[str, Tensor]  # input, weight, grad_output; values with 8 significant bits
    products: dict[Operation, Tensors]


def measure(context: StageContext) -> dict[str, Any]:
    """Return the largest error per algorithm and dtype, and whether all are within the tolerances."""
    device = open_device(context.device)
    layers = distinct_layers(QUICK_PIXELS if context.quick else FULL_PIXELS)
    enable_gpu_kernels(cache_folder() / "kernels")
    found: dict[tuple[str, str], AlgorithmErrors] = {}
    messages: list[str] = []
    done = 0
    torch.backends.cudnn.allow_tf32 = False
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: messages.append(str(message))
        for layer in layers:
            if context.left_s() < 0:
                break
            reference = reference_products(layer, device)
            for dtype in TOLERANCES:
                context.announce(f"{layer.label}, {name_of(dtype)}")
                for layout in FORMATS:
                    check_shape(reference, dtype, layout, device, found)
                    check_normalization(reference, dtype, layout, device, found)
            done += 1
            if done % SAVE_EVERY == 0:
                context.save(_result(found, messages, done, len(layers)))
    result = _result(found, messages, done, len(layers))
    disabled = [message for message in result["messages"] if "are disabled" in message]
    wrong = [one for one in found.values() if not one.largest_error <= tolerance_of(one.dtype)]
    reasons = [f"{one.algorithm}, {one.dtype}: error {one.largest_error:.2g} in {one.worst}" for one in wrong]
    reasons += [*(absent_kernels(found) if is_accelerator(device.type) else []), *disabled]
    return result | {"passed": not reasons, "reason": "; ".join(reasons)}


def absent_kernels(found: Mapping[tuple[str, str], AlgorithmErrors]) -> list[str]:
    """Return a message for each dtype and kind of GPU kernels of this package that computed nothing."""
    pairs = [(name, name_of(dtype)) for name in (FUSED, NORMALIZATION) for dtype in TOLERANCES]
    return [
        f"{name} computed nothing in {dtype}"
        for name, dtype in pairs
        if not getattr(found.get((name, dtype)), "cases", 0)
    ]


def _result(found: dict[tuple[str, str], AlgorithmErrors], messages: list[str], done: int, of: int) -> dict[str, Any]:
    return {
        "shapes": done,
        "shapes_of_network": of,
        "batch": BATCH,
        "tolerances": {name_of(dtype): tolerance for dtype, tolerance in TOLERANCES.items()},
        "algorithms": [asdict(one) for one in found.values()],
        "messages": list(dict.fromkeys(messages)),
    }


def distinct_layers(image_size: int) -> list[Layer]:
    """Return one convolution of YOLOv8n for each combination of channels, kernel, stride and input size."""
    graph = make_module(0).graph
    layers = find_layers(graph, image_size, BATCH, convolution_names(graph))
    return list({layer.label: layer for layer in reversed(layers)}.values())[::-1]


def reference_products(layer: Layer, device: torch.device) -> ReferenceProducts:
    """Return random operands, and their products computed on the CPU in float64, stored on the device if possible."""
    generator = torch.Generator().manual_seed(0)
    kernel, stride, padding = layer.kernel, layer.stride, layer.kernel // 2

    def numbers(*size: int) -> Tensor:
        # Rounded to bfloat16: the same values are exact in all dtypes.
        return torch.randn(size, generator=generator).bfloat16().double()

    input = numbers(BATCH, *layer.input_size).requires_grad_()
    weight = numbers(layer.output_size[0], layer.input_size[0], kernel, kernel).requires_grad_()
    output = F.conv2d(input, weight, None, stride, padding)
    grad_output = numbers(*output.shape)
    grad_input, grad_weight = torch.autograd.grad(output, [input, weight], grad_output)
    place = device if supports_float64(device) else torch.device("cpu")
    products: dict[Operation, Tensors] = {
        Operation.FORWARD: (output.detach().to(place),),
        Operation.INPUT_GRADIENT: (grad_input.to(place),),
        Operation.WEIGHT_GRADIENT: (grad_weight.to(place),),
    }
    products[Operation.GRADIENTS] = products[Operation.INPUT_GRADIENT] + products[Operation.WEIGHT_GRADIENT]
    operands = {"input": input.detach(), "weight": weight.detach(), "grad_output": grad_output}
    return ReferenceProducts(layer.label, stride, padding, operands, products)


OPERANDS = {
    Operation.FORWARD: ("input", "weight"),
    Operation.INPUT_GRADIENT: ("grad_output", "weight"),
    Operation.WEIGHT_GRADIENT: ("input", "grad_output"),
    Operation.GRADIENTS: ("input", "grad_output", "weight"),
}


def check_shape(
    reference: ReferenceProducts,
    dtype: torch.dtype,
    layout: str,
    device: torch.device,
    found: dict[tuple[str, str], AlgorithmErrors],
) -> None:
    """Compare all algorithms, and native convolutions, with the reference in one dtype and layout."""
    memory_format = FORMATS[layout]
    operands = {
        name: tensor.to(dtype).to(device).contiguous(memory_format=memory_format)
        for name, tensor in reference.operands.items()
    }
    stride, padding = reference.stride, reference.padding
    problem = make_problem(operands["input"], operands["weight"], None, stride, padding, 1, 1, memory_format)
    for operation, names in OPERANDS.items():
        tensors = tuple(operands[name] for name in names)
        for candidate in candidates(operation, problem, dtype, device.type):
            one = found.setdefault((candidate.name, name_of(dtype)), AlgorithmErrors(candidate.name, name_of(dtype)))
            case = f"{operation}, {layout}, {reference.label}"
            for error in errors_of(candidate, tensors, reference.products[operation], one):
                one.add(error, case)


def check_normalization(
    reference: ReferenceProducts,
    dtype: torch.dtype,
    layout: str,
    device: torch.device,
    found: dict[tuple[str, str], AlgorithmErrors],
) -> None:
    """Compare the kernels for batch normalization with SiLU, applied to the output of a convolution, with float64."""
    eps = 1e-3
    exact = reference.products[Operation.FORWARD][0].cpu()
    batch, grads = (tensor.to(dtype).double() for tensor in (exact, reference.operands["grad_output"]))
    channels = batch.size(1)
    weight, bias = torch.linspace(0.5, 1.5, channels, dtype=torch.float64), torch.linspace(-1, 1, channels).double()
    leaves = [batch.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]
    mean, var = batch.detach().mean((0, 2, 3)), batch.detach().var((0, 2, 3))
    output = F.silu(F.batch_norm(batch, None, None, weight, bias, training=True, eps=eps))
    by_input, by_weight, by_bias = torch.autograd.grad(output, leaves, grads)

    def on_device(tensor: Tensor, kind: torch.dtype = torch.float32) -> Tensor:
        tensor = tensor.detach().to(kind).to(device)
        return tensor.contiguous(memory_format=FORMATS[layout]) if tensor.ndim == 4 else tensor

    input, grad_output = on_device(batch, dtype), on_device(grads, dtype)
    running = torch.zeros(channels, device=device), torch.zeros(channels, device=device)
    parameters = on_device(weight), on_device(bias)
    if not fused_norm.accepts(input, *parameters, *running):
        return
    one = found.setdefault((NORMALIZATION, name_of(dtype)), AlgorithmErrors(NORMALIZATION, name_of(dtype)))
    forward = fused_norm.forward(input, *parameters, *running, None, 1.0, eps)
    backward = None if forward is None else fused_norm.backward(grad_output, input, *parameters, forward[1])
    if forward is None or backward is None:
        one.refusals, one.refusal = one.refusals + 1, "the kernels are disabled"
        return
    pairs = [(forward[0], output), (running[0], mean), (running[1], var)]
    pairs += [(backward[0], by_input), (backward[1], torch.stack([by_bias, by_weight]))]
    for product, expected in pairs:
        one.add(relative_error(product, expected.detach()), f"normalization, {layout}, {reference.label}")


def errors_of(candidate: Candidate, tensors: Tensors, expected: Tensors, one: AlgorithmErrors) -> Iterator[float]:
    """Yield the relative error of each product of a candidate; nothing if the candidate refuses the problem."""
    try:
        products: Sequence[Tensor] = candidate.compute(tensors)
    except RuntimeError as error:
        is_out_of_memory = isinstance(error, torch.OutOfMemoryError)
        if not candidate.may_refuse and not is_out_of_memory:
            raise
        one.refusals, one.refusal = one.refusals + 1, str(error).partition("\n")[0][:200]
        return
    for product, right in zip(products, expected, strict=True):
        yield relative_error(product, right)


def relative_error(product: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest expected value; infinite if the shapes differ."""
    if product.shape != expected.shape:
        return float("inf")
    difference = product.to(expected.device).double() - expected
    return float(difference.abs().max() / expected.abs().max())


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def tolerance_of(dtype_name: str) -> float:
    return TOLERANCES[getattr(torch, dtype_name)]
