"""Draw a look-alike of LTDv2, train YOLOv8n, test, predict; print scores, files and next commands."""

import argparse
import json
import re
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.panel import Panel

DATA = Path("runs/demo-data")
RUN = Path("runs/demo")
CONFIG = str(Path(__file__).resolve().parent.parent / "configs" / "demo.yaml")
EXTREMES = {"best": max, "worst": min}
LABEL_WIDTH = 25


def main() -> None:
    """Run the demo in the current folder. Imports late, because a spawned loader worker imports this file again."""
    argparse.ArgumentParser(
        description=f"{__doc__} Writes into {DATA} and {RUN} of the current folder; minutes on two CPU cores."
    ).parse_args()
    from synthetic import draw_dataset

    from yolo_lightning.checkpoints import run_folder
    from yolo_lightning.cli import main as command_line
    from yolo_lightning.utils import run_files
    from yolo_lightning.utils.stop_signals import request

    request.install()  # Ctrl-C saves a checkpoint, as in the command `fit`
    console = Console()
    started_s = time.monotonic()
    draw_dataset(DATA, progress=True)
    common = ["--config", CONFIG, "--data.root", str(DATA), "--trainer.default_root_dir", str(RUN)]
    for command in ("fit", "test", "predict"):
        words = common
        if command != "fit":
            run = run_folder.runs(RUN)[0]
            best = run / run_files.CHECKPOINTS / run_files.BEST_CHECKPOINT
            words = [*common, "--ckpt_path", str(best)]
        console.rule(command)
        sys.argv[1:] = [command, *words]  # the log contains the command line
        command_line(sys.argv[1:])
    console.print(
        Panel(closing_block(run, best), title=f"demo finished in {(time.monotonic() - started_s) / 60:.1f} minutes")
    )


def closing_block(run: Path, best: Path) -> str:
    """Return five lines of scores, files and next commands."""
    from yolo_lightning.evaluation.score_table import score_text
    from yolo_lightning.utils import run_files

    scores = json.loads((run / run_files.SCORES).read_text())
    of_months = {name for name in scores if re.fullmatch(r"test/map_50/\d{4}-\d\d", name)}
    months = {name: scores[name] for name in of_months if scores[name] is not None}  # none without an object
    named = {"mAP50-95": "test/map", "mAP50": "test/map_50", "balanced": "test/balanced"}
    named |= {f"mAP50 of the {text} month": choose(months, key=months.__getitem__) for text, choose in EXTREMES.items()}
    rows = {
        label: f"{score_text(scores[name])}  {name.partition('map_50/')[2]}".rstrip() for label, name in named.items()
    }
    files = {"checkpoint": best, "submission": run / run_files.PREDICTIONS, "report": run / run_files.REPORT}
    rows |= {name: str(path) for name, path in files.items()}
    lines = [f"{name:<{LABEL_WIDTH}}{value}" for name, value in rows.items()]
    program = "python -m yolo_lightning"
    lines += ["next:", f"  {program} report {run}", f"  {program} predict PICTURES --run {run}"]
    lines += [f"  {program} fit --config yolo --data.format path/to/data.yaml"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
