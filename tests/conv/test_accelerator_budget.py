"""Launches, copies and memory of a training step as on an accelerator, counted on the meta device."""

from typing import Any

import pytest
import torch

from tests.helpers.dispatch_count import DispatchCount, count_step, counts_lists
from yolo_lightning.conv.algorithms.algorithm import Operation, operands_of
from yolo_lightning.conv.algorithms.problem import Problem, make_problem
from yolo_lightning.conv.algorithms.table import candidates, gradient_candidates
from yolo_lightning.model.graph import build_graph
from yolo_lightning.model.layers import arrange

# Forward and backward of YOLOv8n, 8 gray images of 640 pixels, float32, channels_last, without compiled kernels. Lower
# a number with every improvement; never raise one.
BATCH, SIZE = 8, 640
KERNELS = 1_080
DISPATCHES = 3_420
GIGABYTES = 17.5
MILLISECONDS = 101.0  # modelled RX 5600 XT


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


def operands(operation: Operation, problem: Problem, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    input, output, weight = (
        torch.empty(size, device="meta", dtype=dtype).contiguous(memory_format=problem.memory_format)
        for size in (problem.input_size, problem.output_size, problem.weight_size)
    )
    return operands_of(operation, input, output, weight)


@pytest.fixture(scope="module")
def step() -> DispatchCount:
    return count_step(arrange(build_graph("yolov8n", ("a", "b", "c", "d")), "gemm"), BATCH, SIZE)


def test_launches(step: DispatchCount) -> None:
    assert sum(step.kernels.values()) <= KERNELS, step.kernels
    assert step.dispatches <= DISPATCHES, step.dispatched


def test_traffic_and_modelled_time(step: DispatchCount) -> None:
    assert step.bytes <= GIGABYTES * 1e9
    assert step.seconds <= MILLISECONDS / 1e3


def test_the_products_are_those_of_the_network(step: DispatchCount) -> None:
    """Forward 69.4 GFLOP with one input channel, and twice this number for the gradients except that of the images."""
    assert 190e9 < step.flop < 195e9


@pytest.mark.parametrize(
    ("memory_format", "dtype"),
    [("contiguous", torch.float32), ("channels_last", torch.float32), ("channels_last", torch.float16)],
)
def test_no_transfer_between_host_and_device(memory_format: Any, dtype: torch.dtype) -> None:
    """A value that is read on the host raises an error on the meta device by itself."""
    graph = arrange(build_graph("yolov8n", ("a", "b")), "gemm")
    arrange(graph, "gemm", memory_format=memory_format)
    assert not count_step(graph, 2, 64, dtype=dtype).uploads


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_algorithms_of_yolov8n_on_an_accelerator(dtype: torch.dtype) -> None:
    """Half types take the path of float32: one product for each convolution, which accumulates in float32."""
    for shape, weight, stride in SHAPES[:5]:
        problem = problem_of(shape, weight, stride, channels_last=True)
        chosen = [candidates(operation, problem, dtype, "cuda")[0].name for operation in list(Operation)[:3]]
        expected = "pointwise" if problem.is_pointwise else "column_batches"
        assert [name.removeprefix("mirrored ") for name in chosen] == [expected] * 3
        if expected == "column_batches":
            at_once = gradient_candidates(problem, dtype, "cuda", lambda tensors: tensors)
            assert at_once[0].name == "column_batches"


@pytest.mark.parametrize("channels_last", [False, True])
def test_no_transfer_by_any_candidate(channels_last: bool) -> None:
    """Autotuning may select any candidate."""
    for shape, weight, stride in SHAPES[1:2] + SHAPES[5:]:
        problem = problem_of(shape, weight, stride, channels_last)
        for operation in Operation:
            for candidate in candidates(operation, problem, torch.float32, "meta"):
                candidate.compute(operands(operation, problem, torch.float32))  # creates cached constants
                count = DispatchCount()
                with torch.no_grad(), count:
                    candidate.compute(operands(operation, problem, torch.float32))
                assert not count.uploads, f"{operation} {candidate.name} {problem}: {count.uploads}"


@counts_lists
def test_an_index_list_and_a_tensor_of_numbers_count_as_uploads() -> None:
    values = torch.zeros(4, device="meta")
    for work in (lambda: values[[0, 2]], lambda: values + values.new_tensor([1.0, 2.0, 3.0, 4.0])):
        count = DispatchCount()
        with count:
            work()
        assert count.uploads
    with pytest.raises(RuntimeError, match="meta"):
        values.sum().item()
