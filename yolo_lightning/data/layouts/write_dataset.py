"""Splits of a dataset from the layout of another tool, and the writer of its data.yaml, images and label files."""

import os
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import yaml

from yolo_lightning.data.boxes import corners_to_centres
from yolo_lightning.data.formats.annotations import IMAGE_NUMBER, Annotations
from yolo_lightning.data.formats.yolo_description import FILE_NAME
from yolo_lightning.data.formats.yolo_files import stem
from yolo_lightning.data.index.splits import of_each_month
from yolo_lightning.data.layouts.labelled_folder import SPLITS, path_parts
from yolo_lightning.data.layouts.source_dataset import Advance
from yolo_lightning.data.left_out_files import suffix
from yolo_lightning.errors import UserError
from yolo_lightning.utils.files import replacing

ROBOFLOW_HASH = re.compile(r"\.rf\..*")  # of augmented copies of one image
PARTS_OF_SHARE = 4  # Places of a long sequence that are held out


def held_out(files: Sequence[str], share: float) -> list[str]:
    """Return about a share of the images for validation, in sequences: consecutive frames are near duplicates.

    A sequence consists of the images of a folder whose names differ in their last number only. A sequence with more
    images than the share is divided into parts of consecutive images, a quarter of the share each, so that the
    validation shows more than one place.
    """
    base = os.path.commonpath([os.path.dirname(file) for file in files])
    sequences: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    for file in files:
        name = ROBOFLOW_HASH.sub("", stem(os.path.relpath(file, base or ".")))
        match = IMAGE_NUMBER.search(name)
        number = int(match[1]) if match else 0
        sequences[name[: match.start()] if match else name].append((number, name, file))
    longest = max(1, round(share * len(files)))
    groups: dict[str, list[str]] = defaultdict(list)
    for name, images in sequences.items():
        length = longest
        if len(images) > longest:
            length = max(1, round(longest / PARTS_OF_SHARE))
        numbers = Counter(number for number, _, _ in images)
        is_year = max(numbers.values()) > longest  # or another number that does not count the images
        first_positions: dict[int | str, int] = {}  # copies of one image have one number and name
        for position, (number, image_name, file) in enumerate(sorted(images)):
            first_position = first_positions.setdefault(image_name if is_year else number, position)
            groups[f"{name}/{first_position // length}"].append(file)
    names = sorted(groups)
    if len(names) < 2:
        raise UserError(f"a training and a validation image are needed, got {len(files)} images")
    chosen = of_each_month(names, np.zeros(len(names), np.int32), share).tolist()
    return [file for position in chosen[: len(names) - 1] for file in groups[names[position]]]


def write_dataset(
    target: Path, root: Path, annotations: Annotations, splits: Mapping[str, str], advance: Advance
) -> int:
    """Write a dataset to a new or empty folder; return the number of images that were copied.

    The folder is written beside `target` and renamed, so that it is complete or absent. Images are hard links where
    the file system allows them, else copies.

    Args:
        target: Folder to write.
        root: Folder of the images.
        annotations: Boxes of the images; file names are relative to `root`.
        splits: Split of each image by file name.
        advance: Called with 1 after each image.
    """
    copies = 0
    names = _new_names(splits)
    try:
        with replacing(target, durable=False) as temporary:
            for position, encoded_name in enumerate(annotations.file_names.tolist()):
                file = encoded_name.decode()
                image = temporary / "images" / names[file]
                label = (temporary / "labels" / names[file]).with_suffix(".txt")
                image.parent.mkdir(parents=True, exist_ok=True)
                label.parent.mkdir(parents=True, exist_ok=True)
                copies += _link_or_copy(os.path.realpath(root / file), image)
                label.write_text(_label_lines(annotations, position))
                advance(1)
            content = {split: f"images/{split}" for split in dict.fromkeys(SPLITS.values()) if split in splits.values()}
            description = content | {"names": dict(enumerate(annotations.facts.class_names))}
            (temporary / FILE_NAME).write_text(yaml.safe_dump(description, sort_keys=False, allow_unicode=True))
    except OSError as error:
        raise UserError(f"cannot write {target}: {error}") from error
    return copies


def _label_lines(annotations: Annotations, position: int) -> str:
    """Return the content of the label file of an image."""
    part = slice(*annotations.box_offsets[position : position + 2])
    boxes = annotations.boxes[part] / np.tile(annotations.shapes[position][::-1], 2)
    rows = zip(annotations.labels[part].tolist(), corners_to_centres(boxes).tolist(), strict=True)
    return "".join(f"{number} {' '.join(f'{x:.9g}' for x in box)}\n" for number, box in rows)


def _link_or_copy(source: str, target: Path) -> bool:
    """Return whether a file had to be copied, because it cannot have a second name in the folder of `target`."""
    try:
        os.link(source, target)
    except OSError:  # another file system, a file of another user, or a file system without links
        shutil.copyfile(source, target)
        return True
    return False


def _new_names(splits: Mapping[str, str]) -> dict[str, str]:
    """Return the path of each image below `images`, unique without suffix, because its label has the same name."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for file, split in splits.items():
        name = "/".join((split, *path_parts(file)))  # without a folder `images`, whose last one becomes `labels`
        while name in taken:
            name += "_"
        taken.add(name)
        names[file] = name + suffix(file)
    return names
