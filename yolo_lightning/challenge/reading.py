"""Reads an answer file, JSON or zip, as far as it can be read, and says what is wrong with its form.

Frames are decoded one by one from the text, so that a file of several hundred megabytes takes little more than itself.
"""

import io
import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from yolo_lightning.challenge.content import Certainty, Content, SubmissionProblem, same

MEMBER = "predictions.json"
"""Name of the answer file in the organisers' kit, and so in the archive."""
PICKLE = b"\x80"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NON_NUMBERS = re.compile(rb"(?<=[:\[,\s])(?:NaN|-?Infinity)(?=\s*[,\]}])")
"""What Python's json writes, and reads, for a number that is none."""
KEY = re.compile(rb'"([^"\\]*)"\s*:\s*\{')
BYTE_POSITION = re.compile(r"\(byte (\d+)\)")
SHOWN_CHARACTERS = 120

Number = float | None
Box = tuple[Number, Number, Number, Number]
Outermost = dict[str, msgspec.Raw] | list[msgspec.Raw]


class EntryRecord(msgspec.Struct, gc=False):
    """The value of one image id."""

    boxes: list[Box]
    scores: list[Number]
    labels: list[Number]


class ResultRecord(msgspec.Struct, gc=False):
    """One detection of a COCO results list."""

    image_id: int | float | str
    category_id: Number
    bbox: Box
    score: Number


@dataclass(frozen=True, slots=True)
class Reading:
    """What could be read of a file.

    Attributes:
        content: As far as it has the right form; null where nothing can be read.
        problems: What is wrong with the form.
        is_results_list: Whether it is a COCO results list, whose boxes stand in `content` as they are.
    """

    content: Content | None
    problems: tuple[SubmissionProblem, ...]
    is_results_list: bool = False


def read_submission(path: Path) -> Reading:
    """Read a JSON or zip file.

    Raises:
        ValueError: If the file cannot be opened.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"submission {path} cannot be read: {error.strerror}") from error
    problems: list[SubmissionProblem] = []
    if zipfile.is_zipfile(io.BytesIO(data)) or path.suffix == ".zip":
        unpacked, problems = unzip(data)
        if unpacked is None:
            return Reading(None, tuple(problems))
        data = unpacked
    reading = parse(data.removeprefix(BYTE_ORDER_MARK))
    return replace(reading, problems=(*problems, *reading.problems))


def unzip(data: bytes) -> tuple[bytes | None, list[SubmissionProblem]]:
    """The answer file in an archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            answers = [name for name in names if name.endswith(".json") and not name.startswith("__MACOSX/")]
            if len(answers) != 1:
                what = f"the archive holds {len(answers)} JSON files, it must hold {MEMBER} alone"
                return None, [SubmissionProblem(what, len(answers), ", ".join(names[:3]) or "it is empty")]
            unpacked = archive.read(answers[0])
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        return None, [SubmissionProblem("the archive is damaged or cannot be opened", 1, str(error))]
    if names == [MEMBER]:
        return unpacked, []
    what = f"the archive must hold {MEMBER} alone, at its top"
    remedy = f"{answers[0]} is taken and named {MEMBER}"
    return unpacked, [SubmissionProblem(what, len(names), names[0], Certainty.LIKELY, remedy, same)]


def parse(data: bytes) -> Reading:
    """The content of JSON text."""
    try:
        decoded = decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Reading(None, (unreadable(data, error),))
    if isinstance(decoded, list):
        content, problem = from_results(decoded)
        return Reading(content, (problem,), is_results_list=True)
    repeated = [(key, count) for key, count in Counter(KEY.findall(data)).items() if count > 1]
    entries, problems = from_entries(decoded)
    repeated = [(key, count) for key, count in repeated if key.decode(errors="replace") in decoded]
    if repeated:
        key, count = repeated[0]
        example = f"{key.decode(errors='replace')} occurs {count} times"
        problems.append(
            SubmissionProblem("keys occur more than once: readers keep one of them", len(repeated), example)
        )
    return Reading(entries, tuple(problems))


def decode(data: bytes) -> Outermost:
    """The values of the outermost object or array as they stand in the text; no number reads as null.

    Raises:
        msgspec.DecodeError: If it is no JSON, or neither object nor array.
    """
    decoder: msgspec.json.Decoder[Outermost] = msgspec.json.Decoder(Outermost)
    try:
        return decoder.decode(data)
    except msgspec.DecodeError:
        if not NON_NUMBERS.search(data):
            raise
    return decoder.decode(NON_NUMBERS.sub(b"null", data))


