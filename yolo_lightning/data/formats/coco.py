"""Reader of plain COCO JSON (`instances_*.json`): any categories and image ids, boxes x, y, width, height in pixels."""

import os
from collections import Counter
from pathlib import Path

import numpy as np

from yolo_lightning.data.formats.annotation_file import COCO_FILE, annotation_arrays, decode
from yolo_lightning.data.formats.annotations import Annotations, distinct_names, encoded, image_shapes, still_images
from yolo_lightning.data.formats.image_ids import image_id_texts
from yolo_lightning.utils.plain_text import one_line

PROBED_IMAGES = 16  # Number of images that are searched for in each candidate folder
NAME_PARTS = ("instances_", "image_info_", "_annotations.coco")
"""Parts of the name of an annotation file that do not belong to the name of its split."""


def read_coco(path: Path) -> Annotations:
    """Read and check a COCO annotation file; the classes are its categories in the order of their ids.

    Crowd regions (`iscrowd`) are left out.
    """
    content = decode(path, COCO_FILE)
    if not content.categories:
        raise ValueError(f"{path}: the list of categories is empty")
    category_id, count = Counter(category.id for category in content.categories).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{path}: ids of categories must be unique, got {count} categories with id {category_id}")
    classes = distinct_names(dict(sorted((category.id, category.name) for category in content.categories)))
    shapes = image_shapes(path, content.images)
    file_names = [image.file_name.replace("\\", "/") for image in content.images]
    positions = image_id_texts(path, [image.id for image in content.images], file_names)
    owner, boxes, labels = annotation_arrays(path, content, positions, list(classes), np.float64)
    single = np.array([not annotation.iscrowd for annotation in content.annotations], dtype=np.bool_)
    crowds = int((~single).sum())
    return still_images(
        encoded(positions),
        [isinstance(image.id, str) for image in content.images],
        file_names,
        shapes,
        owner[single],
        boxes[single].astype(np.float32),
        labels[single],
        tuple(classes.values()),
        tuple(classes),
        notes=(f"{crowds:,} crowd regions left out",) if crowds else (),
    )


def image_folder(annotation_file: Path, root: Path, folders: tuple[str, ...], file_names: list[str]) -> Path:
    """Return the folder of the images of a split: the candidate with most of a few sampled images.

    The candidates are `folders` relative to `root` or, if empty, those of COCO's own layout and of common exporters.
    """
    split = annotation_file.stem
    for part in NAME_PARTS:
        split = split.replace(part, "")
    usual = (split, f"images/{split}", "images", ".", f"{split}/images") if split else ("images", ".")
    beside = annotation_file.parent
    candidates = [root / folder for folder in folders or usual] + ([] if folders else [beside, beside / "images"])
    probed = file_names[:: max(1, len(file_names) // PROBED_IMAGES)]
    found = {folder: sum(os.path.isfile(folder / name) for name in probed) for folder in candidates}
    best = max(found, key=lambda folder: found[folder])
    if not found[best]:
        raise ValueError(
            f"{annotation_file}: found none of its images, such as {one_line(probed[0], 200)!r}, in "
            f"{', '.join(map(str, dict.fromkeys(candidates)))}; set data.image_folders to their folder"
        )
    return best
