"""Stage `correctness`: every convolution algorithm and kernel against float64, on the shapes of YOLOv8n."""

import itertools
import math
import warnings
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from yolo_lightning.commands.benchmark.findings import NOT_MEASURED, table
from yolo_lightning.commands.benchmark.layer_speed import Layer, find_layers
from yolo_lightning.commands.benchmark.section import Section
from yolo_lightning.commands.benchmark.training_step import make_module
from yolo_lightning.conv import enable_gpu_kernels
from yolo_lightning.conv.algorithms.algorithm import Operation
from yolo_lightning.conv.algorithms.problem import Tensors, make_problem
from yolo_lightning.conv.algorithms.table import candidates
from yolo_lightning.conv.kernels import fused_norm
from yolo_lightning.conv.kernels.verified import is_accelerator
from yolo_lightning.utils.files import cache_folder

BATCH = 2
TOLERANCES = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest correct error, relative to the largest value: that of the order of sums for float32 (see
`conv.kernels.verified`), a few roundings of the result for half types. A wrong address gives more than 0.1."""
LAYOUTS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
FUSED = "fused"
NORMALIZATION = "batch normalization with SiLU"
"""GPU kernels of this package: the name of their algorithm for convolutions, and of the row of normalizations."""
EPS = 1e-3
OPERANDS = {
    Operation.FORWARD: ("input", "weight"),
    Operation.INPUT_GRADIENT: ("grad_output", "weight"),
    Operation.WEIGHT_GRADIENT: ("input", "grad_output"),
    Operation.GRADIENTS: ("input", "grad_output", "weight"),
}

Errors = defaultdict[tuple[str, str], list[tuple[float, str]]]
"""By algorithm and dtype: the relative error of each product, with its operation, layout and shape."""


@dataclass(frozen=True)
class Reference:
    """Operands of one convolution, exact in every dtype, and its products in float64."""

    layer: Layer
    operands: dict[str, Tensor]  # input, weight, grad_output; values with 8 significant bits, on the CPU
    products: dict[Operation, Tensors]


def correctness(section: Section) -> None:
    """Measure the largest error per algorithm and dtype, and check that all are within the tolerances.

    On a GPU, the kernels of this package must also have computed something in every dtype.
    """
    layers = find_layers(make_module().graph, section.image_size, BATCH)
    enable_gpu_kernels(cache_folder() / "kernels")
    errors: Errors = defaultdict(list)
    torch.backends.cudnn.allow_tf32 = False
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for checked, layer in enumerate(layers, 1):
            reference = reference_of(layer, section.device)
            for dtype, layout in itertools.product(TOLERANCES, LAYOUTS):
                section.announce(f"{layer.label}, {dtype}, {layout}")
                check_convolution(reference, dtype, layout, section.device, errors)
                _check_normalization(reference, dtype, layout, section.device, errors)
            section.save(shapes=checked, errors=[(*key, len(cases), *max(cases)) for key, cases in errors.items()])
            if section.remaining_s() < 0:
                break
    limits = ", ".join(f"{dtype} {limit:g}" for dtype, limit in TOLERANCES.items())
    section.findings.add(
        f"{checked} of {len(layers)} distinct convolutions of YOLOv8n, {BATCH} images of {section.image_size} px, NCHW"
        " and NHWC: forward, input gradient, weight gradient, and both gradients at once; batch normalization with SiLU"
        " on the output of each. The error is the largest difference from float64, relative to the largest value."
        f" Tolerances: {limits}. An algorithm without a value does not support the dtype."
    )
    _judge(section, errors, list(dict.fromkeys(str(warning.message) for warning in caught)))


def _judge(section: Section, errors: Errors, messages: list[str]) -> None:
    """Add the table of the largest errors to the findings, and fail if one of them is too large or missing."""
    findings = section.findings
    worst = {key: max(cases) for key, cases in errors.items()}
    wrong = {key for key, (error, _) in worst.items() if error > TOLERANCES[key[1]]}
    findings.fail([f"{', '.join(key)}: error {worst[key][0]:.2g} in {worst[key][1]}" for key in worst if key in wrong])
    if is_accelerator(section.device.type):
        kernels = itertools.product((FUSED, NORMALIZATION), TOLERANCES)
        findings.fail([f"{name} computed nothing in {dtype}" for name, dtype in kernels if (name, dtype) not in errors])
    findings.fail([message for message in messages if "are disabled" in message])
    rows = []
    for name in dict.fromkeys(name for name, _ in errors):
        cells = []
        products = 0
        for dtype in TOLERANCES:
            key = (name, dtype)
            if key not in worst:
                cells.append(NOT_MEASURED)
                continue
            products += len(errors[key])
            mark = " WRONG" if key in wrong else ""
            cells.append(f"{worst[key][0]:.1e}{mark}")
        rows.append([name, *cells, products])
    findings.add(*table(["algorithm", *(f"{dtype} error" for dtype in TOLERANCES), "products"], rows))
    findings.add(*(f"- Warning: {message}" for message in messages))
    largest = {dtype: max(error for (_, of), (error, _) in worst.items() if of == dtype) for dtype in TOLERANCES}
    findings.answer = "largest error: " + ", ".join(f"{dtype} {error:.1e}" for dtype, error in largest.items())


def relative_error(product: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest expected value; infinite for NaN and another shape."""
    if product.shape != expected.shape:
        return math.inf
    error = float((product.to(expected.device).double() - expected).abs().max() / expected.abs().max())
    return math.inf if math.isnan(error) else error


