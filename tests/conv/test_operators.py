"""The registered operators: torch's own checks, and compiled models."""

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from yolo_lightning.conv import AutotunedPlan, conv2d, operators, swap_convs
from yolo_lightning.conv.plan import DEFAULT_PLAN, plan_of

# Input, weight, stride, padding, dilation, groups.
PROBLEMS: list[tuple[Any, ...]] = [
    ((2, 3, 7, 6), (4, 3, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((2, 4, 7, 6), (4, 2, 3, 2), (2, 1), (0, 0, 1, 1), (1, 2), 2),
    ((1, 4, 5, 5), (3, 4, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((2, 4, 6, 6), (4, 1, 3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 4),
]
LAYOUTS = [False, True]


def random(*shape: int, dtype: torch.dtype, channels_last: bool) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)
    return values.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


CHECKED = [
    (PROBLEMS[0], True, torch.float32),
    (PROBLEMS[1], False, torch.float64),
    (PROBLEMS[2], True, torch.float16),
    (PROBLEMS[3], False, torch.bfloat16),
]


@pytest.mark.parametrize(("problem", "channels_last", "dtype"), CHECKED)
@pytest.mark.parametrize("name", ["conv2d", "conv2d_input_gradient", "conv2d_weight_gradient", "conv2d_gradients"])
def test_opcheck(name: str, problem: tuple[Any, ...], channels_last: bool, dtype: torch.dtype) -> None:
    input_size, weight_size, *rest = problem
    input, weight = (random(*size, dtype=dtype, channels_last=channels_last) for size in (input_size, weight_size))
    arguments = (*rest, channels_last, DEFAULT_PLAN.name)
    output = torch.ops.yolo_lightning.conv2d(input, weight, *arguments)
    reference = F.conv2d(F.pad(input, (*rest[1][2:], *rest[1][:2])), weight, None, rest[0], 0, *rest[2:])
    assert output.shape == reference.shape
    tensors = {
        "conv2d": (input, weight),
        "conv2d_input_gradient": (output, weight, list(input_size)),
        "conv2d_weight_gradient": (input, output, list(weight_size)),
        "conv2d_gradients": (input, output, weight),
    }[name]
    leaves = [value.clone().requires_grad_() if isinstance(value, Tensor) else value for value in tensors]
    tests = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")
    torch.library.opcheck(getattr(operators, name), (*leaves, *arguments), test_utils=tests)


@pytest.mark.parametrize("channels_last", LAYOUTS)
@pytest.mark.parametrize("stride", [1, 2])
def test_second_derivatives(stride: int, channels_last: bool) -> None:
    input_size, weight_size = (1, 2, 4, 3), (2, 2, 3, 3)
    rest = (stride, stride), (1, 1, 1, 1), (1, 1), 1
    leaves = [
        random(*size, dtype=torch.float64, channels_last=channels_last).requires_grad_()
        for size in (input_size, weight_size)
    ]
    arguments = (*rest, channels_last, DEFAULT_PLAN.name)
    assert torch.autograd.gradgradcheck(lambda *tensors: operators.conv2d(*tensors, *arguments), leaves)


class Network(nn.Module):
    """A convolution with a bias, one with stride, groups and a normalization, and one with 'same' padding."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, stride=2, groups=2, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.third = nn.Conv2d(8, 4, (1, 3), padding="same")

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.third(F.silu(self.norm(self.second(self.first(images)))))
        return output


def outcome(model: Any, network: nn.Module, images: Tensor) -> list[Tensor]:
    network.zero_grad()
    leaf = images.clone().requires_grad_()
    output = model(leaf)
    output.square().sum().backward()
    assert leaf.grad is not None
    return [
        output.detach(),
        leaf.grad,
        *(parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None),
    ]


def compare_with_eager(backend: str, dynamic: bool | None = None) -> list[str]:
    """Compare a compiled model with the same model in eager mode, and return the operators of its graphs."""
    torch.compiler.reset()
    torch.manual_seed(0)
    network = swap_convs(Network())
    called: list[str] = []

    def listing(module: torch.fx.GraphModule, examples: Any) -> Any:
        called.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return torch._dynamo.lookup_backend(backend)(module, examples)

    compiled = torch.compile(network, backend=listing, fullgraph=True, dynamic=dynamic)
    for size in (9, 12, 15, 20) if dynamic else (9,):
        images = torch.randn(2, 3, size, size)
        torch.testing.assert_close(outcome(compiled, network, images), outcome(network, network, images))
    torch.compiler.reset()
    return called


def test_a_compiled_model_has_no_graph_break() -> None:
    called = compare_with_eager("aot_eager")
    assert len([name for name in called if "yolo_lightning" in name and "conv2d" in name]) == 3


def test_a_compiled_model_accepts_other_image_sizes() -> None:
    called = compare_with_eager("aot_eager", dynamic=True)
    assert len([name for name in called if "yolo_lightning" in name]) <= 2 * 3, "not compiled for each of the 4 sizes"


@pytest.mark.whole_run
@pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a C++ compiler")
def test_a_model_compiled_by_inductor() -> None:
    compare_with_eager("inductor")


def test_an_exported_model_contains_the_operators() -> None:
    network = swap_convs(Network()).eval()
    images = torch.randn(2, 3, 9, 9)
    program = torch.export.export(network, (images,))
    assert sum("yolo_lightning.conv2d" in str(node.target) for node in program.graph.nodes) == 3
    torch.testing.assert_close(program.module()(images), network(images))


def test_eager_mode_calls_no_registered_operator() -> None:
    images = torch.randn(1, 3, 9, 9, requires_grad=True)
    with torch.profiler.profile() as profile:
        conv2d(images, torch.randn(2, 3, 3, 3)).sum().backward()
    assert not [event.key for event in profile.key_averages() if "yolo_lightning" in event.key]


def test_a_plan_is_found_by_its_name() -> None:
    plan = AutotunedPlan(0)
    assert plan_of(plan.name) is plan
    assert plan_of("table") is DEFAULT_PLAN


def test_a_plan_of_another_process_is_replaced_by_the_table_with_one_warning(recwarn: pytest.WarningsRecorder) -> None:
    name = AutotunedPlan(0).name.swapcase() + "of another process"
    assert plan_of(name) is DEFAULT_PLAN
    assert plan_of(name) is DEFAULT_PLAN
    (warning,) = recwarn
    assert "a table selects the algorithms" in str(warning.message)


def test_the_plan_of_a_layer_decides_in_a_compiled_model() -> None:
    torch.compiler.reset()
    plan = AutotunedPlan(0)
    network = swap_convs(Network(), plan=plan)
    torch.compile(network, backend="aot_eager", fullgraph=True)(torch.randn(2, 3, 9, 9))
    assert len(plan.decisions) == 3
    torch.compiler.reset()


def test_wrong_arguments_are_refused_while_compiling() -> None:
    torch.compiler.reset()
    with pytest.raises(Exception, match="expects an input with 3 channels"):
        torch.compile(conv2d, backend="aot_eager", fullgraph=True)(torch.zeros(1, 2, 5, 5), torch.zeros(4, 3, 3, 3))
    torch.compiler.reset()
