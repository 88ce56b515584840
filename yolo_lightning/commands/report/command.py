"""`python -m yolo_lightning report`: a run, or a comparison of several runs, as one HTML file."""

from collections.abc import Sequence
from pathlib import Path

from yolo_lightning.commands.console import check_writable, writing
from yolo_lightning.commands.monitor.read_run import check_holds_run
from yolo_lightning.utils.files import write_bytes
from yolo_lightning.utils.paths import real_path, user_path
from yolo_lightning.utils.run_files import COMPARISON, REPORT


def report(runs: list[Path], *, output: Path | None = None) -> None:
    """Write a run as one HTML file, or compare several runs on one page.

    The page of a run contains curves, scores, months, classes, frames, incidents, configuration and checkpoints. The
    page of several runs contains different options, scores with the intervals of their differences, and curves over
    epochs and training time. Reads only the run folders; works during a run and after its end. The file contains no
    external references.

    Args:
        runs: Run folders. Several runs are compared with the first one.
        output: HTML file to write; null for `report.html` in the run folder, and for `comparison.html` beside the first
            of several run folders.
    """
    runs = [user_path(run) for run in runs]
    for run in runs:
        check_holds_run(run)
    path = None if output is None else user_path(output)
    if path is None and len(runs) == 1:
        path = runs[0] / REPORT
    if path is None:
        path = real_path(runs[0]).parent / COMPARISON
    check_writable(path, ".html")
    with writing(path):
        problems = write_report(runs, path)
    print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)", *problems, sep="\ndamaged: ")


def write_report(runs: Sequence[Path], path: Path) -> list[str]:
    """Write the page of one or more run folders to a file, and return a sentence per damaged file."""
    from yolo_lightning.commands.report.page import render  # imports torch
    from yolo_lightning.commands.report.read_report import read_contents
    from yolo_lightning.commands.report.run_comparison import by_name, render_comparison

    if len(runs) == 1:
        contents = read_contents(runs[0])
        page = render(contents)
        problems = list(contents.problems)
    else:
        compared = by_name(runs)
        page = render_comparison(compared)
        problems = [f"{name}: {problem}" for name, run in compared.items() for problem in run.problems]
    write_bytes(path, page.encode())
    return problems
