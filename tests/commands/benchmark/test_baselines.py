"""Every variant computes what `torch.nn.functional.conv2d` computes, and restores the library switches."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from yolo_lightning.commands.benchmark.baselines import (
    UnfoldConv2d,
    Variant,
    convert,
    kernels_of,
    libraries,
    make_plan,
    variants,
)
from yolo_lightning.commands.benchmark.passes import make_module, synthetic_batch, variant_module
from yolo_lightning.conv import GemmConv2d, Plan
from yolo_lightning.conv.kernels import disable_gpu_kernels, gpu_kernels_enabled

CPU = torch.device("cpu")
ARGUMENTS = (
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 1, "bias": False},
    {"kernel_size": (3, 2), "stride": (2, 1), "padding": (0, 1), "dilation": (2, 1)},
)


def derivatives(function: Callable[[Tensor], Tensor], layer: nn.Conv2d, images: Tensor) -> list[Tensor]:
    leaves = [images.clone().requires_grad_(), *layer.parameters()]
    output = function(leaves[0])
    seed = torch.Generator().manual_seed(1)
    gradients = torch.autograd.grad(output, leaves, torch.randn(output.shape, generator=seed, dtype=output.dtype))
    return [output.detach(), *gradients]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
@pytest.mark.parametrize("variant", list(Variant))
def test_variant_equals_conv2d_with_gradients(variant: Variant, arguments: dict[str, object]) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 6, dtype=torch.float64, **arguments)
    images = torch.randn(2, 4, 9, 8, dtype=torch.float64)

    def native(leaf: Tensor) -> Tensor:
        return F.conv2d(leaf, layer.weight, layer.bias, layer.stride, layer.padding, layer.dilation)

    expected = derivatives(native, layer, images)
    convert(layer, variant, Plan())
    with libraries(variant, CPU, vendor_search=False):
        found = derivatives(layer, layer, images.contiguous(memory_format=variant.memory_format))
    torch.testing.assert_close(found, expected)


def test_unfold_repeats_one_channel() -> None:
    layer = nn.Conv2d(3, 4, 3, padding=1, dtype=torch.float64)
    images = torch.randn(2, 1, 6, 6, dtype=torch.float64)
    expected = layer(images.expand(-1, 3, -1, -1))
    convert(layer, Variant.UNFOLD, Plan())
    torch.testing.assert_close(layer(images), expected)


@pytest.mark.parametrize("variant", list(Variant))
def test_whole_network_gives_the_same_loss(variant: Variant) -> None:
    plain = make_module(0)
    batch = synthetic_batch(2, 64, seed=0)
    expected, _ = plain.detection_loss(plain(batch.images), batch)
    module = variant_module(plain, variant, Plan(), CPU)
    with libraries(variant, CPU, vendor_search=False):
        found, _ = module.detection_loss(module(batch.images), batch)
    assert found.item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize(("variant", "expected"), [(Variant.UNFOLD, UnfoldConv2d), (Variant.GEMM_NHWC, GemmConv2d)])
def test_whole_network_is_converted(variant: Variant, expected: type[nn.Conv2d]) -> None:
    graph = variant_module(make_module(0), variant, Plan(), CPU).graph
    # The head's fixed projection takes part in inference only.
    layers = [layer for layer in graph.modules() if isinstance(layer, nn.Conv2d)]
    assert {isinstance(layer, expected) for layer in layers} == {True}
    weights = [layer.weight for layer in layers if layer.kernel_size == (3, 3)]
    assert all(weight.is_contiguous(memory_format=variant.memory_format) for weight in weights)


def test_slow_disables_the_library_inside_the_context_only() -> None:
    # Large enough for oneDNN: PyTorch keeps it from tiny convolutions.
    layer, images = nn.Conv2d(64, 64, 3), torch.randn(4, 64, 16, 16)

    def backend() -> object:
        arguments = (layer.stride, layer.padding, layer.dilation, False, [0, 0], 1, [64])
        return torch._C._select_conv_backend(images, layer.weight, layer.bias, *arguments)

    before = backend()
    with libraries(Variant.SLOW, CPU, vendor_search=False):
        inside = backend()
    assert inside != torch._C._ConvBackend.Mkldnn
    assert backend() == before == torch._C._ConvBackend.Mkldnn


def test_cudnn_switch_and_tf32_are_restored_after_an_error() -> None:
    cudnn = torch.backends.cudnn
    before = cudnn.enabled, cudnn.benchmark, cudnn.allow_tf32

    def fail() -> None:
        assert (cudnn.enabled, cudnn.benchmark, cudnn.allow_tf32) == (False, True, False)
        raise KeyError

    with pytest.raises(KeyError), libraries(Variant.SLOW, torch.device("cuda"), vendor_search=True):
        fail()
    assert (cudnn.enabled, cudnn.benchmark, cudnn.allow_tf32) == before


def test_skipping_an_implementation_skips_its_layouts() -> None:
    assert variants(("native", "gemm")) == (Variant.UNFOLD, Variant.SLOW)


def test_kernels_are_paused_for_variants_without_them() -> None:
    """Variants with and without GPU kernels take turns in one process, which enables the kernels once."""
    disable_gpu_kernels()
    make_plan(Variant.GEMM_NHWC, 0.0)
    assert not gpu_kernels_enabled()
    try:
        make_plan(Variant.GEMM_COMPILED, 0.0)
        seen = []
        for variant in (Variant.GEMM_NHWC, Variant.GEMM_COMPILED, Variant.GEMM_AUTOTUNE, Variant.NATIVE):
            with kernels_of(variant):
                seen.append(gpu_kernels_enabled())
        assert seen == [False, True, True, False]
        assert gpu_kernels_enabled()
    finally:
        disable_gpu_kernels()


def test_the_compiled_variant_fails_without_kernels() -> None:
    make_plan(Variant.GEMM_COMPILED, 0.0)
    with pytest.raises(RuntimeError, match="GPU kernels cannot be used"), kernels_of(Variant.GEMM_COMPILED):
        disable_gpu_kernels()  # as after a failed build
    with kernels_of(Variant.GEMM_NHWC):
        pass
