"""Make a small YOLO dataset of tree crowns, in colour from the air, out of the example data of a published package.

    pip download --no-deps deepforest==2.1.0
    python scripts/tree_crowns.py deepforest-2.1.0-py3-none-any.whl path/to/tree_crowns

Pictures: RGB orthophotos of 0.1 m per pixel from NEON's airborne observation platform over Yellowstone, Ordway-Swisher
and Soaproot Saddle, with crowns boxed by hand; they are in `deepforest/data` of DeepForest 2.1.0 (MIT licence;
Weinstein et al., Remote Sensing 11(11), 1309, 2019). Whole pictures go to one split: tiles of training and validation
show different land. A box is kept in a tile that shows enough of it, clipped to the tile.
"""

import argparse
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import cv2
import numpy as np
import numpy.typing as npt

PICTURES = {
    "train": ("2019_YELL_2_528000_4978000_image_crop2", "OSBS_029", "SOAP_061"),
    "val": ("2019_YELL_2_541000_4977000_image_crop",),
}
FOLDER = "deepforest/data"
LEAST_SHARE = 0.4
"""Of a box's area that a tile must show."""

Boxes = npt.NDArray[np.float64]


def main() -> None:
    """Write images, labels and `data.yaml`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="the wheel, or its unpacked folder")
    parser.add_argument("target", type=Path, help="folder to write; made")
    parser.add_argument("--tile", type=int, default=320, help="side of a tile, pixels")
    parser.add_argument("--step", type=int, default=160, help="from one training tile to the next, pixels")
    arguments = parser.parse_args()
    root: Path | zipfile.Path = arguments.package
    if arguments.package.is_file():
        root = zipfile.Path(arguments.package)
    for split, names in PICTURES.items():
        step = arguments.step if split == "train" else arguments.tile
        tiles = crowns = 0
        for name in names:
            data = np.frombuffer((root / FOLDER / f"{name}.png").read_bytes(), dtype=np.uint8)
            picture = np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR), dtype=np.uint8)
            boxes = read_boxes((root / FOLDER / f"{name}.xml").read_text())
            counts = write_tiles(arguments.target, split, name, picture, boxes, arguments.tile, step)
            tiles, crowns = tiles + len(counts), crowns + sum(counts)
        print(f"{split}: {tiles} tiles, {crowns} boxes")
    (arguments.target / "data.yaml").write_text("path: .\ntrain: images/train\nval: images/val\nnames: {0: tree}\n")


def read_boxes(text: str) -> Boxes:
    """Boxes of a Pascal VOC file, `(N, 4)` xyxy in pixels of the picture, of whatever class."""
    sides = ("xmin", "ymin", "xmax", "ymax")
    boxes = [[float(box.findtext(side, "")) for side in sides] for box in ElementTree.fromstring(text).iter("bndbox")]
    return np.array(boxes, dtype=np.float64).reshape(-1, 4)


def write_tiles(
    target: Path, split: str, name: str, picture: npt.NDArray[np.uint8], boxes: Boxes, tile: int, step: int
) -> list[int]:
    """Write the tiles of a picture with their labels; returns the number of boxes of each."""
    for kind in ("images", "labels"):
        (target / kind / split).mkdir(parents=True, exist_ok=True)
    counts = []
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    for top in starts(picture.shape[0], tile, step):
        for left in starts(picture.shape[1], tile, step):
            cut = picture[top : top + tile, left : left + tile]
            size = np.array([cut.shape[1], cut.shape[0]])
            clipped = np.clip(boxes - np.array([left, top] * 2), 0, np.tile(size, 2))
            sides = clipped[:, 2:] - clipped[:, :2]
            shown = sides.prod(1) >= LEAST_SHARE * areas
            shares = np.hstack([(clipped[:, :2] + sides / 2) / size, sides / size])[shown]
            stem = f"{name}_{top}_{left}"
            cv2.imwrite(str(target / "images" / split / f"{stem}.png"), cut)
            lines = ["0 " + " ".join(f"{value:.6f}" for value in row) + "\n" for row in shares]
            (target / "labels" / split / f"{stem}.txt").write_text("".join(lines))
            counts.append(len(lines))
    return counts


def starts(length: int, tile: int, step: int) -> list[int]:
    """Where tiles begin along one side; the last may be cut off, but by less than half."""
    return [start for start in range(0, length, step) if start == 0 or length - start > tile // 2]


if __name__ == "__main__":
    main()
