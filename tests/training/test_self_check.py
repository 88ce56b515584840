"""Self-check: wrong results of a convolution are found, correct ones are not, and the training does not change."""

import json
import logging
import warnings
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
from yolo_lightning.utils.suspect_checkpoints import record_file

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


NO_RUN = Path("no-run-folder")


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


def prepared(
    *layers: nn.Module, share: float = 1.0, run: Path = NO_RUN, steps: int = 0, rank: int = 0
) -> tuple[SelfCheck, Any]:
    graph, check = nn.Sequential(*layers), SelfCheck(share)
    check.prepare(graph, run, steps=steps, rank=rank, ranks=2)
    return check, graph


def faulty(run: Path = NO_RUN) -> tuple[SelfCheck, Any]:
    """Return a graph whose layer 1 can compute wrong results."""
    return prepared(nn.Conv2d(4, 4, 1), FaultyConv(4, 5, 3, padding=1, bias=False), run=run)


REPEATED = pytest.mark.filterwarnings("ignore:self-check. layer.*repeated")


@REPEATED
@pytest.mark.parametrize(("value", "error"), [(0.0, ""), (float("nan"), "inf")], ids=["wrong", "not finite"])
@pytest.mark.parametrize("fault", NAMES)
def test_wrong_value_in_a_result_ends_the_step(fault: str, value: float, error: str) -> None:
    check, graph = prepared(nn.Identity(), FaultyConv(4, 5, 3, padding=1, bias=False))
    step(check, graph)
    graph[1].fault, graph[1].value = fault, value
    step(check, graph, 2)
    words = rf"^layer 1, {fault}, input 3x4x9x7, weight 5x4x3x3, .*float32: error {error}.*limit.*in step 3.*step 1 may"
    with pytest.raises(WrongResultError, match=words):
        step(check, graph, 3)


def test_failed_check_is_repeated_with_the_same_layer_before_it_counts(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINTS).mkdir()
    check, graph = faulty(tmp_path)
    step(check, graph, 1)
    step(check, graph, 2)
    step(check, graph, 3)
    graph[1].fault = NAMES[0]
    with pytest.warns(UserWarning, match=r"layer 1, output, .* in step 4; the check is repeated in the next step"):
        step(check, graph, 4)
    graph[1].fault = ""
    with pytest.warns(UserWarning, match="layer 1 has passed the repeated check in step 5"):
        step(check, graph, 5)
    assert json.loads((tmp_path / SELF_CHECK_FILE).read_text())["passed"] == {"0": 3, "1": 5}
    step(check, graph, 6)
    check.end()


@REPEATED
def test_training_does_not_end_with_a_failed_check_that_was_not_repeated() -> None:
    check, graph = faulty()
    graph[1].fault = NAMES[0]
    step(check, graph, 1)
    step(check, graph, 2)
    with pytest.raises(WrongResultError, match=r"layer 1, output.*ended before the check could be repeated"):
        check.end()


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
def test_correct_layers_pass(make: Callable[[], nn.Module], autocast: torch.dtype | None) -> None:
    check, graph = prepared(nn.Conv2d(4, 4, 1), make())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(1, 9):
            step(check, graph, number, autocast)
    assert check._record.passed == {"0": 7, "1": 8}


