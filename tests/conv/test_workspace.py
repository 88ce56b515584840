"""Declared workspace of every candidate, compared with the memory that its tensors take."""

from math import prod

import pytest
import torch

from tests.helpers.peak_memory import PeakMemory
from yolo_lightning.conv.algorithms.algorithm import Operation
from yolo_lightning.conv.algorithms.problem import Problem, make_problem
from yolo_lightning.conv.algorithms.table import Candidate, candidates

# Input, weight, stride; padding is half of the kernel. The first three are layers of YOLOv8n.
SHAPES = [
    ((8, 64, 80, 80), (64, 64, 3, 3), 1),
    ((8, 16, 320, 320), (32, 16, 3, 3), 2),
    ((8, 1, 640, 640), (16, 1, 3, 3), 2),
    ((8, 192, 40, 40), (128, 192, 1, 1), 1),
    ((2, 320, 20, 20), (640, 320, 3, 3), 2),
    ((3, 24, 33, 35), (16, 24, 3, 3), 2),
    ((3, 24, 33, 35), (24, 1, 5, 5), 1),
    ((3, 24, 33, 35), (24, 6, 3, 3), 1),
]


def problem_of(shape: tuple[int, ...], weight: tuple[int, ...], stride: int, channels_last: bool) -> Problem:
    images, kernel = (torch.empty(size, device="meta") for size in (shape, weight))
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return make_problem(images, kernel, None, stride, weight[2] // 2, 1, shape[1] // weight[1], layout)


def operands(operation: Operation, problem: Problem, dtype: torch.dtype) -> list[torch.Tensor]:
    input, output, weight = (
        torch.empty(size, device="meta", dtype=dtype).contiguous(memory_format=problem.memory_format)
        for size in (problem.input_size, problem.output_size, problem.weight_size)
    )
    return {
        Operation.FORWARD: [input, weight],
        Operation.INPUT_GRADIENT: [output, weight],
        Operation.WEIGHT_GRADIENT: [input, output],
        Operation.GRADIENTS: [input, output, weight],
    }[operation]


def measured(candidate: Candidate, tensors: list[torch.Tensor]) -> int:
    """Return the largest memory of a candidate beyond its operands and results, in bytes."""
    memory = PeakMemory()
    memory.ignore(*tensors)
    with torch.no_grad(), memory:
        results = candidate.compute(tuple(tensors))
    return memory.peak - sum(result.numel() * result.element_size() for result in results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("channels_last", [True, False], ids=["NHWC", "NCHW"])
@pytest.mark.parametrize(("shape", "weight", "stride"), SHAPES)
def test_no_candidate_takes_more_than_it_declares(
    shape: tuple[int, ...], weight: tuple[int, ...], stride: int, channels_last: bool, dtype: torch.dtype
) -> None:
    problem = problem_of(shape, weight, stride, channels_last)
    for operation in Operation:
        for candidate in candidates(operation, problem, dtype, "meta"):
            taken = measured(candidate, operands(operation, problem, dtype))
            about = f"{operation} {candidate.name}: declares {candidate.workspace:,} bytes, takes {taken:,}"
            assert taken <= candidate.workspace, about
            if " in " not in candidate.name:  # conversions of the layout count as if none were a view
                assert candidate.workspace <= 4 * taken + prod(problem.weight_size) * 64 + (1 << 20), about


def test_the_default_is_followed_by_smaller_candidates_only() -> None:
    """im2col may not follow the default of an accelerator after an out-of-memory error: it needs several times more."""
    problem = problem_of((8, 64, 80, 80), (64, 64, 3, 3), 1, channels_last=True)
    for operation in Operation:
        default, *others = candidates(operation, problem, torch.float32, "cuda")
        assert default.name.removeprefix("mirrored ") == "column_batches"
        smaller = {one.name.removeprefix("mirrored ") for one in others if one.workspace < default.workspace}
        assert "column_batches by sample" in smaller
        assert not [name for name in smaller if name.startswith("im2col")]
