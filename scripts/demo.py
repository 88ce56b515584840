"""Draw a small look-alike of LTDv2, train YOLOv8n on it, test and predict, and print the scores and output files."""

import argparse
import json
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.panel import Panel

DATA = Path("runs/demo-data")
RUN = Path("runs/demo")
CONFIG = str(Path(__file__).resolve().parent.parent / "configs" / "demo.yaml")


def main() -> None:
    """Run the demo in the current folder. Imports late, because a spawned loader worker imports this file again."""
    argparse.ArgumentParser(
        description=f"{__doc__} Writes into {DATA} and {RUN} of the current folder; minutes on two CPU cores."
    ).parse_args()
    from yolo_lightning.checkpoints import run_folder
    from yolo_lightning.cli import main as command_line
    from yolo_lightning.data.synthetic import draw_dataset
    from yolo_lightning.utils import run_files

    console = Console()
    started_s = time.monotonic()
    draw_dataset(DATA, progress=True)
    common = ["--config", CONFIG, "--data.root", str(DATA), "--trainer.default_root_dir", str(RUN)]
    for subcommand in ("fit", "test", "predict"):
        console.rule(subcommand)
        sys.argv = [sys.argv[0], subcommand, *common]  # the log contains the command line
        command_line()
    run = run_folder.runs(RUN)[0]
    scores = json.loads((run / run_files.SCORES).read_text())
    rows = {name: f"{value:.4f}" for name, value in scores.items() if name.startswith("test/map")} | {
        "checkpoint": run / run_files.CHECKPOINTS / run_files.BEST_CHECKPOINT,
        "submission": run / run_files.PREDICTIONS,
        "pictures": run / run_files.FRAMES,
        "curves": run / run_files.METRICS,
    }
    text = "\n".join(f"{name:<32}{value}" for name, value in rows.items())
    console.print(Panel(text, title=f"demo finished in {(time.monotonic() - started_s) / 60:.1f} minutes"))


if __name__ == "__main__":
    main()
