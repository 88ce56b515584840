"""Draw the scores of each epoch over processor time, a panel per dataset.

    python scripts/draw_curves.py HIT-UAV=runs/compare/curves.csv trees=runs/trees/curves.csv --output curves.svg

A file is the `curves.csv` of a work folder of scripts/compare_ultralytics.py. Lines are means over the seeds, areas
their range.
"""

import argparse
from pathlib import Path

from comparison.curves import draw_curves, read_curves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("panels", nargs="+", metavar="TITLE=CSV")
    parser.add_argument("--output", type=Path, required=True, help="SVG file")
    arguments = parser.parse_args()
    panels = {}
    for panel in arguments.panels:
        title, _, path = panel.partition("=")
        panels[title] = read_curves(Path(path))
    arguments.output.write_text(draw_curves(panels))


if __name__ == "__main__":
    main()
