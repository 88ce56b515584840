import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from yolo_lightning.commands.report.figures import logarithmic_ticks, show_scores


def drawn(axes: Axes) -> None:
    assert axes.figure is not None
    axes.figure.draw_without_rendering()  # type: ignore[union-attr]


@pytest.fixture
def axes() -> Axes:
    return Figure(figsize=(6, 2.9), layout="constrained").subplots()


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
