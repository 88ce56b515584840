"""Create a small YOLO dataset of tree crowns in aerial photographs, from the example data of a published package.

    pip download --no-deps deepforest==2.1.0
    python scripts/tree_crowns.py deepforest-2.1.0-py3-none-any.whl path/to/tree_crowns

Images: RGB orthophotos with 0.1 m per pixel from NEON's airborne observation platform over Yellowstone, Ordway-Swisher
and Soaproot Saddle, with crowns annotated by hand, in `deepforest/data` of DeepForest 2.1.0 (MIT licence; Weinstein et
al., Remote Sensing 11(11), 1309, 2019). Each photograph belongs to one split, so the splits show different land. A tile
contains the boxes of which it shows a large enough part, clipped to the tile.
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
TILE, STEP = 320, 160  # side of a tile and step between training tiles, pixels
LEAST_SHARE = 0.4  # share of the area of a box that a tile must show
Boxes = npt.NDArray[np.float64]


def main() -> None:
    """Write images, labels and `data.yaml`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="wheel, or folder of the unpacked wheel")
    parser.add_argument("target", type=Path, help="output folder")
    arguments = parser.parse_args()
    package = arguments.package
    root: Path | zipfile.Path = zipfile.Path(package) if package.is_file() else package
    for split, names in PICTURES.items():
        step = STEP if split == "train" else TILE
        tiles = crowns = 0
        for name in names:
            data = np.frombuffer((root / FOLDER / f"{name}.png").read_bytes(), dtype=np.uint8)
            picture = np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR), dtype=np.uint8)
            boxes = read_boxes((root / FOLDER / f"{name}.xml").read_text())
            counts = write_tiles(arguments.target, split, name, picture, boxes, TILE, step)
            tiles, crowns = tiles + len(counts), crowns + sum(counts)
        print(f"{split}: {tiles} tiles, {crowns} boxes")
    (arguments.target / "data.yaml").write_text("path: .\ntrain: images/train\nval: images/val\nnames: {0: tree}\n")


def read_boxes(text: str) -> Boxes:
    """Return the boxes of all classes of a Pascal VOC file, `(N, 4)` xyxy in pixels of the image."""
    sides = ("xmin", "ymin", "xmax", "ymax")
    boxes = [[float(box.findtext(side, "")) for side in sides] for box in ElementTree.fromstring(text).iter("bndbox")]
    return np.array(boxes, dtype=np.float64).reshape(-1, 4)


def write_tiles(
    target: Path, split: str, name: str, picture: npt.NDArray[np.uint8], boxes: Boxes, tile: int, step: int
) -> list[int]:
    """Write the tiles of an image and their labels; return the number of boxes of each tile."""
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
    """Return the starts of the tiles along one side; less than half of the last tile may be outside."""
    return [start for start in range(0, length, step) if start == 0 or length - start > tile // 2]


if __name__ == "__main__":
    main()
