"""A report as text, for terminals of 80 columns and more."""

from rich.console import Console
from rich.text import Text

from yolo_lightning.commands.benchmark.benchmark_report import ESTIMATE_LABEL, BenchmarkReport
from yolo_lightning.commands.benchmark.benchmark_settings import Rival
from yolo_lightning.commands.benchmark.comparison import Result, reference
from yolo_lightning.commands.benchmark.stability import Stability
from yolo_lightning.commands.benchmark.table_layout import (
    NOTHING,
    days,
    head,
    hours,
    median,
    ms,
    number,
    print_table,
    ratio_text,
    share,
    spread_range,
)

MIB = 2**20
REFERENCE_NOTE = "Median times in ms; x native: against the faster native layout."


def show(report: BenchmarkReport, console: Console) -> None:
    """Print all sections that were measured."""
    if report.ceiling is not None:
        ceiling = report.ceiling
        size = f"{ceiling.size} x {ceiling.size}, {ceiling.dtype}"
        console.print(f"GEMM ceiling: {ceiling.gflops:,.0f} GFLOP/s (best square product, {size})", highlight=False)
    if report.layers:
        _show_layers(report, console)
    if report.graph:
        _show_graph(report, console)
    if report.step:
        _show_step(report, console)
    if report.settings.conv_plan == "timed":
        _show_plan(report, console)
    if report.stability is not None:
        _show_stability(report.stability, console)


def _show_layers(report: BenchmarkReport, console: Console) -> None:
    head(console, _layers_title(report), REFERENCE_NOTE)
    for layer, results in report.layers:
        operations = layer.operations(report.settings.batch_size) / 1e9
        name = layer.name.removeprefix("model.").removesuffix(".conv")
        console.print(Text(f"\n{name}: {layer.label}; {operations:.2f} GFLOP; {layer.count} in the network", "bold"))
        headings = [*_time_headings(results), "GFLOP/s", "of GEMM", *_footprint_headings(report)]
        rows = []
        for result in results:
            gflops = None if result.total is None else operations / result.total.median_s
            part = None if gflops is None or report.ceiling is None else gflops / report.ceiling.gflops
            rates = [number(gflops, 0 if (gflops or 0) >= 100 else 1), NOTHING if part is None else f"{part:.0%}"]
            rows.append([*_time_cells(result, results), *rates, *_footprint_cells(result)])
        print_table(console, headings, rows, second_part="GFLOP/s")
        _failures(console, results)
    _show_sum(report, console)


def _layers_title(report: BenchmarkReport) -> str:
    if report.settings.layers == "six":
        return "Six layers, NOT a training speed"
    return f"All {len(report.layers)} convolution shapes of YOLOv8n"


def _show_sum(report: BenchmarkReport, console: Console) -> None:
    """Sums per variant: of six layers as they stand, of all shapes times how often they occur."""
    weighted = report.settings.layers == "all"
    what = f"all {sum(layer.count for layer, _ in report.layers)} convolutions" if weighted else "six layers"
    console.print(Text(f"\nsum over {what}, forward and backward", "bold"))
    rows = []
    for position, first in enumerate(report.layers[0][1]):
        medians = [
            result[position].total.median_s * (layer.count if weighted else 1)  # type: ignore[union-attr]
            for layer, result in report.layers
            if result[position].total is not None
        ]
        whole = len(medians) == len(report.layers)
        rows.append([first.variant.value, ms(sum(medians)) if whole else NOTHING])
    print_table(console, ["variant", "total ms"], rows)


def _show_graph(report: BenchmarkReport, console: Console) -> None:
    head(console, "Whole network, forward and backward", REFERENCE_NOTE)
    headings = [*_time_headings(report.graph), *_footprint_headings(report)]
    rows = [[*_time_cells(result, report.graph), *_footprint_cells(result)] for result in report.graph]
    print_table(console, headings, rows, second_part="kept MiB")
    _failures(console, report.graph)


