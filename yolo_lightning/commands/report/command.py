"""`python -m yolo_lightning report`: a run as one HTML file."""

from pathlib import Path

from yolo_lightning.commands.console import check_writable, writing
from yolo_lightning.commands.monitor.read_run import check_holds_run
from yolo_lightning.commands.report.page import render
from yolo_lightning.commands.report.read_report import read_contents
from yolo_lightning.utils.files import replacing
from yolo_lightning.utils.run_files import REPORT


def report(run: Path, *, output: Path | None = None) -> None:
    """Write a run as one HTML file: curves, scores, months, classes, frames, incidents, configuration, checkpoints.

    Reads only the run folder; works during a run and after its end. The file contains no external references.

    Args:
        run: Run folder.
        output: HTML file to write; null for `report.html` in the run folder.
    """
    path = output or run / REPORT
    check_holds_run(run)
    check_writable(path, ".html")
    with writing(path):
        problems = write_report(run, path)
    print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)", *problems, sep="\ndamaged: ")


def write_report(run: Path, path: Path) -> tuple[str, ...]:
    """Write the report of a run folder to a file, and return a sentence per damaged file."""
    contents = read_contents(run)
    page = render(contents)
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return contents.problems