def unreadable(data: bytes, error: Exception) -> SubmissionProblem:
    """Why the text cannot be decoded."""
    keys = KEY.findall(data)
    last = f"the last key is {keys[-1].decode(errors='replace')}, number {len(keys):,}" if keys else shown(data[:200])
    if data.startswith(PICKLE):
        return SubmissionProblem("it is a pickle, the challenge of 2022's form; this one takes JSON", 1, repr(data[:8]))
    if "truncated" in str(error):
        return SubmissionProblem(f"the JSON ends in the middle, after {len(data):,} bytes", 1, last)
    if isinstance(error, msgspec.ValidationError):
        return SubmissionProblem("it is neither an object keyed by image id nor a list", 1, shown(data[:200]))
    position = BYTE_POSITION.search(str(error))
    around = shown(data[max(0, int(position[1]) - 60) : int(position[1]) + 20]) if position else last
    return SubmissionProblem(f"it is no JSON: {error}", 1, around)


def from_entries(entries: dict[str, msgspec.Raw]) -> tuple[Content, list[SubmissionProblem]]:
    """The content of an object keyed by image id; entries of another form are named and left empty."""
    decoder = msgspec.json.Decoder(EntryRecord)
    ids: list[str] = []
    chunks: list[tuple[Any, Any, Any]] = []
    misshapen: list[tuple[str, str]] = []
    unequal: list[str] = []
    for image_id, raw in entries.items():
        ids.append(image_id)
        chunks.append(arrays([], [], []))
        try:
            entry = decoder.decode(raw)
        except msgspec.ValidationError as error:
            misshapen.append((image_id, str(error)))
            continue
        if not len(entry.boxes) == len(entry.scores) == len(entry.labels):
            lengths = f"{len(entry.boxes)} boxes, {len(entry.scores)} scores, {len(entry.labels)} labels"
            unequal.append(f"image {image_id}: {lengths}")
            continue
        chunks[-1] = arrays(entry.boxes, entry.scores, entry.labels)
    problems = []
    if misshapen:
        image_id, reason = misshapen[0]
        example = f"{image_id}: {shown(bytes(entries[image_id]))}: {reason}"
        problems.append(SubmissionProblem("values are no object of boxes, scores and labels", len(misshapen), example))
    if unequal:
        problems.append(SubmissionProblem("boxes, scores and labels are not equally many", len(unequal), unequal[0]))
    return assemble(ids, chunks), problems


def from_results(records: Sequence[msgspec.Raw]) -> tuple[Content | None, SubmissionProblem]:
    """The content of a COCO results list, grouped by image in order of first appearance, boxes as they are."""
    what = "it is a COCO results list; the challenge takes one object keyed by image id"
    decoder = msgspec.json.Decoder(ResultRecord)
    groups: dict[str, list[ResultRecord]] = {}
    for number, raw in enumerate(records):
        try:
            record = decoder.decode(raw)
        except msgspec.ValidationError as error:
            return None, SubmissionProblem(what, len(records), f"record {number}: {shown(bytes(raw))}: {error}")
        groups.setdefault(str(record.image_id), []).append(record)
    chunks = [
        arrays([one.bbox for one in own], [one.score for one in own], [one.category_id for one in own])
        for own in groups.values()
    ]
    example = shown(bytes(records[0])) if records else "[]"
    remedy = "records are grouped by image id"
    return assemble(list(groups), chunks), SubmissionProblem(what, len(records), example, remedy=remedy, repair=same)


def arrays(boxes: list[Box], scores: list[Number], labels: list[Number]) -> tuple[Any, Any, Any]:
    """One frame's lists as float64 arrays, NaN for null."""
    flat = np.array(list(chain.from_iterable(boxes)), dtype=np.float64).reshape(-1, 4)
    return flat, np.array(scores, dtype=np.float64), np.array(labels, dtype=np.float64)


def assemble(ids: list[str], chunks: Sequence[tuple[Any, Any, Any]]) -> Content:
    """The frames' arrays joined."""
    empty = arrays([], [], [])
    boxes, scores, labels = (np.concatenate(parts) for parts in zip(empty, *chunks, strict=True))
    return Content(tuple(ids), np.array([len(one) for _, one, _ in chunks], dtype=np.int64), boxes, scores, labels)


def shown(text: bytes) -> str:
    """A record in one line, its end left out where it is long."""
    line = " ".join(text.decode(errors="replace").split())
    return line if len(line) <= SHOWN_CHARACTERS else line[:SHOWN_CHARACTERS] + " ..."
