"""One line per epoch, of at most 80 columns, with the values of the epoch and no control characters."""

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback
from torch import Tensor

from tests.callbacks.tiny_training import BATCH, Clock, TinyModule, fit
from yolo_lightning.callbacks import EpochTable
from yolo_lightning.callbacks.epoch_table import duration_text, heading, loss_text, rate_text, row

pytestmark = pytest.mark.usefixtures("any_uptime")

LOSSES = map(loss_text, (1.234, 12.345, 123.45, 99.996, 9.9996, 12345.0))
ROW = row(99, 999, [*LOSSES, "0.5000", "0.2500", "1.0e-5", rate_text(1234.5), duration_text(3661.0)])


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    printed: list[str] = []
    monkeypatch.setattr("yolo_lightning.callbacks.epoch_table.rank_zero_info", printed.append)
    return printed


class Logs(TinyModule):
    """Logs the losses and scores of `YOLOModule`; the box loss of the batches of an epoch is 1, 2, 3, ..."""

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.log_dict({"train/box_loss": batch_idx + 1.0, "lr/weight": 0.01})
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log_dict({"val/box_loss": 7.5, "val/map_50": 0.5, "val/map": -1.0})


class Work(Clock, Callback):
    """Steps take 2 s, validations 10 s."""

    def on_train_batch_start(self, *_: Any) -> None:
        self.now_s += 2.0

    def on_validation_batch_start(self, *_: Any) -> None:
        self.now_s += 10.0


def test_row_has_the_values_of_the_epoch(tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fit(tmp_path, Work(monkeypatch), EpochTable(), module=Logs(), epochs=2, batches=3, check_val_every_n_epoch=2)
    assert len(lines) == 3, "a heading and two rows"
    rate = f"{BATCH / 2:.1f}"
    assert lines[1].split() == ["1/2", "2.000", "-", "-", "-", "-", "-", "-", "-", "1.0e-2", rate, "0:06"]
    assert lines[2].split()[:5] == ["2/2", "2.000", "-", "-", "7.500"]
    assert lines[2].split()[7:] == ["0.5000", "-", "1.0e-2", rate, "0:16"]


def test_heading_is_repeated(tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yolo_lightning.callbacks.epoch_table.HEADING_INTERVAL", 2)
    fit(tmp_path, EpochTable(), epochs=3, batches=1)
    assert ["epoch" in line for line in lines] == [True, False, False, True, False]


def test_lines_have_at_most_80_printable_characters_and_equal_columns() -> None:
    text, (first, second) = ROW, heading(999).splitlines()
    assert len(text) <= 80
    assert len(second) == len(text)
    assert all(line.isprintable() for line in (text, first, second))
    ends = [
        at
        for at, (character, after) in enumerate(zip(text, text[1:] + " ", strict=True))
        if character != " " and after == " "
    ]
    assert ends == [
        at
        for at, (character, after) in enumerate(zip(second, second[1:] + " ", strict=True))
        if character != " " == after
    ]


@pytest.mark.parametrize("value", [0.0, 1.23456, 9.9996, 99.996, 999.94, 999.96, 123456.0, float("inf"), float("nan")])
def test_losses_fit_into_their_column(value: float) -> None:
    assert len(loss_text(value)) <= 5


@pytest.mark.parametrize(("seconds", "text"), [(6.6, "0:07"), (59.6, "1:00"), (3599.6, "1:00:00"), (90061, "25:01:01")])
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
