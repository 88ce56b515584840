"""`report`: a run as one HTML file."""

from pathlib import Path

from yolo_lightning.commands.report.page import render
from yolo_lightning.commands.report.read_report import read_contents
from yolo_lightning.utils.files import replacing
from yolo_lightning.utils.run_files import REPORT


def report(run: Path, *, output: Path | None = None) -> None:
    """Write a run as one HTML file: curves, scores, months, classes, frames, incidents, configuration, checkpoints.

    Reads the run folder only; works during and after a run. The file refers to nothing outside itself.

    Args:
        run: Run folder.
        output: File to write; `report.html` in the run folder where null.

    Raises:
        ValueError: If the folder holds no run, or the file cannot be written.
    """
    page = render(read_contents(run))
    path = run / REPORT if output is None else output
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror}): choose another --output") from error
    print(f"{path} ({len(page.encode()) / 1e6:.1f} MB)")
