"""The stability run passes for an equal training and fails for each of its checks."""

import functools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from yolo_lightning.commands.benchmark import stability
from yolo_lightning.commands.benchmark.comparison import Pass
from yolo_lightning.commands.benchmark.stability import Stability, growth, run_stability
from yolo_lightning.conv import Plan

CPU = torch.device("cpu")
AUTOCAST = functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16, enabled=False)
STEPS = 10


def run(steps: int = STEPS) -> Stability:
    return run_stability(Plan(), CPU, AUTOCAST, steps=steps, image_size=64, batch_size=1)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[float], list[float]], Stability]:
    """Return the result of two trainings with given losses, without training."""

    def outcome(first: list[float], second: list[float]) -> Stability:
        losses = iter([*first, *second])
        one_pass = Pass((("step", lambda _: next(losses)),), ())
        monkeypatch.setattr(stability, "step_pass", lambda *_: one_pass)
        return run(len(first))

    return outcome


@pytest.mark.whole_run
def test_a_real_training_passes_and_learns() -> None:
    found = run()
    assert found.passed
    assert (found.finite, found.equal, found.first_difference, found.largest_difference) == (True, True, None, 0.0)
    assert found.last_loss != found.first_loss
    assert replace(found, growth_bytes=found.allowed_growth_bytes + 1).passed is False


def test_a_difference_is_found_and_measured(scripted: Callable[..., Stability]) -> None:
    found = scripted([2.0, 2.0, 2.0], [2.0, 2.5, 3.0])
    assert not found.passed
    assert (found.finite, found.first_difference, found.largest_difference) == (True, 1, 0.5)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_nonfinite_loss_fails(scripted: Callable[..., Stability], loss: float) -> None:
    found = scripted([1.0, loss], [1.0, loss])
    assert not found.passed
    assert not found.finite


def test_an_error_fails_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[float]:
        raise RuntimeError("no memory\nlong text")

    monkeypatch.setattr(stability, "step_pass", broken)
    found = run()
    assert not found.passed
    assert found.failure == "RuntimeError: no memory"


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        ([900, *[100] * 99], 0),
        ([*[100] * 50, 500, *[100] * 49], 0),
        ([*range(100)], 72),
        ([100] * 20, None),
    ],
    ids=["falls after warm-up", "a peak given back", "a leak of 1 a step", "nothing after warm-up"],
)
def test_growth(memory: list[int], expected: int | None) -> None:
    assert growth(memory, warm_up=20) == expected
