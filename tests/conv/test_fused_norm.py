"""The kernels of batch_norm.cu, compiled for the CPU, against `torch.nn.BatchNorm2d` and `torch.nn.SiLU` in float64."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from tests.conv.emulation import Guarded, assume_available
from tests.conv.test_conv2d import random
from yolo_lightning.conv.kernels import batch_norm_launch, fused_norm
from yolo_lightning.conv.kernels.launcher import Launcher, LaunchRecorder
from yolo_lightning.conv.normalization import BatchNormSiLU2d, RecomputedBatchNormSiLU2d

TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
LAYOUTS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}


@pytest.fixture
def enabled(emulated: Guarded) -> Iterator[Guarded]:
    """Use the emulated kernels for tensors on the CPU."""
    fused_norm.KERNELS.enable(lambda device: emulated)
    with assume_available("cpu"):
        yield emulated
    fused_norm.KERNELS.disable()


@dataclass
class Case:
    """Arguments of the launches, and the results of autograd in float64 by name."""

    arguments: dict[str, Tensor]
    expected: dict[str, Tensor]
    tolerance: float


def make_case(
    shape: tuple[int, ...], memory_format: torch.memory_format, dtype: torch.dtype, offset: float = 0.0
) -> Case:
    channels = shape[1]
    input = (random(*shape, dtype=torch.float32) + offset).to(dtype).contiguous(memory_format=memory_format)
    grads = random(*shape, seed=1, dtype=dtype).contiguous(memory_format=memory_format)
    weight, bias, mean, var = (random(channels, seed=seed, dtype=torch.float32).abs() + 0.2 for seed in range(4))
    exact = [tensor.double().requires_grad_() for tensor in (input, weight, bias)]
    running = [mean.double(), var.double()]
    output = F.silu(F.batch_norm(exact[0], *running, *exact[1:], True, 0.3, 1e-3))  # type: ignore[call-arg]
    by_input, by_weight, by_bias = torch.autograd.grad(output, exact, grads.double())
    expected = {"output": output.detach(), "running mean": running[0], "running variance": running[1]}
    expected |= {"input": by_input, "bias": by_bias, "weight": by_weight}
    arguments = {"input": input, "grads": grads, "weight": weight, "bias": bias, "mean": mean, "var": var}
    return Case(arguments, expected, TOLERANCES[dtype] * (1 + offset))


def compare(launch: Launcher, case: Case) -> None:
    """Compare the results of two launches forward and two backward with the expected results."""
    input, grads, weight, bias, mean, var = case.arguments.values()
    batches = torch.tensor(5)
    output, statistics = batch_norm_launch.forward(launch, input, weight, bias, mean, var, batches, 0.3, 1e-3)
    grad_input, sums = batch_norm_launch.backward(launch, grads, input, weight, bias, statistics)
    assert output.dtype == grad_input.dtype == input.dtype
    assert output.stride() == grad_input.stride() == input.stride()
    assert int(batches) == 6
    results = {"output": output, "running mean": mean, "running variance": var}
    results |= {"input": grad_input, "bias": sums[0], "weight": sums[1]}
    for name, other in case.expected.items():
        difference = (results[name] - other).abs().max() / other.abs().max().clamp(min=1)
        assert difference < case.tolerance, f"{name} is off by {difference:.2g}"


def check(
    launch: Launcher,
    shape: tuple[int, ...],
    memory_format: torch.memory_format,
    dtype: torch.dtype,
    offset: float = 0.0,
) -> None:
    compare(launch, make_case(shape, memory_format, dtype, offset))


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "shape",
    [
        (2, 8, 6, 6),
        (3, 5, 7, 5),
        (2, 48, 16, 16),
        pytest.param((4, 276, 3, 4), marks=pytest.mark.whole_run),
        (2, 1, 40, 40),
    ],
    ids=str,
)
def test_results_equal_torch(
    shape: tuple[int, ...], layout: str, dtype: torch.dtype, emulated: Guarded, unwritten_is_nan: None
) -> None:
    before = len(emulated.launches)
    check(emulated, shape, LAYOUTS[layout], dtype)
    assert len(emulated.launches) - before == 4


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 40), st.integers(1, 24), st.integers(1, 24)),
    layout=st.sampled_from(list(LAYOUTS)),
    dtype=st.sampled_from(list(TOLERANCES)),
)
def test_any_shape(shape: tuple[int, ...], layout: str, dtype: torch.dtype, emulated: Guarded) -> None:
    if shape[0] * shape[2] * shape[3] > 8:  # fewer values amplify rounding
        check(emulated, shape, LAYOUTS[layout], dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_launches_are_those_that_are_counted_on_the_meta_device(layout: str, emulated: Guarded) -> None:
    case = make_case((2, 24, 9, 8), LAYOUTS[layout], torch.float32)
    before = len(emulated.launches)
    compare(emulated, case)
    recorder = LaunchRecorder()
    input, grads, weight, bias, mean, var = (tensor.to("meta") for tensor in case.arguments.values())
    batches = torch.tensor(5, device="meta")
    _, statistics = batch_norm_launch.forward(recorder, input, weight, bias, mean, var, batches, 0.3, 1e-3)
    batch_norm_launch.backward(recorder, grads, input, weight, bias, statistics)
    launched, counted = (
        [(launch.name, launch.grid, launch.operands.bytes) for launch in some]
        for some in (emulated.launches[before:], recorder.launches)
    )
    assert launched == counted
    # The input and the gradients are read twice, and the two results written once.
    assert sum(launch.operands.bytes for launch in recorder.launches) >= 8 * input.nbytes


@pytest.mark.parametrize("layout", LAYOUTS)
def test_variance_survives_a_large_mean(layout: str, emulated: Guarded) -> None:
    check(emulated, (2, 8, 12, 12), LAYOUTS[layout], torch.float32, offset=300.0)


def test_channel_slices_of_a_gradient_are_read_without_a_copy(emulated: Guarded) -> None:
    input = random(2, 8, 6, 6, dtype=torch.float32).contiguous(memory_format=torch.channels_last)
    whole = random(2, 24, 6, 6, dtype=torch.float32).contiguous(memory_format=torch.channels_last)
    weight, bias = torch.ones(8), torch.zeros(8)
    _, statistics = batch_norm_launch.forward(emulated, input, weight, bias, None, None, None, 0.1, 1e-3)
    sliced, dense = whole[:, 8:16], whole[:, 8:16].contiguous(memory_format=torch.channels_last)
    results = [batch_norm_launch.backward(emulated, g, input, weight, bias, statistics) for g in (sliced, dense)]
    torch.testing.assert_close(*results, rtol=0, atol=0)
    tensors = emulated.launches[-4].operands.tensors
    assert tensors[1] is not None
    assert tensors[1].data_ptr() == sliced.data_ptr()


def twins(kind: type[BatchNormSiLU2d] = BatchNormSiLU2d, **options: Any) -> tuple[BatchNormSiLU2d, nn.Sequential]:
    native = nn.BatchNorm2d(8, **options)
    converted = nn.BatchNorm2d(8, **options)
    for seed, parameter in enumerate(native.parameters()):
        parameter.data.copy_(random(8, seed=seed, dtype=torch.float32))
    converted.load_state_dict(native.state_dict())
    converted.__class__ = kind
    return converted, nn.Sequential(native, nn.SiLU())  # type: ignore[return-value]


@pytest.mark.parametrize("kind", [BatchNormSiLU2d, RecomputedBatchNormSiLU2d])
@pytest.mark.parametrize("options", [{}, {"track_running_stats": False}, {"eps": 1e-3, "momentum": 0.03}], ids=str)
def test_layer_uses_the_kernels_and_equals_torch(
    kind: type[BatchNormSiLU2d], options: dict[str, Any], enabled: Guarded
) -> None:
    converted, native = twins(kind, **options)
    for step in range(2):
        results = []
        for layer in (converted, native):
            input = random(2, 8, 6, 5, seed=step, dtype=torch.float32).requires_grad_()
            output = layer(input)
            results.append((output, *torch.autograd.grad(output.pow(3).sum(), [input, *layer.parameters()])))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(converted.state_dict(), native[0].state_dict())
    assert [name for name, *_ in enabled.launches[-4:]] == [
        *("batch_statistics_nchw_by_one", "normalize_silu_nchw_by_one"),
        *("silu_gradient_sums_nchw_by_one", "normalize_silu_gradient_nchw_by_one"),
    ]


@pytest.mark.parametrize("options", [{"momentum": None}, {"affine": False}], ids=str)
def test_aten_computes_what_the_kernels_do_not_support(options: dict[str, Any], enabled: Guarded) -> None:
    converted, native = twins(**options)
    before = len(enabled.launches)
    for _ in range(2):
        input = random(2, 8, 6, 5, dtype=torch.float32)
        torch.testing.assert_close(converted(input), native(input))
    torch.testing.assert_close(converted.eval()(input), native.eval()(input))
    torch.testing.assert_close(converted.state_dict(), native[0].state_dict())
    assert len(enabled.launches) == before


def test_second_derivatives_of_the_layer(enabled: Guarded) -> None:
    results = []
    for layer in twins():
        input = random(2, 8, 4, 4, dtype=torch.float32).requires_grad_()
        (grad,) = torch.autograd.grad(layer(input).pow(3).sum(), input, create_graph=True)
        results.append(torch.autograd.grad(grad.pow(2).sum(), [input, *layer.parameters()]))
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)


def test_only_the_required_gradient_is_returned(enabled: Guarded) -> None:
    layer, _ = twins()
    layer.bias.requires_grad_(False)
    layer(random(2, 8, 4, 4, dtype=torch.float32)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.bias.grad is None


def test_empty_batch_and_one_value_per_channel_like_torch(enabled: Guarded) -> None:
    converted, native = twins()
    empty = torch.zeros(0, 8, 2, 2)
    torch.testing.assert_close(converted(empty), native(empty))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        converted(torch.zeros(1, 8, 1, 1))


def test_a_wrong_kernel_is_disabled_before_its_first_use() -> None:
    def wrong(name: str, grid: Any, operands: Any, numbers: Any) -> None:
        for tensor in operands.tensors:
            if tensor is not None:
                tensor.zero_()

    fused_norm.KERNELS.enable(lambda device: wrong)
    converted, native = twins()
    input = random(2, 8, 6, 5, dtype=torch.float32)
    try:
        with assume_available("cpu"), pytest.warns(UserWarning, match="batch normalization forward.* has an error of"):
            output = converted(input)
        assert not fused_norm.KERNELS.enabled
    finally:
        fused_norm.KERNELS.disable()
    torch.testing.assert_close(output, native(input))
    torch.testing.assert_close(converted.state_dict(), native[0].state_dict())
    assert input.abs().sum() > 0


@pytest.mark.parametrize("channels_last", [True, False])
def test_opcheck(channels_last: bool, enabled: Guarded) -> None:
    shape = (2, 8, 4, 3)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    input, grads = (random(*shape, seed=s, dtype=torch.float32).contiguous(memory_format=memory_format) for s in (0, 1))
    parameters: list[Tensor] = [torch.ones(8), torch.zeros(8)]
    running = (torch.zeros(8), torch.ones(8), torch.tensor(0))
    operators = torch.ops.yolo_lightning
    torch.library.opcheck(operators.batch_norm_silu.default, (input, *parameters, *running, 0.1, 1e-3))
    torch.library.opcheck(operators.batch_norm_silu.default, (input, *parameters, None, None, None, 0.1, 1e-3))
    statistics = torch.ones(2, 8)
    torch.library.opcheck(operators.batch_norm_silu_backward.default, (grads, input, *parameters, statistics))
