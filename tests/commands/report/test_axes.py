from datetime import datetime

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from yolo_lightning.commands.report.axes import (
    logarithmic_ticks,
    mark_outliers,
    robust_top,
    show_clock,
    show_scores,
)


def drawn(axes: Axes) -> None:
    assert axes.figure is not None
    axes.figure.draw_without_rendering()  # type: ignore[union-attr]


@pytest.fixture
def axes() -> Axes:
    return Figure(figsize=(6, 2.9), layout="constrained").subplots()


@pytest.mark.parametrize("points", [10, 600])
def test_axis_leaves_a_single_outlier_out(points: int) -> None:
    loss = np.linspace(6.0, 2.0, points)
    loss[2] = 360.0
    top = robust_top([loss, loss / 3])
    assert top is not None
    assert 6.0 <= top < 9.0


def test_first_of_few_validations_does_not_flatten_the_training() -> None:
    training, validation = np.linspace(18.0, 4.0, 36), np.array([90.0, 5.0, 4.0])
    top = robust_top([training, validation])
    assert top is not None
    assert 18.0 <= top < 30.0
    assert robust_top([np.array([90.0, 5.0])]) is None


@pytest.mark.parametrize("points", [1, 7, 200])
def test_falling_loss_without_outliers_is_shown_whole(points: int) -> None:
    assert robust_top([8 * np.exp(-np.arange(points) / (points / 4)) + 2, np.full(points, 3.0)]) is None


def test_marks_leave_the_layout_alone(axes: Axes) -> None:
    axes.set(xlim=(0, 100), ylim=(0, 5))
    drawn(axes)
    before = axes.get_position().bounds
    mark_outliers(axes, np.array([10.0, 20.0]), np.array([4.0, 3.0]), "red")
    mark_outliers(axes, np.array([10.0, 20.0]), np.array([4.0, 30.0]), "red")
    drawn(axes)
    assert axes.get_position().bounds == pytest.approx(before, abs=0.02)


def test_points_outside_are_marked_at_their_steps(axes: Axes) -> None:
    axes.set(xlim=(0, 100), ylim=(0, 5))
    mark_outliers(axes, np.array([10.0, 20.0, 30.0]), np.array([4.0, 50.0, 3.0]), "red")
    assert np.asarray(axes.lines[0].get_xdata()).tolist() == [20.0]
    assert axes.lines[0].get_transform() == axes.get_xaxis_transform()
    assert np.asarray(axes.lines[0].get_ydata()).tolist() == [1.0], "the upper edge"


@pytest.mark.parametrize("scores", [[0.0, 0.0], [1e-17, 0.0], [0.2, 0.95]])
def test_axis_of_scores_begins_at_0_and_ends_above(axes: Axes, scores: list[float]) -> None:
    axes.bar([0, 1], scores)
    show_scores(axes, scores)
    drawn(axes)
    bottom, top = axes.get_ylim()
    assert bottom == 0
    assert top >= max(0.1, max(scores))
    assert axes.yaxis.get_offset_text().get_text() == ""


def test_axis_of_scores_shows_negative_balanced_scores(axes: Axes) -> None:
    show_scores(axes, [0.3, -0.2])
    assert axes.get_ylim()[0] < -0.2


@pytest.mark.parametrize(
    ("seconds", "length", "days"),
    [
        (0, len("23:16:40"), "2026-11-22"),
        (100, len("23:16:40"), "2026-11-22"),
        (2000, len("23:16"), "2026-11-22"),
        (7200, len("23:16"), "2026-11-22 to 2026-11-23"),
        (200_000, len("11-23\n23:16"), "2026-11-22 to 2026-11-25"),
        (2_000_000, len("11-22"), "2026-11-22 to 2026-12-16"),
    ],
)
def test_ticks_of_the_timeline_are_whole_times(axes: Axes, seconds: float, length: int, days: str) -> None:
    start_s = datetime(2026, 11, 22, 23, 16, 40).timestamp()
    show_clock(axes, [start_s, start_s + seconds])
    drawn(axes)
    texts = [text.get_text() for text in axes.get_xticklabels()]
    assert 2 <= len(texts) <= 8
    assert {len(text) for text in texts} == {length}
    assert axes.get_xlabel() == days


@pytest.mark.parametrize("last", [1e-3, 1e-4, 1e-9])
def test_ticks_of_learning_rates_are_plain_numbers(axes: Axes, last: float) -> None:
    axes.plot([0, 1], [0.01, last])
    axes.set_yscale("log")
    logarithmic_ticks(axes)
    drawn(axes)
    low, high = axes.get_ylim()
    ticks = [tick for tick in axes.yaxis.get_major_ticks() if low <= tick.get_loc() <= high]  # type: ignore[attr-defined]
    texts = [tick.label1.get_text() for tick in ticks]
    assert 3 <= len(texts) <= 9
    numbers = [float(text.replace("\N{MINUS SIGN}", "-")) for text in texts]
    assert numbers == pytest.approx([tick.get_loc() for tick in ticks])  # type: ignore[attr-defined]
    assert axes.yaxis.get_minor_ticks() == []
