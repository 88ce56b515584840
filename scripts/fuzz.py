"""Fuzz all readers for a number of minutes: `python scripts/fuzz.py --minutes 60`.

Every reader gets changed files in turns, with another seed in each turn. The totals are printed. Inputs with findings
are stored in `--keep`. The exit code is 1 with findings.
"""

import argparse
import sys
import time
from pathlib import Path

from fuzzing.readers import READERS
from fuzzing.session import SessionReport, fuzz


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=30.0, help="of one turn of a reader")
    parser.add_argument("--seed", type=int, default=1, help="of the first turn")
    parser.add_argument("--only", nargs="*", choices=list(READERS))
    parser.add_argument("--keep", type=Path, default=Path("runs/fuzz"), help="folder for inputs with findings")
    arguments = parser.parse_args()
    totals = {reader: SessionReport(reader) for reader in arguments.only or READERS}
    end_s, seed = time.monotonic() + 60 * arguments.minutes, arguments.seed
    while time.monotonic() < end_s:
        for reader in totals:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            add(totals[reader], fuzz(reader, min(arguments.seconds, left_s), seed, arguments.keep))
        seed += 1
    print(table(list(totals.values())))
    for total in totals.values():
        for finding in total.findings:
            print(f"{total.reader}: {finding['error']} ({finding['file']})")
    sys.exit(any(total.findings for total in totals.values()))


def add(total: SessionReport, report: SessionReport) -> None:
    total.inputs += report.inputs
    total.accepted += report.accepted
    errors = {finding["error"].partition(": ")[0] for finding in total.findings}
    total.findings += [finding for finding in report.findings if finding["error"].partition(": ")[0] not in errors]


def table(reports: list[SessionReport]) -> str:
    """Return the totals as a Markdown table."""
    lines = ["| reader | inputs | read without error | findings |", "| --- | ---: | ---: | ---: |"]
    lines += [
        f"| {report.reader} | {report.inputs:,} | {report.accepted:,} | {len(report.findings)} |" for report in reports
    ]
    inputs = sum(report.inputs for report in reports)
    accepted = sum(report.accepted for report in reports)
    return "\n".join(
        [*lines, f"| all | {inputs:,} | {accepted:,} | {sum(len(report.findings) for report in reports)} |"]
    )


if __name__ == "__main__":
    main()
