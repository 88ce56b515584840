"""`python -m yolo_lightning benchmark`: how fast and how frugal the convolutions are, against their rivals."""

from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console

from yolo_lightning.commands.benchmark.baselines import DESCRIPTIONS, variants
from yolo_lightning.commands.benchmark.benchmark_report import BenchmarkReport, write_json
from yolo_lightning.commands.benchmark.benchmark_settings import (
    CHART_SUFFIXES,
    BenchmarkSettings,
    ConvPlan,
    Layers,
    Precision,
    Rival,
    Section,
    check_output,
    stability_size,
)
from yolo_lightning.commands.benchmark.chart import draw_chart
from yolo_lightning.commands.benchmark.hardware import describe_environment
from yolo_lightning.commands.benchmark.run import run
from yolo_lightning.commands.benchmark.tables import show
from yolo_lightning.utils.choices import chosen_device

ChoiceT = TypeVar("ChoiceT", bound=str)

PIPE_COLUMNS = 120
"""Width of the tables where there is no terminal."""


def benchmark(
    *,
    device: str = "auto",
    threads: int | None = None,
    sections: Section | tuple[Section, ...] = ("layers", "graph", "step", "stability"),
    layers: Layers = "six",
    skip: Rival | tuple[Rival, ...] = (),
    batch_size: int = 4,
    image_size: int = 640,
    repeats: int = 7,
    precision: Precision = "32-true",
    tf32: bool = False,
    vendor_search: bool = False,
    conv_plan: ConvPlan = "fixed",
    conv_plan_budget_s: float = 60.0,
    stability_steps: int = 100,
    stability_image_size: int | None = None,
    frames: int = 329_299,
    epochs: int = 15,
    profile: bool = True,
    json: Path | None = None,
    chart: Path | None = None,
) -> None:
    """Compare this project's convolutions with PyTorch's own and with two stand-ins, in one process, taking turns.

    YOLOv8n on drawn numbers, forward and backward: single layers, the whole network, a whole training step; then two
    equal trainings that must agree bit for bit, stay finite and not gather memory. Exit code 1 if they do not.

    A rival that raises an error becomes a line that says so. Where one hangs, what was measured before is in `json`.

    Args:
        device: auto, cpu, cuda, cuda:1, ...; auto takes the accelerator where there is one.
        threads: Of PyTorch on the CPU; null leaves its choice.
        sections: One, or several as [layers,graph,step,stability].
        layers: six are our choice of layers and NOT a training speed; all are the distinct convolutions of YOLOv8n.
        skip: Rivals to leave out, one, or several as [native,slow]. A vendor kernel that hangs cannot be interrupted:
            then skip native.
        batch_size: Frames per step.
        image_size: Side of the square input in pixels, a multiple of 32.
        repeats: Rounds; in each every rival is measured once, in changing order. The median counts.
        precision: 32-true, or bf16-mixed for bfloat16 under autocast.
        tf32: Let matrix products and convolutions round float32 to TF32, on NVIDIA cards that can.
        vendor_search: Let cuDNN or MIOpen time its kernels first; with MIOpen this can take very long.
        conv_plan: fixed chooses our algorithms by a table, timed times them first, within the warm-up, fused is fixed
            with kernels of our own where a GPU can run them, or a C++ compiler builds them for the CPU.
        conv_plan_budget_s: Seconds that timing may take.
        stability_steps: Steps of each of the two trainings; 0 leaves them out.
        stability_image_size: Their pixels; null takes image_size, on a CPU at most 160.
        frames: Frames per epoch, for the estimate; the default is LTDv2's.
        epochs: Length of the training, for the estimate.
        profile: Count launches with torch.profiler, and on a CPU peak memory; switch off where the profiler fails.
        json: File for all numbers, written anew after every section.
        chart: Picture file for the bar chart, .png, .svg or .pdf.

    Raises:
        ValueError: If a value is not allowed.
        SystemExit: With code 1 if the stability run failed.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads is {threads}, allowed are 1 and more, or null")
    check_output("json", json)
    check_output("chart", chart, CHART_SUFFIXES)
    chosen = chosen_device(device)
    settings = BenchmarkSettings(
        device=chosen,
        sections=_several(sections),
        layers=layers,
        skip=_several(skip),
        conv_plan=conv_plan,
        conv_plan_budget_s=conv_plan_budget_s,
        precision=precision,
        batch_size=batch_size,
        image_size=image_size,
        repeats=repeats,
        stability_steps=stability_steps,
        stability_image_size=stability_size(stability_image_size, image_size, chosen),
        tf32=tf32,
        vendor_search=vendor_search,
        profile=profile,
        frames=frames,
        epochs=epochs,
    )
    if chart is not None and not {"layers", "graph", "step"} & set(settings.sections):
        raise ValueError(f"chart is {chart}, but the sections hold nothing to draw: layers, graph or step is needed")
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads or threads_before)
    try:
        report = _run(settings, json)
    finally:
        torch.set_num_threads(threads_before)
    if chart is not None:
        draw_chart(report, chart)
    if report.stability is not None and not report.stability.passed:
        raise SystemExit(1)


def _run(settings: BenchmarkSettings, json: Path | None) -> BenchmarkReport:
    def keep(report: BenchmarkReport) -> None:
        if json is not None:
            write_json(report, json)

    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=PIPE_COLUMNS)
    _show_plan(settings, console)
    progress = Console(stderr=True)
    if progress.is_terminal:
        with progress.status("") as status:
            report = run(settings, lambda text: status.update(f"measuring: {text}"), keep)
    else:
        report = run(settings, lambda text: progress.print(f"measuring: {text}", highlight=False), keep)
    show(report, console)
    if "stability" in settings.sections and report.stability is None:
        console.print("\nno stability run: " + ("it needs gemm" if settings.stability_steps else "0 steps asked for"))
    return report


def _show_plan(settings: BenchmarkSettings, console: Console) -> None:
    environment = describe_environment(settings.device)
    tf32 = f", TF32 {'on' if settings.tf32 else 'off'}" if settings.device.type == "cuda" else ""
    what = f"YOLOv8n, batch {settings.batch_size}, {settings.image_size} px, {settings.precision}{tf32}"
    console.print(f"{environment.device_name} ({environment.device}), threads: {environment.threads}", highlight=False)
    console.print(f"{environment.driver}; torch {environment.torch}; {environment.date}", highlight=False)
    console.print(f"{what}; {settings.repeats} rounds: {', '.join(settings.sections)}", highlight=False)
    shown = variants(settings.skip)
    for variant, description in DESCRIPTIONS.items():
        if variant in shown:
            console.print(f"  {variant.value:<16}{description}", highlight=False)
    if any(variant.value.endswith("nhwc") for variant in shown):
        console.print("  ...-nhwc        the same in channels_last layout", highlight=False)


def _several(value: ChoiceT | tuple[ChoiceT, ...]) -> tuple[ChoiceT, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
