"""Verdicts for people: a line each, a table, a page."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from faults.judge import Verdict

COLUMNS = ("row", "fault", "noticed (s)", "reported", "steps lost", "next step (s)", "left behind", "exit", "verdict")
PAGE = """# Faults, injected and measured

Written by `python scripts/inject_faults.py --write {path}`. Each line is a supervised fit on a small drawn dataset
({steps} steps, one thread, short phase timeouts by configuration), with real processes and signals; what cannot be had
for real is named as a fake. *noticed*: from the fault to the report. *steps lost*: trained again after
the restart. *next step*: from the decision to restart to the next completed step. *left behind*: processes, files in
/dev/shm, temporary files. A pass means that all this was within its limits, that the exit codes were those documented,
and that weights, averaged weights, optimizer and metrics were those of the uninterrupted run, bit for bit, where the
fault leaves the data as they are.

"""


def format_number(value: float | None) -> str:
    """One digit, or a dash."""
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def verdict_of(verdict: Verdict) -> str:
    """In words."""
    if verdict.skipped:
        return f"skipped: {verdict.skipped}"
    return "pass" if not verdict.wrong else "FAIL: " + "; ".join(verdict.wrong)


def cells(verdict: Verdict) -> tuple[str, ...]:
    """As in `COLUMNS`."""
    return (
        verdict.name,
        verdict.fault,
        format_number(verdict.noticed_s),
        verdict.reported or "-",
        format_number(verdict.lost_steps),
        format_number(verdict.recovered_s),
        ", ".join(verdict.leftovers) or ("-" if verdict.skipped else "none"),
        ", ".join(map(str, verdict.codes)) or "-",
        verdict_of(verdict),
    )


def line(verdict: Verdict) -> str:
    """One line for the terminal."""
    name, fault, noticed, reported, lost, next_step, left, code, said = cells(verdict)
    return (
        f"{name:>4}  {fault}; noticed {noticed} s; reported: {reported}; lost {lost} steps; "
        f"next step after {next_step} s; left behind: {left}; exit {code}; {verdict.took_s:.0f} s; {said}"
    )


def markdown(rows: Iterable[Sequence[str]], columns: Sequence[str] = COLUMNS) -> str:
    """A table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells_of) + " |" for cells_of in lines)


def kills_table(verdict: Verdict) -> str:
    """Of a soak: each kill, and what it cost."""
    rows = []
    for number, (moment, phase, epoch, step) in enumerate(verdict.kills):
        lost = verdict.lost_each[number] if number < len(verdict.lost_each) else None
        next_s = verdict.recovered_each_s[number] if number < len(verdict.recovered_each_s) else None
        rows.append((str(number + 1), moment, phase, str(epoch), str(step), format_number(lost), format_number(next_s)))
    return markdown(rows, ("kill", "meant for", "phase", "epoch", "step", "steps lost", "next step (s)"))


def summary(verdicts: Sequence[Verdict]) -> str:
    """How many of each."""
    failed = [verdict.name for verdict in verdicts if verdict.wrong]
    skipped = [verdict.name for verdict in verdicts if verdict.skipped]
    passed = len(verdicts) - len(failed) - len(skipped)
    text = f"{passed} of {len(verdicts)} passed"
    text += f", failed: {', '.join(failed)}" if failed else ""
    return text + (f", skipped: {', '.join(skipped)}" if skipped else "")


def write_page(path: Path, verdicts: Sequence[Verdict], steps: int, took_s: float) -> None:
    """The page of the documentation."""
    table = markdown(cells(verdict) for verdict in verdicts)
    end = f"{summary(verdicts)}, in {took_s / 60:.0f} minutes.\n"
    path.write_text(f"{PAGE.format(path=path, steps=steps)}{table}\n\n{end}")
