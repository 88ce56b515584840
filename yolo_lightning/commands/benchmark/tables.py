"""Benchmark results as text, for terminals of 80 columns and more."""

import math
from collections.abc import Sequence

from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text

from yolo_lightning.commands.benchmark.comparison import Result
from yolo_lightning.commands.benchmark.passes import STAGES, Layer
from yolo_lightning.commands.benchmark.run import BenchmarkReport
from yolo_lightning.commands.benchmark.stability import VARIANT, Stability

MIB = 2**20
TIMES_NOTE = "Median times in ms; x native: ratio to the faster native layout."


def show(report: BenchmarkReport, console: Console) -> None:
    """Print all sections that were measured."""
    if report.layers:
        _print_title(console, "Six layers, NOT a training speed", TIMES_NOTE)
    for layer in report.layers:
        name = layer.name.removeprefix("model.").removesuffix(".conv")
        console.print(Text(f"\n{name}: {layer.label}; {layer.operations / 1e9:.2f} GFLOP", "bold"))
        _print_tables(console, layer.results, _times(layer.results), _footprints(report, layer.results, layer))
    if report.graph:
        _print_title(console, "Whole network, forward and backward", TIMES_NOTE)
        _print_tables(console, report.graph, _times(report.graph), _footprints(report, report.graph))
    if report.step:
        _show_step(report, console)
    if report.settings.conv_algorithm == "autotune":
        _print_title(console, "Algorithms chosen by autotuning", "milliseconds of each candidate")
        for planned in report.plan:
            tried = ", ".join(f"{name} {_ms(time_s)}" for name, time_s in sorted(planned.seconds.items()))
            console.print(Text(f"{planned.problem}"))
            console.print(Text(f"    {planned.algorithm}" + (f" (of {tried})" if tried else ""), "cyan"))
    if report.stability is not None:
        _show_stability(report.stability, console)
    elif "stability" in report.settings.sections:
        console.print("\nno stability run: skip contains gemm", highlight=False)


def _show_step(report: BenchmarkReport, console: Console) -> None:
    settings, results = report.settings, report.step
    note = f"{settings.batch_size} random images of {settings.image_size} px; an optimizer step in every step"
    _print_title(console, "Whole training step", f"{note}; median times in ms")
    times, shares, estimates = [], [], []
    steps = math.ceil(settings.frames / settings.batch_size)  # a smaller last batch takes a full step
    for result in results:
        name, total = result.variant.value, result.total
        if total is None:
            rates, stages = ["-"] * 2, ["-"] * len(STAGES)
        else:
            rates = [f"{count / total.median_s:,.2f}" for count in (1, settings.batch_size)]
            stages = [f"{result.stages[stage].median_s / total.median_s:.0%}" for stage in STAGES]
            hours = [steps * time_s / 3600 for time_s in (total.median_s, total.minimum_s, total.maximum_s)]
            days = [settings.epochs * time / 24 for time in hours]
            estimates.append([name, *(cell for m, a, b in (hours, days) for cell in (f"{m:.2f}", f"{a:.2f}-{b:.2f}"))])
        times.append([name, *_total(result, results), *rates])
        shares.append([name, *stages])
    headings = ["variant", "step", "min-max", *_ratio_headings(results), "steps/s", "images/s"]
    _print_tables(console, results, _table(headings, times), _table(["variant", *STAGES], shares))
    console.print(Text(f"\nEstimate for {settings.epochs} epochs of {settings.frames:,} frames", "bold"))
    console.print(Text("training steps only, without data loading and validation", "dim"))
    console.print(_table(["variant", "epoch h", "range", "run days", "range"], estimates))


def _show_stability(stability: Stability, console: Console) -> None:
    note = f"{VARIANT.value}, {stability.image_size} px, 2 x {stability.steps} steps from one seed"
    _print_title(console, f"Stability: {'passed' if stability.passed else 'FAILED'}", note)
    if stability.failure is not None:
        console.print(Text(f"error: {stability.failure}"))
        return
    difference = f"from step {stability.first_difference} on, by up to {stability.largest_difference:.1e} of the loss"
    growth, allowed = stability.growth_bytes, stability.allowed_growth_bytes / MIB
    for name, value in (
        ("losses finite", "yes" if stability.finite else "NO"),
        ("losses equal", "bit for bit" if stability.equal else f"no: {difference}"),
        ("memory growth", "-" if growth is None else f"{growth / MIB:+.1f} MiB (up to {allowed:.0f} MiB is allowed)"),
        ("loss per image", f"{stability.first_loss:.3f} first, {stability.last_loss:.3f} last"),
    ):
        console.print(Text(f"  {name:<22}{value}"))


def _print_title(console: Console, title: str, note: str) -> None:
    console.print()
    console.rule(Text(title, "bold"), align="left", characters="-")
    console.print(Text(note, "dim"))


def _print_tables(console: Console, results: list[Result], *tables: Table) -> None:
    """Print the tables side by side if they fit, and the failures below."""
    console.print(Columns(tables, padding=(0, 3)))
    for result in results:
        if result.failure is not None:
            console.print(Text(f"{result.variant.value} failed: {result.failure}", "red"), soft_wrap=True)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="cyan")
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="right" if position else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _times(results: list[Result]) -> Table:
    rows = []
    for result in results:
        stages = [result.stages.get(stage) for stage in ("forward", "backward")]
        medians = [_ms(stage.median_s if stage else None) for stage in stages]
        rows.append([result.variant.value, *medians, *_total(result, results)])
    return _table(["variant", "forward", "backward", "total", "min-max", *_ratio_headings(results)], rows)


def _footprints(report: BenchmarkReport, results: list[Result], layer: Layer | None = None) -> Table:
    """Return a table of memory and launches; for a layer also of its rate."""
    rows = []
    for result in results:
        cells = []
        if layer is not None:
            cells.append(_number(layer.operations / result.total.median_s / 1e9 if result.total else None, 1))
        if result.footprint is None:
            cells += ["-"] * 3
        else:
            sizes = (result.footprint.saved_bytes, result.footprint.peak_bytes)
            cells += [_number(None if size is None else size / MIB, 1) for size in sizes]
            cells.append(_number(result.footprint.launches, 0))
        rows.append([result.variant.value, *cells])
    launches = "operators" if report.settings.device.type == "cpu" else "launches"
    return _table(["variant", *(["GFLOP/s"] if layer else []), "saved MiB", "peak MiB", launches], rows)


def _ratio_headings(results: list[Result]) -> list[str]:
    reference = results[0].reference
    slow = ["x slow"] if any(result.ratio_to_slow for result in results) else []
    return ["ratio" if reference is None else f"x {reference.implementation}", *slow]


def _total(result: Result, results: list[Result]) -> list[str]:
    """Return median, range and ratios, the cells for `min-max` and `_ratio_headings`."""
    total = result.total
    times = ["-", "-"] if total is None else [_ms(total.median_s), f"{_ms(total.minimum_s)}-{_ms(total.maximum_s)}"]
    ratios = [result.ratio_to_reference, result.ratio_to_slow][: len(_ratio_headings(results))]
    return [*times, *(_number(ratio, 2) for ratio in ratios)]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _ms(time_s: float | None) -> str:
    """Return milliseconds with at least three significant digits."""
    if time_s is None:
        return "-"
    value = time_s * 1000
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:,.1f}"
