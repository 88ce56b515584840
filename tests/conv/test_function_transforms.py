"""Transforms of `torch.func`, batches of gradients and complex numbers, compared with the layers of PyTorch."""

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jvp, vmap

from yolo_lightning.conv import swap_convs

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "strided": (lambda: nn.Conv2d(3, 4, 3, padding=1, stride=2), (2, 3, 6, 5)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False), (2, 4, 6, 5)),
    "pointwise": (lambda: nn.Conv2d(4, 6, 1, groups=2), (2, 4, 5, 5)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3), (2, 3, 8)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 2, 3, 4, 4)),
    "transposed1d": (lambda: nn.ConvTranspose1d(2, 3, 3, 2), (2, 2, 5)),
    "transposed2d": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), (2, 4, 4, 4)),
    "transposed3d": (lambda: nn.ConvTranspose3d(2, 3, 2, 2), (2, 2, 3, 3, 3)),
    "network": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4), nn.SiLU(), nn.Conv2d(4, 2, 3)),
        (2, 3, 6, 7),
    ),
}


def compare(name: str, compute: Callable[[nn.Module, Tensor], Any], dtype: torch.dtype = torch.float64) -> None:
    """Compare a computation with a layer of PyTorch and its swapped form."""
    make, size = LAYERS[name]
    torch.manual_seed(0)
    native = make().to(dtype)
    input = torch.randn(3, *size, dtype=dtype)
    expected = compute(native, input)
    torch.testing.assert_close(compute(swap_convs(copy.deepcopy(native)), input), expected)


def loss(layer: nn.Module) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    return lambda parameters, input: functional_call(layer, parameters, (input,)).square().sum()


def parameters_of(layer: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in layer.named_parameters()}


@pytest.mark.parametrize("name", LAYERS)
def test_vmap_over_inputs_and_weights(name: str) -> None:
    def compute(layer: nn.Module, inputs: Tensor) -> list[Tensor]:
        ensemble = {key: torch.stack([value, 2 * value, -value]) for key, value in parameters_of(layer).items()}

        def run(parameters: dict[str, Tensor], input: Tensor) -> Tensor:
            return functional_call(layer, parameters, (input,))

        return [
            vmap(layer)(inputs),
            vmap(layer, in_dims=1)(inputs.transpose(0, 1)),
            vmap(run, in_dims=(0, None))(ensemble, inputs[0]),
            vmap(run)(ensemble, inputs),
        ]

    compare(name, compute)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_each_sample(name: str) -> None:
    compare(name, lambda layer, inputs: vmap(grad(loss(layer)), (None, 0))(parameters_of(layer), inputs))


@pytest.mark.parametrize("name", LAYERS)
def test_forward_mode(name: str) -> None:
    def compute(layer: nn.Module, inputs: Tensor) -> list[Any]:
        parameters = parameters_of(layer)
        ones = {key: torch.ones_like(value) for key, value in parameters.items()}

        def run(values: dict[str, Tensor]) -> Tensor:
            return functional_call(layer, values, (inputs[0],))

        with forward_ad.dual_level():
            dual = forward_ad.unpack_dual(layer(forward_ad.make_dual(inputs[0], inputs[1])))
        gradient = grad(lambda input: layer(input).square().sum())
        return [
            jvp(layer, (inputs[0],), (inputs[1],)),
            jvp(run, (parameters,), (ones,)),
            jvp(gradient, (inputs[0],), (inputs[1],)),
            tuple(dual),
        ]

    compare(name, compute)


@pytest.mark.parametrize("name", ["strided", "transposed2d"])
def test_jacobians(name: str) -> None:
    def compute(layer: nn.Module, inputs: Tensor) -> list[Tensor]:
        return [jacfwd(layer)(inputs[0]), hessian(lambda input: layer(input).square().sum())(inputs[0])]

    compare(name, compute)


@pytest.mark.parametrize("name", LAYERS)
def test_batches_of_gradients(name: str) -> None:
    def compute(layer: nn.Module, inputs: Tensor) -> tuple[Tensor, ...]:
        leaf = inputs[0].clone().requires_grad_()
        output = layer(leaf)
        directions = torch.stack([torch.ones_like(output), output.detach()])
        return torch.autograd.grad(output, [leaf, *layer.parameters()], directions, is_grads_batched=True)

    compare(name, compute)


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "network"])
def test_complex_numbers(name: str) -> None:
    def compute(layer: nn.Module, inputs: Tensor) -> list[Tensor]:
        leaf = inputs[0].clone().requires_grad_()
        output = layer(leaf)
        return [output, *torch.autograd.grad(output.abs().square().sum(), [leaf, *layer.parameters()])]

    compare(name, compute, torch.complex128)


def test_forward_mode_keeps_no_tensor_alive() -> None:
    layer = swap_convs(nn.Conv2d(3, 4, 3)).requires_grad_(False)
    input = torch.randn(1, 3, 6, 6, requires_grad=True) * 2
    reference = weakref.ref(input)
    output = layer(input)
    del input
    assert reference() is None, "the gradient of the input needs the weight only"
    output.sum().backward()
