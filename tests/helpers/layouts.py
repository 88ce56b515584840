"""Datasets in the layouts of other tools, from images and boxes that a test chooses."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

import cv2
import numpy as np

CLASSES = ("car", "person & dog")
Boxes = Sequence[tuple[int, float, float, float, float]]
"""Class number, x1, y1, x2, y2 in pixels."""
Images = Mapping[str, tuple[tuple[int, int], Boxes]]
"""Width, height and boxes by the path of an image."""


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def draw(root: Path, images: Images, folder: str = "") -> None:
    for position, (name, ((width, height), _)) in enumerate(images.items()):
        path = root / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(position).integers(0, 256, (height, width, 3), dtype=np.uint8)
        assert cv2.imwrite(str(path), pixels)


def stem(name: str) -> str:
    return name.rpartition(".")[0]


def write_voc(root: Path, images: Images, first_pixel: int = 1) -> None:
    draw(root, images, "JPEGImages")
    for name, ((width, height), boxes) in images.items():
        objects = "".join(
            f"<object><name>{CLASSES[label].replace('&', '&amp;')}</name><bndbox><xmin>{x1 + first_pixel:g}</xmin>"
            f"<ymin>{y1 + first_pixel:g}</ymin><xmax>{x2:g}</xmax><ymax>{y2:g}</ymax></bndbox></object>"
            for label, x1, y1, x2, y2 in boxes
        )
        size = f"<size><width>{width}</width><height>{height}</height></size>"
        write_text(root / "Annotations" / f"{stem(name)}.xml", f"<annotation>{size}{objects}</annotation>")


def write_csv(root: Path, images: Images) -> None:
    draw(root, images)
    rows = ["filename,width,height,class,xmin,ymin,xmax,ymax"]
    for name, ((width, height), boxes) in images.items():
        rows += [f"{name},{width},{height},{CLASSES[label]},{','.join(map(str, box))}" for label, *box in boxes]
        if not boxes:
            rows.append(f"{name},{width},{height},,,,,")
    write_text(root / "annotations.csv", "\n".join(rows))


def write_csv_with_sides(root: Path, images: Images) -> None:
    draw(root, images, "pictures")
    rows = ["Image Name;Label;X;Y;Width;Height"]
    for name, (_, boxes) in images.items():
        rows += [f"C:\\data\\{name};{CLASSES[label]};{x};{y};{x2 - x};{y2 - y}" for label, x, y, x2, y2 in boxes]
        if not boxes:
            rows.append(f"C:\\data\\{name};;;;;")
    write_text(root / "boxes.csv", "\n".join(rows))


def label_lines(size: tuple[int, int], boxes: Boxes) -> str:
    width, height = size
    lines = [
        f"{label} {(x1 + x2) / 2 / width:.12f} {(y1 + y2) / 2 / height:.12f} {(x2 - x1) / width:.12f} "
        f"{(y2 - y1) / height:.12f}\n"
        for label, x1, y1, x2, y2 in boxes
    ]
    return "".join(lines)


def write_darknet(root: Path, images: Images) -> None:
    """As CVAT's export YOLO 1.1."""
    draw(root, images, "obj_train_data")
    for name, (size, boxes) in images.items():
        write_text(root / "obj_train_data" / f"{stem(name)}.txt", label_lines(size, boxes))
    write_text(root / "obj.names", "".join(f"{name}\n" for name in CLASSES))
    write_text(root / "obj.data", "classes = 2\ntrain = data/train.txt\nnames = data/obj.names\nbackup = backup/\n")
    write_text(root / "train.txt", "".join(f"data/obj_train_data/{name}\n" for name in images))


def write_label_files(root: Path, images: Images) -> None:
    """As Label Studio's export YOLO."""
    draw(root, images, "images")
    for name, (size, boxes) in images.items():
        write_text(root / "labels" / f"{stem(name)}.txt", label_lines(size, boxes))
    write_text(root / "classes.txt", "\n".join(CLASSES))


def write_one_image(root: Path, lines: str) -> None:
    """Write a data.yaml with one class, and one image with the lines of its label file."""
    draw(root, {"a.png": ((32, 32), ())})
    write_text(root / "a.txt", lines)
    write_text(root / "data.yaml", "train: .\nval: .\nnames: [car]\n")


def write_cvat(root: Path, images: Images) -> None:
    draw(root, images, "images/default")
    labels = "".join(f"<label><name>{name.replace('&', '&amp;')}</name></label>" for name in CLASSES)
    content = [f"<annotations><meta><task><labels>{labels}</labels></task></meta>"]
    for name, ((width, height), boxes) in images.items():
        content.append(f'<image name={quoteattr(name)} width="{width}" height="{height}">')
        content += [
            f'<box label={quoteattr(CLASSES[label])} occluded="0" xtl="{x1}" ytl="{y1}" xbr="{x2}" ybr="{y2}"/>'
            for label, x1, y1, x2, y2 in boxes
        ]
        content.append("</image>")
    write_text(root / "annotations.xml", "\n".join([*content, "</annotations>"]))


def regions(size: tuple[int, int], boxes: Boxes) -> list[dict[str, object]]:
    width, height = size
    return [
        {
            "x": 100 * x1 / width,
            "y": 100 * y1 / height,
            "width": 100 * (x2 - x1) / width,
            "height": 100 * (y2 - y1) / height,
            "rotation": 0,
            "rectanglelabels": [CLASSES[label]],
        }
        for label, x1, y1, x2, y2 in boxes
    ]


def write_label_studio(root: Path, images: Images) -> None:
    draw(root, images, "media")
    tasks = [
        {
            "data": {"image": f"/data/local-files/?d=media/{name}"},
            "annotations": [{"result": [{"type": LABELS, "value": region} for region in regions(size, boxes)]}],
        }
        for name, (size, boxes) in images.items()
    ]
    write_text(root / "project.json", json.dumps(tasks))


def write_label_studio_min(root: Path, images: Images) -> None:
    draw(root, images)
    tasks = [
        {"image": f"/data/upload/1/01abcdef-{name}", "id": number, "label": regions(size, boxes)}
        for number, (name, (size, boxes)) in enumerate(images.items())
    ]
    write_text(root / "project.json", json.dumps(tasks))


LABELS = "rectanglelabels"
WRITERS: dict[str, Callable[[Path, Images], None]] = {
    "Pascal VOC XML": write_voc,
    "CSV": write_csv,
    "CSV with sides": write_csv_with_sides,
    "Darknet": write_darknet,
    "images and label files": write_label_files,
    "CVAT for images": write_cvat,
    "Label Studio JSON": write_label_studio,
    "Label Studio JSON-MIN": write_label_studio_min,
}
