"""Use, verification and disabling of optional kernels, with stand-ins for the kernels."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.conv.emulation import Guarded, assume_available
from tests.conv.test_conv2d import random
from tests.conv.test_fused import nhwc, problem_of
from yolo_lightning.conv import DEFAULT_PLAN, Plan, disable_gpu_kernels, enable_gpu_kernels
from yolo_lightning.conv.algorithms import im2col
from yolo_lightning.conv.algorithms.algorithm import Operation
from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.table import candidates
from yolo_lightning.conv.kernels import fused
from yolo_lightning.conv.kernels.build import make_launcher
from yolo_lightning.conv.kernels.fused import SMALL_ELEMENTS, small_problem
from yolo_lightning.conv.kernels.launcher import Grid, Launcher, Operands
from yolo_lightning.conv.kernels.verified import BuildError, OptionalKernels, generated

ACCEPTED = Problem((2, 3, 8, 8), (4, 3, 3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1, channels_last=True)
INPUT, WEIGHT = nhwc(random(2, 4, 6, 6, dtype=torch.float32)), random(5, 4, 3, 3, dtype=torch.float32)
PROBLEM = problem_of(INPUT, WEIGHT, {"padding": 1})
EXPECTED = F.conv2d(INPUT, WEIGHT, padding=1)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def disabled_before_and_after() -> Iterator[None]:
    disable_gpu_kernels()
    yield
    disable_gpu_kernels()


@pytest.mark.parametrize(
    ("problem", "dtype", "device_type"),
    [
        (replace(ACCEPTED, channels_last=False), torch.float32, "cuda"),
        (replace(ACCEPTED, weight_size=(3, 1, 3, 3), groups=3), torch.float32, "cuda"),
        (replace(ACCEPTED, input_size=(0, 3, 8, 8)), torch.float32, "cuda"),
        (replace(ACCEPTED, input_size=(1 << 24, 3, 8, 8)), torch.float32, "cuda"),
        (ACCEPTED, torch.float64, "cuda"),
        (ACCEPTED, torch.float32, "cpu"),
        (ACCEPTED, torch.float32, "meta"),
    ],
)
def test_accepts_only_supported_problems(problem: Problem, dtype: torch.dtype, device_type: str) -> None:
    for supported in (torch.float32, torch.float16, torch.bfloat16):
        assert fused.accepts(ACCEPTED, supported, "cuda")
    assert not fused.accepts(problem, dtype, device_type)


@pytest.mark.parametrize(
    ("hip", "dtype", "preferred"),
    [
        (None, torch.bfloat16, "column_batches"),
        (None, torch.float16, "column_batches"),
        (None, torch.float32, "fused"),
        ("7.1", torch.bfloat16, "fused"),
    ],
)
def test_products_on_tensor_cores_are_preferred_to_the_kernels(
    hip: str | None, dtype: torch.dtype, preferred: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(fused, "available", lambda device: True)
    for operation in (Operation.FORWARD, Operation.INPUT_GRADIENT, Operation.WEIGHT_GRADIENT):
        names = [
            candidate.name.removeprefix("mirrored ") for candidate in candidates(operation, PROBLEM, dtype, "cuda")
        ]
        assert names[0] == preferred
        assert "fused" in names, "autotune measures the kernels, too"


class Wrong:
    """Kernels that return a wrong result."""

    def __init__(self, spoil: Callable[[Tensor], object]) -> None:
        self.spoil = spoil
        self.launches = 0

    def __call__(self, name: str, grid: Grid, operands: Operands, numbers: Sequence[int | float]) -> None:
        self.launches += 1
        (result,) = operands.writes
        assert result is not None
        self.spoil(result)


def refuse(result: Tensor) -> None:
    raise RuntimeError("invalid configuration")


def misunderstand(result: Tensor) -> None:
    raise TypeError("unexpected keyword argument 'grid'")


def enable(launch: Launcher) -> None:
    fused.KERNELS.enable(lambda device: launch)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda result: result.zero_(), "has an error of 1 "),
        (lambda result: result.fill_(torch.nan), "has an error of nan "),
        (refuse, "forward.* failed: invalid configuration"),
        (misunderstand, "forward.* failed: unexpected keyword"),
    ],
    ids=["wrong", "nan", "refused", "misunderstood"],
)
def test_a_kernel_that_fails_is_disabled_with_one_warning(spoil: Callable[[Tensor], object], words: str) -> None:
    wrong = Wrong(spoil)
    enable(wrong)
    with pytest.warns(UserWarning, match=words) as caught:
        outputs = [fused.forward(INPUT, WEIGHT, PROBLEM) for _ in range(3)]
    assert len(caught) == wrong.launches == 1
    assert not fused.KERNELS.enabled
    for output in outputs:
        torch.testing.assert_close(output, EXPECTED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_each_product_is_verified_once_per_problem_and_dtype(
    dtype: torch.dtype, emulated: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[str] = []

    def counted(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def count(*arguments: Any) -> Tensor:
            verified.append(name)
            return function(*arguments)

        return count

    names = ("forward", "input_gradient", "weight_gradient")
    products = im2col.ALGORITHM.products
    for operation in products:
        monkeypatch.setitem(products, operation, counted(operation, products[operation]))
    enable(emulated)
    input, weight, grads = INPUT.to(dtype), WEIGHT.to(dtype), nhwc(EXPECTED.to(dtype))
    for _ in range(2):
        output = fused.forward(input, weight, PROBLEM)
        fused.input_gradient(grads, weight, PROBLEM)
        fused.weight_gradient(input, grads, PROBLEM)
    assert verified == list(names)
    torch.testing.assert_close(output.float(), F.conv2d(input.float(), weight.float(), padding=1), rtol=1e-2, atol=1e-2)
    fused.forward(input[:, :, :5], weight, problem_of(input[:, :, :5], weight, {"padding": 1}))
    assert len(verified) == 4


@pytest.mark.parametrize("value", [0.0, torch.inf, torch.nan])
def test_the_verification_does_not_depend_on_the_data(value: float, emulated: Guarded) -> None:
    enable(emulated)
    input = torch.full_like(INPUT, value)
    output = fused.forward(input, WEIGHT, PROBLEM)
    torch.testing.assert_close(output, F.conv2d(input, WEIGHT, padding=1), equal_nan=True)
    assert fused.KERNELS.enabled


def test_the_verification_keeps_the_state_of_the_random_number_generator() -> None:
    before = torch.get_rng_state()
    values = generated(4, 1000, dtype=torch.float32, device=CPU, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert values.abs().max() < 1
    assert values.mean().abs() < 0.05
    assert 0.4 < values.std() < 0.7


@pytest.mark.parametrize(
    "problem",
    [
        Problem((8, 16, 320, 320), (16, 16, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, channels_last=True),
        Problem((8, 16, 320, 320), (32, 16, 3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1, channels_last=True),
        Problem((64, 3, 2000, 9), (8, 3, 7, 3), (1, 1), (0, 0, 0, 0), (3, 3), 1, channels_last=True),
        Problem((1, 640, 5, 5), (640, 640, 3, 3), (1, 1), (2, 2, 2, 2), (1, 1), 1, channels_last=True),
    ],
    ids=["wide", "stride", "tall", "deep"],
)
def test_a_small_problem_keeps_channels_and_taps_and_needs_little_memory(problem: Problem) -> None:
    small = small_problem(problem)
    assert small.weight_size == problem.weight_size
    assert replace(small, input_size=problem.input_size) == problem
    assert min(small.output_size) > 0
    rows = small.input_size[2]
    assert rows == problem.input_size[2] or torch.Size(small.input_size).numel() < 1.5 * SMALL_ELEMENTS
    assert torch.Size(small.output_size).numel() < 2 * SMALL_ELEMENTS


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("the allocator says no"), RuntimeError("HIP error: out of memory")], ids=str
)
def test_out_of_memory_errors_are_raised(error: RuntimeError) -> None:
    def run_out(result: Tensor) -> None:
        raise error

    enable(Wrong(run_out))
    with pytest.raises(type(error), match=str(error)):
        fused.forward(INPUT, WEIGHT, PROBLEM)
    assert fused.KERNELS.enabled


def test_reference_computes_if_the_build_fails() -> None:
    builds = []

    def build(device: torch.device) -> Launcher:
        builds.append(device)
        raise BuildError("there is no compiler")

    fused.KERNELS.enable(build)
    with pytest.warns(UserWarning, match="are disabled: .*there is no compiler") as caught:
        outputs = [fused.forward(INPUT, WEIGHT, PROBLEM) for _ in range(2)]
    assert len(caught) == len(builds) == 1
    assert not fused.KERNELS.enabled
    torch.testing.assert_close(outputs, [EXPECTED, EXPECTED])


def test_disabled_until_enabled(tmp_path: Path) -> None:
    device = torch.device("cuda")
    assert not fused.available(device)
    torch.testing.assert_close(fused.forward(INPUT, WEIGHT, PROBLEM), EXPECTED)
    enable_gpu_kernels(tmp_path)
    assert not fused.available(CPU)
    fused.KERNELS.disable()
    assert not fused.available(device)


def test_the_plan_selects_the_kernels_for_half_types_too(emulated: Guarded) -> None:
    enable(emulated)
    with assume_available("cpu"):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            plan = Plan()
            plan.compute(Operation.FORWARD, PROBLEM, (INPUT.to(dtype), WEIGHT.to(dtype)))
            assert [decision.name for decision in plan.decisions.values()] == ["fused"]
    assert not fused.accepts(PROBLEM, torch.float32, "cpu")
    assert DEFAULT_PLAN is not plan


def test_opcheck(emulated: Guarded) -> None:
    enable(emulated)
    grads = nhwc(EXPECTED)
    arguments = ([1, 1], [1, 1, 1, 1], [1, 1])
    operators = torch.ops.yolo_lightning
    torch.library.opcheck(operators.fused_conv_forward.default, (INPUT, WEIGHT, *arguments))
    torch.library.opcheck(operators.fused_conv_input_gradient.default, (grads, WEIGHT, list(INPUT.shape), *arguments))
    torch.library.opcheck(operators.fused_conv_weight_gradient.default, (INPUT, grads, list(WEIGHT.shape), *arguments))


def test_an_operator_without_kernels_raises() -> None:
    with pytest.raises(RuntimeError, match="fused convolution kernels are disabled"):
        torch.ops.yolo_lightning.fused_conv_forward(INPUT, WEIGHT, [1, 1], [1, 1, 1, 1], [1, 1])


def test_every_result_is_compared() -> None:
    kernels = OptionalKernels("kernels")
    kernels.enable(lambda device: True)
    good, bad = torch.ones(3), -torch.ones(3)
    with pytest.warns(UserWarning, match="both on cpu has an error of 2 "):
        assert kernels.run("both", CPU, lambda: (good,), lambda: [(good, good), (bad, good)]) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_results_on_a_gpu_equal_those_of_a_cpu(tmp_path: Path) -> None:
    fused.KERNELS.enable(lambda device: make_launcher(device, tmp_path))
    device = torch.device("cuda", torch.cuda.current_device())
    for _ in range(2):
        output = fused.forward(INPUT.to(device), WEIGHT.to(device), PROBLEM)
        torch.testing.assert_close(output.cpu(), EXPECTED, rtol=0, atol=1e-4)
    assert fused.KERNELS.enabled
