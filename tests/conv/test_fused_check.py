"""Use, verification and disabling of optional kernels, with stand-ins for the kernels."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.conv.test_conv2d import random
from tests.conv.test_fused import nhwc, problem_of
from yolo_lightning.conv.algorithms import rows_channels_last
from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.kernels import fused as _fused
from yolo_lightning.conv.kernels import fused_launch
from yolo_lightning.conv.kernels.fused_launch import Grid, Launcher
from yolo_lightning.conv.kernels.verified import BuildError, OptionalKernels

ACCEPTED = Problem((2, 3, 8, 8), (4, 3, 3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1, channels_last=True)


@pytest.mark.parametrize(
    ("problem", "dtype", "device_type"),
    [
        (replace(ACCEPTED, channels_last=False), torch.float32, "cuda"),
        (replace(ACCEPTED, weight_size=(3, 1, 3, 3), groups=3), torch.float32, "cuda"),
        (replace(ACCEPTED, input_size=(0, 3, 8, 8)), torch.float32, "cuda"),
        (replace(ACCEPTED, input_size=(1 << 24, 3, 8, 8)), torch.float32, "cuda"),
        (ACCEPTED, torch.float64, "cuda"),
        (ACCEPTED, torch.float16, "cuda"),
        (ACCEPTED, torch.float32, "cpu"),
    ],
)
def test_accepts_only_supported_problems(problem: Problem, dtype: torch.dtype, device_type: str) -> None:
    assert _fused.accepts(ACCEPTED, torch.float32, "cuda")
    assert not _fused.accepts(problem, dtype, device_type)


class Wrong:
    """Kernels that return a wrong result."""

    def __init__(self, spoil: Callable[[Tensor], object]) -> None:
        self.spoil = spoil
        self.launches = 0

    def __call__(self, name: str, grid: Grid, tensors: Sequence[Tensor], numbers: Sequence[int]) -> None:
        self.launches += 1
        self.spoil(tensors[-1])


INPUT, WEIGHT = nhwc(random(2, 4, 6, 6, dtype=torch.float32)), random(5, 4, 3, 3, dtype=torch.float32)
PROBLEM = problem_of(INPUT, WEIGHT, {"padding": 1})
EXPECTED = F.conv2d(INPUT, WEIGHT, padding=1)


def checked(
    build: Callable[[torch.device], Launcher], launches: Any = fused_launch, reference: Any = rows_channels_last
) -> OptionalKernels:
    kernels = OptionalKernels("fused convolution kernels", launches, reference)
    kernels.enable(build)
    return kernels


def forward(kernels: OptionalKernels, input: Tensor = INPUT, weight: Tensor = WEIGHT) -> Tensor:
    return kernels.forward(input, weight, PROBLEM)


def refuse(result: Tensor) -> None:
    raise RuntimeError("invalid configuration")


def misunderstand(result: Tensor) -> None:
    raise TypeError("unexpected keyword argument 'grid'")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda result: result.zero_(), "has an error of 1 "),
        (lambda result: result.fill_(torch.nan), "has an error of nan "),
        (refuse, "forward failed .* invalid configuration"),
        (misunderstand, "forward failed .* unexpected keyword"),
    ],
    ids=["wrong", "nan", "refused", "misunderstood"],
)
def test_a_kernel_that_fails_is_disabled_with_one_warning(spoil: Callable[[Tensor], object], words: str) -> None:
    wrong = Wrong(spoil)
    fused = checked(lambda device: wrong)
    with pytest.warns(UserWarning, match=words) as caught:
        outputs = [forward(fused) for _ in range(3)]
    assert len(caught) == wrong.launches == 1
    assert not fused.work_on(torch.device("cpu"))
    for output in outputs:
        torch.testing.assert_close(output, EXPECTED)


def test_the_first_result_of_each_product_and_problem_is_compared() -> None:
    references: list[str] = []
    names = ("forward", "input_gradient", "weight_gradient")

    def counted(name: str, *arguments: Any) -> Any:
        references.append(name)
        return getattr(rows_channels_last, name)(*arguments)

    def correct(name: str, kernels: Launcher, *arguments: Any) -> Any:
        return getattr(rows_channels_last, name)(*arguments)

    launches, reference = (SimpleNamespace(**{n: partial(f, n) for n in names}) for f in (correct, counted))
    fused = checked(lambda device: Wrong(refuse), launches, reference)

    def run(problem: Problem, grad_output: Tensor) -> None:
        for name, operands in zip(names, ((INPUT, WEIGHT), (grad_output, WEIGHT), (INPUT, grad_output)), strict=True):
            getattr(fused, name)(*operands, problem)

    for _ in range(2):
        run(PROBLEM, torch.ones_like(EXPECTED))
    assert references == ["forward", "input_gradient", "weight_gradient"]
    run(problem_of(INPUT, WEIGHT, {}), torch.ones(2, 5, 4, 4))
    assert len(references) == 6


def test_every_result_of_a_product_is_compared() -> None:
    launches = SimpleNamespace(gradients=lambda *_: (EXPECTED, -EXPECTED))
    reference = SimpleNamespace(gradients=lambda *_: (EXPECTED, EXPECTED))
    fused = checked(lambda device: Wrong(refuse), launches, reference)
    with pytest.warns(UserWarning, match="gradients on cpu has an error of 2 "):
        assert fused.gradients(INPUT, EXPECTED, WEIGHT, PROBLEM)[1] is EXPECTED


@pytest.mark.parametrize("value", [0.0, torch.inf, torch.nan])
def test_results_without_a_finite_maximum_do_not_verify_the_kernels(value: float) -> None:
    wrong = Wrong(lambda result: result.fill_(3.0))
    fused = checked(lambda device: wrong)
    input = torch.full_like(INPUT, value)
    for _ in range(2):
        output = forward(fused, input)
        torch.testing.assert_close(output, F.conv2d(input, WEIGHT, padding=1), equal_nan=True)
    assert fused.work_on(torch.device("cpu"))
    with pytest.warns(UserWarning, match="has an error of"):
        forward(fused)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("the allocator says no"), RuntimeError("HIP error: out of memory")], ids=str
)
def test_out_of_memory_errors_are_raised(error: RuntimeError) -> None:
    def run_out(result: Tensor) -> None:
        raise error

    fused = checked(lambda device: Wrong(run_out))
    with pytest.raises(type(error), match=str(error)):
        forward(fused)
    assert fused.work_on(torch.device("cpu"))


def test_reference_computes_if_the_build_fails() -> None:
    builds = []

    def build(device: torch.device) -> Launcher:
        builds.append(device)
        raise BuildError("there is no compiler")

    fused = checked(build)
    with pytest.warns(UserWarning, match="there is no compiler") as caught:
        outputs = [forward(fused) for _ in range(2)]
    assert len(caught) == len(builds) == 1
    torch.testing.assert_close(outputs, [EXPECTED, EXPECTED])


def test_disabled_until_enabled(tmp_path: Path) -> None:
    device = torch.device("cuda")
    assert not _fused.available(device)
    torch.testing.assert_close(_fused.forward(INPUT, WEIGHT, PROBLEM), EXPECTED)
    _fused.enable(tmp_path)
    try:
        assert not _fused.available(torch.device("cpu"))
    finally:
        _fused.disable()
    assert not _fused.available(device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_results_on_a_gpu_equal_those_of_a_cpu(tmp_path: Path) -> None:
    fused = checked(lambda device: _fused.make_launcher(device, tmp_path))
    device = torch.device("cuda", torch.cuda.current_device())
    assert fused.work_on(device)
    for _ in range(2):
        output = forward(fused, INPUT.to(device), WEIGHT.to(device))
        torch.testing.assert_close(output.cpu(), EXPECTED, rtol=0, atol=1e-4)
    assert fused.work_on(device)
