"""Boxes of a dataset in the layout of another tool, in pixels of its images."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from yolo_lightning.data.formats.annotations import Annotations, still_images
from yolo_lightning.data.formats.yolo import READERS, image_shape
from yolo_lightning.data.layouts.labelled_folder import SAME_NAME, LabelledFolder, LabelledImage, SourceFolder, paired
from yolo_lightning.data.left_out_files import suffix
from yolo_lightning.data.storage.pillow_images import HEIF_SUFFIXES, NEEDS_HEIF, reads_heif
from yolo_lightning.errors import UserError

UNNAMED = "unnamed"  # Class of boxes without a class name

Advance = Callable[[int], None]
"""Function that receives the number of images that have been read or written since its last call."""


@dataclass
class SourceDataset:
    """Boxes of all images that can be used."""

    layout: str
    annotations: Annotations  # File names are relative to the folder
    splits: Mapping[str, str] = field(default_factory=dict)  # Stated by annotations, by file name
    notes: dict[str, list[str]] = field(default_factory=dict)  # Examples by what was left out or changed


def located(folder: SourceFolder, labelled: LabelledFolder, advance: Advance) -> SourceDataset:
    """Return the boxes of the annotated images of a folder, in pixels; images without an annotation are left out."""
    images = _matched(folder, labelled)
    advance(len(folder.images) - len(images))
    names = {name or UNNAMED for image in images.values() for name in image.class_names}
    class_names = [*labelled.class_names, *sorted(names.difference(labelled.class_names))]
    numbers = {name: number for number, name in enumerate(class_names)}
    shapes: dict[str, tuple[int, int]] = {}  # Height and width of the usable images
    rows: list[tuple[float, ...]] = []  # Position of the image, class and four numbers of each box
    with ThreadPoolExecutor(READERS) as pool:
        paths = [folder.root / file for file in images]
        for (file, image), shape in zip(images.items(), pool.map(image_shape, paths), strict=True):
            advance(1)
            if shape is None:
                labelled.notes[note_of_unreadable(file)].append(file)
                continue
            size = shape[::-1]
            if any(image.size) and tuple(image.size) != size:
                labelled.notes["images left out, whose size is not that of their annotation"].append(file)
                continue
            scale = np.tile(size, 2) / 100 if labelled.is_percent else 1
            for name, box in zip(image.class_names, image.boxes, strict=True):
                rows.append((len(shapes), numbers[name or UNNAMED], *(np.array(box) * scale)))
            shapes[file] = shape
    if not rows:
        notes = "; ".join(f"{len(paths):,} {note}" for note, paths in labelled.notes.items())
        raise UserError(f"{folder.root}: no usable image has a box: {notes or 'the annotations contain no box'}")
    table = np.array(rows)
    annotations = still_images(
        shapes,
        [True] * len(shapes),
        list(shapes),
        np.array(list(shapes.values()), dtype=np.int32),
        table[:, 0].astype(np.int64),
        table[:, 2:],
        table[:, 1].astype(np.int64),
        dict(enumerate(class_names)),
        [],
        labelled.box_format,
        rule=f"boxes of {labelled.layout} must be {labelled.box_format}",
    )
    splits = {file: image.split for file, image in images.items()}
    return SourceDataset(labelled.layout, annotations, splits, labelled.notes)


def note_of_unreadable(file: str) -> str:
    """Return why an image that cannot be read is left out."""
    if suffix(file) in HEIF_SUFFIXES and not reads_heif():
        return f"images left out ({NEEDS_HEIF})"
    return "damaged images left out"


def _matched(folder: SourceFolder, labelled: LabelledFolder) -> dict[str, LabelledImage]:
    """Return the annotation of each image, by file name; add notes about images and annotations without a partner."""
    pairs, ambiguous = paired(labelled.images, folder.images)
    groups = {
        "annotations left out, because their image does not exist": labelled.images.keys() - pairs.keys() - ambiguous,
        "images left out, because no annotation names them": set(folder.images) - set(pairs.values()) - ambiguous,
        SAME_NAME: ambiguous,
    }
    labelled.notes |= {note: sorted(paths) for note, paths in groups.items() if paths}
    return {file: labelled.images[name] for name, file in sorted(pairs.items(), key=lambda pair: pair[1])}
