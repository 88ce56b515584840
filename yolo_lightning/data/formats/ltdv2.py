"""Reader of LTDv2's official annotation files (COCO JSON).

The list of categories begins with a background entry (id 0), so a class index is `category_id - 1`, not a position in
the list.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from yolo_lightning.data.formats import recording
from yolo_lightning.data.formats.annotation_file import annotation_arrays, decode
from yolo_lightning.data.formats.annotations import Annotations, encoded, image_shapes, still_images
from yolo_lightning.data.formats.image_ids import image_id_texts, refuse_rounded_ids

CLASS_NAMES = ("person", "bicycle", "motorcycle", "vehicle")  # LTDv2's classes in the order of their category ids
CATEGORY_IDS = (1, 2, 3, 4)

DATE_CHARACTERS = 19  # Length of an ISO date and time to the second


def read_annotations(path: Path) -> Annotations:
    """Read and check an annotation file of LTDv2."""
    content = decode(path)
    images = content.images
    found = {category.id: category.name.strip().lower() for category in content.categories if category.id != 0}
    expected = dict(zip(CATEGORY_IDS, CLASS_NAMES, strict=True))
    if found != expected:
        raise ValueError(f"{path}: categories must be {expected} (and optionally 0, background), got {found}")
    shapes = image_shapes(path, images)
    file_names = [image.file_name for image in images]
    positions = image_id_texts(path, [image.id for image in images], file_names)
    image_ids = encoded(positions)
    dates = [date if isinstance(date := image.date_captured, str) else "" for image in images]
    iso_dates = np.array([date[:DATE_CHARACTERS].encode(errors="replace") for date in dates], dtype=np.bytes_)
    owner, boxes, labels = annotation_arrays(path, content, positions, CATEGORY_IDS, np.float32)
    refuse_rounded_ids(path, image_ids, iso_dates, owner, file_names)
    clips, clip_names = recording.clips(file_names)
    return replace(
        still_images(
            image_ids,
            [isinstance(image.id, str) for image in images],
            file_names,
            shapes,
            owner,
            boxes,
            labels,
            CLASS_NAMES,
            CATEGORY_IDS,
        ),
        months=recording.months(image_ids, iso_dates),
        clips=clips,
        clip_names=encoded(clip_names),
        positions_in_clip=recording.positions_in_clip(file_names, clips),
        weather=recording.weather([image.meta for image in images]),
        has_clips=True,
    )
