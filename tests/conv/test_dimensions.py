"""1-D, 3-D, transposed and lazy layers against `torch.nn`: results, first and second derivatives, errors."""

import copy
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from yolo_lightning.conv import swap_convs, unswap_convs

PLAIN = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def random_layer(kind: type[nn.Module], dimensions: int, seed: int) -> tuple[Any, Tensor]:
    """Return a float64 layer of random arguments and an input."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    groups = draw.choice([1, 1, 2, 4])
    sizes = [draw.randint(5, 7) for _ in range(dimensions)]
    arguments: dict[str, Any] = {
        "kernel_size": tuple(draw.randint(1, 3) for _ in sizes),
        "dilation": tuple(draw.randint(1, 2) for _ in sizes),
        "groups": groups,
        "bias": draw.random() < 0.5,
        "dtype": torch.float64,
    }
    if kind in PLAIN:
        arguments["padding_mode"] = draw.choice(["zeros", "zeros", "reflect", "replicate", "circular"])
        arguments["padding"] = draw.choice(["same", "valid", tuple(draw.randint(0, 2) for _ in sizes)])
        if arguments["padding"] != "same":
            arguments["stride"] = tuple(draw.randint(1, 3) for _ in sizes)
    else:
        arguments["stride"] = tuple(draw.randint(1, 3) for _ in sizes)
        arguments["padding"] = tuple(draw.randint(0, 2) for _ in sizes)
        both = zip(arguments["stride"], arguments["dilation"], strict=True)
        arguments["output_padding"] = tuple(draw.randint(0, max(pair) - 1) for pair in both)
    batch = draw.choice([(), (1,), (2,)])
    layer = kind(4, groups * draw.randint(1, 2), **arguments)
    return layer, torch.randn(*batch, 4, *sizes, dtype=torch.float64)


def derivatives(layer: nn.Module, input: Tensor) -> list[Tensor]:
    """Return the output, the gradients, and the gradients of the squared gradients."""
    leaf = input.detach().clone().requires_grad_()
    tensors = [leaf, *layer.parameters()]
    output = layer(leaf)
    first = torch.autograd.grad(output.pow(3).sum(), tensors, create_graph=True)
    second = torch.autograd.grad(sum(gradient.square().sum() for gradient in first), tensors)
    return [output, *first, *second]


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", [*PLAIN, *TRANSPOSED])
def test_random_layers_equal_torch(kind: type[nn.Module], seed: int) -> None:
    layer, input = random_layer(kind, int(kind.__name__[-2]), seed)
    expected = derivatives(layer, input)
    names = list(layer.state_dict())
    actual = derivatives(swap_convs(layer), input)
    assert type(layer).__name__ == f"Gemm{kind.__name__}"
    assert list(layer.state_dict()) == names
    torch.testing.assert_close(actual, expected)
    assert type(unswap_convs(layer)) is kind
    assert "plan" not in vars(layer)


@pytest.mark.parametrize(
    "arguments",
    [
        {"kernel_size": 1, "stride": 3, "padding": 1, "output_padding": 2},
        {"kernel_size": 2, "stride": 2, "padding": 0, "output_padding": 1},
        {"kernel_size": 2, "stride": 1, "dilation": 4, "padding": 1, "output_padding": 3},
        {"kernel_size": 3, "stride": 2, "padding": 2, "output_padding": 1},
    ],
)
@pytest.mark.parametrize("kind", TRANSPOSED)
def test_output_padding_equals_torch(kind: Any, arguments: dict[str, int]) -> None:
    dimensions = int(kind.__name__[-2])
    layer, input = kind(2, 3, **arguments).double(), torch.randn(2, 2, *(2,) * dimensions, dtype=torch.float64)
    expected = derivatives(layer, input)
    torch.testing.assert_close(derivatives(swap_convs(layer), input), expected)


@pytest.mark.parametrize("kind", TRANSPOSED)
def test_output_size_selects_the_output_padding(kind: Any) -> None:
    dimensions = int(kind.__name__[-2])
    layer, input = kind(2, 3, 3, stride=2, padding=1), torch.randn(2, 2, *(4,) * dimensions)
    expected = layer(input, output_size=[8] * dimensions)
    torch.testing.assert_close(swap_convs(layer)(input, output_size=[8] * dimensions), expected)


LAZY = (
    nn.LazyConv1d,
    nn.LazyConv2d,
    nn.LazyConv3d,
    nn.LazyConvTranspose1d,
    nn.LazyConvTranspose2d,
    nn.LazyConvTranspose3d,
)


@pytest.mark.parametrize("kind", LAZY)
def test_lazy_layers_become_vendor_free_layers_or_lazy_layers_again(kind: Any) -> None:
    dimensions = int(kind.__name__[-2])
    norm = getattr(nn, f"LazyBatchNorm{dimensions}d")
    model, input = nn.Sequential(kind(3, 2), norm()), torch.randn(2, 4, *(5,) * dimensions)
    assert [type(layer) for layer in unswap_convs(swap_convs(model))] == [kind, norm]
    output = swap_convs(model)(input)
    assert [type(layer).__name__ for layer in model] == [
        f"Gemm{kind.__name__.removeprefix('Lazy')}",
        f"VendorFreeBatchNorm{dimensions}d",
    ]
    native = unswap_convs(model)
    assert type(native[0]) is getattr(nn, kind.__name__.removeprefix("Lazy"))
    torch.testing.assert_close(native(input), output)


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 2, 2, 2)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norms_equal_torch(shape: tuple[int, ...], training: bool) -> None:
    norm = (nn.BatchNorm3d if len(shape) == 5 else nn.BatchNorm1d)(3).double().train(training)
    input = torch.randn(shape, dtype=torch.float64)
    results = []
    for _ in range(2):
        norm.reset_running_stats()
        results.append([*derivatives(norm, input), norm.running_mean.clone(), norm.running_var.clone()])
        swap_convs(norm)
    assert type(norm).__name__.startswith("VendorFree")
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv3d, *TRANSPOSED])
def test_autocast_and_empty_batches_equal_torch(kind: Any) -> None:
    dimensions = int(kind.__name__[-2])
    layer, input = kind(2, 3, 3, padding=1), torch.randn(2, 2, *(4,) * dimensions)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = layer(input)
        actual = swap_convs(layer)(input)
    assert actual.dtype is expected.dtype is torch.bfloat16
    torch.testing.assert_close(actual, expected, rtol=0.05, atol=0.05)
    assert layer(input[:0]).shape == (0, *expected.shape[1:])


@pytest.mark.parametrize("kind", TRANSPOSED)
def test_transposed_layers_reject_wrong_inputs(kind: Any) -> None:
    dimensions = int(kind.__name__[-2])
    layer = swap_convs(kind(2, 4, 3))
    with pytest.raises(ValueError, match="expects an input with 2 channels, got 3"):
        layer(torch.randn(1, 3, *(4,) * dimensions))
    with pytest.raises(ValueError, match="the same dtype and on the same device"):
        layer(torch.randn(1, 2, *(4,) * dimensions).double())
    with pytest.raises(ValueError, match="must have dtype"):
        layer(torch.ones(1, 2, *(4,) * dimensions, dtype=torch.int64))


def test_layers_reject_sizes_and_arguments_that_torch_rejects() -> None:
    input = torch.randn(1, 2, 2, 2, 2)
    with pytest.raises(ValueError, match="greater than actual input size"):
        swap_convs(nn.Conv3d(2, 3, (3, 1, 1)))(input)
    with pytest.raises(ValueError, match="output size is too small"):
        swap_convs(nn.ConvTranspose3d(2, 3, 1, padding=1))(input)
    with pytest.raises(ValueError, match="smaller than stride or dilation"):
        swap_convs(nn.ConvTranspose3d(2, 3, 1, output_padding=1))(input)
    with pytest.raises(ValueError, match="expected 4D"):
        swap_convs(nn.Conv3d(2, 3, 1))(input[0, 0])


@pytest.mark.parametrize("kind", [*PLAIN, *TRANSPOSED])
@pytest.mark.parametrize("kernel_size", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_outputs_can_be_changed_in_place(kind: Any, kernel_size: int, bias: bool) -> None:
    input = torch.randn(2, 4, *(5,) * int(kind.__name__[-2]), dtype=torch.float64)
    layer = kind(4, 6, kernel_size, bias=bias, dtype=torch.float64)
    model = nn.Sequential(layer, nn.ReLU(inplace=True))
    expected = derivatives(model, input)
    torch.testing.assert_close(derivatives(swap_convs(model), input), expected)
    samples_first = input[:1].clone()
    expected = derivatives(unswap_convs(model), samples_first)
    torch.testing.assert_close(derivatives(swap_convs(model), samples_first), expected)


@pytest.mark.parametrize("is_spatially_last", [False, True])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(3, 4, 3), (2, 3, 8)),
        (nn.Conv1d(3, 1, 3), (2, 3, 8)),
        (nn.ConvTranspose1d(3, 4, 3), (2, 3, 8)),
        (nn.Conv3d(3, 4, 2, padding=1), (2, 3, 4, 5, 5)),
        (nn.Conv3d(3, 1, 2), (2, 3, 4, 5, 5)),
        (nn.ConvTranspose3d(3, 4, 2, padding=1), (2, 3, 4, 5, 5)),
    ],
    ids=str,
)
def test_outputs_are_contiguous(layer: nn.Module, shape: tuple[int, ...], is_spatially_last: bool) -> None:
    input = torch.randn(shape)
    if is_spatially_last and len(shape) == 3:
        input = input.transpose(1, 2).contiguous().transpose(1, 2)
    elif is_spatially_last:
        input = input.contiguous(memory_format=torch.channels_last_3d)
    output = swap_convs(copy.deepcopy(layer))(input)
    memory_format = torch.channels_last_3d if is_spatially_last and len(shape) == 5 else torch.contiguous_format
    assert output.stride() == torch.empty(output.shape).to(memory_format=memory_format).stride()
