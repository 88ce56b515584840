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
from yolo_lightning.commands.benchmark.passes import Layer, find_layers, make_module
from yolo_lightning.commands.benchmark.section import Section
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
FUSED, NORMALIZATION = "fused", "batch normalization with SiLU"
"""GPU kernels of this package: the name of their algorithm for convolutions, and of the row of normalizations."""
EPS = 1e-3
OPERANDS = {
    Operation.FORWARD: ("input", "weight"),
    Operation.INPUT_GRADIENT: ("grad_output", "weight"),
    Operation.WEIGHT_GRADIENT: ("input", "grad_output"),
    Operation.GRADIENTS: ("input", "grad_output", "weight"),
}


Found = defaultdict[tuple[str, str], list[tuple[float, str]]]
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
    found: Found = defaultdict(list)
    torch.backends.cudnn.allow_tf32 = False
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for done, layer in enumerate(layers, 1):
            reference = reference_of(layer, section.device)
            for dtype, layout in itertools.product(TOLERANCES, LAYOUTS):
                section.announce(f"{layer.label}, {dtype}, {layout}")
                check_convolution(reference, dtype, layout, section.device, found)
                _check_normalization(reference, dtype, layout, section.device, found)
            section.save(shapes=done, errors=[(*key, len(own), *max(own)) for key, own in found.items()])
            if section.left_s() < 0:
                break
    messages = list(dict.fromkeys(str(one.message) for one in caught))
    worst = {key: max(errors) for key, errors in found.items()}
    wrong = {key: one for key, one in worst.items() if one[0] > TOLERANCES[key[1]]}
    section.findings.fail([f"{', '.join(key)}: error {error:.2g} in {case}" for key, (error, case) in wrong.items()])
    if is_accelerator(section.device.type):
        kernels = itertools.product((FUSED, NORMALIZATION), TOLERANCES)
        section.findings.fail([" computed nothing in ".join(pair) for pair in kernels if pair not in found])
    section.findings.fail([message for message in messages if "are disabled" in message])
    limits = ", ".join(f"{dtype} {limit:g}" for dtype, limit in TOLERANCES.items())
    section.findings.add(
        f"{done} of {len(layers)} distinct convolutions of YOLOv8n, {BATCH} images of {section.image_size} px, NCHW and"
        " NHWC: forward, input gradient, weight gradient, and both gradients at once; batch normalization with SiLU on"
        " the output of each. The error is the largest difference from float64, relative to the largest value."
        f" Tolerances: {limits}. An algorithm without a value does not support the dtype."
    )
    rows = []
    for name in dict.fromkeys(name for name, _ in found):
        keys = [(name, dtype) for dtype in TOLERANCES]
        cells = [
            f"{worst[key][0]:.1e}{' WRONG' if key in wrong else ''}" if key in worst else NOT_MEASURED for key in keys
        ]
        rows.append([name, *cells, sum(len(found.get(key, ())) for key in keys)])
    section.findings.add(*table(["algorithm", *(f"{dtype} error" for dtype in TOLERANCES), "products"], rows))
    section.findings.add(*(f"- Warning: {message}" for message in messages))
    largest = {dtype: max(error for (_, own), (error, _) in worst.items() if own == dtype) for dtype in TOLERANCES}
    section.findings.answer = "largest error: " + ", ".join(f"{dtype} {error:.1e}" for dtype, error in largest.items())


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


def check_convolution(reference: Reference, dtype: str, layout: str, device: torch.device, found: Found) -> None:
    """Compare all algorithms, and native convolutions, with the reference in one dtype and layout."""
    memory_format, kind = LAYOUTS[layout], getattr(torch, dtype)
    operands = {
        name: tensor.to(kind).to(device).contiguous(memory_format=memory_format)
        for name, tensor in reference.operands.items()
    }
    layer = reference.layer
    shape = layer.stride, layer.kernel // 2, 1, 1
    problem = make_problem(operands["input"], operands["weight"], None, *shape, memory_format)
    for operation, names in OPERANDS.items():
        tensors = tuple(operands[name] for name in names)
        for candidate in candidates(operation, problem, kind, device.type):
            try:
                products = candidate.compute(tensors)
            except torch.OutOfMemoryError:
                continue
            for product, expected in zip(products, reference.products[operation], strict=True):
                case = f"{operation}, {layout}, {layer.label}"
                found[candidate.name, dtype].append((relative_error(product, expected), case))


def _check_normalization(reference: Reference, dtype: str, layout: str, device: torch.device, found: Found) -> None:
    """Compare the kernels for batch normalization with SiLU, applied to the output of a convolution, with float64."""
    kind = getattr(torch, dtype)
    exact = reference.products[Operation.FORWARD][0].cpu().to(kind).double()
    grads, channels = reference.operands["grad_output"], exact.size(1)
    weight, bias = torch.linspace(0.5, 1.5, channels, dtype=torch.float64), torch.linspace(-1, 1, channels).double()
    input, grad_output = (
        tensor.to(kind).to(device).contiguous(memory_format=LAYOUTS[layout]) for tensor in (exact, grads)
    )
    running = torch.zeros(channels, device=device), torch.zeros(channels, device=device)
    parameters = weight.float().to(device), bias.float().to(device)
    if not fused_norm.accepts(input, *parameters, *running):
        return
    leaves = [exact.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]
    mean, var = exact.detach().mean((0, 2, 3)), exact.detach().var((0, 2, 3))
    output = F.silu(F.batch_norm(exact, None, None, weight, bias, training=True, eps=EPS))
    by_input, by_weight, by_bias = torch.autograd.grad(output, leaves, grads)
    forward = fused_norm.forward(input, *parameters, *running, None, 1.0, EPS)
    backward = None if forward is None else fused_norm.backward(grad_output, input, *parameters, forward[1])
    if forward is None or backward is None:  # the kernels have been disabled
        return
    pairs = [(forward[0], output), (running[0], mean), (running[1], var)]
    pairs += [(backward[0], by_input), (backward[1], torch.stack([by_bias, by_weight]))]
    for product, expected in pairs:
        case = f"normalization, {layout}, {reference.layer.label}"
        found[NORMALIZATION, dtype].append((relative_error(product, expected.detach()), case))
