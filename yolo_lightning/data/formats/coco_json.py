"""Reader of COCO annotation files; its error messages name the damaged record.

Records are decoded without intermediate dictionaries: LTDv2's Train.json (1.1 GB) takes seconds and about 2.5 GB.
"""

import posixpath
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from yolo_lightning.data.array_types import AnyArray, Int32Array, Int64Array
from yolo_lightning.data.formats.annotations import Annotations, still_images
from yolo_lightning.data.formats.image_ids import id_text, image_id_texts, unknown_image_hint
from yolo_lightning.data.formats.suspicious_boxes import CORNER_AND_SIDES
from yolo_lightning.errors import UserError
from yolo_lightning.utils.plain_text import first_look, one_line
from yolo_lightning.utils.regular_files import open_regular, read_regular

LTDV2_FILE = "an LTDv2 annotation file (COCO JSON)"
COCO_FILE = "a COCO annotation file"

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

NON_NUMBER = re.compile(rb"([:\[,\s])(?:NaN|-?Infinity)(?=\s*[,\]}])")
"""A non-finite number as Python's `json` writes it, which is not valid JSON."""

JSON_LINES = re.compile(rb"\s*\{[^\n]*\}[ \t\r]*\n\s*\{")
"""Beginning of a file with several JSON objects, one per line."""

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of msgspec for damaged JSON."""

LARGEST_FILE = 8 << 30  # Bytes; LTDv2's Train.json has 1.1e9
LARGEST_SIDE = 1 << 16  # Pixels. A larger width or height is refused as damaged.
UNKNOWN = -1  # Class index of records of unknown categories while the records are read
CROWD = -2  # Class index of crowd regions while the records are read
IGNORED = -3  # Class index of records with a true `ignore` while the records are read
LEFT_OUT = {CROWD: "are crowd regions (iscrowd)", IGNORED: "have the mark 'ignore'"}
TRUE_TEXTS = ("true", "yes", "1", "1.0")  # Values of CVAT's attributes: those of a select field are texts
BYTE_POSITION = re.compile(r"\(byte (\d+)\)")
LONGEST_NAME = 1024  # Characters of a file name or id
LONGEST_NOTE = 400  # Characters of a remark for the log
DIVIDED = (
    "The objects of such a file are divided among several images, each of which contains the other objects without a "
    "box: give each file one entry, and let image_id of all its annotations be the id of this entry."
)
BBOX_RULE = f"bbox must be {CORNER_AND_SIDES} in pixels"
NEEDS_BOX = "the box around each 'segmentation' must be in the file as 'bbox': x, y, width, height in pixels"
SHOWN_BYTES = 160  # Bytes of a damaged record, or of the text before an error, in a message


Name = Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]  # an array of names is as wide as the longest one
FileName = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]
SIDE_LIMITS = msgspec.Meta(ge=1, le=LARGEST_SIDE)
Side = Annotated[int, SIDE_LIMITS] | Annotated[float, SIDE_LIMITS]  # pandas and JavaScript write 640.0
Pixels = Annotated[float, msgspec.Meta(ge=-LARGEST_SIDE, le=LARGEST_SIDE)]


class ImageEntry(msgspec.Struct, gc=False):
    """Entry of `images`; `width` and `height` in pixels, whole numbers."""

    id: int | float | Name
    file_name: FileName
    width: Side
    height: Side
    date_captured: Any = None


class AnnotationRecord(msgspec.Struct, gc=False):
    """Entry of `annotations`; `bbox` is x, y, width, height in pixels of the frame."""

    image_id: int | float | str
    category_id: int | float
    bbox: tuple[Pixels, Pixels, Pixels, Pixels]
    iscrowd: bool | float | None = 0
    ignore: bool | float | None = 0
    attributes: msgspec.Raw = msgspec.Raw(b"{}")  # CVAT's attributes of the object, of any names


class CategoryRecord(msgspec.Struct, gc=False):
    """Entry of `categories`."""

    id: int | float
    name: Annotated[str, msgspec.Meta(min_length=1)]
    supercategory: Any = None


class AnnotationFile(msgspec.Struct, gc=False):
    """Content of an annotation file; other keys are skipped while decoding."""

    images: list[ImageEntry]
    categories: list[CategoryRecord]
    annotations: list[AnnotationRecord] | None = None


RECORDS = {"images": ImageEntry, "categories": CategoryRecord, "annotations": AnnotationRecord}


def decode(path: Path, kind: str = LTDV2_FILE) -> AnnotationFile:
    """Decode an annotation file of the expected `kind`; `NaN` and `Infinity` are read as null."""
    try:
        with open_regular(path) as file:
            head = file.read(SHOWN_BYTES).removeprefix(BYTE_ORDER_MARK)
            if not head.lstrip().startswith((b"{", b"[")):  # such as a sparse file of zeros
                raise UserError(f"{path} is not {kind}: it {first_look(head)}")
        content = read_regular(path, LARGEST_FILE).removeprefix(BYTE_ORDER_MARK)
    except OSError as error:
        raise UserError(f"annotation file {path} cannot be read: {error}") from error
    decoded = _decode_content(path, content, kind)
    for number, image in enumerate(decoded.images):
        if type(image.width) is float or type(image.height) is float:
            image.width = _whole(path, f"images[{number}].width", image.width)
            image.height = _whole(path, f"images[{number}].height", image.height)
    for number, category in enumerate(decoded.categories):
        category.id = _whole(path, f"categories[{number}].id", category.id)
    for category_id, count in Counter(category.id for category in decoded.categories).most_common(1):
        if count > 1:
            raise UserError(f"{path}: ids of categories must be unique, got {count} categories with id {category_id}")
    return decoded


def _whole(path: Path, key: str, value: float) -> int:
    """Return a whole number, which some programs write as 640.0."""
    if isinstance(value, float) and not value.is_integer():
        raise UserError(f"{path}: {key} must be a whole number, got {value}")
    return int(value)


def _decode_content(path: Path, content: bytes, kind: str) -> AnnotationFile:
    try:
        try:
            decoded = msgspec.json.decode(content, type=AnnotationFile)
        except msgspec.DecodeError:
            content, count = NON_NUMBER.subn(rb"\1null", content)
            if not count:
                raise
            decoded = msgspec.json.decode(content, type=AnnotationFile)
    except UNDECODABLE as error:
        raise UserError(f"{path} is not {kind}: {one_line(_fault_in(content, error))}") from error
    for key in (b'"%s"' % name.encode() for name in RECORDS):
        if content.count(key) > 1:
            values = msgspec.json.decode(content, type=dict[str, msgspec.Raw]).values()
            if content.count(key) - sum(bytes(value).count(key) for value in values) > 1:
                raise UserError(f"{path} has the key {key.decode()} more than once: merge the values")
    return decoded


def _fault_in(content: bytes, error: Exception) -> str:
    """Return the reason why `content` cannot be decoded, with the damaged record or the text before the error."""
    if isinstance(error, msgspec.ValidationError):
        if JSON_LINES.match(content):
            return f"it contains a JSON object per line instead of one object with {', '.join(RECORDS)}"
        if content.lstrip().startswith(b"["):
            return f"it contains a list, as files of detections do, instead of an object with {', '.join(RECORDS)}"
        return _invalid_record(content) or str(error)
    if isinstance(error, RecursionError):
        return "the JSON is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 text: {shown(error.object)}"
    position = BYTE_POSITION.search(str(error))
    if position:
        stop = int(position[1])
        reason = str(error)
    else:
        stop = len(content)
        reason = f"the file ends inside a record after {stop:,} bytes (incomplete copy?)"
    return f"{reason}; text before the error: {shown(content[max(0, stop - SHOWN_BYTES) : stop])}"


def _invalid_record(content: bytes) -> str | None:
    """Return the first record of the wrong type as `array[number] text: reason`, or None."""
    try:
        arrays = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        for key, record_type in RECORDS.items():
            decoder = msgspec.json.Decoder(record_type)
            for number, record in enumerate(msgspec.json.decode(arrays.get(key, b"[]"), type=list[msgspec.Raw])):
                try:
                    decoder.decode(record)
                except msgspec.ValidationError as error:
                    has_mask_only = "`bbox`" in str(error) and b'"segmentation"' in bytes(record)
                    remedy = f"; {NEEDS_BOX}" if has_mask_only else ""
                    return f"{key}[{number}] {shown(bytes(record))}: {error}{remedy}"
    except (msgspec.DecodeError, RecursionError):
        pass  # the outermost value is not an object, or the value of a key is not an array
    return None


def shown(content: bytes) -> str:
    line = " ".join(content[:SHOWN_BYTES].decode(errors="replace").split())
    return line if len(content) <= SHOWN_BYTES else f"{line} ..."


def owners(path: Path, records: Sequence[AnnotationRecord], positions: Mapping[str, int]) -> Int64Array:
    """Return the position of the image of each record; raise a ValueError for an unknown image id."""
    texts = (id_text(record.image_id) or "" for record in records)
    owner = np.fromiter((positions.get(text, -1) for text in texts), np.int64, len(records))
    if (owner < 0).any():
        number = int((owner < 0).argmax())
        value = records[number].image_id
        hint = unknown_image_hint(value) or f"; ids of images are such as {next(iter(positions))!r}"
        raise UserError(f"{path}: annotations[{number}] has unknown image_id {one_line(str(value), 200)}{hint}")
    return owner


def to_annotations(
    path: Path,
    content: AnnotationFile,
    classes: Mapping[int, str],
    box_type: type[np.floating[Any]],
) -> Annotations:
    """Convert the records of the file `path`; clips and months are unknown.

    Crowd regions and records with a true `ignore`, also among their attributes, are left out.
    `classes` are the names of the categories by id, in the order of the class indexes, and `box_type` is the type in
    which corners of boxes are computed. A `ValueError` contains the position of a record that cannot be used.
    """
    images = content.images
    records = content.annotations or []
    count = len(records)
    if not images:
        raise UserError(f"{path}: the list of images is empty")
    shapes = np.array([(image.height, image.width) for image in images], dtype=np.int32)
    file_names = [_file_name(path, number, image.file_name) for number, image in enumerate(images)]
    positions = image_id_texts(path, [image.id for image in images], file_names)
    owner = owners(path, records, positions)
    labels = class_indexes(path, records, classes)
    values: AnyArray = np.fromiter((record.bbox for record in records), np.dtype((box_type, 4)), count)
    notes = ["the file has no key 'annotations'"] if content.annotations is None else []
    for mark, reason in LEFT_OUT.items():
        has_mark = labels == mark
        if has_mark.any():
            example = file_names[owner[has_mark.argmax()]]
            notes.append(f"{has_mark.sum():,} of {count:,} boxes {reason}, left out, such as in {example}")
    is_used = labels >= 0
    owner = owner[is_used]
    values = values[is_used]
    labels = labels[is_used]
    impossible = ""
    repetition = repeated_files(file_names, [image.id for image in images])
    if repetition and count:
        impossible = f"{repetition}. {DIVIDED}"
    elif repetition:
        notes.append(f"{repetition}; each entry gets the detections of its file")
    notes += root_category(content.categories, np.bincount(labels, minlength=len(classes)), classes)
    return still_images(
        positions,
        [isinstance(image.id, str) for image in images],
        file_names,
        shapes,
        owner,
        values,
        labels,
        classes,
        [one_line(note, LONGEST_NOTE) for note in notes],
        CORNER_AND_SIDES,
        BBOX_RULE,
        impossible,
    )


def class_indexes(path: Path, records: Sequence[AnnotationRecord], classes: Mapping[int, str]) -> Int32Array:
    """Return the class index of each record, or its key in `LEFT_OUT`; `classes` as in `to_annotations`."""
    index_of: dict[float, int] = {category_id: index for index, category_id in enumerate(classes)}

    def class_index(record: AnnotationRecord) -> int:
        if record.iscrowd:
            return CROWD
        if is_ignored(record):
            return IGNORED
        return index_of.get(record.category_id, UNKNOWN)

    labels = np.fromiter(map(class_index, records), np.int32, len(records))
    if (labels == UNKNOWN).any():
        number = int((labels == UNKNOWN).argmax())
        raise UserError(
            f"{path}: annotations[{number}].category_id must be one of {', '.join(map(str, classes))}, "
            f"got {records[number].category_id}{_shift_of_ids(records, classes)}"
        )
    return labels


def _shift_of_ids(records: Sequence[AnnotationRecord], classes: Mapping[int, str]) -> str:
    """Return what to do if the ids of the annotations are those of the categories plus or minus 1; else ""."""
    used = {record.category_id for record in records}
    if len(classes) != max(classes) - min(classes) + 1:
        return ""
    for shift, remedy in ((1, "add 1 to"), (-1, "subtract 1 from")):
        if all(category_id + shift in classes for category_id in used):
            return f": the ids must be those of 'categories'; {remedy} each category_id, or renumber the categories"
    return ""


def is_ignored(record: AnnotationRecord) -> bool:
    """Return whether a record has a true `ignore`, as a key of its own or among CVAT's attributes."""
    if record.ignore:
        return True
    text = bytes(record.attributes)
    if b'"ignore"' not in text:
        return False
    attributes = msgspec.json.decode(text)
    value = attributes.get("ignore") if isinstance(attributes, dict) else None
    return str(value).lower() in TRUE_TEXTS