class SummedPerImage(torch.autograd.Function):
    """A correct convolution that adds the weight gradients of the images in the dtype of the layer."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(input, weight)
        return torch.conv2d(input.float(), weight.float()).to(input.dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[None, Tensor]:
        input, weight = ctx.saved_tensors
        total = torch.zeros_like(weight)
        for image, gradient in zip(input, grad_outputs[0], strict=True):
            of_image = torch.nn.grad.conv2d_weight(image[None].float(), weight.shape, gradient[None].float())
            total += of_image.to(weight.dtype)
        return None, total * SummedPerImage.factor

    factor = 1.0


class SummedConv(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = SummedPerImage.apply(input, self.weight)
        return output


@REPEATED
@pytest.mark.parametrize(("images", "factor", "is_found"), [(600, 1.0, False), (32, 1.0, False), (32, 0.0, True)])
def test_half_precision_sum_over_many_similar_images_passes_and_zeros_do_not(
    images: int, factor: float, is_found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SummedPerImage, "factor", factor)
    torch.manual_seed(0)
    check, graph = prepared(SummedConv(2, 3, 1, bias=False).to(torch.bfloat16))
    batch = (torch.rand(1, 2, 4, 4) + 0.02 * torch.randn(images, 2, 4, 4)).to(torch.bfloat16)
    check.begin(1)
    graph(batch).float().square().sum().backward()
    check.finish()
    assert bool(check._failure) == is_found


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 1e-3), (torch.bfloat16, 1e-20), (torch.float32, 1e-20)])
def test_small_wrong_gradients_are_found(dtype: torch.dtype, size: float) -> None:
    expected = torch.full((4, 4), size)
    assert largest_error(torch.zeros(4, 4), expected, dtype) > 0.4 > self_check.error_limit(dtype)


def test_layer_that_repeats_one_channel_passes() -> None:
    check, graph = prepared(nn.Identity(), GrayConv2d(3, 5, 3, padding=1))
    check.begin(1)
    graph(torch.rand(2, 1, 8, 8)).square().sum().backward()
    check.finish()
    assert graph[1].weight.grad is not None


def test_training_with_the_check_is_equal_bit_for_bit() -> None:
    results = []
    for share in (0.0, 1.0):
        torch.manual_seed(0)
        check, graph = prepared(nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 5, 3), share=share)
        for number in range(1, 5):
            step(check, graph, number)
        results.append([*(parameter.grad for parameter in graph.parameters()), torch.get_rng_state()])
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


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
    assert 6 <= len(checked) <= 12
    assert checked[0] == 1


def test_layers_take_turns_and_the_layer_with_the_oldest_check_is_first_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINTS).mkdir()
    (tmp_path / SELF_CHECK_FILE).write_text('{"passed": {"0": 9, "1": 4, "2": 12, "removed": 1}, "wrong_layer": "0"}')
    check, graph = prepared(*(nn.Conv2d(2, 2, 1) for _ in range(3)), run=tmp_path, steps=10)
    turns = []
    for number in range(11, 17):
        check.begin(number)
        turns.append(check._name)
        graph(torch.rand(1, 2, 3, 3)).sum().backward()
        check.finish()
    assert turns == ["1", "0", "2"] * 2
    assert json.loads((tmp_path / SELF_CHECK_FILE).read_text()) == {
        "passed": {"0": 15, "1": 14, "2": 16},
        "wrong_layer": "",
    }


@REPEATED
def test_wrong_layer_is_recorded_beside_checkpoints_by_rank(tmp_path: Path) -> None:
    check, graph = prepared(nn.Conv2d(4, 4, 1), FaultyConv(4, 5, 3, padding=1, bias=False), run=tmp_path, rank=1)
    step(check, graph, 1)
    file = record_file(tmp_path, 1)
    assert not file.exists()
    (tmp_path / CHECKPOINTS).mkdir()
    step(check, graph, 2)
    graph[1].fault = NAMES[0]
    step(check, graph, 3)
    step(check, graph, 4)
    with pytest.raises(WrongResultError):
        step(check, graph, 5)
    assert json.loads(file.read_text()) == {"passed": {"0": 3, "1": 2}, "wrong_layer": "1"}
    other_files = [record_file(tmp_path, 0), record_file(tmp_path, 2)]
    for other_file in other_files:
        other_file.write_text("{}")
    prepared(nn.Conv2d(4, 4, 1), run=tmp_path)
    assert [other_file.exists() for other_file in other_files] == [True, False]


def test_frozen_layers_are_checked_and_unused_ones_leave_the_round(caplog: pytest.LogCaptureFixture) -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = FaultyConv(2, 2, 3, padding=1, bias=False).requires_grad_(False)
            self.trained, self.unused = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)

        def forward(self, input: Tensor) -> Tensor:
            output: Tensor = self.trained(self.frozen(input))
            return output

    graph, check = Network(), SelfCheck(1.0)
    check.prepare(graph, NO_RUN)

    def steps(numbers: range) -> None:
        for number in numbers:
            check.begin(number)
            graph(torch.rand(1, 2, 4, 4)).sum().backward()
            check.finish()

    with caplog.at_level(logging.INFO):
        steps(range(1, 5))
    assert check._record.passed == {"frozen": 4, "trained": 2}
    assert "2 convolutions were checked (not used in training: unused); from now on, a round takes" in caplog.text
    graph.frozen.fault = NAMES[0]
    with pytest.warns(UserWarning, match="layer frozen, output"):
        steps(range(5, 7))


def test_check_without_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Tensor:
        raise torch.OutOfMemoryError("7 GiB")

    for name in ("output_error", "gradient_errors"):
        check, graph = prepared(nn.Identity(), nn.Conv2d(4, 5, 3))
        with monkeypatch.context() as patch:
            patch.setattr(self_check, name, fail)
            with pytest.warns(UserWarning, match="not enough memory to check layer 1"):
                step(check, graph)
        assert graph[1].weight.grad is not None
