"""The command `python -m yolo_lightning.data.synthetic ROOT`."""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from yolo_lightning.data.synthetic.drawn_dataset import draw_dataset
from yolo_lightning.data.synthetic.objects import CLASS_NAMES
from yolo_lightning.data.synthetic.scene import REFERENCE_HEIGHT, REFERENCE_WIDTH


def main(arguments: list[str] | None = None) -> int:
    """Draw a dataset and print what it holds; the exit status is 2 when the arguments or the root are refused."""
    parser = argparse.ArgumentParser(
        prog="python -m yolo_lightning.data.synthetic",
        description="Draw a small look-alike of LTDv2 in its official layout.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("root", type=Path, metavar="ROOT", help="new or empty folder to draw into")
    parser.add_argument("--train-frames", type=int, default=480, help="frames of Train.json")
    parser.add_argument("--valid-frames", type=int, default=96, help="frames of Valid.json")
    parser.add_argument("--test-frames", type=int, default=48, help="frames of TestNoLabels.json")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawing")
    parser.add_argument("--width", type=int, default=REFERENCE_WIDTH, help="pixels")
    parser.add_argument("--height", type=int, default=REFERENCE_HEIGHT, help="pixels")
    try:
        summary = draw_dataset(**vars(parser.parse_args(arguments)), progress=True)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    table = Table("split", "frames", *CLASS_NAMES, title=str(summary.root))
    for split, frames in summary.frames.items():
        table.add_row(split, str(frames), *(str(summary.boxes[split][name]) for name in CLASS_NAMES))
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
