from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, LightningModule, Trainer
from tiny_training import TinyModule, fit, loader, tiny_trainer

from callbacks import ProgressLines, RunProgressBar
from callbacks.progress import describe_time, finish_time

pytestmark = pytest.mark.usefixtures("any_uptime")

NOON = datetime(2026, 1, 1, 12)


@pytest.mark.parametrize(
    ("minutes", "done", "before", "expected"),
    [
        (10, 0.5, 0.0, NOON + timedelta(minutes=20)),
        (10, 0.1, 0.0, NOON + timedelta(minutes=100)),
        (10, 0.6, 0.5, NOON + timedelta(minutes=50)),  # resumed at the half, a tenth in ten minutes
        (10, 1.0, 0.0, NOON + timedelta(minutes=10)),
        (10, 0.5, 0.5, None),
        (0, 0.0, 0.0, None),
    ],
)
def test_finish_time(minutes: int, done: float, before: float, expected: datetime | None) -> None:
    now = NOON + timedelta(minutes=minutes)
    finish = finish_time(now, NOON, done, before)
    assert finish == expected or (
        finish is not None and expected is not None and abs(finish - expected) < timedelta(milliseconds=1)
    )


def test_near_time_is_hours_and_minutes_a_far_one_has_its_date() -> None:
    now = datetime.now()
    near, far = now + timedelta(hours=1), now + timedelta(days=3)
    assert describe_time(near) == near.strftime("%H:%M")
    assert describe_time(far) == far.strftime("%a %d %b %H:%M")


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    printed: list[str] = []
    monkeypatch.setattr("callbacks.progress.rank_zero_info", printed.append)
    return printed


def of_batches(lines: list[str]) -> list[str]:
    return [line.split(", loss")[0] for line in lines if "validated" not in line]


def test_line_per_batch_without_interval(tmp_path: Path, lines: list[str]) -> None:
    fit(tmp_path, ProgressLines(0), epochs=2, batches=2)
    expected = ["epoch 1/2, batch 1/2", "epoch 1/2, batch 2/2", "epoch 2/2, batch 1/2", "epoch 2/2, batch 2/2"]
    assert of_batches(lines) == expected


def test_only_first_batch_and_ends_of_epochs_within_the_interval(tmp_path: Path, lines: list[str]) -> None:
    fit(tmp_path, ProgressLines(1000), epochs=2, batches=5)
    assert of_batches(lines) == ["epoch 1/2, batch 1/5", "epoch 1/2, batch 5/5", "epoch 2/2, batch 5/5"]


def test_line_holds_the_loss_and_the_time_of_the_end(tmp_path: Path, lines: list[str]) -> None:
    fit(tmp_path, ProgressLines(0), batches=2)
    assert "loss nan" not in lines[0]
    assert ", done " not in lines[0]
    assert ", done " in lines[1]


def test_scores_are_printed_after_validation_but_not_after_the_sanity_check(tmp_path: Path, lines: list[str]) -> None:
    fit(tmp_path, ProgressLines(), module=TinyModule(val_scores=[0.25, 0.5]), epochs=2, num_sanity_val_steps=1)
    validated = [line for line in lines if "validated" in line]
    assert validated == ["epoch 1 validated: map_50 0.2500", "epoch 2 validated: map_50 0.5000"]


def test_negative_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="interval_s is -1"):
        ProgressLines(-1)


class Metrics(Callback):
    """Asks the bar what it shows, and pretends a logger's version number is among it."""

    def __init__(self, bar: RunProgressBar) -> None:
        self.bar = bar
        self.shown: list[dict[str, Any]] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        self.shown.append(self.bar.get_metrics(trainer, pl_module))


def with_bar(folder: Path, **options: Any) -> list[dict[str, Any]]:
    bar = RunProgressBar()
    metrics = Metrics(bar)
    trainer = tiny_trainer(folder, metrics, bar, enable_progress_bar=True, logger=True, **options)
    trainer.fit(TinyModule(), loader(3), loader(1))
    return metrics.shown


def test_bar_shows_the_time_of_the_end_and_no_version_number(tmp_path: Path) -> None:
    shown = with_bar(tmp_path)
    assert not any("v_num" in metrics for metrics in shown)
    assert "done" in shown[-1]


def test_bar_survives_the_sanity_check(tmp_path: Path) -> None:
    assert len(with_bar(tmp_path, num_sanity_val_steps=1)) == 3
