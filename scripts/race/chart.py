"""The table and the chart of the race."""

import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import markdown_table

from race.account import Outcome
from race.schedule import KINDS, TITLES
from race.systems import SYSTEMS

COLUMNS = (
    "system",
    "undisturbed (s)",
    "with the faults (s)",
    "ratio",
    "time to recover, mean of the faults (s)",
    "longest (s)",
    "steps lost",
    "final weights equal",
    "manual interventions",
)
COLOURS = dict(zip(KINDS, ("tab:red", "tab:purple", "tab:orange", "tab:brown", "tab:green"), strict=True))


@dataclass(frozen=True)
class Result:
    """The runs of one system, in the order of the attributes."""

    undisturbed: Outcome
    raced: Outcome
    repeated: Outcome | None = None  # undisturbed again: shows how the load of the machine and the weights vary

    @property
    def ratio(self) -> float | None:
        """Time with the faults over the time of the undisturbed run before it; None if one of them did not finish."""
        finished_s, undisturbed_s = self.raced.finished_s, self.undisturbed.finished_s
        return finished_s / undisturbed_s if finished_s and undisturbed_s else None

    @property
    def equal(self) -> str:
        """Whether the final weights equal the undisturbed ones, which must be equal in both undisturbed runs."""
        if self.ratio is None:
            return "-"
        if self.repeated and self.undisturbed.digest != self.repeated.digest:
            return "no (two undisturbed runs differ)"
        return "yes" if self.raced.digest == self.undisturbed.digest else "no"


def table(results: Mapping[str, Sequence[Result]], missing: Mapping[str, str]) -> str:
    """Return the table in Markdown.

    Args:
        results: By the names in `SYSTEMS`, one per seed.
        missing: Reasons why systems did not take part, by the same names.
    """
    rows = []
    for name, system in SYSTEMS.items():
        if name in results:
            rows.append((system.title, *_cells(results[name])))
        elif name in missing:
            rows.append((system.title, missing[name], *["-"] * (len(COLUMNS) - 2)))
    return markdown_table(COLUMNS, rows)


def _cells(results: Sequence[Result]) -> tuple[str, ...]:
    """Return the texts of a row without the title: medians and ranges over the seeds."""
    undisturbed = [run for result in results for run in (result.undisturbed, result.repeated) if run is not None]
    raced = [result.raced for result in results]
    recoveries = [run.recovery_s for run in raced if run.recovery_s]
    return (
        _spread([run.finished_s for run in undisturbed]),
        _spread([run.finished_s for run in raced]),
        _spread([result.ratio for result in results], digits=1),
        _spread([statistics.fmean(times_s) for times_s in recoveries]),
        _spread([max(times_s) for times_s in recoveries]),
        _spread([run.lost for run in raced]),
        ", ".join(
            f"{text} ({count})" if len(results) > 1 else text
            for text, count in Counter(result.equal for result in results).items()
        ),
        _spread([len(run.interventions) for run in raced]),
    )


def _spread(values: Sequence[float | None], digits: int = 0) -> str:
    """Return the median of values and, if they differ, their range; None is a run that did not finish."""
    finished = [round(value, digits) for value in values if value is not None]
    if len(finished) < len(values) or not finished:
        return f"{len(values) - len(finished)} of {len(values)} not finished" if values else "-"
    middle = f"{round(statistics.median(finished), 1):g}"
    low, high = min(finished), max(finished)
    return middle if low == high else f"{middle} ({low:.{digits}f} to {high:.{digits}f})"


def draw(results: Mapping[str, Result], path: Path) -> None:
    """Draw the optimizer steps over time, one panel per system, in multiples of its own undisturbed time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    shown = {name: result for name, result in results.items() if result.undisturbed.finished_s}
    figure, axes = pyplot.subplots(
        len(shown), 1, sharex=True, squeeze=False, figsize=(8, 1.3 * len(shown) + 0.9), layout="constrained"
    )
    kinds = [
        kind
        for kind in KINDS
        if any(kind == at for shown_result in shown.values() for _, at in shown_result.raced.faults)
    ]
    for axis, (name, result) in zip(axes[:, 0], shown.items(), strict=True):
        unit_s = result.undisturbed.finished_s or 1.0
        axis.plot(*line(result.undisturbed, unit_s), color="0.75", linewidth=1)
        axis.plot(*line(result.raced, unit_s), color="tab:blue", linewidth=1.5)
        for at_s, kind in result.raced.faults:
            axis.axvline(at_s / unit_s, color=COLOURS[kind], linewidth=1)  # type: ignore[index]
        for at_s in result.raced.interventions:
            axis.plot(at_s / unit_s, 0, marker="^", color="black", markersize=7, clip_on=False)
        ended = "not finished" if result.ratio is None else f"{result.ratio:.1f} times the undisturbed time"
        axis.set_title(f"{SYSTEMS[name].title}: {ended}", fontsize=9, loc="left")
        axis.set_ylabel("step", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(0, max(step for _, step, _ in result.raced.steps) * 1.05)
    axes[-1, 0].set_xlabel("time / undisturbed time of the same system", fontsize=9)
    axes[-1, 0].set_xlim(left=0)
    handles = [
        Line2D([], [], color="tab:blue", label="with faults"),
        Line2D([], [], color="0.75", label="undisturbed"),
        *(Line2D([], [], color=COLOURS[kind], label=TITLES[kind]) for kind in kinds),
        Line2D([], [], color="black", marker="^", linestyle="", label="manual intervention"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    temporary = path.with_name(f".{path.name}-{os.getpid()}.png")
    figure.savefig(temporary, dpi=110)
    temporary.replace(path)
    pyplot.close(figure)


def line(outcome: Outcome, unit_s: float) -> tuple[Sequence[float], Sequence[float]]:
    """Return times and steps of the line of a run, interrupted where losses are not finite or steps are repeated."""
    times, steps, last = [0.0], [0.0], 0
    for at_s, step, finite in outcome.steps:
        if step <= last:
            times.append(at_s / unit_s)
            steps.append(float("nan"))
        times.append(at_s / unit_s)
        steps.append(step if finite else float("nan"))
        last = step
    return times, steps
