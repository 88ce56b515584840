"""Reads LTDv2's official annotation files (COCO JSON) and checks that they are what they claim to be.

The categories of LTDv2 hold a background entry (id 0) in first place, so a class is `category_id - 1`, never the
position in the list.
"""

from pathlib import Path

import numpy as np

from yolo_lightning.data.formats import recording
from yolo_lightning.data.formats.annotation_file import AnnotationRecord, CategoryRecord, decode
from yolo_lightning.data.formats.annotations import (
    Annotations,
    Boxes,
    Integers,
    Labels,
    check_images,
    clean_boxes,
    group_by_image,
)
from yolo_lightning.data.formats.image_ids import (
    id_text,
    image_id_texts,
    refuse_rounded_ids,
    refuse_rounded_owners,
    unknown_image_hint,
)

CLASS_NAMES = ("person", "bicycle", "motorcycle", "vehicle")
"""LTDv2's classes in the order of their category ids."""
CATEGORY_IDS = (1, 2, 3, 4)

DATE_CHARACTERS = 19
"""Of an ISO date and time to the second."""


def read_annotations(path: Path) -> Annotations:
    """Read and check one annotation file.

    Raises:
        ValueError: If the file is missing or is not an LTDv2 annotation file; the message names file and record.
    """
    content = decode(path)
    images = content.images
    check_categories(path, content.categories)
    check_images(path, images)
    file_names = [image.file_name for image in images]
    positions = image_id_texts(path, [image.id for image in images], file_names)
    image_ids = np.array([text.encode() for text in positions], dtype=np.bytes_)
    dates = np.array([date_text(image.date_captured) for image in images], dtype=np.bytes_)
    refuse_rounded_ids(path, image_ids, dates, file_names)
    owner, boxes, labels = annotation_arrays(path, content.annotations, positions)
    refuse_rounded_owners(path, image_ids, owner, file_names)
    shapes = np.array([(image.height, image.width) for image in images], dtype=np.int32)
    owner, boxes, labels, counts = clean_boxes(owner, boxes, labels, shapes)
    order, box_offsets = group_by_image(owner, len(shapes))
    clips, clip_names = recording.clips(file_names)
    return Annotations(
        image_ids=image_ids,
        text_ids=np.array([isinstance(image.id, str) for image in images], dtype=np.bool_),
        file_names=np.array([name.encode() for name in file_names], dtype=np.bytes_),
        shapes=shapes,
        box_offsets=box_offsets,
        boxes=boxes[order],
        labels=labels[order],
        months=recording.months(image_ids, dates),
        clips=clips,
        clip_names=np.array([name.encode() for name in clip_names], dtype=np.bytes_),
        positions_in_clip=recording.positions_in_clip(file_names, clips),
        weather=recording.weather([image.meta for image in images]),
        counts=counts,
        class_names=CLASS_NAMES,
        category_ids=CATEGORY_IDS,
    )


def date_text(date: object) -> bytes:
    """The ASCII beginning of an ISO date and time, to the second; empty where it is no text."""
    return date[:DATE_CHARACTERS].encode(errors="replace") if isinstance(date, str) else b""


def check_categories(path: Path, categories: list[CategoryRecord]) -> None:
    """Refuse a file whose category ids do not mean LTDv2's classes."""
    found = {category.id: category.name.strip().lower() for category in categories if category.id != 0}
    expected = dict(enumerate(CLASS_NAMES, start=1))
    if found != expected:
        raise ValueError(f"{path}: categories are {found}, expected {expected} (and optionally 0, background)")


def annotation_arrays(
    path: Path, annotations: list[AnnotationRecord], positions: dict[str, int]
) -> tuple[Integers, Boxes, Labels]:
    """Owner image, xyxy box and class of every annotation.

    Raises:
        ValueError: If an annotation names an unknown image or a category other than 1 to 4.
    """
    owner = np.empty(len(annotations), dtype=np.int64)
    boxes = np.empty((len(annotations), 4), dtype=np.float32)
    labels: Labels = np.empty(len(annotations), dtype=np.int8)
    for number, annotation in enumerate(annotations):
        position = positions.get(id_text(annotation.image_id) or "")
        if position is None:
            raise ValueError(
                f"{path}: annotations[{number}] belongs to unknown image_id {annotation.image_id}"
                + unknown_image_hint(annotation.image_id, positions)
            )
        if not 1 <= annotation.category_id <= len(CLASS_NAMES):
            raise ValueError(
                f"{path}: annotations[{number}] has category_id {annotation.category_id}, "
                f"allowed are 1 to {len(CLASS_NAMES)} {CLASS_NAMES}; 0 is background"
            )
        owner[number], boxes[number], labels[number] = position, annotation.bbox, annotation.category_id - 1
    boxes[:, 2:] += boxes[:, :2]
    return owner, boxes, labels
