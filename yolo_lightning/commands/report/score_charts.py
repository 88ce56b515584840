"""Figures of an evaluation: months, precision and recall, sizes."""

import math
from collections.abc import Mapping

import numpy as np

from yolo_lightning.commands.report.contents import BoxSizes
from yolo_lightning.commands.report.detections import Detections, precision_recall
from yolo_lightning.commands.report.svg import FAINT, INK, SERIES, as_svg, one_plot, page_style
from yolo_lightning.evaluation.drift import CHALLENGE_MONTHS, month_name

MOST_POINTS = 200
COMPARED = frozenset(map(month_name, CHALLENGE_MONTHS.values()))


def month_figure(stage: str, months: Mapping[str, float], overall: float | None) -> str | None:
    """A bar per month; those that the challenge compares in colour. None for fewer than two months.

    Args:
        stage: `val` or `test`.
        months: mAP50 by YYYY-MM, 0 to 1.
        overall: mAP50 of all frames; null where it is not known.
    """
    if len(months) < 2:
        return None
    names = sorted(months)
    with page_style():
        figure, axes = one_plot()
        colours = [SERIES[0] if name in COMPARED else FAINT for name in names]
        bars = axes.bar(range(len(names)), [months[name] for name in names], color=colours, width=0.7)
        axes.bar_label(bars, [f"{months[name]:.3f}" for name in names], fontsize=8, padding=2, color=INK)
        if overall is not None:
            axes.axhline(overall, color=INK, linewidth=1, linestyle=":", label=f"all frames {overall:.4f}")
            figure.legend(loc="outside lower center", ncols=1, columnspacing=1.2, handlelength=1.6)
        axes.set_xticks(range(len(names)), names, rotation=30 if len(names) > 6 else 0)
        axes.set_ylabel("mAP50")
        axes.margins(y=0.12)
        axes.grid(visible=False, axis="x")
        return as_svg(figure, f"{stage}-months", "mAP at IoU 0.5 by month")


def precision_recall_figure(stage: str, detections: Detections) -> str | None:
    """A line per annotated class, at IoU 0.5; None where nothing was annotated."""
    labels = [label for label, count in enumerate(detections.annotated.tolist()) if count]
    if not labels:
        return None
    with page_style():
        figure, axes = one_plot(3.4)
        for label in labels:
            recall, precision = precision_recall(detections, label)
            chosen = np.unique(np.searchsorted(recall, np.linspace(0, recall[-1], MOST_POINTS)))
            name = f"{detections.class_names[label]} ({detections.annotated[label]:,})"
            axes.plot(recall[chosen], precision[chosen], color=SERIES[label % len(SERIES)], linewidth=1.5, label=name)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("recall")
        axes.set_ylabel("precision")
        figure.legend(loc="outside lower center", ncols=4, columnspacing=1.2, handlelength=1.6)
        return as_svg(figure, f"{stage}-precision-recall", "precision over recall of each class at IoU 0.5")


def size_figure(stage: str, sizes: BoxSizes, score_threshold: float) -> str | None:
    """How many objects, and how many detections, there are of each size; None where there are neither."""
    counts = np.array([sizes.objects, sizes.detections])
    filled = np.flatnonzero(counts.sum(axis=0))
    if not len(filled):
        return None
    first, last = int(filled[0]), int(filled[-1])
    with page_style():
        figure, axes = one_plot()
        places = np.arange(last + 1 - first)
        for number, name in enumerate(("annotated", f"detected, score {score_threshold:g} and more")):
            heights = counts[number, first : last + 1]
            axes.bar(places + 0.4 * number - 0.2, heights, width=0.4, color=SERIES[number], label=name)
        edges = [*sizes.edges_px, math.inf][first : last + 2]
        every = 1 if len(edges) <= 12 else 2
        axes.set_xticks(np.arange(0, len(edges), every) - 0.5, [edge_name(edge) for edge in edges[::every]])
        axes.set_xlabel("square root of a box's area, frame pixels")
        axes.set_ylabel("boxes")
        axes.grid(visible=False, axis="x")
        figure.legend(loc="outside lower center", ncols=2, columnspacing=1.2, handlelength=1.6)
        return as_svg(figure, f"{stage}-sizes", "sizes of annotated and of detected boxes")


def edge_name(edge: float) -> str:
    """Pixels; after the last edge comes all that is larger."""
    return "more" if math.isinf(edge) else f"{edge:g}" if edge < 10 else f"{edge:.0f}"
