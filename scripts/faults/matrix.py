"""Runs the cases of the matrix, several at a time, and prints their verdicts."""

import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from common import markdown_table
from synthetic import draw_dataset

from faults import traces
from faults.judge import FinalState, Verdict, judge
from faults.run import EPOCHS, FAULTS, ROOT_VARIABLE, STEPS_PER_EPOCH, TRAIN_FRAMES, VALID_FRAMES, Case, Run

COLUMNS = ("row", "fault", "noticed (s)", "reported", "steps lost", "next step (s)", "left behind", "exit", "verdict")
PAGE = """# Fault injection: measured results

Written by `python scripts/inject_faults.py --write {path}`. Each row is a supervised fit on a small synthetic dataset
({steps} steps, one thread, phase timeouts of seconds) with real processes and signals. The text of a row names what is
simulated.

- *noticed*: time from the fault to the report.
- *reported*: the first {width} characters; `incident.json` of a run contains the whole report.
- *steps lost*: steps that are repeated after the restart.
- *next step*: time from the decision to restart to the next completed step.
- *left behind*: processes, files in /dev/shm and temporary files that remain after the run.
- *verdict*: a pass means that all of these are within their limits and that the exit codes are the documented ones.
  Unless the fault changes the data, weights, averaged weights, optimizer and metrics are also equal to those of an
  uninterrupted run, bit for bit.

"""


def prepare(root: Path) -> None:
    """Draw the datasets of all cases and compile the C sources."""
    sizes: dict[str, Any] = {"train_frames": TRAIN_FRAMES, "valid_frames": VALID_FRAMES, "test_frames": 4}
    draw_dataset(root / "data", width=96, height=64, **sizes)
    draw_dataset(root / "other-data", width=96, height=64, seed=1, **sizes)
    shutil.copytree(root / "data", root / "damaged-data")
    sorted((root / "damaged-data" / "frames").rglob("*.jpg"))[7].write_bytes(b"this is no image")
    if compiler := shutil.which("cc"):
        for name in ("hang", "system_calls"):
            files = ["-o", str(root / f"{name}.so"), str(FAULTS / f"{name}.c")]
            subprocess.run([compiler, "-shared", "-fPIC", "-O0", *files, "-ldl"], check=True)


def reference(root: Path, epochs: int) -> FinalState:
    """Return the final state of an uninterrupted run without a supervisor; raise RuntimeError if that run fails."""
    run = Run(Case("reference", "none", config={"supervision.enabled": False, "trainer.max_epochs": epochs}), root)
    run.carry_out()
    verdict = judge(run, None)
    if verdict.wrong:
        raise RuntimeError(f"the run without a fault failed: {'; '.join(verdict.wrong)}\n{run.output()}")
    return FinalState.read(run.run_folder)


REPORT_WIDTH = 80
"""Characters of a report in the page."""
BY_HAND = "\n## Random faults"  # beginning of the part of the page that is not generated


Judge = Callable[[Run, FinalState | None], Verdict]


def _run_case(case: Case, root: Path, expected: FinalState, judge_case: Judge, keep: bool) -> Verdict:
    """Run and judge one case. Its files are deleted unless the case failed and `keep` is set."""
    if reason := case.unavailable():
        return Verdict(case.name, case.fault, skipped=reason)
    begin_s = time.monotonic()
    run = Run(case, root)
    try:
        run.carry_out()
        verdict = judge_case(run, expected)
    except Exception as error:  # a failed injection or an unforeseen state must not end the other cases
        run.kill()
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"could not be judged: {error!r} in {place.name}, line {place.lineno} of {place.filename}"
        verdict = Verdict(case.name, case.fault, wrong=(reason,))
    finally:
        case.clean_up(run)
    if verdict.wrong and keep:
        (run.folder / "output.txt").write_text(run.output())
    else:
        shutil.rmtree(run.folder, ignore_errors=True)
    return replace(verdict, took_s=time.monotonic() - begin_s)


def run_cases(
    cases: Sequence[Case], root: Path, *, at_a_time: int, keep: bool, epochs: int, judge_case: Judge = judge
) -> list[Verdict]:
    """Run `at_a_time` cases side by side, the longest first; print the verdicts and return them in the given order."""
    prepare(root)
    expected = reference(root, epochs)
    verdicts: dict[str, Verdict] = {}
    with ThreadPoolExecutor(at_a_time) as pool:
        longest_first = sorted(cases, key=lambda case: -len(case.reports) - len(case.codes))
        waiting = [pool.submit(_run_case, case, root, expected, judge_case, keep) for case in longest_first]
        try:
            for future in as_completed(waiting):
                verdict = future.result()
                verdicts[verdict.name] = verdict
                print(line(verdict), file=sys.stderr, flush=True)
        except BaseException:  # also Ctrl-C
            pool.shutdown(wait=False, cancel_futures=True)
            while traces.end_marked(ROOT_VARIABLE, str(root)):
                time.sleep(0.5)  # a process may have been starting
            raise
    return [verdicts[case.name] for case in cases]


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def cells(verdict: Verdict) -> tuple[str, ...]:
    """Return the texts of a row, in the order of `COLUMNS`."""
    failed = f"FAIL: {'; '.join(verdict.wrong)}" if verdict.wrong else "pass"
    return (
        verdict.name,
        verdict.fault,
        _format_number(verdict.noticed_s),
        verdict.reported.partition(" Original Traceback")[0] or "-",  # of a worker, with all its lines
        _format_number(verdict.lost_steps),
        _format_number(verdict.recovered_s),
        ", ".join(verdict.leftovers) or ("-" if verdict.skipped else "none"),
        ", ".join(map(str, verdict.codes)) or "-",
        f"skipped: {verdict.skipped}" if verdict.skipped else failed,
    )


def line(verdict: Verdict) -> str:
    """Return a verdict in one line."""
    values = [f"{name} {value}" for name, value in zip(COLUMNS, cells(verdict), strict=True)]
    return f"{'; '.join(values)}; took {verdict.took_s:.0f} s"


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the result table in Markdown, the number of passed cases and the names of the others."""
    failed = [verdict.name for verdict in verdicts if verdict.wrong]
    skipped = [verdict.name for verdict in verdicts if verdict.skipped]
    text = f"{len(verdicts) - len(failed) - len(skipped)} of {len(verdicts)} passed"
    text += f", failed: {', '.join(failed)}" if failed else ""
    text += f", skipped: {', '.join(skipped)}" if skipped else ""
    rows = [
        cells(replace(verdict, reported=shorten(verdict.reported, REPORT_WIDTH, placeholder=" ...")))
        for verdict in verdicts
    ]
    return f"{markdown_table(COLUMNS, rows)}\n\n{text}"


def write_page(path: Path, verdicts: Sequence[Verdict], took_s: float) -> None:
    """Write the page of the documentation; the sections that are written by hand are kept."""
    head = PAGE.format(path=path, steps=EPOCHS * STEPS_PER_EPOCH, width=REPORT_WIDTH)
    _, heading, by_hand = (path.read_text() if path.is_file() else "").partition(BY_HAND)
    path.write_text(f"{head}{table(verdicts)}, in {took_s / 60:.0f} minutes.\n{heading}{by_hand}")
