"""Self-check: wrong results of a convolution are found, correct ones are not, and the training does not change."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from yolo_lightning.conv import swap_convs
from yolo_lightning.conv.layer import GrayConv2d
from yolo_lightning.training import self_check
from yolo_lightning.training.self_check import SelfCheck, WrongResultError, largest_error
from yolo_lightning.utils.run_files import CHECKPOINTS, SELF_CHECK_FILE

NAMES = ("output", "gradient of the input", "gradient of the weight")


class _Faulty(torch.autograd.Function):
    """A convolution whose output or gradients have a wrong part."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, layer: "FaultyConv") -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.layer = layer
        return layer.spoiled("output", torch.conv2d(input, weight, padding=1))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        input, weight = ctx.saved_tensors
        (grad_output,) = grad_outputs
        by_input = torch.nn.grad.conv2d_input(input.shape, weight, grad_output, padding=1)
        by_weight = torch.nn.grad.conv2d_weight(input, weight.shape, grad_output, padding=1)
        return ctx.layer.spoiled(NAMES[1], by_input), ctx.layer.spoiled(NAMES[2], by_weight), None


class FaultyConv(nn.Conv2d):
    fault, value = "", 0.0

    def spoiled(self, name: str, result: Tensor) -> Tensor:
        if name == self.fault:
            result[-1, -1, -1, -1] = self.value if self.value else result[-1, -1, -1, -1] * 1.5 + 1
        return result

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = _Faulty.apply(input, self.weight, self)
        return output


def step(check: SelfCheck, graph: nn.Module, number: int = 1, autocast: torch.dtype | None = None) -> None:
    """One step; the input is used by two layers, so that its gradient is not that of one layer."""
    torch.manual_seed(number)
    images = torch.randn(3, 4, 9, 7).requires_grad_()
    check.begin(number)
    with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
        first = graph[0](images)  # type: ignore[index]
        output = graph[1](first)  # type: ignore[index]
    (output.float().square().sum() + first.float().sum()).backward()
    check.finish()


def prepared(*layers: nn.Module, share: float = 1.0, run: Path | None = None, seed: int = 0) -> tuple[SelfCheck, Any]:
    graph, check = nn.Sequential(*layers), SelfCheck(share)
    check.prepare(graph, seed, 0, run)
    return check, graph


@pytest.mark.parametrize(("value", "error"), [(0.0, ""), (float("nan"), "inf")], ids=["wrong", "not finite"])
@pytest.mark.parametrize("fault", NAMES)
def test_wrong_value_in_a_result_ends_the_step(fault: str, value: float, error: str) -> None:
    check, graph = prepared(nn.Identity(), FaultyConv(4, 5, 3, padding=1, bias=False))
    step(check, graph)
    graph[1].fault, graph[1].value = fault, value
    words = rf"^layer 1, {fault}, input 3x4x9x7, weight 5x4x3x3, .*float32: error {error}.*limit.*$"
    with pytest.raises(WrongResultError, match=words):
        step(check, graph)


def test_input_that_is_not_finite_is_left_to_the_guard() -> None:
    check, graph = prepared(nn.Identity(), nn.Conv2d(4, 5, 3))
    with torch.no_grad():
        graph[1].weight[0] = float("nan")
    step(check, graph)
    assert largest_error(torch.tensor([1e30]), torch.tensor([float("nan")]), torch.float32) == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1),
        lambda: nn.Conv2d(4, 6, (3, 1), padding=(2, 0), dilation=2, groups=2, bias=False),
        lambda: nn.Conv2d(4, 4, 5, padding=2, groups=4),
        lambda: nn.Conv2d(4, 6, 1),
        lambda: swap_convs(nn.Conv2d(4, 6, 3, padding=1)),
    ],
)
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_correct_layers_pass(
    make: Callable[[], nn.Module], autocast: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_check, "LIMITS", {torch.float32: 1e-4, torch.bfloat16: 0.01})
    check, graph = prepared(nn.Conv2d(4, 4, 1), make())
    seen = set()
    for number in range(1, 9):
        step(check, graph, number, autocast)
        seen.add(check._name)
    assert seen == {"0", "1"}


def test_layer_that_repeats_one_channel_passes() -> None:
    check, graph = prepared(nn.Identity(), GrayConv2d(3, 5, 3, padding=1))
    check.begin(1)
    graph(torch.rand(2, 1, 8, 8)).square().sum().backward()
    check.finish()
    assert graph[1].weight.grad is not None


def test_training_with_the_check_is_equal_bit_for_bit() -> None:
    found = []
    for share in (0.0, 1.0):
        torch.manual_seed(0)
        check, graph = prepared(nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 5, 3), share=share)
        for number in range(1, 5):
            step(check, graph, number)
        found.append([*(parameter.grad for parameter in graph.parameters()), torch.get_rng_state()])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_gradient_that_is_changed_in_place_before_the_comparison_passes() -> None:
    """Gradients of parts and ranks are weighted and summed in place."""
    check, graph = prepared(nn.Identity(), nn.Conv2d(4, 5, 3))
    check.begin(1)
    graph(torch.rand(2, 4, 8, 8)).square().sum().backward()
    graph[1].weight.grad.mul_(3)
    check.finish()


def test_hooks_exist_in_checked_steps_only_and_the_share_limits_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(self_check.time, "monotonic", lambda: clock[0])
    check, graph = prepared(nn.Identity(), nn.Conv2d(4, 5, 3), share=0.01)
    layer, checked = graph[1], []

    def slow(*arguments: Any) -> None:
        clock[0] += 0.5
        return

    monkeypatch.setattr(self_check, "synchronize", slow)  # at least 2 s for each check
    for number in range(1, 101):
        clock[0] += 10
        check.begin(number)
        if layer._forward_hooks:
            checked.append(number)
        graph(torch.rand(2, 4, 8, 8)).sum().backward()
        check.finish()
        assert not layer._forward_hooks
        assert not layer._forward_pre_hooks
        assert not layer.weight._backward_hooks
    assert 5 <= len(checked) <= 11
    assert checked[0] == 1


def test_layer_depends_on_seed_and_step_alone() -> None:
    def names(seed: int) -> list[str]:
        check, _ = prepared(*(nn.Conv2d(1, 1, 1) for _ in range(20)), seed=seed)
        return [check.begin(number) or check._name for number in range(30)]  # type: ignore[func-returns-value]

    assert names(0) == names(0) != names(1)


def test_passed_step_is_recorded_beside_checkpoints(tmp_path: Path) -> None:
    check, graph = prepared(nn.Identity(), nn.Conv2d(4, 5, 3), run=tmp_path)
    step(check, graph, 6)
    assert not (tmp_path / SELF_CHECK_FILE).exists()
    (tmp_path / CHECKPOINTS).mkdir()
    step(check, graph, 7)
    assert json.loads((tmp_path / SELF_CHECK_FILE).read_text()) == {"passed_step": 7}


def test_check_without_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Tensor:
        raise torch.OutOfMemoryError("7 GiB")

    for name in ("output_error", "gradient_errors"):
        check, graph = prepared(nn.Identity(), nn.Conv2d(4, 5, 3))
        with monkeypatch.context() as patch:
            patch.setattr(self_check, name, fail)
            step(check, graph)
        assert graph[1].weight.grad is not None
