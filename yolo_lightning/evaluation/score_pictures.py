"""Curves and confusion matrices of an evaluation, as PNG files.

Colours of text, grid and lines come from matplotlib's `rcParams`, so that the report can draw with its own.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only, rank_zero_warn
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from yolo_lightning.evaluation.average_precision import AT_50
from yolo_lightning.evaluation.class_colours import class_colour, class_line_style
from yolo_lightning.evaluation.record import EvaluationRecord, Stage
from yolo_lightning.evaluation.ultralytics_matching import CONFUSION_IOU_THRESHOLD, CONFUSION_SCORE_THRESHOLD
from yolo_lightning.evaluation.ultralytics_metrics import GRID, SMOOTHED_POINTS, UltralyticsScores, running_mean
from yolo_lightning.utils.files import replacing
from yolo_lightning.utils.logged_pictures import log_picture
from yolo_lightning.utils.optional_file import OptionalFile
from yolo_lightning.utils.plain_text import without_math
from yolo_lightning.utils.run_files import EVALUATIONS, evaluation_record

Floats = npt.NDArray[np.float64]

MAX_NAMED_CLASSES = 20  # with more classes, curves of single classes are gray and have no names
MAX_NUMBERED_CLASSES = 30  # with more classes, the cells of a confusion matrix contain no numbers

DOTS_PER_INCH = 150
PICTURES = OptionalFile()


@rank_zero_only
def draw_record(trainer: Trainer, stage: Stage, scores: UltralyticsScores) -> None:
    """Draw curves and confusion matrices of the record in the run folder, whose scores are given, and log them."""
    folder = Path(trainer.default_root_dir)
    try:
        with PICTURES.attempt(f"pictures of the evaluation into {folder / EVALUATIONS}", "the run continues"):
            record = EvaluationRecord.load(folder / evaluation_record(stage))
            paths = draw_evaluation(record, scores, folder / EVALUATIONS)
            for path in paths:
                log_picture(trainer, path)
    except ValueError as error:
        rank_zero_warn(f"could not draw the evaluation ({error}); the run continues")
        return
    if not PICTURES.failed:
        rank_zero_info(f"pictures: {len(paths)} of precision, recall and confusion in {folder / EVALUATIONS}")


def draw_evaluation(record: EvaluationRecord, scores: UltralyticsScores, folder: Path) -> list[Path]:
    """Draw all pictures of an evaluation, without curves if there are no annotated objects; return their paths."""
    names, confusion = record.class_names, record.ultralytics.confusion()
    figures = {
        "confusion_matrix": confusion_figure(confusion, names),
        "confusion_matrix_normalized": confusion_figure(shares(confusion), names),
    }
    if len(scores.labels):
        figures["pr_curve"] = precision_recall_figure(scores, names)
        figures["f1_curve"] = score_threshold_figure(scores.f1_by_score(), scores, names, "F1")
        figures["precision_curve"] = score_threshold_figure(scores.precision_by_score, scores, names, "Precision")
        figures["recall_curve"] = score_threshold_figure(scores.recall_by_score, scores, names, "Recall")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{record.stage}_{name}.png")
        with replacing(paths[-1]) as temporary:
            figure.savefig(temporary, format="png")
    return paths


def precision_recall_figure(scores: UltralyticsScores, class_names: Sequence[str]) -> Figure:
    """Plot precision over recall at IoU 0.5, per annotated class and on average."""
    figure, axes = _curve_axes("Recall", "Precision", "Precision and recall at IoU 0.5")
    at_50 = scores.average_precision[:, AT_50]
    names = [
        f"{without_math(class_names[label])} {value:.3f}" for label, value in zip(scores.labels, at_50, strict=True)
    ]
    mean = scores.precision_by_recall.mean(axis=0)
    _draw_curves(figure, axes, scores.precision_by_recall, scores.labels, names, mean, f"all {at_50.mean():.3f}")
    figure.legends[0].set_title("Ultralytics' mAP50")
    return figure


def score_threshold_figure(values: Floats, scores: UltralyticsScores, class_names: Sequence[str], name: str) -> Figure:
    """Plot `values`, `(K, 1000)`, over the score threshold, per annotated class and on average."""
    figure, axes = _curve_axes("Score threshold", name, f"{name} at IoU 0.5, by score threshold")
    mean = running_mean(values.mean(axis=0), SMOOTHED_POINTS)
    names = [without_math(class_names[label]) for label in scores.labels]
    _draw_curves(figure, axes, values, scores.labels, names, mean, f"all {mean.max():.2f} at {GRID[mean.argmax()]:.3f}")
    return figure


def _curve_axes(horizontal: str, vertical: str, title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9, 6), dpi=DOTS_PER_INCH, layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1.005), xlabel=horizontal, ylabel=vertical, title=title)
    axes.grid(linewidth=0.6, alpha=0.5)
    axes.set_axisbelow(True)
    return figure, axes


def _draw_curves(
    figure: Figure,
    axes: Axes,
    values: Floats,
    labels: npt.NDArray[np.int64],
    names: Sequence[str],
    mean: Floats,
    mean_name: str,
) -> None:
    """Plot a thin line per class and a thick one for the mean over `GRID`; `values` is `(K, 1000)`, labels `(K,)`."""
    if len(names) > MAX_NAMED_CLASSES:
        axes.plot(GRID, values.T, color=rcParams["grid.color"], linewidth=0.7)
        axes.lines[0].set_label(f"{len(names)} classes")
    else:
        for line, label, name in zip(values, labels.tolist(), names, strict=True):
            axes.plot(GRID, line, class_line_style(label), color=class_colour(label), linewidth=1.6, label=name)
    axes.plot(GRID, mean, color=rcParams["text.color"], linewidth=2.8, label=mean_name)
    figure.legend(loc="outside right upper", frameon=False)


def shares(confusion: npt.NDArray[np.int64]) -> Floats:
    """Divide each column by its sum: the share of the objects of a class; 0 for classes without objects."""
    sums = confusion.sum(axis=0, keepdims=True)
    result: Floats = np.divide(confusion, sums, out=np.zeros(confusion.shape), where=sums > 0)
    return result


def confusion_figure(values: npt.NDArray[np.int64] | Floats, class_names: Sequence[str]) -> Figure:
    """Plot a confusion matrix by detected and annotated class; cells of zero stay empty.

    `values` is `(C + 1, C + 1)`, counts as integers or shares from 0 to 1; the last row contains missed objects, the
    last column false alarms.
    """
    is_share = values.dtype.kind == "f"
    names = [*map(without_math, class_names), "background"]
    inches = max(6.5, min(0.9 * len(names) + 3, 7 + 0.14 * len(names)))
    figure = Figure(figsize=(inches * 1.12, inches), dpi=DOTS_PER_INCH, layout="constrained")
    axes = figure.subplots()
    # Misses and false alarms may outnumber all other cells, so the colour scale covers the classes only.
    top = 1.0 if is_share else max(1.0, float(values[:-1, :-1].max(initial=0)))
    image = axes.imshow(np.where(values > 0, values, np.nan), cmap="Blues", vmin=0, vmax=top)
    extend, style = ("neither", "{x:.1f}") if is_share else ("max", "{x:,.0f}")
    figure.colorbar(image, ax=axes, shrink=0.8, aspect=30, extend=extend, format=style)
    font = max(5.0, min(11.0, 640 / len(names)))
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=font)
    axes.set_yticks(range(len(names)), names, fontsize=font)
    axes.set(xlabel="annotated class", ylabel="detected class")
    title = "Share of the annotated objects" if is_share else "Objects and detections"
    thresholds = f"score above {CONFUSION_SCORE_THRESHOLD}, IoU above {CONFUSION_IOU_THRESHOLD}"
    axes.set_title(f"{title}\n{thresholds}", fontsize=11)
    if len(names) <= MAX_NUMBERED_CLASSES:
        font = max(5.0, min(11.0, 120 / len(names)))
        for row, column in np.argwhere(values > 0):
            value = values[row, column]
            text, colour = f"{value:.2f}" if is_share else f"{value:,}", "white" if value > 0.55 * top else "black"
            axes.text(column, row, text, ha="center", va="center", fontsize=font, color=colour)
    return figure
