"""Reads plain COCO JSON (`instances_*.json`): any categories, any image ids, boxes as x, y, width, height in pixels."""

from collections import Counter
from pathlib import Path, PurePosixPath

import numpy as np

from yolo_lightning.data.formats.annotation_file import COCO_FILE, AnnotationRecord, CategoryRecord, decode
from yolo_lightning.data.formats.annotations import (
    Annotations,
    Boxes,
    Integers,
    check_images,
    distinct_names,
    still_images,
)
from yolo_lightning.data.formats.image_ids import id_text, image_id_texts, unknown_image_hint

PROBED_IMAGES = 16
"""Files looked for in each folder that may hold a split's images."""

NAME_PARTS = ("instances_", "image_info_", "_annotations.coco")
"""What names of annotation files add to that of their split."""


def read_coco(path: Path) -> Annotations:
    """Read and check one annotation file; classes are its categories in the order of their ids.

    Crowd regions (`iscrowd`) are left out. Boxes that leave the frame are clipped, those of no size dropped.

    Raises:
        ValueError: If the file is missing or is not a COCO detection file; the message names file and record.
    """
    content = decode(path, COCO_FILE)
    classes = class_table(path, content.categories)
    check_images(path, content.images)
    file_names = [image.file_name.replace("\\", "/") for image in content.images]
    positions = image_id_texts(path, [image.id for image in content.images], file_names)
    owner, boxes, labels, crowds = box_arrays(path, content.annotations, positions, list(classes))
    return still_images(
        image_ids=list(positions),
        text_ids=[isinstance(image.id, str) for image in content.images],
        file_names=file_names,
        shapes=np.array([(image.height, image.width) for image in content.images], dtype=np.int32),
        owner=owner,
        boxes=boxes,
        labels=labels,
        class_names=tuple(classes.values()),
        category_ids=tuple(classes),
        notes=(f"{crowds:,} crowd regions left out",) if crowds else (),
    )


def class_table(path: Path, categories: list[CategoryRecord]) -> dict[int, str]:
    """Class names by category id, ascending.

    Raises:
        ValueError: If there is none, or an id occurs twice.
    """
    if not categories:
        raise ValueError(f"{path}: the list of categories is empty")
    identifier, count = Counter(one.id for one in categories).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{path}: {count} categories have the id {identifier}, allowed is one")
    return distinct_names({one.id: one.name for one in sorted(categories, key=lambda one: one.id)})


def box_arrays(
    path: Path, annotations: list[AnnotationRecord], positions: dict[str, int], category_ids: list[int]
) -> tuple[Integers, Boxes, Integers, int]:
    """Owner image, xyxy box and class of every annotation that is no crowd region, and the number of those.

    Raises:
        ValueError: If an annotation names an unknown image or category.
    """
    label_of = {identifier: label for label, identifier in enumerate(category_ids)}
    owner, boxes, labels = [], [], []
    for number, annotation in enumerate(annotations):
        position = positions.get(id_text(annotation.image_id) or "")
        if position is None:
            raise ValueError(
                f"{path}: annotations[{number}] belongs to unknown image_id {annotation.image_id}"
                + unknown_image_hint(annotation.image_id, positions)
            )
        label = label_of.get(annotation.category_id)
        if label is None:
            raise ValueError(
                f"{path}: annotations[{number}] has category_id {annotation.category_id}, "
                f"the file's categories have the ids {', '.join(map(str, category_ids))}"
            )
        if not annotation.iscrowd:
            owner.append(position)
            boxes.append(annotation.bbox)
            labels.append(label)
    corners = np.array(boxes, dtype=np.float64).reshape(-1, 4)
    corners[:, 2:] += corners[:, :2]
    return (
        np.array(owner, dtype=np.int64),
        corners.astype(np.float32),
        np.array(labels, dtype=np.int64),
        len(annotations) - len(owner),
    )


def image_folder(annotation_file: Path, root: Path, folders: tuple[str, ...], file_names: list[str]) -> Path:
    """The folder that a split's file names are relative to.

    Looked for are `folders`, then what COCO's own layout and common exporters use. The first folder that holds all of
    some names spread over the split is taken, else the one that holds most of them.

    Args:
        annotation_file: The split's JSON file.
        root: Dataset folder.
        folders: What the user names, relative to `root`.
        file_names: Of the split's images.

    Raises:
        ValueError: If no folder holds one of them; the message names all that were looked into.
    """
    split = annotation_file.stem
    for part in NAME_PARTS:
        split = split.replace(part, "")
    usual = (split, f"images/{split}", "images", ".", f"{split}/images") if split else ("images", ".")
    candidates = [root / folder for folder in folders] or [
        *(root / folder for folder in usual),
        annotation_file.parent,
        annotation_file.parent / "images",
    ]
    probed = file_names[:: max(1, len(file_names) // PROBED_IMAGES)]
    found = {folder: sum((folder / PurePosixPath(name)).is_file() for name in probed) for folder in candidates}
    best = max(found, key=lambda folder: found[folder])
    if not found[best]:
        raise ValueError(
            f"{annotation_file}: its images, such as {probed[0]!r}, are in none of "
            f"{', '.join(map(str, dict.fromkeys(candidates)))}: name their folder with data.image_folders"
        )
    return best
