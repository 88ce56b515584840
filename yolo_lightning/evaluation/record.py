"""Collection of the matched frames of an evaluation, and the file from which scores and plots can be recomputed.

The file is a NumPy `.npz` without pickle: the arrays of the matches, named `matches.scores` and so on, and the other
attributes as JSON bytes in `header`.
"""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import msgspec
import numpy as np

from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.data.storage.zip_frames import UNREADABLE_ARCHIVE
from yolo_lightning.errors import UserError
from yolo_lightning.evaluation.frame_records import BY_FRAME, FrameRecords
from yolo_lightning.evaluation.matching import Matches, match
from yolo_lightning.evaluation.ultralytics_matching import UltralyticsMatches, match_as_ultralytics
from yolo_lightning.utils.distributed import gather
from yolo_lightning.utils.files import replacing
from yolo_lightning.utils.plain_text import one_line
from yolo_lightning.utils.regular_files import open_regular

Stage = Literal["val", "test"]
Records = TypeVar("Records", bound=FrameRecords)

FORMAT = 2  # version of the file format
COMPRESSION_LEVEL = 1  # level of zlib, 1 to 9. Higher levels take several times as long and save little.

HEADER = "header"

DAMAGE = (*UNREADABLE_ARCHIVE, KeyError, TypeError, msgspec.MsgspecError)
"""Exceptions from reading a truncated or foreign file; for example, `zipfile` takes flipped bits for encryption."""


class Header(msgspec.Struct, frozen=True):
    """The attributes of `EvaluationRecord` that are not arrays."""

    format: int
    stage: Stage
    epoch: int | None
    steps: int | None
    class_names: tuple[str, ...]
    image_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """One validation or test of F frames with C classes."""

    stage: Stage
    class_names: tuple[str, ...]  # C names
    image_ids: tuple[str, ...]  # F ids, in the order of the matches
    matches: Matches
    ultralytics: UltralyticsMatches  # matching of the same frames in the same order
    epoch: int | None = None  # last epoch in which the weights were trained, from 0; None if unknown
    steps: int | None = None  # number of batches with which the weights were trained; None if unknown

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        header = Header(FORMAT, self.stage, self.epoch, self.steps, self.class_names, self.image_ids)
        arrays = {HEADER: np.frombuffer(msgspec.json.encode(header), np.uint8)}
        tables: dict[str, FrameRecords] = {"matches": self.matches, "ultralytics": self.ultralytics}
        for name, table in tables.items():
            arrays |= {f"{name}.{field}": getattr(table, field) for field in table.names()}
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            replacing(path) as temporary,
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=COMPRESSION_LEVEL) as archive,
        ):
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file written by `save`. A file that is damaged or of another version raises a `ValueError`."""
        try:
            with open_regular(path) as file, np.load(file, allow_pickle=False) as arrays:
                content = arrays[HEADER].tobytes()
                version = msgspec.json.decode(content)["format"]
                if version != FORMAT:
                    raise UserError(f"format must be {FORMAT}, got {version}")
                header = msgspec.json.decode(content, type=Header)
                classes = len(header.class_names)
                frames = len(header.image_ids)
                matches = _read_table(arrays, "matches", match([], [], classes), frames)
                ultralytics = _read_table(arrays, "ultralytics", match_as_ultralytics([], [], classes), frames)
        except FileNotFoundError:
            raise
        except DAMAGE as error:
            problem = "it is not an archive of NumPy" if "pickle" in str(error) else one_line(str(error), 300)
            raise UserError(f"{path} is not a complete evaluation record: {problem}; run `validate` again") from error
        return cls(header.stage, header.class_names, header.image_ids, matches, ultralytics, header.epoch, header.steps)


def _read_table(arrays: Mapping[str, Any], name: str, empty: Records, frames: int) -> Records:
    """Return a table of `frames` frames; its dtypes and number of classes must be those of `empty`."""
    columns = {field: np.asarray(arrays[f"{name}.{field}"]) for field in empty.names()}  # bytes if it is no array
    items = int(columns["counts"].sum())
    for field, column in columns.items():
        like = getattr(empty, field)
        length = frames if field in BY_FRAME else items
        shape = (length, *like.shape[1:])
        if column.dtype != like.dtype or column.shape != shape:
            raise UserError(f"{name}.{field} must be {like.dtype} {shape}, got {column.dtype} {column.shape}")
    return type(empty)(**columns)


class EvaluationCollection:
    """Matched frames for the scores of COCO and Ultralytics, without repeated frames; 17 bytes per detection.

    With more than 256 classes, a detection takes 19 bytes. A batch is matched in `update`. Frames of several ranks are
    restored to the order of a single process, given that each update is split over the ranks in slices, the first slice
    to rank 0: detections of equal scores are ranked by this order.
    """

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self._matches = [match([], [], classes)]
        self._ultralytics = [match_as_ultralytics([], [], classes)]
        self._image_ids: list[str] = []
        self._turns: list[int] = []  # number of the update of each frame
        self._updates = 0

    def update(self, predictions: Sequence[Prediction], targets: Sequence[Target]) -> None:
        """Add frames; both sequences contain the same frames in the same order."""
        self._matches.append(match(predictions, targets, self.classes))
        self._ultralytics.append(match_as_ultralytics(predictions, targets, self.classes))
        self._image_ids += [target.image_id for target in targets]
        self._turns += [self._updates] * len(targets)
        self._updates += 1

    def compute(self, stage: Stage, class_names: Sequence[str]) -> EvaluationRecord:
        """Return the record of the frames that all ranks have added so far, each once; a collective call."""
        collected = (
            Matches.join(self._matches),
            UltralyticsMatches.join(self._ultralytics),
            self._image_ids,
            self._turns,
        )
        matches, ultralytics, ids, turns = zip(*gather(collected), strict=True)
        image_ids = list(chain.from_iterable(ids))
        in_turn = np.argsort(list(chain.from_iterable(turns)), kind="stable").tolist()
        positions: dict[str, int] = {}  # of each frame; distributed samplers repeat frames to pad the last batch
        for position in in_turn:
            positions.setdefault(image_ids[position], position)
        order = np.array(list(positions.values()), dtype=np.int64)
        return EvaluationRecord(
            stage,
            tuple(class_names),
            tuple(positions),
            Matches.join(matches).in_order(order),
            UltralyticsMatches.join(ultralytics).in_order(order),
        )
