"""Graphs of swapped layers that tools of PyTorch capture: other sizes than those of the example, and refusals."""

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization
from torch.nn import functional as F

from yolo_lightning.conv import AutotunedPlan, swap_convs, unswap_convs


class Resized(nn.Module):
    """A transposed convolution that restores the size of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 3, 3, stride=2, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.up(self.down(images), output_size=images.shape[2:])
        return output


class SameConv2d(nn.Conv2d):
    """A convolution that pads its input first."""

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(F.pad(input, (1, 0, 1, 0)), self.weight, self.bias, self.stride)


# Layers, size of the example and another size.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...]]] = {
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, padding=1), (2, 3, 9, 9), (4, 3, 18, 17)),
    "reflect": (lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect", groups=4), (2, 4, 6, 6), (3, 4, 9, 7)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, padding="same"), (2, 3, 8), (3, 3, 11)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, padding=1), (2, 2, 4, 4, 4), (3, 2, 5, 6, 7)),
    "transposed1d": (lambda: nn.ConvTranspose1d(2, 3, 3, 2), (2, 2, 5), (4, 2, 9)),
    "transposed2d": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), (2, 4, 4, 4), (3, 4, 7, 6)),
    "transposed3d": (lambda: nn.ConvTranspose3d(2, 3, 2, 2, 1), (2, 2, 3, 3, 3), (3, 2, 4, 5, 6)),
    "output_size": (Resized, (2, 3, 9, 9), (4, 3, 12, 14)),
    "own_forward": (lambda: SameConv2d(3, 4, 3, stride=2), (2, 3, 9, 9), (4, 3, 12, 15)),
    "norms": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.BatchNorm2d(4)),
        (2, 3, 7, 7),
        (4, 3, 12, 13),
    ),
}


def networks(name: str) -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    """Return a network of PyTorch, the same network swapped, an example and an input of another size."""
    make, example_size, other_size = NETWORKS[name]
    torch.manual_seed(0)
    native = make().eval()
    return native, swap_convs(copy.deepcopy(native)), torch.randn(example_size), torch.randn(other_size)


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_traced_model_computes_other_sizes_also_after_saving(name: str) -> None:
    native, swapped, example, other = networks(name)
    traced = torch.jit.trace(swapped, example)
    buffer = io.BytesIO()
    torch.jit.save(traced, buffer)
    buffer.seek(0)
    for model in (traced, torch.jit.load(buffer)):
        assert_equal(model(other), native(other))
    leaf = other.clone().requires_grad_()
    reference = other.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(traced(leaf).square().sum(), leaf)
    assert_equal(gradient, torch.autograd.grad(native(reference).square().sum(), reference)[0])


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("plan", [None, AutotunedPlan(10)], ids=["table", "timed"])
def test_tracing_a_convolution_and_a_normalization_gives_no_warning(plan: AutotunedPlan | None) -> None:
    swapped = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 2, 2)).eval()
    swap_convs(swapped) if plan is None else swap_convs(swapped, plan=plan)
    torch.jit.trace(swapped, torch.randn(2, 3, 9, 9))


@pytest.mark.parametrize("name", NETWORKS)
def test_an_exported_model_computes_other_sizes(name: str) -> None:
    native, swapped, example, other = networks(name)
    sizes = {0: torch.export.Dim.AUTO} | {axis: torch.export.Dim.AUTO for axis in range(2, example.dim())}
    program = torch.export.export(swapped, (example,), dynamic_shapes=(sizes,))
    assert_equal(program.module()(other), native(other))


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_are_nodes_of_a_symbolic_trace(name: str) -> None:
    native, swapped, _, other = networks(name)
    graph = torch.fx.symbolic_trace(nn.Sequential(swapped))
    layers = [module for module in swapped.modules() if not isinstance(module, nn.Sequential | Resized)]
    assert sum(node.op == "call_module" for node in graph.graph.nodes) == len(layers)
    assert_equal(graph(other), native(other))


def test_a_symbolic_trace_of_one_layer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not the layer alone; trace torch\.nn\.Sequential\(layer\)"):
        torch.fx.symbolic_trace(swap_convs(nn.Conv2d(3, 4, 3)))


def test_symbolic_sizes_outside_a_compiler() -> None:
    native, swapped, _, other = networks("conv2d")
    make_fx = torch.fx.experimental.proxy_tensor.make_fx
    graph = make_fx(swapped, tracing_mode="symbolic", _allow_non_fake_inputs=True)(torch.randn(5, 3, 8, 9))
    assert_equal(graph(other), native(other))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_script_is_refused_with_advice_that_works() -> None:
    native, swapped, example, other = networks("conv2d")
    with pytest.raises(
        ValueError, match=r"compile GemmConv2d; use torch\.jit\.trace or .*unswap_convs\(model\) before"
    ):
        torch.jit.script(swapped)
    assert_equal(torch.jit.trace(swapped, example)(other), native(other))
    assert_equal(torch.jit.script(unswap_convs(swapped))(other), native(other))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_eager_quantization_is_refused_with_advice_that_works() -> None:
    _, swapped, example, _ = networks("conv2d")
    swapped.qconfig = None
    model = nn.Sequential(quantization.QuantStub(), swapped, quantization.DeQuantStub()).eval()
    model.qconfig = quantization.get_default_qconfig("fbgemm")
    with pytest.raises(ValueError, match=r"does not quantize GemmConv2d; call unswap_convs\(model\) before"):
        quantization.prepare(model)
    prepared = quantization.prepare(unswap_convs(model))
    prepared(example)
    assert type(quantization.convert(prepared)[1]) is torch.ao.nn.quantized.Conv2d
