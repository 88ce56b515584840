"""All that is needed to score and draw an evaluation anew, in one file.

The file is a NumPy `.npz` without pickle: the arrays of the matches, named `matches.scores` and so on, and `header`,
JSON as bytes, with the rest.
"""

import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import msgspec
import numpy as np
import torch

from yolo_lightning.evaluation.frame_records import FrameRecords
from yolo_lightning.evaluation.matching import Matches, match
from yolo_lightning.evaluation.ultralytics_matching import UltralyticsMatches, match_as_ultralytics
from yolo_lightning.utils.files import replacing

Stage = Literal["val", "test"]
Records = TypeVar("Records", bound=FrameRecords)

FORMAT = 1
"""Raised when a file of another content would be misread."""

COMPRESSION_LEVEL = 1
"""Of zlib, 1 to 9: higher ones take several times as long and save little."""

HEADER = "header"
TABLES = ("matches", "ultralytics")
"""Attributes of `EvaluationRecord` that are tables."""

DAMAGE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError, OverflowError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, struct.error, msgspec.MsgspecError),
)
"""What reading a torn or foreign file may raise: `zipfile` takes flipped bits for encryption, for one."""


class Header(msgspec.Struct, frozen=True):
    """What is not an array; fields as in `EvaluationRecord`."""

    format: int
    stage: Stage
    epoch: int | None
    steps: int | None
    class_names: tuple[str, ...]
    image_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """One validation or test of F frames with C classes.

    Attributes:
        stage: What the frames are of.
        class_names: C names, index 0 first.
        image_ids: F ids, in the order of the matches.
        matches: As COCO matches.
        ultralytics: As Ultralytics matches, with the confusions; frames in the same order.
        epoch: In which the weights were trained last, from 0; None where it is not known.
        steps: Batches that the weights were trained with; None where it is not known.
    """

    stage: Stage
    class_names: tuple[str, ...]
    image_ids: tuple[str, ...]
    matches: Matches
    ultralytics: UltralyticsMatches
    epoch: int | None = None
    steps: int | None = None

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all.

        Raises:
            OSError: If it cannot be written.
        """
        header = Header(FORMAT, self.stage, self.epoch, self.steps, self.class_names, self.image_ids)
        arrays = {HEADER: np.frombuffer(msgspec.json.encode(header), np.uint8)}
        for name in TABLES:
            table: FrameRecords = getattr(self, name)
            arrays |= {f"{name}.{field}": getattr(table, field).numpy() for field in table.names()}
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
        """Read a file that `save` has written.

        Raises:
            FileNotFoundError: If there is none.
            ValueError: If it is damaged, or of another version.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                content = arrays[HEADER].tobytes()
                version = msgspec.json.decode(content)["format"]
                if version != FORMAT:
                    raise ValueError(f"its format is {version}, allowed is {FORMAT}")
                header = msgspec.json.decode(content, type=Header)
                classes, frames = len(header.class_names), len(header.image_ids)
                matches = read_table(arrays, "matches", match([], [], classes), frames)
                ultralytics = read_table(arrays, "ultralytics", match_as_ultralytics([], [], classes), frames)
        except FileNotFoundError:
            raise
        except DAMAGE as error:
            raise ValueError(f"{path} is not a whole evaluation record: {error}") from error
        return cls(header.stage, header.class_names, header.image_ids, matches, ultralytics, header.epoch, header.steps)


def read_table(arrays: Mapping[str, Any], name: str, empty: Records, frames: int) -> Records:
    """One table of the file.

    Args:
        arrays: By name.
        name: Of the table.
        empty: A table without frames, of the same dtypes and numbers of classes.
        frames: How many there must be.

    Raises:
        KeyError: If an array is missing.
        ValueError: If one is of another dtype or size.
    """
    columns = {field: torch.from_numpy(arrays[f"{name}.{field}"]) for field in empty.names()}
    items = int(columns["counts"].sum())
    for field, column in columns.items():
        like = getattr(empty, field)
        shape = (frames if field in empty.BY_FRAME else items, *like.shape[1:])
        if column.dtype != like.dtype or tuple(column.shape) != shape:
            raise ValueError(f"{name}.{field} is {column.dtype} {tuple(column.shape)}, not {like.dtype} {shape}")
    return type(empty)(**columns)