def reference_of(layer: Layer, device: torch.device) -> Reference:
    """Return random operands, and their products computed on the CPU in float64, stored on the device if possible."""
    generator = torch.Generator().manual_seed(0)

    def numbers(*size: int) -> Tensor:
        # Rounded to bfloat16: the same values are exact in all dtypes.
        return torch.randn(size, generator=generator).bfloat16().double()

    input = numbers(BATCH, *layer.input_size).requires_grad_()
    weight = numbers(layer.output_size[0], layer.input_size[0], layer.kernel, layer.kernel).requires_grad_()
    output = F.conv2d(input, weight, None, layer.stride, layer.kernel // 2)
    grad_output = numbers(*output.shape)
    gradients = torch.autograd.grad(output, [input, weight], grad_output)
    place = device if device.type == "cuda" else torch.device("cpu")  # not all devices have float64
    forward, by_input, by_weight = (tensor.detach().to(place) for tensor in (output, *gradients))
    products: dict[Operation, Tensors] = {
        Operation.FORWARD: (forward,),
        Operation.INPUT_GRADIENT: (by_input,),
        Operation.WEIGHT_GRADIENT: (by_weight,),
        Operation.GRADIENTS: (by_input, by_weight),
    }
    return Reference(layer, {"input": input.detach(), "weight": weight.detach(), "grad_output": grad_output}, products)


def check_convolution(reference: Reference, dtype: str, layout: str, device: torch.device, errors: Errors) -> None:
    """Compare all algorithms, and native convolutions, with the reference in one dtype and layout."""
    memory_format = LAYOUTS[layout]
    torch_dtype = getattr(torch, dtype)
    operands = {
        name: tensor.to(torch_dtype).to(device).contiguous(memory_format=memory_format)
        for name, tensor in reference.operands.items()
    }
    layer = reference.layer
    problem = make_problem(
        operands["input"],
        operands["weight"],
        None,
        stride=layer.stride,
        padding=layer.kernel // 2,
        dilation=1,
        groups=1,
        memory_format=memory_format,
    )
    for operation, names in OPERANDS.items():
        tensors = tuple(operands[name] for name in names)
        case = f"{operation}, {layout}, {layer.label}"
        for candidate in candidates(operation, problem, torch_dtype, device.type):
            try:
                products = candidate.compute(tensors)
            except torch.OutOfMemoryError:
                continue
            for product, expected in zip(products, reference.products[operation], strict=True):
                errors[candidate.name, dtype].append((relative_error(product, expected), case))


def _check_normalization(reference: Reference, dtype: str, layout: str, device: torch.device, errors: Errors) -> None:
    """Compare the kernels for batch normalization with SiLU, applied to the output of a convolution, with float64."""
    torch_dtype = getattr(torch, dtype)

    def on_device(tensor: Tensor) -> Tensor:
        return tensor.to(torch_dtype).to(device).contiguous(memory_format=LAYOUTS[layout])

    exact = reference.products[Operation.FORWARD][0].cpu().to(torch_dtype).double()
    exact_grad = reference.operands["grad_output"]
    channels = exact.size(1)
    weight = torch.linspace(0.5, 1.5, channels, dtype=torch.float64)
    bias = torch.linspace(-1, 1, channels, dtype=torch.float64)
    input = on_device(exact)
    parameters = (weight.float().to(device), bias.float().to(device))
    running = (torch.zeros(channels, device=device), torch.zeros(channels, device=device))
    if not fused_norm.accepts(input, *parameters, *running):
        return
    leaves = [exact.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]
    output = F.silu(F.batch_norm(exact, None, None, weight, bias, training=True, eps=EPS))
    by_input, by_weight, by_bias = torch.autograd.grad(output, leaves, exact_grad)
    forward = fused_norm.forward(input, *parameters, *running, None, 1.0, EPS)
    if forward is None:  # the kernels have been disabled
        return
    backward = fused_norm.backward(on_device(exact_grad), input, *parameters, forward[1])
    if backward is None:
        return
    pairs = (
        (forward[0], output),
        (running[0], exact.mean((0, 2, 3))),
        (running[1], exact.var((0, 2, 3))),
        (backward[0], by_input),
        (backward[1], torch.stack([by_bias, by_weight])),
    )
    case = f"normalization, {layout}, {reference.layer.label}"
    for product, expected in pairs:
        errors[NORMALIZATION, dtype].append((relative_error(product, expected.detach()), case))
