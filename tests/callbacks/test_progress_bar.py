from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch import Callback, LightningModule, Trainer

from tests.callbacks.tiny_training import Clock, Interrupt, StopAt, TinyModule, fit, loader, tiny_trainer
from yolo_lightning.callbacks import LastCheckpoint, ProgressLines, RunProgressBar, progress_bar


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    printed: list[str] = []
    monkeypatch.setattr("yolo_lightning.callbacks.progress_bar.rank_zero_info", printed.append)
    return printed


def of_batches(lines: list[str]) -> list[str]:
    return [line.split(", loss")[0] for line in lines]


@pytest.mark.usefixtures("any_uptime")
def test_line_per_batch_without_interval(tmp_path: Path, lines: list[str]) -> None:
    fit(tmp_path, ProgressLines(0), epochs=2, batches=2)
    expected = ["epoch 1/2, batch 1/2", "epoch 1/2, batch 2/2", "epoch 2/2, batch 1/2", "epoch 2/2, batch 2/2"]
    assert of_batches(lines) == expected
    assert not any("loss nan" in line for line in lines)


@pytest.mark.usefixtures("any_uptime")
def test_only_first_batch_and_ends_of_epochs_within_the_interval(tmp_path: Path, lines: list[str]) -> None:
    fit(tmp_path, ProgressLines(1000), epochs=2, batches=5)
    assert of_batches(lines) == ["epoch 1/2, batch 1/5", "epoch 1/2, batch 5/5", "epoch 2/2, batch 5/5"]


class Fake(Clock):
    """The wall clock is the monotonic clock; finish times are in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        monkeypatch.setattr("yolo_lightning.callbacks.progress_bar.time.time", lambda: self.now_s)
        monkeypatch.setattr("yolo_lightning.callbacks.progress_bar.moment", lambda time_s, now_s: f"{time_s}")


class Takes(Callback):
    """The first step takes ten minutes (it compiles), the second one is prefetched, a validation takes 20 minutes."""

    def __init__(self, clock: Fake) -> None:
        self.clock, self.steps = clock, 0

    def on_train_batch_start(self, *args: Any) -> None:
        self.steps += 1
        self.clock.now_s += {1: 600.0, 2: 1.0}.get(self.steps, 30.0)

    def on_validation_epoch_end(self, *args: Any) -> None:
        self.clock.now_s += 1200.0


def errors_h(lines: list[str], end_s: float) -> list[float | None]:
    """Hours by which the finish time of each line is too late; None where the line has no finish time."""
    texts = [line.partition(", ends at ")[2].partition(", in ")[0] for line in lines]
    return [(float(text) - end_s) / 3600 if text else None for text in texts]


LONG = {"epochs": 4, "batches": 40}
"""Takes 160 steps of half a minute and four validations: 2:40 hours."""


@pytest.mark.usefixtures("any_uptime")
def test_finish_time_is_right_from_its_first_line_on(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Fake(monkeypatch)
    fit(tmp_path, Takes(clock), ProgressLines(0), **LONG)
    errors = errors_h(lines, clock.now_s)
    assert errors[:40] == [None] * 40, "no validation has been timed yet"
    assert all(error is not None and abs(error) < 0.1 for error in errors[40:]), errors[40:]


@pytest.mark.parametrize("step", [60, 78])
def test_finish_time_of_a_resumed_run_is_right_from_its_first_line_on(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    clock = Fake(monkeypatch)
    with pytest.raises(Interrupt):
        fit(tmp_path, Takes(clock), ProgressLines(0), LastCheckpoint(2, keep=99), StopAt(1, 39), **LONG)
    lines.clear()
    checkpoint = tmp_path / "checkpoints" / f"step-{step:09d}.ckpt"
    fit(tmp_path, Takes(clock), ProgressLines(0), resume=checkpoint, **LONG)
    errors = errors_h(lines, clock.now_s)
    assert errors[:16] == [None] * 16, "too few steps have been timed"
    assert all(error is not None and abs(error) < 0.1 for error in errors[17:]), errors[17:]


def test_fit_without_validation_needs_steps_alone(tmp_path: Path, lines: list[str]) -> None:
    fit(tmp_path, ProgressLines(0), batches=40, limit_val_batches=0)
    assert [line.endswith(", end not yet estimated") for line in lines] == [True] * 16 + [False] * 24
    assert lines[-1].endswith(", in 0 s")


class Readings:
    """A logged loss that counts how often it is read."""

    count = 0

    def __float__(self) -> float:
        self.count += 1
        return 2.5


@pytest.mark.parametrize(("accumulated", "max_steps"), [(1, 60), (2, 30), (1, 10_000)])
def test_finish_time_of_a_fit_that_the_number_of_optimizer_steps_ends(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch, accumulated: int, max_steps: int
) -> None:
    clock = Fake(monkeypatch)
    options = {"max_steps": max_steps, "accumulate_grad_batches": accumulated, "limit_val_batches": 0}
    fit(tmp_path, Takes(clock), ProgressLines(0), **LONG, **options)
    errors = [error for error in errors_h(lines, clock.now_s) if error is not None]
    assert len(lines) == (60 if max_steps <= 60 else 160)
    assert max(map(abs, errors)) < 0.2


@pytest.mark.usefixtures("any_uptime")
def test_bar_reads_the_loss_once_per_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    loss, now_s = Readings(), [100.0]
    trainer: Any = SimpleNamespace(callback_metrics={"train/loss": loss})
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now_s[0])
    bar = RunProgressBar()
    assert bar._train_loss(SimpleNamespace(callback_metrics={})) == {}  # type: ignore[arg-type]
    shown = [bar._train_loss(trainer) for _ in range(5)]
    assert shown == [{"loss": 2.5}] * 5
    assert loss.count == 1
    now_s[0] += progress_bar.LOSS_INTERVAL_S
    bar._train_loss(trainer)
    assert loss.count == 2


class Shown(Callback):
    """Records what the bar shows."""

    def __init__(self, bar: RunProgressBar) -> None:
        self.bar = bar
        self.metrics: list[dict[str, Any]] = []
        self.descriptions: list[str] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self.metrics.append(self.bar.get_metrics(trainer, pl_module))
        self.descriptions.append(self.bar.train_progress_bar.description.strip())


def test_bar_shows_epochs_from_1_and_the_time_of_the_end_and_then_disappears(tmp_path: Path) -> None:
    bar = RunProgressBar()
    shown = Shown(bar)
    options: dict[str, Any] = {"epochs": 2, "num_sanity_val_steps": 1, "logger": True}  # with a version number
    trainer = tiny_trainer(tmp_path, shown, bar, enable_progress_bar=True, **options)
    trainer.fit(TinyModule(), loader(3), loader(1))
    assert shown.descriptions == ["Epoch 1/2"] * 3 + ["Epoch 2/2"] * 3
    assert not any("v_num" in metrics for metrics in shown.metrics)
    assert shown.metrics[0]["ends"] == "estimating"
    assert shown.metrics[-1]["ends"] != "estimating"
    assert not bar.train_progress_bar.visible
