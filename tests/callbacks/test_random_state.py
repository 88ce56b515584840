import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from tests.callbacks.tiny_training import Interrupt, StopAt, fit
from yolo_lightning.callbacks import LastCheckpoint, RandomState, random_state
from yolo_lightning.callbacks.random_state import generators, restore, seed_process


def of_rank(rank: int, processes: int) -> Any:
    """All that is asked of a trainer."""
    return SimpleNamespace(global_rank=rank, world_size=processes)


FIRST = of_rank(0, 1)


def draw() -> list[float]:
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), float(torch.rand(()))]


class Draws(Callback):
    """Draws from all generators in every batch."""

    def __init__(self) -> None:
        self.drawn: list[list[float]] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        self.drawn.append(draw())


def saved_and_loaded(path: Path) -> dict[str, Any]:
    torch.save(RandomState().state_dict(), path)
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def test_next_draws_of_every_generator_are_restored_once_when_training_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random.gauss(0, 1)  # leaves a second number waiting in the generator
    np.random.randn()
    state = saved_and_loaded(tmp_path / "state.pt")
    expected = draw()
    assert draw() != expected
    callback = RandomState()
    callback.load_state_dict(state)
    assert draw() != expected
    monkeypatch.setattr(random_state, "rank_zero_info", pytest.fail)
    callback.on_train_start(FIRST, None)  # type: ignore[arg-type]
    assert draw() == expected
    callback.on_train_start(FIRST, None)  # type: ignore[arg-type]
    assert draw() != expected


@pytest.mark.parametrize(("rank", "processes"), [(0, 1), (0, 3), (1, 3), (2, 3)])
def test_other_number_of_processes_is_said_and_unknown_ranks_draw_apart(
    rank: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_state, "steps_begun", lambda trainer: 7)
    said: list[str] = []
    monkeypatch.setattr(random_state, "rank_zero_info", said.append)
    states = [generators(), [draw(), generators()][1]]
    expected = []
    for state in states:
        restore(state)
        expected.append(draw())
    seed_process(3, 2, 7)
    expected.append(draw())
    torch.manual_seed(3)
    callback = RandomState()
    callback.load_state_dict(states[0] | {"others": states[1:]})
    callback.on_train_start(of_rank(rank, processes), None)  # type: ignore[arg-type]
    assert draw() == expected[rank]
    assert len({tuple(drawn) for drawn in expected}) == 3
    assert said == [
        f"random generators: the checkpoint contains those of 2 ranks, the world size is {processes}; "
        "ranks without a saved state are seeded again"
    ]


@pytest.mark.parametrize("steps", [2, 4])
def test_resumed_run_draws_what_the_uninterrupted_one_draws(tmp_path: Path, steps: int) -> None:
    first, resumed = Draws(), Draws()
    with pytest.raises(Interrupt):
        fit(tmp_path, RandomState(), first, LastCheckpoint(2, keep=9), StopAt(1, 1), epochs=2)
    draw()
    path = tmp_path / f"checkpoints/step-{steps:09d}.ckpt"
    fit(tmp_path, RandomState(), resumed, epochs=2, resume=path)
    assert len(first.drawn) == 6
    assert resumed.drawn[: 6 - steps] == first.drawn[steps:]
