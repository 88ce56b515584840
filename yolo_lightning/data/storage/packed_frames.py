"""Frames decoded once into shards of raw bytes, so that reading one is a copy. `packing` writes the store.

The store is a folder of

- `manifest.json`: what it was made from, its shards with size and CRC-32, the frames that were damaged
- `shard-<hash>.u8`: frames one after another, uint8, row by row, without headers
- `shard-<hash>.json`: names, shapes and checksums of its frames; what a continued `prepare` starts from
- `index-<hash>/`: the same of all shards, sorted by name, memory-mapped by readers
"""

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from yolo_lightning.data.index.name_table import NameTable
from yolo_lightning.data.storage.frames import FrameError
from yolo_lightning.utils.files import PositionedFile

FORMAT = 1
MANIFEST = "manifest.json"
FRAME = np.dtype([("shard", "<u4"), ("crc", "<u4"), ("offset", "<u8"), ("height", "<u4"), ("width", "<u4")])


class Shard(msgspec.Struct, frozen=True):
    """One file of raw frames.

    Attributes:
        file: Its name inside the store.
        bytes: Its size.
        frames: How many frames it holds.
        crc: CRC-32 of the whole file.
    """

    file: str
    bytes: int
    frames: int
    crc: int


class Manifest(msgspec.Struct, frozen=True):
    """What a finished store says about itself.

    Attributes:
        format: Version of the layout.
        source: What the frames were read from.
        index: Folder of the sorted arrays.
        index_crc: CRC-32 of their content, names then frames.
        shards: In the order in which the arrays count them.
        damaged: Reason by name, for frames that the source holds but that could not be decoded.
    """

    format: int
    source: dict[str, str]
    index: str
    index_crc: int
    shards: list[Shard]
    damaged: dict[str, str]


class PackedFrames:
    """Frames of a packed store.

    Every frame is compared with its checksum when it is read: 26 us for 110 KB, a fraction of what drawing one
    training sample takes. Pickles as its path; each process opens the shards itself.

    Args:
        store: Folder that `prepare` has written.

    Raises:
        ValueError: If the store is unfinished, cut or damaged.
    """

    def __init__(self, store: Path) -> None:
        self.store = store
        manifest = read_manifest(store)
        for shard in manifest.shards:
            check_size(store, shard)
        names, frames = map_index(store, manifest)
        self._names = NameTable(names)
        self._frames = frames
        self.source = manifest.source
        self._damaged = manifest.damaged
        self._shards = [PositionedFile(store / shard.file, shard.bytes) for shard in manifest.shards]

    def __reduce__(self) -> tuple[Any, ...]:
        return reopen, (self.store, self.source)

    def __str__(self) -> str:
        return f"{self.store}, {len(self._names):,} packed frames"

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """The frame `(H, W)` uint8; see `FrameSource`.

        Raises:
            FrameError: If it is missing or damaged.
            ValueError: If a shard was replaced while it was in use.
        """
        position = self._names.find(name)
        if position is None:
            raise FrameError(f"{name}: {self._damaged.get(name, f'not in the packed store {self.store}')}")
        number, crc, offset, height, width = self._frames[position].item()
        shard = self._shards[number]
        frame = np.empty((height, width), dtype=np.uint8)
        try:
            shard.read_into(frame.data.cast("B"), offset)
        except OSError as error:
            raise FrameError(f"{name}: cannot be read from {shard.path}: {error}") from error
        if zlib.crc32(frame.data) != crc:
            raise FrameError(f"{name}: wrong checksum in {shard.path}: run prepare --verify true, which packs it again")
        return frame

    def missing(self, names: Iterable[str]) -> list[str]:
        """Names that are neither in the store nor known to it as damaged."""
        return [name for name in self._names.absent(names) if name not in self._damaged]

    def sample(self, count: int) -> list[str]:
        """Up to `count` names, evenly spread."""
        names = self._names.names
        return [bytes(name).decode() for name in names[:: max(1, len(names) // count)][:count]]


def reopen(store: Path, source: dict[str, str]) -> PackedFrames:
    """What a spawned worker does with what it receives; a store may have grown since the parent opened it.

    Raises:
        ValueError: If it was packed from other frames than the store that the parent opened.
    """
    frames = PackedFrames(store)
    if frames.source != source:
        raise ValueError(f"{store} has been packed from other frames since this run was started: start again")
    return frames


def read_manifest(store: Path) -> Manifest:
    """The manifest of a finished store.

    Raises:
        ValueError: If there is none, or it is damaged or of another version.
    """
    path = store / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError as error:
        raise ValueError(f"{store} is no finished packed store ({MANIFEST} is missing): run prepare") from error
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged: {error}; run prepare, which writes it again") from error
    if manifest.format != FORMAT:
        raise ValueError(f"{path} has format {manifest.format}, this version reads {FORMAT}: delete it and run prepare")
    return manifest


def check_size(store: Path, shard: Shard) -> None:
    """Refuse a shard that is missing or was cut.

    Raises:
        ValueError: If its size is not the manifest's.
    """
    path = store / shard.file
    size = path.stat().st_size if path.is_file() else None
    if size != shard.bytes:
        raise ValueError(
            f"{path} {'is missing' if size is None else f'has {size:,} bytes'}, {MANIFEST} says {shard.bytes:,}: "
            f"run prepare, which packs its {shard.frames:,} frames again"
        )


def map_index(store: Path, manifest: Manifest) -> tuple[npt.NDArray[np.bytes_], npt.NDArray[Any]]:
    """Sorted names and their `FRAME` records.

    Raises:
        ValueError: If they are missing or damaged.
    """
    folder = store / manifest.index
    try:
        names, frames = (np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in ("names", "frames"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} is damaged: {error}; run prepare, which writes it again") from error
    if index_checksum(names, frames) != manifest.index_crc:
        raise ValueError(f"{folder} is damaged: wrong checksum; run prepare, which writes it again")
    return names, frames


def index_checksum(names: npt.NDArray[np.bytes_], frames: npt.NDArray[Any]) -> int:
    """CRC-32 of both arrays, one after the other."""
    return zlib.crc32(frames.data, zlib.crc32(names.data))
