from pathlib import Path

import numpy as np
import pytest

from tests.commands.report.run_folder_maker import METRICS_TEXT
from yolo_lightning.commands.report.metrics_curves import Metrics, read_metrics


@pytest.fixture
def metrics(tmp_path: Path) -> Metrics:
    path = tmp_path / "metrics.csv"
    path.write_text(METRICS_TEXT)
    return read_metrics(path)


def test_series_holds_the_finite_points(metrics: Metrics) -> None:
    series = metrics.series("train/loss")
    assert series.positions.tolist() == [10, 20, 40]
    assert series.values.tolist() == [9.5, 8.5, 6.5]
    assert len(metrics.series("train/nothing")) == 0


def test_value_with_two_names_is_drawn_once() -> None:
    row = np.zeros(1)
    metrics = Metrics({"train/loss": row, "train/loss_step": row, "train/other_step": row})
    assert metrics.names("train/") == ["train/loss", "train/other_step"]


def test_rows_of_a_file_that_is_none_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"\xff\xfe\0\0garbage\nmore\n")
    metrics = read_metrics(path)
    assert (metrics.is_empty, metrics.unreadable) == (True, 2)


def test_name_of_a_metric_may_contain_any_separator_of_lines(tmp_path: Path) -> None:
    name = "val/map/a\u2028b\x85c"
    (tmp_path / "metrics.csv").write_text(f"epoch,step,time_s,{name}\n0,1,1.0,0.5\r\n1,2,2.0,0.6\n", encoding="utf-8")
    metrics = read_metrics(tmp_path / "metrics.csv")
    assert metrics.unreadable == 0
    assert metrics.columns[name].tolist() == [0.5, 0.6]


@pytest.mark.parametrize(("content", "rows", "unreadable"), [("", 0, 0), ("epoch,step,time_s\r0,1,1.0\r0,\r5\r", 1, 2)])
def test_file_without_lines_or_with_carriage_returns_is_read(
    content: str, rows: int, unreadable: int, tmp_path: Path
) -> None:
    (tmp_path / "metrics.csv").write_text(content, newline="")
    metrics = read_metrics(tmp_path / "metrics.csv")
    assert len(metrics.columns["step"]) == rows
    assert metrics.unreadable == unreadable
