"""Every candidate of the table against `torch.nn.functional.conv2d`."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.conv.test_conv2d import CASES, Case, derivatives, lay_out, random
from tests.conv.test_conv_dtypes import ROUNDING
from yolo_lightning.conv import Plan, conv2d
from yolo_lightning.conv.algorithms import column_batches, shared, table
from yolo_lightning.conv.algorithms.algorithm import Operation
from yolo_lightning.conv.algorithms.problem import Problem, make_problem
from yolo_lightning.conv.algorithms.table import Candidate, candidates
from yolo_lightning.conv.plan import PlanKey

NOTHING: dict[str, Any] = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}


class ForcedPlan(Plan):
    """Plan that uses one given algorithm wherever it is a candidate."""

    def __init__(self, algorithm: str) -> None:
        super().__init__()
        self.algorithm = algorithm
        self.uses = 0

    def _candidates(self, key: PlanKey) -> tuple[Candidate, ...]:
        order = super()._candidates(key)
        forced = tuple(candidate for candidate in order if candidate.name == self.algorithm)
        self.uses += len(forced)
        return forced or order


def problem_of(input_shape: Any, weight_shape: Any, arguments: dict[str, Any], channels_last: bool) -> Problem:
    tensors = [torch.empty(shape, device="meta") for shape in (input_shape, weight_shape)]
    return replace(make_problem(*tensors, **NOTHING | arguments), channels_last=channels_last)


def names(problem: Problem, dtype: torch.dtype = torch.float64) -> list[str]:
    """Return the names of all candidates for the operations of this problem."""
    all_names = [
        candidate.name for operation in Operation for candidate in candidates(operation, problem, dtype, "cpu")
    ]
    return list(dict.fromkeys([*all_names, table.SEPARATE]))


FORCED = [
    pytest.param(name, case, layout, id=f"{name}-{layout}-{case}")
    for case in CASES
    for layout in ("contiguous", "channels_last")
    for name in names(problem_of(case[0], case[1], case[3], layout == "channels_last"))
]


PLAIN = problem_of((2, 8, 9, 9), (8, 8, 3, 3), {}, True)


def test_the_cases_cover_every_row_of_the_table() -> None:
    reached = {parameters.values[0].removeprefix("mirrored ").partition(" in ")[0] for parameters in FORCED}
    # Disabled kernels and kernels for accelerators have separate tests.
    rows = {algorithm.name for algorithm in table.algorithms(PLAIN, torch.float32, "cpu")} - {"fused"}
    assert reached == rows | {"zeros", table.SEPARATE}


SMALL_ENOUGH = 4096
"""Largest input, in elements, that is also tested with tiles of 64 elements; larger inputs have several tiles."""
TILED = [
    pytest.param(*forced.values, tile, id=f"{forced.id}-{tile}")
    for forced in FORCED
    for tile in (64, None)
    if tile is None or math.prod(forced.values[1][0]) <= SMALL_ENOUGH
]


@pytest.mark.parametrize(("algorithm", "case", "layout", "tile"), TILED)
def test_output_and_gradients(
    algorithm: str, case: Case, layout: str, tile: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    input_shape, weight_shape, _, arguments = case
    if tile is not None:
        monkeypatch.setattr(shared, "CPU_TILE_ELEMENTS", tile)
        monkeypatch.setattr(shared, "ACCELERATOR_TILE_ELEMENTS", tile)
        monkeypatch.setattr(column_batches, "PARTIAL_ELEMENTS", tile)
    tensors = [lay_out(random(*input_shape), layout), lay_out(random(*weight_shape, seed=1), layout)]
    problem = problem_of(input_shape, weight_shape, arguments, layout == "channels_last")
    grad_output = lay_out(random(*problem.output_size, seed=2), layout)
    plan = ForcedPlan(algorithm)
    results = derivatives(conv2d, tensors, grad_output, {**arguments, "plan": plan})
    # One gradient at a time, where the plan above computed both at once.
    alone = [
        plan.compute(Operation.INPUT_GRADIENT, problem, (grad_output, tensors[1]))[0],
        plan.compute(Operation.WEIGHT_GRADIENT, problem, (tensors[0], grad_output))[0],
    ]
    references = derivatives(F.conv2d, tensors, grad_output, arguments)
    torch.testing.assert_close(results, references, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(alone, references[1:], rtol=1e-9, atol=1e-9)
    assert plan.uses


DERIVATIVES = [
    pytest.param(name, kernel, stride, groups, layout, id=f"{name}-{layout}-{kernel}-{stride}-{groups}")
    for kernel, stride, groups in ((3, 1, 1), (3, 2, 1), (2, 1, 2), (3, 2, 4), (1, 1, 1), (1, 1, 2))
    for layout in ("contiguous", "channels_last")
    for name in names(
        problem_of(
            (2, 4, 6, 5),
            (4, 4 // groups, kernel, kernel),
            {"stride": stride, "padding": kernel // 2, "groups": groups},
            layout == "channels_last",
        )
    )
]


@pytest.mark.parametrize(("algorithm", "kernel", "stride", "groups", "layout"), DERIVATIVES)
def test_first_and_second_derivatives(algorithm: str, kernel: int, stride: int, groups: int, layout: str) -> None:
    shapes = [(2, 4, 6, 5), (4, 4 // groups, kernel, kernel)]
    tensors = [lay_out(random(*shape), layout).requires_grad_() for shape in shapes]
    plan = ForcedPlan(algorithm)

    def function(*leaves: Tensor) -> Tensor:
        return conv2d(*leaves, stride=stride, padding=kernel // 2, groups=groups, plan=plan)

    assert torch.autograd.gradcheck(function, tensors, fast_mode=True, nondet_tol=0.0)
    assert torch.autograd.gradgradcheck(function, tensors, fast_mode=True, nondet_tol=0.0)
    assert plan.uses


HALF = [
    pytest.param(name, dtype, kernel, stride, groups, layout, id=f"{name}-{dtype}-{layout}-{kernel}-{stride}-{groups}")
    for dtype in ROUNDING
    for kernel, stride, groups in ((3, 1, 1), (3, 2, 1), (1, 1, 1), (3, 2, 4), (3, 1, 16))
    for layout in ("contiguous", "channels_last")
    for name in names(
        problem_of(
            (4, 16, 12, 12),
            (16, 16 // groups, kernel, kernel),
            {"stride": stride, "padding": kernel // 2, "groups": groups},
            layout == "channels_last",
        ),
        dtype,
    )
]


@pytest.mark.parametrize(("algorithm", "dtype", "kernel", "stride", "groups", "layout"), HALF)
def test_half_types_round_once(
    algorithm: str, dtype: torch.dtype, kernel: int, stride: int, groups: int, layout: str
) -> None:
    shapes = [(4, 16, 12, 12), (16, 16 // groups, kernel, kernel)]
    tensors = [lay_out(random(*shape).to(dtype), layout) for shape in shapes]
    arguments = {"stride": stride, "padding": kernel // 2, "groups": groups}
    grad_output = torch.ones(F.conv2d(*tensors, **arguments).shape, dtype=dtype)
    results = derivatives(conv2d, tensors, grad_output, {**arguments, "plan": ForcedPlan(algorithm)})
    exact = derivatives(F.conv2d, [tensor.double() for tensor in tensors], grad_output.double(), arguments)
    for name, result, reference in zip(["output", "input", "weight"], results, exact, strict=True):
        assert result.dtype == dtype
        error = (result.double() - reference).abs().max() / reference.abs().max()
        assert error <= ROUNDING[dtype], f"{name} is off by {error:.1e} of its largest value"


@st.composite
def any_case(draw: st.DrawFn) -> Case:
    """Draw a small convolution whose kernel fits into the padded input."""
    groups = draw(st.integers(1, 3))
    pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel, stride, dilation, extra = draw(pairs), draw(pairs), draw(pairs), draw(pairs)
    padding = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    sizes = [max(1, dilation[axis] * (kernel[axis] - 1) + extra[axis] - 2 * padding[axis]) for axis in (0, 1)]
    channels, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    arguments = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    input_shape = (draw(st.integers(1, 2)), channels * groups, *sizes)
    return input_shape, (outputs * groups, channels, *kernel), False, arguments


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(any_case(), st.booleans())
def test_any_problem_by_any_algorithm(case: Case, channels_last: bool) -> None:
    input_shape, weight_shape, _, arguments = case
    layout = "channels_last" if channels_last else "contiguous"
    tensors = [lay_out(random(*input_shape), layout), lay_out(random(*weight_shape, seed=1), layout)]
    problem = problem_of(input_shape, weight_shape, arguments, channels_last)
    grad_output = random(*problem.output_size, seed=2)
    output, grad_input, grad_weight = derivatives(F.conv2d, tensors, grad_output, arguments)
    input, weight = tensors
    expected = {
        Operation.FORWARD: ((input, weight), (output,)),
        Operation.INPUT_GRADIENT: ((grad_output, weight), (grad_input,)),
        Operation.WEIGHT_GRADIENT: ((input, grad_output), (grad_weight,)),
        Operation.GRADIENTS: ((input, grad_output, weight), (grad_input, grad_weight)),
    }
    for operation, (given_tensors, references) in expected.items():
        for candidate in candidates(operation, problem, torch.float64, "cpu"):
            results = candidate.compute(given_tensors)
            for result, reference in zip(results, references, strict=True):
                torch.testing.assert_close(result, reference, msg=lambda text, name=candidate.name: f"{name}: {text}")


@pytest.mark.parametrize("name", ["im2col", "column_batches", "pointwise", "im2col in NHWC"])
@pytest.mark.parametrize("groups", [1, 2])
def test_large_products_are_computed_in_parts(name: str, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = (1, 1) if name == "pointwise" else (3, 3)
    tensors = [random(2, 4, 7, 9), random(12, 4 // groups, *kernel)]
    tensors = [tensor.contiguous(memory_format=torch.channels_last) for tensor in tensors]
    arguments = {"groups": groups}
    grad_output = F.conv2d(*tensors, **arguments)
    expected = derivatives(F.conv2d, tensors, grad_output, arguments)
    monkeypatch.setattr(shared, "largest_product", lambda device: 5)
    with LargestProducts() as products:
        results = derivatives(partial(conv2d, plan=ForcedPlan(name)), tensors, grad_output, arguments)
    torch.testing.assert_close(results, expected)
    assert products.sizes
    assert max(products.sizes) <= 5


def test_products_on_an_accelerator_are_limited() -> None:
    assert shared.largest_product(torch.device("cuda")) == 1 << 19
    assert shared.largest_product(torch.device("cpu")) > 1 << 40


class LargestProducts(TorchDispatchMode):
    """Records the rows and columns of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm):
            self.sizes += [args[0].size(-2), args[1].size(-1)]
        return func(*args, **(kwargs or {}))
