"""A report as a bar chart."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from yolo_lightning.commands.benchmark.baselines import Variant
from yolo_lightning.commands.benchmark.benchmark_report import BenchmarkReport
from yolo_lightning.commands.benchmark.comparison import Result, ratio, reference
from yolo_lightning.utils.files import replacing

COLOURS = {
    Variant.NATIVE: "#4d4d4d",
    Variant.NATIVE_NHWC: "#9a9a9a",
    Variant.GEMM: "#0b6e4f",
    Variant.GEMM_NHWC: "#3fa37c",
    Variant.GEMM_RECOMPUTE: "#8fd0b1",
    Variant.UNFOLD: "#d1495b",
    Variant.SLOW: "#edae49",
}
BAR_INCHES = 0.17
GROUP_GAP_BARS = 1.2
WIDTH_INCHES = 9.5
DOTS_PER_INCH = 130

Group = tuple[str, list[Result]]


def draw_chart(report: BenchmarkReport, path: Path) -> None:
    """Bars of the time in multiples of the reference: a panel for network and step, one for layers.

    Args:
        report: With at least one of the sections layers, graph and step.
        path: File to write; its ending names the format.
    """
    whole = [(name, results) for name, results in (("network", report.graph), ("step", report.step)) if results]
    names = {"network": "whole network,\nforward + backward", "step": "whole training\nstep"}
    panels: list[tuple[str, list[Group]]] = []
    if whole:
        panels.append(("Whole network and training step", [(names[name], results) for name, results in whole]))
    if report.layers:
        six = report.settings.layers == "six"
        title = "Six layers, NOT a training speed" if six else "Every convolution shape of YOLOv8n"
        panels.append((title, [(layer.label.replace(", ", "\n", 1), results) for layer, results in report.layers]))
    assert panels, "nothing to draw"
    heights = [sum(len(results) + GROUP_GAP_BARS for _, results in groups) * BAR_INCHES for _, groups in panels]
    figure = Figure(figsize=(WIDTH_INCHES, sum(heights) + 0.85 * len(panels) + 1.25), dpi=DOTS_PER_INCH)
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for one, (title, groups) in zip(axes, panels, strict=True):
        _draw_panel(one, title, groups)
    shown = [variant for variant in Variant if any(variant in _variants(groups) for _, groups in panels)]
    handles = [Patch(color=COLOURS[variant], label=variant.value) for variant in shown]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
    figure.suptitle(_subtitle(report), fontsize=9)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lower().removeprefix("."))


def _draw_panel(axes: Axes, title: str, groups: Sequence[Group]) -> None:
    position = 0.0
    ticks: list[float] = []
    for _, results in groups:
        to = reference(results)
        ticks.append(position + (len(results) - 1) / 2)
        for result in results:
            value = ratio(result, to)
            if value is None:
                axes.text(0.02, position, "failed", va="center", fontsize=7, color=COLOURS[result.variant])
            else:
                assert result.total is not None
                axes.barh(position, value, height=0.86, color=COLOURS[result.variant])
                text = f"{value:.2f} ({_time(result.total.median_s)})"
                # The white ground keeps the line at 1 out of the figures.
                ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
                axes.annotate(
                    text,
                    (value, position),
                    xytext=(3, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=7,
                    bbox=ground,
                )
            position += 1
        position += GROUP_GAP_BARS
    axes.axvline(1, color="black", linewidth=0.8, linestyle=":", zorder=0.5)
    axes.set_yticks(ticks, [name for name, _ in groups], fontsize=8)
    axes.set_ylim(position - GROUP_GAP_BARS - 0.2, -0.8)
    # Room for the figures behind the longest bar.
    axes.set_xlim(0, axes.get_xlim()[1] * 1.14)
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(f"time, {_reference_name(groups)} = 1 (shorter is faster)", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)


def _variants(groups: Sequence[Group]) -> set[Variant]:
    return {result.variant for _, results in groups for result in results}


def _reference_name(groups: Sequence[Group]) -> str:
    found = {to.variant.value for _, results in groups if (to := reference(results)) is not None}
    return f"the faster of {' and '.join(sorted(found))}" if len(found) > 1 else "".join(found)


def _time(time_s: float) -> str:
    milliseconds = time_s * 1000
    if milliseconds >= 999.5:
        return f"{time_s:.2f} s"
    return f"{milliseconds:.0f} ms" if milliseconds >= 99.5 else f"{milliseconds:.3g} ms"


def _subtitle(report: BenchmarkReport) -> str:
    settings, environment = report.settings, report.environment
    how = f"YOLOv8n, batch {settings.batch_size}, {settings.image_size} px, {settings.precision}"
    tf32 = f", TF32 {'on' if settings.tf32 else 'off'}" if settings.device.type == "cuda" else ""
    threads = (
        f", {environment.threads} thread{'' if environment.threads == 1 else 's'}"
        if settings.device.type == "cpu"
        else ""
    )
    return f"{how}{tf32}; {environment.device_name}{threads}; torch {environment.torch}; {environment.date[:10]}"
