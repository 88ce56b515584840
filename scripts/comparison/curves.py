"""Scores of each epoch over processor time: collected from run folders as CSV, and drawn."""

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from comparison.clock import CLOCK
from comparison.results import Result

COLUMNS = ("trainer", "seed", "epoch", "processor_min", "map_50")
INK = "#808891"  # legible on white and on black
STYLE = {
    "svg.fonttype": "none",  # text remains text
    "svg.hashsalt": "curves",  # reproducible ids
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "figure.facecolor": "none",
    "legend.frameon": False,
    "xtick.color": INK,
    "ytick.color": INK,
}
ARM_STYLES = {
    "ultralytics_default": ("Ultralytics, defaults", "#d9730d"),
    "ultralytics": ("Ultralytics, other settings", "#c75fa8"),
    "default": ("this project, defaults", "#3b8fd4"),
    "auto": ("this project, float32", "#2e9c60"),
    "best": ("this project, other recipe", "#a070d8"),
}
"""Name and colour of each arm that can be drawn."""
PANEL_INCHES = 3.0


@dataclass(frozen=True)
class Curve:
    """Scores of the trainings of one arm with S seeds and E validated epochs."""

    minutes: npt.NDArray[np.float64]  # `(S, E)` processor time until the end of the validation
    scores: npt.NDArray[np.float64]  # `(S, E)` mAP50 of Ultralytics' metric


def write_curves(work: Path, results: Iterable[Result]) -> None:
    """Write `curves.csv` with a row per validated epoch of finished trainings in a work folder."""
    with (work / "curves.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for result in results:
            trainer = result["arm"]
            seed = result["seed"]
            epochs = json.loads((work / f"{trainer}-{seed}" / CLOCK).read_text())["epochs"]
            for number, epoch in enumerate(epochs, 1):
                if "map_50" in epoch:
                    minutes = epoch["elapsed_processor_s"] / 60
                    writer.writerow((trainer, seed, number, f"{minutes:.3f}", f"{epoch['map_50']:.4f}"))


def read_curves(path: Path) -> dict[str, Curve]:
    """Return the curves of a file of `write_curves` by the names of the arms, in the order of the file."""
    points: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            seeds = points.setdefault(row["trainer"], {})
            seeds.setdefault(row["seed"], []).append((float(row["processor_min"]), float(row["map_50"])))
    curves = {}
    for trainer, seeds in points.items():
        values = np.array(list(seeds.values()))
        curves[trainer] = Curve(values[..., 0], values[..., 1])
    return curves


def draw_curves(panels: Mapping[str, Mapping[str, Curve]]) -> str:
    """Return an SVG file with a panel per dataset: mean and range over the seeds, legible on white and on black.

    Args:
        panels: Curves by arm, by the title of the panel.
    """
    from matplotlib import rc_context
    from matplotlib.artist import Artist
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(PANEL_INCHES * len(panels), PANEL_INCHES), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (title, curves) in zip(axes, panels.items(), strict=True):
            for trainer, curve in curves.items():
                name, colour = ARM_STYLES[trainer]
                minutes = curve.minutes.mean(axis=0)
                axis.fill_between(minutes, curve.scores.min(axis=0), curve.scores.max(axis=0), color=colour, alpha=0.2)
                axis.plot(minutes, curve.scores.mean(axis=0), color=colour, label=name)
            axis.set(title=title, xlabel="processor minutes")
            axis.set_xlim(left=0)
            axis.set_ylim(bottom=0)
        axes[0].set_ylabel("validation mAP50")
        labels: dict[str, Artist] = {}
        for axis in axes:
            handles, names = axis.get_legend_handles_labels()
            labels |= dict(zip(names, handles, strict=True))
        figure.legend(list(labels.values()), list(labels), loc="outside lower center", ncols=4)
        file = StringIO()
        FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None, "Creator": None})
    return file.getvalue()
