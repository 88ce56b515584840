"""Every convolution algorithm and GPU kernel against float64, on the shapes of YOLOv8n; on a GPU if there is one."""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.conv.emulation import Guarded, assume_available
from yolo_lightning.commands.benchmark.layer_speed import Layer, find_layers
from yolo_lightning.commands.benchmark.training_step import make_module
from yolo_lightning.conv import disable_gpu_kernels, enable_gpu_kernels
from yolo_lightning.conv.algorithms.algorithm import Operation
from yolo_lightning.conv.algorithms.problem import Tensors, make_problem
from yolo_lightning.conv.algorithms.table import candidates
from yolo_lightning.conv.kernels import fused, fused_norm
from yolo_lightning.data.image_size import ImageSize

CPU = torch.device("cpu")
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.timeout(600)
def test_every_algorithm_and_kernel_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, the kernels of this package must also compute something in every dtype."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    device = torch.device("cuda", torch.cuda.current_device())
    enable_gpu_kernels(tmp_path)
    try:
        errors = errors_of(find_layers(make_module().graph, ImageSize(640, 640)), device)
    finally:
        disable_gpu_kernels()
    wrong = {key: max(cases) for key, cases in errors.items() if max(cases)[0] > TOLERANCES[key[1]]}
    assert wrong == {}
    assert [pair for pair in itertools.product((FUSED, NORMALIZATION), TOLERANCES) if pair not in errors] == []


def test_a_wrong_algorithm_on_a_gpu_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = find_layers(make_module().graph, ImageSize(64, 64))
    layer = next(layer for layer in layers if layer.label.startswith("32 to 32, 3x3"))
    reference = reference_of(layer, CPU)
    right = candidates

    def errors() -> dict[str, float]:
        by_algorithm: Errors = defaultdict(list)
        check_convolution(reference, "float32", "NHWC", CPU, by_algorithm)
        return {name: max(cases)[0] for (name, _), cases in by_algorithm.items()}

    assert all(error < 1e-5 for error in errors().values())

    def with_a_wrong_one(*arguments: Any) -> list[Any]:
        first, *remaining = right(*arguments)
        wrong = replace(
            first, name="wrong", compute=lambda tensors: tuple(t.roll(1, -1) for t in first.compute(tensors))
        )
        return [first, *remaining, wrong]

    monkeypatch.setitem(globals(), "candidates", with_a_wrong_one)
    assert [name for name, error in errors().items() if error > 0.1] == ["wrong"]


@pytest.mark.whole_run
def test_kernels_for_convolution_and_normalization_are_checked(emulated: Guarded) -> None:
    """The emulated kernels pass, and a wrong normalization is seen."""
    layers = find_layers(make_module().graph, ImageSize(64, 64))
    layer = next(layer for layer in layers if layer.label.startswith("32 to 32, 3x3"))
    with assume_available("cpu"):
        fused.KERNELS.enable(lambda device: emulated)
        fused_norm.KERNELS.enable(lambda device: emulated)
        try:
            errors = errors_of([layer], CPU)
        finally:
            disable_gpu_kernels()
    for pair in itertools.product((FUSED, NORMALIZATION), TOLERANCES):
        assert max(errors[pair])[0] <= TOLERANCES[pair[1]], pair


def errors_of(layers: Sequence[Layer], device: torch.device) -> Errors:
    """Return the errors of all algorithms and kernels in all dtypes and layouts."""
    errors: Errors = defaultdict(list)
    for layer in layers:
        reference = reference_of(layer, device)
        for dtype, layout in itertools.product(TOLERANCES, LAYOUTS):
            check_convolution(reference, dtype, layout, device, errors)
            _check_normalization(reference, dtype, layout, device, errors)
    return errors


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
