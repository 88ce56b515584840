"""Benchmark results as text, for terminals of 80 columns and more."""

from collections.abc import Sequence

from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text

from yolo_lightning.commands.benchmark.benchmark_report import BenchmarkReport
from yolo_lightning.commands.benchmark.comparison import Result
from yolo_lightning.commands.benchmark.network import STAGES
from yolo_lightning.commands.benchmark.stability import Stability
from yolo_lightning.commands.benchmark.timing import Spread

MIB = 2**20
TIMES_NOTE = "Median times in ms; x native: ratio to the faster native layout."


def show(report: BenchmarkReport, console: Console) -> None:
    """Print all sections that were measured."""
    if (ceiling := report.gemm_ceiling) is not None:
        size = f"{ceiling.size} x {ceiling.size}, {ceiling.dtype}"
        console.print(f"GEMM ceiling: {ceiling.gflops:,.0f} GFLOP/s (fastest square product, {size})", highlight=False)
    if report.layers:
        _show_layers(report, console)
    if report.graph:
        _print_title(console, "Whole network, forward and backward", TIMES_NOTE)
        _print_tables(console, report.graph, _times(report.graph), _footprints(report, report.graph))
    if report.step:
        _show_step(report, console)
    if report.settings.conv_algorithm == "autotune":
        _show_plan(report, console)
    if report.stability is not None:
        _show_stability(report.stability, console)
    elif "stability" in report.settings.sections:
        reason = "skip contains gemm" if report.settings.stability_steps else "stability_steps is 0"
        console.print(f"\nno stability run: {reason}", highlight=False)


def _show_layers(report: BenchmarkReport, console: Console) -> None:
    six = report.settings.layers == "six"
    title = "Six layers, NOT a training speed" if six else f"All {len(report.layers)} convolution shapes of YOLOv8n"
    _print_title(console, title, TIMES_NOTE)
    for layer in report.layers:
        name = layer.name.removeprefix("model.").removesuffix(".conv")
        operations = f"{layer.operations / 1e9:.2f} GFLOP; {layer.count} in the network"
        console.print(Text(f"\n{name}: {layer.label}; {operations}", "bold"))
        _print_tables(console, layer.results, _times(layer.results), _footprints(report, layer.results, rates=True))
    rows = []
    for position, first in enumerate(report.layers[0].results):
        totals = [(1 if six else layer.count, layer.results[position].total) for layer in report.layers]
        sums = [count * total.median_s for count, total in totals if total is not None]
        rows.append([first.variant.value, _ms(sum(sums) if len(sums) == len(totals) else None)])
    count = sum(layer.count for layer in report.layers)
    console.print(Text(f"\nsum over {'six layers' if six else f'all {count} convolutions'}", "bold"))
    console.print(_table(["variant", "total ms"], rows))


def _show_step(report: BenchmarkReport, console: Console) -> None:
    settings, results = report.settings, report.step
    note = f"{settings.batch_size} random images of {settings.image_size} px; an optimizer step in every step"
    _print_title(console, "Whole training step", f"{note}; median times in ms")
    times, shares, estimates = [], [], []
    for result in results:
        name, median_s = result.variant.value, result.total.median_s if result.total else None
        rates = [_number(median_s and count / median_s, 2) for count in (1, settings.batch_size)]
        times.append([name, *_total(result, results), *rates])
        stages = [median_s and result.stages[stage].median_s / median_s for stage in STAGES]
        shares.append([name, *map(_percent, stages)])
        if (found := result.estimate) is not None:
            epoch = [f"{time_s / 3600:.2f}" for time_s in (found.epoch_s, *found.epoch_range_s)]
            run = [f"{time_s / 86400:.2f}" for time_s in (found.run_s, *found.run_range_s)]
            estimates.append([name, epoch[0], "-".join(epoch[1:]), run[0], "-".join(run[1:])])
    headings = ["variant", "step", "min-max", *_ratio_headings(results), "steps/s", "images/s"]
    _print_tables(console, results, _table(headings, times), _table(["variant", *STAGES], shares))
    console.print(Text(f"\nEstimate for {settings.epochs} epochs of {settings.frames:,} frames", "bold"))
    console.print(Text(report.estimate_label, "dim"))
    console.print(_table(["variant", "epoch h", "range", "run days", "range"], estimates))


def _show_plan(report: BenchmarkReport, console: Console) -> None:
    _print_title(console, "Algorithms chosen by autotuning", "milliseconds of each candidate")
    for planned in report.plan:
        tried = ", ".join(f"{name} {_ms(time_s)}" for name, time_s in sorted(planned.seconds.items()))
        console.print(Text(f"{planned.problem}"))
        console.print(Text(f"    {planned.algorithm}" + (f" (of {tried})" if tried else ""), "cyan"))


def _show_stability(stability: Stability, console: Console) -> None:
    note = f"{stability.variant.value}, {stability.image_size} px, 2 x {stability.steps} steps from one seed"
    _print_title(console, f"Stability: {'passed' if stability.passed else 'FAILED'}", note)
    if stability.failure is not None:
        console.print(Text(f"error: {stability.failure}"))
        return
    difference = (
        f"no: from step {stability.first_difference} on, by up to {stability.largest_difference:.1e} of the loss"
    )
    growth, allowed = stability.growth_bytes, stability.allowed_growth_bytes / MIB
    for name, value in (
        ("losses finite", "yes" if stability.finite else "NO"),
        ("losses equal", "bit for bit" if stability.equal else difference),
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
        stages = [_median(result.stages.get(stage)) for stage in ("forward", "backward")]
        rows.append([result.variant.value, *stages, *_total(result, results)])
    return _table(["variant", "forward", "backward", "total", "min-max", *_ratio_headings(results)], rows)


def _footprints(report: BenchmarkReport, results: list[Result], rates: bool = False) -> Table:
    rows = []
    for result in results:
        cells = [_number(result.gflops, 1), _percent(result.share_of_gemm)] if rates else []
        if result.footprint is None:
            cells += ["-"] * 3
        else:
            sizes = (result.footprint.saved_bytes, result.footprint.peak_bytes)
            cells += [_number(None if size is None else size / MIB, 1) for size in sizes]
            cells.append(_number(result.footprint.launches, 0))
        rows.append([result.variant.value, *cells])
    launches = "operators" if report.settings.device.type == "cpu" else "launches"
    return _table(["variant", *(["GFLOP/s", "of GEMM"] if rates else []), "saved MiB", "peak MiB", launches], rows)


def _ratio_headings(results: list[Result]) -> list[str]:
    reference = results[0].reference
    slow = ["x slow"] if any(result.ratio_to_slow for result in results) else []
    return ["ratio" if reference is None else f"x {reference.implementation}", *slow]


def _total(result: Result, results: list[Result]) -> list[str]:
    """Return median, range and ratios, the cells for `min-max` and `_ratio_headings`."""
    spread = result.total
    extremes = "-" if spread is None else f"{_ms(spread.minimum_s)}-{_ms(spread.maximum_s)}"
    ratios = [result.ratio_to_reference, result.ratio_to_slow][: len(_ratio_headings(results))]
    return [_median(spread), extremes, *(_number(ratio, 2) for ratio in ratios)]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _median(spread: Spread | None) -> str:
    return "-" if spread is None else _ms(spread.median_s)


def _ms(time_s: float | None) -> str:
    """Return milliseconds with at least three significant digits."""
    if time_s is None:
        return "-"
    value = time_s * 1000
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:,.1f}"
