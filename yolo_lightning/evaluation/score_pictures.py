"""Curves and confusion matrices of an evaluation, as PNG files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from yolo_lightning.evaluation.average_precision import AT_50
from yolo_lightning.evaluation.record import EvaluationRecord
from yolo_lightning.evaluation.ultralytics_matching import CONFUSION_CONFIDENCE, CONFUSION_OVERLAP
from yolo_lightning.evaluation.ultralytics_metrics import GRID, SMOOTHED_POINTS, UltralyticsScores, running_mean
from yolo_lightning.utils.files import replacing

Floats = npt.NDArray[np.float64]

NAMED_CLASSES = 20
"""With more classes than this, curves of single classes are gray and without a name."""

NUMBERED_CLASSES = 30
"""With more classes than this, the cells of a confusion matrix hold no numbers."""

DOTS_PER_INCH = 150


def draw_evaluation(record: EvaluationRecord, scores: UltralyticsScores, folder: Path) -> list[Path]:
    """Draw the pictures of one evaluation, whose scores are known, into `folder`; their names begin with the stage.

    `<stage>_pr_curve.png`, `_f1_curve.png`, `_precision_curve.png`, `_recall_curve.png`, where anything was annotated,
    and `_confusion_matrix.png`, `_confusion_matrix_normalized.png`.

    Raises:
        OSError: If a file cannot be written.
    """
    names, confusion = record.class_names, record.ultralytics.confusion()
    figures = {
        "confusion_matrix": confusion_figure(confusion, names),
        "confusion_matrix_normalized": confusion_figure(shares(confusion), names),
    }
    if len(scores.labels):
        curves = {
            "f1": scores.f1_by_confidence(),
            "precision": scores.precision_by_confidence,
            "recall": scores.recall_by_confidence,
        }
        figures["pr_curve"] = precision_recall_figure(scores, names)
        figures |= {
            f"{name}_curve": confidence_figure(values, scores, names, name.capitalize())
            for name, values in curves.items()
        }
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{record.stage}_{name}.png")
        with replacing(paths[-1]) as temporary:
            figure.savefig(temporary, format="png")
    return paths


def precision_recall_figure(scores: UltralyticsScores, class_names: Sequence[str]) -> Figure:
    """Precision over recall at IoU 0.5, of each annotated class and on average."""
    figure, axis = chart("Recall", "Precision", "Precision and recall at IoU 0.5")
    at_50 = scores.average_precision[:, AT_50]
    labels = [f"{class_names[label]} {value:.3f}" for label, value in zip(scores.labels, at_50, strict=True)]
    draw_classes(axis, scores.precision_by_recall, labels)
    draw_mean(axis, scores.precision_by_recall.mean(axis=0), f"all {at_50.mean():.3f} ultralytics_map_50")
    return finished(figure, axis)


def confidence_figure(values: Floats, scores: UltralyticsScores, class_names: Sequence[str], name: str) -> Figure:
    """A score over confidence, of each annotated class and on average; `values` is `(K, 1000)`."""
    figure, axis = chart("Confidence", name, f"{name} at IoU 0.5, by confidence")
    draw_classes(axis, values, [class_names[label] for label in scores.labels])
    mean = running_mean(values.mean(axis=0), SMOOTHED_POINTS)
    draw_mean(axis, mean, f"all {mean.max():.2f} at {GRID[mean.argmax()]:.3f}")
    return finished(figure, axis)


def chart(horizontal: str, vertical: str, title: str) -> tuple[Figure, Axes]:
    """An empty chart from 0 to 1 both ways."""
    figure = Figure(figsize=(9, 6), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.set(xlim=(0, 1), ylim=(0, 1.005), xlabel=horizontal, ylabel=vertical, title=title)
    axis.grid(color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    return figure, axis


def draw_classes(axis: Axes, values: Floats, labels: Sequence[str]) -> None:
    """One thin line per class; `values` is `(K, 1000)` over `GRID`."""
    if len(labels) > NAMED_CLASSES:
        axis.plot(GRID, values.T, color="#bbbbbb", linewidth=0.7)
        axis.lines[0].set_label(f"{len(labels)} classes")
        return
    colours = colormaps["tab10" if len(labels) <= 10 else "tab20"]
    for number, (line, label) in enumerate(zip(values, labels, strict=True)):
        axis.plot(GRID, line, color=colours(number), linewidth=1.3, label=label)


def draw_mean(axis: Axes, values: Floats, label: str) -> None:
    """The thick line of all classes."""
    axis.plot(GRID, values, color="black", linewidth=2.8, label=label)


def finished(figure: Figure, axis: Axes) -> Figure:
    """With the legend beside the chart."""
    figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper", frameon=False)
    return figure


def shares(confusion: npt.NDArray[np.int64]) -> Floats:
    """Each column over its sum: what became of the objects of a class; 0 where there are none."""
    sums = confusion.sum(axis=0, keepdims=True)
    result: Floats = np.divide(confusion, sums, out=np.zeros(confusion.shape), where=sums > 0)
    return result


def confusion_figure(values: npt.NDArray[np.int64] | Floats, class_names: Sequence[str]) -> Figure:
    """Detected by annotated class; `values` is `(C + 1, C + 1)`, counts as integers or shares from 0 to 1.

    The last row holds missed objects, the last column false alarms. Cells of zero stay empty.
    """
    is_share = values.dtype.kind == "f"
    names = [*class_names, "background"]
    inches = max(6.5, min(0.9 * len(names) + 3, 7 + 0.14 * len(names)))
    figure = Figure(figsize=(inches * 1.12, inches), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    # Misses and false alarms may outnumber all else: the scale of colours is that of the classes.
    top = 1.0 if is_share else max(1.0, float(values[:-1, :-1].max(initial=0)))
    image = axis.imshow(np.where(values > 0, values, np.nan), cmap="Blues", vmin=0, vmax=top)
    figure.colorbar(
        image,
        ax=axis,
        shrink=0.8,
        aspect=30,
        extend="neither" if is_share else "max",
        format="{x:.1f}" if is_share else "{x:,.0f}",
    )
    font = max(5.0, min(11.0, 640 / len(names)))
    axis.set_xticks(range(len(names)), names, rotation=90, fontsize=font)
    axis.set_yticks(range(len(names)), names, fontsize=font)
    axis.set(xlabel="annotated", ylabel="detected")
    what = "Share of the annotated objects" if is_share else "Objects and detections"
    axis.set_title(f"{what}\nconfidence above {CONFUSION_CONFIDENCE}, IoU above {CONFUSION_OVERLAP}", fontsize=11)
    if len(names) <= NUMBERED_CLASSES:
        for row, column in np.argwhere(values > 0):
            value = values[row, column]
            axis.text(
                column,
                row,
                f"{value:.2f}" if is_share else f"{value:,}",
                ha="center",
                va="center",
                fontsize=max(5.0, min(11.0, 120 / len(names))),
                color="white" if value > 0.55 * top else "black",
            )
    return figure
