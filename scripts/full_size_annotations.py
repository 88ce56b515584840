"""Write an annotation file as large as the real Train.json (about 1 GB) without frames, to measure the index.

`python scripts/full_size_annotations.py FOLDER/Train.json` takes about 15 s.
"""

import argparse
import sys
from pathlib import Path

from yolo_lightning.data.synthetic.full_size import BOXES, IMAGES, write_full_size


def main(arguments: list[str] | None = None) -> int:
    """Write the file and print its size; return exit code 2 for invalid arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, metavar="PATH", help="JSON file to write; its folder is created")
    parser.add_argument("--images", type=int, default=IMAGES, help="number of images (default: %(default)s)")
    parser.add_argument("--boxes", type=int, default=BOXES, help="number of boxes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        options.path.parent.mkdir(parents=True, exist_ok=True)
        write_full_size(options.path, options.images, options.boxes, options.seed)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{options.path}: {options.path.stat().st_size:,} bytes, {options.images:,} images, {options.boxes:,} boxes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
