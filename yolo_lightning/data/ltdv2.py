"""Reads LTDv2's official annotation files (COCO JSON) and checks that they are what they claim to be.

The categories of LTDv2 hold a background entry (id 0) in first place, so a class is `category_id - 1`, never the
position in the list.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

CLASS_NAMES = ("person", "bicycle", "motorcycle", "vehicle")
"""LTDv2's classes in the order of their category ids 1 to 4."""

MINIMUM_BOX_SIDE = 1e-3
"""Pixels. A box narrower than this after clipping has no area to learn from."""


class ImageRecord(msgspec.Struct, gc=False):
    """One entry of `images`; `width` and `height` in pixels."""

    id: int | str
    file_name: str
    width: int
    height: int


class AnnotationRecord(msgspec.Struct, gc=False):
    """One entry of `annotations`; `bbox` is x, y, width, height in pixels of the frame."""

    image_id: int | str
    category_id: int
    bbox: tuple[float, float, float, float]


class CategoryRecord(msgspec.Struct, gc=False):
    """One entry of `categories`."""

    id: int
    name: str


class AnnotationFile(msgspec.Struct, gc=False):
    """The parts of the JSON that are used; everything else in it is skipped while decoding."""

    images: list[ImageRecord]
    categories: list[CategoryRecord]
    annotations: list[AnnotationRecord] = []


@dataclass(frozen=True, slots=True)
class BoxCounts:
    """What became of the boxes of an annotation file."""

    kept: int
    clipped: int
    dropped: int

    def describe(self) -> str:
        """One line for the log."""
        return f"{self.kept:,} boxes; {self.clipped:,} clipped to the frame, {self.dropped:,} of no size dropped"


@dataclass(frozen=True, slots=True)
class Annotations:
    """A split as flat arrays; image `i` owns boxes `box_offsets[i]:box_offsets[i + 1]`.

    Attributes:
        image_ids: `(N,)` bytes, the ids as ASCII text: 17 digits do not fit a float64.
        file_names: `(N,)` bytes, UTF-8, relative to the dataset root.
        shapes: `(N, 2)` int32, height and width in pixels.
        box_offsets: `(N + 1,)` int64.
        boxes: `(M, 4)` float32, xyxy, pixels of the frame.
        labels: `(M,)` int8, class index from 0.
        counts: What was clipped or dropped on the way.
    """

    image_ids: npt.NDArray[np.bytes_]
    file_names: npt.NDArray[np.bytes_]
    shapes: npt.NDArray[np.int32]
    box_offsets: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int8]
    counts: BoxCounts


def read_annotations(path: Path) -> Annotations:
    """Read and check one annotation file.

    Raises:
        ValueError: If the file is missing or is not an LTDv2 annotation file; the message names file and record.
    """
    content = decode(path)
    check_categories(path, content.categories)
    positions = {str(image.id): position for position, image in enumerate(content.images)}
    check_images(path, content.images, positions)
    owner, boxes, labels = annotation_arrays(path, content.annotations, positions)
    shapes = np.array([(image.height, image.width) for image in content.images], dtype=np.int32).reshape(-1, 2)
    owner, boxes, labels, counts = clean_boxes(owner, boxes, labels, shapes)
    order = np.argsort(owner, kind="stable")
    box_offsets = np.zeros(len(shapes) + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=len(shapes)), out=box_offsets[1:])
    return Annotations(
        image_ids=np.array([str(image.id).encode() for image in content.images], dtype=np.bytes_),
        file_names=np.array([image.file_name.encode() for image in content.images], dtype=np.bytes_),
        shapes=shapes,
        box_offsets=box_offsets,
        boxes=boxes[order],
        labels=labels[order],
        counts=counts,
    )


def decode(path: Path) -> AnnotationFile:
    """Parse the JSON into typed records.

    Raises:
        ValueError: If the file cannot be read or lacks the fields of a COCO detection file.
    """
    if not path.is_file():
        raise ValueError(f"annotation file {path} does not exist")
    try:
        return msgspec.json.decode(path.read_bytes(), type=AnnotationFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not an LTDv2 annotation file (COCO JSON): {error}") from error


def check_categories(path: Path, categories: list[CategoryRecord]) -> None:
    """Refuse a file whose category ids do not mean LTDv2's classes."""
    found = {category.id: category.name.strip().lower() for category in categories if category.id != 0}
    expected = dict(enumerate(CLASS_NAMES, start=1))
    if found != expected:
        raise ValueError(f"{path}: categories are {found}, expected {expected} (and optionally 0, background)")


def check_images(path: Path, images: list[ImageRecord], positions: dict[str, int]) -> None:
    """Refuse an empty split, repeated ids and frames without size."""
    if not images:
        raise ValueError(f"{path}: the list of images is empty")
    if len(positions) != len(images):
        raise ValueError(f"{path}: {len(images) - len(positions)} image ids occur more than once")
    for number, image in enumerate(images):
        if image.width < 1 or image.height < 1:
            raise ValueError(f"{path}: images[{number}] {image.file_name!r} has size {image.width} x {image.height}")


def annotation_arrays(
    path: Path, annotations: list[AnnotationRecord], positions: dict[str, int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.int8]]:
    """Owner image, xyxy box and class of every annotation.

    Raises:
        ValueError: If an annotation names an unknown image or a category other than 1 to 4.
    """
    owner = np.empty(len(annotations), dtype=np.int64)
    boxes = np.empty((len(annotations), 4), dtype=np.float32)
    labels = np.empty(len(annotations), dtype=np.int8)
    for number, annotation in enumerate(annotations):
        position = positions.get(str(annotation.image_id))
        if position is None:
            raise ValueError(f"{path}: annotations[{number}] belongs to unknown image_id {annotation.image_id}")
        if not 1 <= annotation.category_id <= len(CLASS_NAMES):
            raise ValueError(
                f"{path}: annotations[{number}] has category_id {annotation.category_id}, "
                f"allowed are 1 to {len(CLASS_NAMES)} {CLASS_NAMES}; 0 is background"
            )
        owner[number], boxes[number], labels[number] = position, annotation.bbox, annotation.category_id - 1
    boxes[:, 2:] += boxes[:, :2]
    return owner, boxes, labels


def clean_boxes(
    owner: npt.NDArray[np.int64],
    boxes: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int8],
    shapes: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.int8], BoxCounts]:
    """Clip boxes to their frame and drop those of no size, inside or outside of it."""
    limits = shapes[owner][:, [1, 0, 1, 0]].astype(np.float32)
    clipped = np.clip(boxes, 0, limits)
    sides = clipped[:, 2:] - clipped[:, :2]
    keep = (sides >= MINIMUM_BOX_SIDE).all(axis=1)
    changed = (clipped != boxes).any(axis=1) & keep
    counts = BoxCounts(kept=int(keep.sum()), clipped=int(changed.sum()), dropped=int((~keep).sum()))
    return owner[keep], clipped[keep], labels[keep], counts
