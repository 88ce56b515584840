"""Reader of submissions, JSON or zip, which reports errors of the format.

Frames are decoded one by one from the text, so that the memory is little more than the size of the file.
"""

import io
import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from yolo_lightning.challenge.content import Content, SubmissionProblem, SubmissionReport, problems_of
from yolo_lightning.data.formats.coco_json import BYTE_ORDER_MARK, NON_NUMBER, UNDECODABLE, shown
from yolo_lightning.data.storage.zip_frames import UNREADABLE_ARCHIVE
from yolo_lightning.errors import UserError
from yolo_lightning.utils.plain_text import first_look, one_line
from yolo_lightning.utils.regular_files import read_regular

MEMBER = "predictions.json"  # name of the submission in the organisers' kit and in the archive
MAC_FOLDER = "__MACOSX/"  # in archives that macOS has packed: attributes of the files
KEY = re.compile(rb'"([^"\\]*)"\s*:\s*\{')
LARGEST_FILE = 2 << 30  # bytes; 300 detections in each of 100,000 frames take less
Number = float | None
Box = tuple[Number, Number, Number, Number]
Outermost = dict[str, msgspec.Raw] | list[msgspec.Raw]


class EntryRecord(msgspec.Struct, gc=False):
    """Value of one image id."""

    boxes: list[Box]
    scores: list[Number]
    labels: list[Number]


def read_submission(path: Path) -> SubmissionReport:
    """Read a JSON or zip file; the report contains errors of the format only."""
    try:
        data = read_regular(path, LARGEST_FILE)
    except OSError as error:
        raise UserError(f"submission {path} cannot be read: {error.strerror}") from error
    problems: list[SubmissionProblem] = []
    if zipfile.is_zipfile(io.BytesIO(data)) or path.suffix == ".zip":
        unpacked, problems = _unzip(data)
        if unpacked is None:
            return SubmissionReport(None, tuple(problems))
        data = unpacked
    data = data.removeprefix(BYTE_ORDER_MARK)
    try:
        decoded = decode(data)
    except UNDECODABLE as error:
        return SubmissionReport(None, (*problems, unreadable(data, error)))
    if isinstance(decoded, list):
        what = "the file is a COCO results list instead of an object keyed by image id"
        example = shown(bytes(decoded[0])) if decoded else "[]"
        return SubmissionReport(None, (*problems, SubmissionProblem(what, len(decoded), example)))
    if "images" in decoded:
        what = "the file is the JSON of a split with its annotations, not a submission"
        return SubmissionReport(None, (*problems, SubmissionProblem(what, 1, "")))
    content, entry_problems = _from_entries(decoded)
    problems += entry_problems
    repeated = []
    for key, count in Counter(KEY.findall(data)).items():
        name = key.decode(errors="replace")
        if count > 1 and name in decoded:
            repeated.append(f"{name} occurs {count} times")
    problems += problems_of("keys occur more than once; readers keep one of them", repeated)
    return SubmissionReport(content, tuple(problems))


def _unzip(data: bytes) -> tuple[bytes | None, list[SubmissionProblem]]:
    """Return the submission in an archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            answers = [name for name in names if name.endswith(".json") and not name.startswith(MAC_FOLDER)]
            if len(answers) != 1:
                what = f"the archive must contain only {MEMBER}, got {len(answers)} JSON files"
                return None, [SubmissionProblem(what, len(answers), ", ".join(names[:3]) or "the archive is empty")]
            size = archive.getinfo(answers[0]).file_size
            if size > LARGEST_FILE:
                raise UserError(f"{answers[0]} has {size:,} bytes, more than {LARGEST_FILE:,}")
            with archive.open(answers[0]) as member:
                unpacked = member.read(size + 1)  # no more than the directory of the archive says
    except UNREADABLE_ARCHIVE as error:
        reason = one_line(str(error)) or type(error).__name__
        return None, [SubmissionProblem("the archive is damaged or unreadable", 1, reason)]
    wrong_names = [name for name in names if name != MEMBER]
    if not wrong_names:
        return unpacked, []
    what = f"the archive must contain only {MEMBER}, at the top level"
    if any(name.startswith(MAC_FOLDER) or name.endswith(".DS_Store") for name in wrong_names):
        what += f" (macOS has added files: pack with `zip -X predictions.zip {MEMBER}`)"
    return unpacked, [SubmissionProblem(what, len(wrong_names), wrong_names[0])]


def decode(data: bytes) -> Outermost:
    """Return the undecoded values of the outermost object or array, with null for NaN and Infinity."""
    decoder: msgspec.json.Decoder[Outermost] = msgspec.json.Decoder(Outermost)
    try:
        return decoder.decode(data)
    except msgspec.DecodeError:
        if not NON_NUMBER.search(data):
            raise
    return decoder.decode(NON_NUMBER.sub(rb"\1null", data))


def unreadable(data: bytes, error: Exception) -> SubmissionProblem:
    """Return the reason why the text cannot be decoded."""
    if not data.lstrip().startswith((b"{", b"[")):
        what = f"the file is neither a JSON object keyed by image id nor a list: it {first_look(data)}"
        return SubmissionProblem(what, 1, "")
    keys = KEY.findall(data)
    last = shown(data[:200])
    if keys:
        last = f"the last key is {keys[-1].decode(errors='replace')}, number {len(keys):,}"
    if "truncated" in str(error):
        return SubmissionProblem(f"the JSON is truncated after {len(data):,} bytes", 1, last)
    return SubmissionProblem(f"the file is not JSON: {error}", 1, last)


def _from_entries(entries: dict[str, msgspec.Raw]) -> tuple[Content, list[SubmissionProblem]]:
    """Return the content of an object keyed by image id; malformed entries are reported and left empty."""
    decoder = msgspec.json.Decoder(EntryRecord)
    chunks = dict.fromkeys(entries, arrays([], [], []))
    malformed: list[str] = []
    unequal: list[str] = []
    for image_id, raw in entries.items():
        try:
            entry = decoder.decode(raw)
        except UNDECODABLE as error:
            malformed.append(f"{image_id}: {shown(bytes(raw))}: {error}")
            continue
        if not len(entry.boxes) == len(entry.scores) == len(entry.labels):
            lengths = f"{len(entry.boxes)} boxes, {len(entry.scores)} scores, {len(entry.labels)} labels"
            unequal.append(f"image {image_id}: {lengths}")
            continue
        chunks[image_id] = arrays(entry.boxes, entry.scores, entry.labels)
    problems = problems_of("values are not objects of boxes, scores and labels", malformed)
    return join(chunks), problems + problems_of("boxes, scores and labels differ in length", unequal)


def arrays(boxes: Sequence[Box], scores: Sequence[Number], labels: Sequence[Number]) -> tuple[Any, Any, Any]:
    """Return the lists of one frame as float64 arrays, NaN for null."""
    flat = np.array(list(chain.from_iterable(boxes)), dtype=np.float64).reshape(-1, 4)
    return flat, np.array(scores, dtype=np.float64), np.array(labels, dtype=np.float64)


def join(chunks: dict[str, tuple[Any, Any, Any]]) -> Content:
    owners = np.repeat(np.arange(len(chunks)), [len(scores) for _, scores, _ in chunks.values()])
    parts = zip(arrays([], [], []), *chunks.values(), strict=True)
    return Content(tuple(chunks), owners, *(np.concatenate(part) for part in parts))
