"""The JSON of an annotation file as typed records, and where in it an error lies.

Decoded at once into records without dictionaries: the real Train.json (1.1 GB) takes seconds and about 2.5 GB.
"""

import re
from pathlib import Path
from typing import Any

import msgspec

LTDV2_FILE = "an LTDv2 annotation file (COCO JSON)"
COCO_FILE = "a COCO annotation file"

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

NON_NUMBERS = tuple(
    # Each begins with its literal text, which the search then leaps to.
    re.compile(word + rb"(?<=[:\[,\s]" + word + rb")(?=\s*[,\]}])")
    for word in (b"NaN", b"-Infinity", b"Infinity")
)
"""What Python's json writes for a number that is none, which is not JSON."""

BYTE_POSITION = re.compile(r"\(byte (\d+)\)")

SEARCHED_BYTES = 1 << 20
"""How far before a syntax error the last whole record is looked for."""
SHOWN_CHARACTERS = 160


class ImageEntry(msgspec.Struct, gc=False):
    """One entry of `images`; `width` and `height` in pixels."""

    id: int | float | str
    file_name: str
    width: int
    height: int
    date_captured: Any = None
    meta: msgspec.Raw = msgspec.Raw(b"{}")


class AnnotationRecord(msgspec.Struct, gc=False):
    """One entry of `annotations`; `bbox` is x, y, width, height in pixels of the frame."""

    image_id: int | float | str
    category_id: int
    bbox: tuple[float, float, float, float]
    iscrowd: Any = 0


class CategoryRecord(msgspec.Struct, gc=False):
    """One entry of `categories`."""

    id: int
    name: str


class AnnotationFile(msgspec.Struct, gc=False):
    """The parts of the JSON that are used; everything else in it is skipped while decoding."""

    images: list[ImageEntry]
    categories: list[CategoryRecord]
    annotations: list[AnnotationRecord] = []


class UndecodedFile(msgspec.Struct, gc=False):
    """The same arrays with their entries as they stand in the file, to find the one that is wrong."""

    images: list[msgspec.Raw] = []
    categories: list[msgspec.Raw] = []
    annotations: list[msgspec.Raw] = []


class AnyRecord(msgspec.Struct, gc=False):
    """An image or an annotation."""

    id: int | float | str


RECORDS: dict[str, type[msgspec.Struct]] = {
    "images": ImageEntry,
    "categories": CategoryRecord,
    "annotations": AnnotationRecord,
}


def decode(path: Path, kind: str = LTDV2_FILE) -> AnnotationFile:
    """Parse the JSON into typed records.

    `NaN` and `Infinity`, which Python's json writes although they are not JSON, are read as null.

    Args:
        path: The file.
        kind: What it should be, for the message.

    Raises:
        ValueError: If the file cannot be read or lacks the fields of a COCO detection file; the message names the
            record where there is one.
    """
    if not path.is_file():
        raise ValueError(f"annotation file {path} does not exist")
    try:
        content = path.read_bytes().removeprefix(BYTE_ORDER_MARK)
    except OSError as error:
        raise ValueError(f"annotation file {path} cannot be read: {error}") from error
    try:
        return msgspec.json.decode(content, type=AnnotationFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not any(pattern.search(content) for pattern in NON_NUMBERS):
            raise ValueError(description(path, kind, content, error)) from error
    for pattern in NON_NUMBERS:
        content = pattern.sub(b"null", content)
    try:
        return msgspec.json.decode(content, type=AnnotationFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(description(path, kind, content, error)) from error


def description(path: Path, kind: str, content: bytes, error: Exception) -> str:
    """What is wrong with a file that does not decode, and at which record."""
    refusal = f"{path} is not {kind}: "
    if isinstance(error, msgspec.ValidationError):
        return refusal + (wrong_record(content) or str(error))
    stop, reason = len(content), f"it ends in the middle after {len(content):,} bytes, as if not copied completely"
    if isinstance(error, UnicodeDecodeError):
        stop, reason = first_undecodable(content), "it is not UTF-8 text"
    elif position := BYTE_POSITION.search(str(error)):
        stop, reason = int(position[1]), str(error)
    record = last_whole_record(content, stop)
    return refusal + reason + (f"; the last whole record before is {record}" if record else "")


def wrong_record(content: bytes) -> str | None:
    """The first record that has not the type of its array: `array[number]`, its text, what is wrong with it."""
    try:
        undecoded = msgspec.json.decode(content, type=UndecodedFile)
    except msgspec.ValidationError:
        return None
    for key, record_type in RECORDS.items():
        decoder = msgspec.json.Decoder(record_type)
        for number, record in enumerate(getattr(undecoded, key)):
            try:
                decoder.decode(record)
            except msgspec.ValidationError as error:
                return f"{key}[{number}] {shown(bytes(record))}: {error}"
    return None


def first_undecodable(content: bytes) -> int:
    """Position of the first byte that is not UTF-8, or the end."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(content)


def last_whole_record(content: bytes, stop: int) -> str | None:
    """The last image or annotation that ends before `stop`, as `array[number]` and its text."""
    tail = content[max(0, stop - SEARCHED_BYTES) : stop]
    decoder = msgspec.json.Decoder(AnyRecord)
    end = tail.rfind(b"}")
    while end >= 0:
        start = tail.rfind(b"{", 0, end)
        while start >= 0 and end - start < SEARCHED_BYTES // 16:
            try:
                decoder.decode(tail[start : end + 1])
            except (msgspec.DecodeError, UnicodeDecodeError):
                start = tail.rfind(b"{", 0, start)
            else:
                place = array_and_number(content[: stop - len(tail) + end + 1])
                return f"{place} {shown(tail[start : end + 1])}".strip()
        end = tail.rfind(b"}", 0, end)
    return None


def array_and_number(content: bytes) -> str:
    """Which record of which array `content` ends with, given that one ends there."""
    try:
        undecoded = msgspec.json.decode(content + b"]}", type=UndecodedFile)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    for key in RECORDS:
        records = getattr(undecoded, key)
        if records and content.endswith(bytes(records[-1])):
            return f"{key}[{len(records) - 1}]"
    return ""


def shown(record: bytes) -> str:
    """A record in one line, its end left out where it is long."""
    text = " ".join(record.decode(errors="replace").split())
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + " ..."