def _file_name(path: Path, number: int, value: str) -> str:
    """Return the `file_name` of entry `number` of `images` with slashes."""
    name = value.replace("\\", "/")
    if name.endswith("/") or not name.strip():
        raise UserError(f"{path}: images[{number}].file_name must be the path of an image, got {value!r}")
    return name


def repeated_files(file_names: Sequence[str], ids: Sequence[int | float | str]) -> str:
    """Return a text about entries of `images` that name the file of an earlier entry, with an example, or ""."""
    first_entries: dict[str, int] = {}
    repeated = []
    for number, name in enumerate(file_names):
        file = posixpath.normpath(name) if "/." in name or "//" in name or name.startswith("./") else name
        if first_entries.setdefault(file, number) != number:
            repeated.append((first_entries[file], number))
    if not repeated:
        return ""
    first, second = repeated[0]
    name = one_line(file_names[first], LONGEST_NOTE)
    return (
        f"{len(repeated):,} of {len(file_names):,} entries of images name the file of an earlier entry, such as {name} "
        f"(ids {ids[first]} and {ids[second]})"
    )


def root_category(categories: Sequence[CategoryRecord], boxes: Int64Array, classes: Mapping[int, str]) -> list[str]:
    """Return a note if a class without boxes is only the name of the group of all others, as in Roboflow's exports.

    `boxes` `(C,)` is the number of boxes of each class, and `classes` are the names by id in the order of the classes.
    """
    counts = dict(zip(classes, boxes.tolist(), strict=True))
    if len(categories) < 2 or not boxes.any():
        return []
    for category in categories:
        members = [other.supercategory == category.name for other in categories if other is not category]
        if all(members) and counts.get(int(category.id)) == 0:
            return [
                f"category {category.id} {category.name!r} has no box and is the supercategory of all others (the root "
                "category of Roboflow's exports): it is a class of the network that is not trained; to remove the "
                "class, delete the category from all annotation files"
            ]
    return []