def _show_step(report: BenchmarkReport, console: Console) -> None:
    settings = report.settings
    what = (
        f"{settings.batch_size} drawn frames of {settings.image_size} px; an update in every step; median times in ms"
    )
    head(console, "Whole training step", what)
    native = reference(report.step)
    stages = ("forward", "loss", "backward", "optimizer")
    headings = ["variant", "step", "min-max", _ratio_heading(report.step), *_slow_heading(report.step), "it/s"]
    rows = []
    for result in report.step:
        total = result.total
        rates = (
            [NOTHING] * 2 if total is None else [f"{count / total.median_s:.2f}" for count in (1, settings.batch_size)]
        )
        shares = [share(result.stages.get(stage), total) for stage in stages]
        ratios = [ratio_text(result, native), *_slow_cells(result, report.step)]
        rows.append([result.variant.value, median(total), spread_range(total), *ratios, *rates, *shares])
    print_table(console, [*headings, "images/s", *stages], rows, second_part="forward")
    _failures(console, report.step)
    console.print(Text(f"\nEstimate for {settings.epochs} epochs of {settings.frames:,} frames", "bold"))
    console.print(Text(ESTIMATE_LABEL, "dim"))
    rows = []
    for result in report.step:
        found = report.estimate_of(result)
        if found is not None:
            epoch = [hours(found.epoch_s), "-".join(map(hours, found.epoch_range_s))]
            run = [days(found.run_s), "-".join(map(days, found.run_range_s))]
            rows.append([result.variant.value, *epoch, *run])
    print_table(console, ["variant", "epoch h", "range", "run days", "range"], rows)


def _show_plan(report: BenchmarkReport, console: Console) -> None:
    head(console, "What the timed plan chose", "milliseconds of each algorithm tried")
    for planned in report.plan:
        tried = ", ".join(f"{name} {ms(time_s)}" for name, time_s in sorted(planned.seconds.items()))
        console.print(Text(f"{planned.problem}"))
        console.print(Text(f"    {planned.algorithm}" + (f" (of {tried})" if tried else ""), "cyan"))


def _show_stability(stability: Stability, console: Console) -> None:
    what = f"{stability.variant.value}, {stability.image_size} px, 2 x {stability.steps} steps from one seed"
    head(console, f"Stability: {'passed' if stability.passed else 'FAILED'}", what)
    if stability.failure is not None:
        console.print(Text(f"error: {stability.failure}"))
        return
    equal = "bit for bit" if stability.equal else (
        f"no: from step {stability.first_difference} on, by up to {stability.largest_difference:.1e} of the loss"
    )  # fmt: skip
    growth = stability.growth_bytes
    allowed = stability.allowed_growth_bytes / MIB
    memory = "not readable here" if growth is None else f"{growth / MIB:+.1f} MiB (up to {allowed:.0f} is no growth)"
    rows = [
        ["losses finite", "yes" if stability.finite else "NO"],
        ["losses equal", equal],
        ["memory after warm-up", memory],
        ["loss per image", f"{stability.first_loss:.3f} first, {stability.last_loss:.3f} last"],
    ]
    for name, value in rows:
        console.print(Text(f"  {name:<22}{value}"))


def _time_headings(results: list[Result]) -> list[str]:
    ratios = [_ratio_heading(results), *_slow_heading(results)]
    return ["variant", "forward", "backward", "total", "min-max", *ratios]


def _time_cells(result: Result, results: list[Result]) -> list[str]:
    stages = [median(result.stages.get(stage)) for stage in ("forward", "backward")]
    ratios = [ratio_text(result, reference(results)), *_slow_cells(result, results)]
    return [result.variant.value, *stages, median(result.total), spread_range(result.total), *ratios]


def _ratio_heading(results: list[Result]) -> str:
    native = reference(results)
    return "ratio" if native is None else f"x {native.variant.rival}"


def _slow_heading(results: list[Result]) -> list[str]:
    return ["x slow"] if _has(results, "slow") else []


def _slow_cells(result: Result, results: list[Result]) -> list[str]:
    return [ratio_text(result, reference(results, ("slow",)))] if _has(results, "slow") else []


def _has(results: list[Result], rival: Rival) -> bool:
    return any(result.variant.rival == rival for result in results)


def _footprint_headings(report: BenchmarkReport) -> list[str]:
    return ["kept MiB", "peak MiB", "operators" if report.settings.device.type == "cpu" else "launches"]


def _footprint_cells(result: Result) -> list[str]:
    if result.footprint is None:
        return [NOTHING] * 3
    footprint = result.footprint
    peak = None if footprint.peak_bytes is None else footprint.peak_bytes / MIB
    return [number(footprint.saved_bytes / MIB, 1), number(peak, 1), number(footprint.launches, 0)]


def _failures(console: Console, results: list[Result]) -> None:
    for result in results:
        if result.failure is not None:
            console.print(Text(f"{result.variant.value} failed: {result.failure}", "red"), soft_wrap=True)
