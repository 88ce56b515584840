"""Packed store: frames decoded once into shards of raw bytes, so that reading a frame is a copy.

`packing` writes the store. It is a folder with

- `manifest.json`: origin of the frames, shards with their size, damaged frames
- `shard-<hash>.u8`: frames one after another, row by row, without headers; uint8, or little-endian uint16 in a store of
  16-bit frames
- `shard-<hash>.json`: names, shapes and checksums of the shard's frames, from which an interrupted `prepare` resumes
- `index-<hash>/`: names, shapes and checksums of all frames, sorted by name, memory-mapped by readers
"""

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

from yolo_lightning.data.array_types import AnyArray, BytesArray
from yolo_lightning.data.index import index_folder
from yolo_lightning.data.index.index_folder import NameTable, encode
from yolo_lightning.data.index.sampled_names import sampled_positions
from yolo_lightning.data.storage.frames import Frame, FrameError, unreadable
from yolo_lightning.data.storage.image_header import FrameLimits
from yolo_lightning.data.storage.positioned_file import PositionedFile, ReplacedFileError
from yolo_lightning.data.storage.storage import Storage
from yolo_lightning.data.storage.storage_settings import StorageSettings
from yolo_lightning.errors import UserError
from yolo_lightning.utils.plain_text import one_line
from yolo_lightning.utils.regular_files import read_regular

FORMAT_OF_BITS = {8: 1, 16: 2}
"""Version of the layout by bits per pixel."""

MANIFEST = "manifest.json"
LONGEST_NAME = 255  # Bytes of a file name
FRAME = np.dtype([("shard", "<u4"), ("crc", "<u4"), ("offset", "<u8"), ("height", "<u4"), ("width", "<u4")])


class Shard(msgspec.Struct, frozen=True):
    """File of raw frames."""

    file: str  # Name in the store
    bytes: int
    frames: int


class Manifest(msgspec.Struct, frozen=True):
    """Content of a finished store."""

    format: int  # Version of the layout, one of `FORMAT_OF_BITS`
    source: dict[str, str]  # Origin of the frames, see `packing.describe`
    index: str  # Folder of the sorted arrays
    index_crc: int  # CRC-32 of their content, names then frames
    shards: list[Shard]  # Shards in the order of their numbers in the arrays
    damaged: dict[str, str]  # Reason by name, for frames that could not be decoded


def bits_of(source: Mapping[str, str]) -> int:
    """Return the bits per pixel of the frames of an origin, see `packing.describe`."""
    return 16 if source.get("bits") == "16" else 8


class PackedFrames(Storage):
    """Frames of a packed store, a folder written by `prepare`.

    The checksum of a frame is verified at each read: 26 us for 110 KB, a fraction of the time for one training sample.
    An instance is pickled as its path; each process opens the shards itself.
    """

    kind = "packed"

    def __init__(self, store: Path) -> None:
        self.store = store
        manifest = read_manifest(store)
        for shard in manifest.shards:
            path = store / shard.file
            problem = "is missing"
            if path.is_file():
                size_bytes = path.stat().st_size
                if size_bytes == shard.bytes:
                    continue
                problem = f"has {size_bytes:,} bytes"
            raise UserError(
                f"{path} {problem}, but has {shard.bytes:,} in {MANIFEST}: run prepare, which packs its "
                f"{shard.frames:,} frames again"
            )
        names, self._frames = map_index(store, manifest)
        self._names = NameTable(names)
        self.source = manifest.source
        self.bits = bits_of(manifest.source)
        self._dtype = np.dtype("<u2" if self.bits == 16 else "u1")
        self._damaged = manifest.damaged
        self._index_crc = manifest.index_crc
        self._shards = [PositionedFile(store / shard.file, shard.bytes) for shard in manifest.shards]

    @classmethod
    def exists(cls, root: Path, settings: StorageSettings) -> bool:
        return (settings.store_in(root) / MANIFEST).is_file()

    @classmethod
    def open(cls, root: Path, settings: StorageSettings, limits: FrameLimits) -> Self:
        packed = cls(settings.store_in(root))
        if packed.bits != limits.bits:
            remedy = "set data.input.pixel_range.mode" if packed.bits == 16 else "delete it and run prepare --bits 16"
            raise UserError(
                f"{packed} must have frames of {limits.bits} bits as in data.input.pixel_range.mode: {remedy}"
            )
        return packed

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.store, self.source)

    def __str__(self) -> str:
        depth = " of 16 bits" if self.bits == 16 else ""
        return f"{self.store}, {len(self._names):,} packed frames{depth}"

    def read(self, name: str) -> Frame:
        """Return a frame, read-only; raise also a `ReplacedFileError` if a shard has changed since it was opened."""
        position = self._names.find(name)
        if position is None:
            raise FrameError(f"{name}: {self._damaged.get(name, f'not in the packed store {self.store}')}")
        number, crc, offset, height, width = self._frames[position].item()
        frame_bytes = height * width * self._dtype.itemsize
        if number >= len(self._shards) or offset + frame_bytes > self._shards[number].size_bytes:
            raise FrameError(f"{name}: the index of {self.store} is damaged: run prepare")
        shard = self._shards[number]
        try:
            content = shard.read(offset, frame_bytes)
        except OSError as error:
            raise unreadable(name, f"cannot be read from {shard.path}: {error}", error) from error
        if zlib.crc32(content) != crc:
            raise FrameError(f"{name}: wrong checksum in {shard.path}: run prepare --verify true, which packs it again")
        frame: Frame = np.frombuffer(content, dtype=self._dtype).reshape(height, width)
        return frame

    def missing(self, names: Iterable[str]) -> list[str]:
        """Return the names that are neither in the store nor listed there as damaged."""
        return [name for name in self._names.absent(names) if name not in self._damaged]

    def state_of(self, names: Iterable[str]) -> str:
        return f"{self._index_crc:08x}"  # the index contains the checksum of each frame

    def sample(self, count: int) -> list[str]:
        """Return the names of at most `count` frames, chosen by a hash of their names."""
        names = [name.decode(errors="surrogatepass") for name in self._names.names.tolist()]
        return [names[position] for position in sampled_positions(names, count)]


def _reopen(store: Path, source: dict[str, str]) -> PackedFrames:
    """Open the store, which may have grown, in a spawned worker."""
    frames = PackedFrames(store)
    if frames.source != source:
        raise ReplacedFileError(f"{store} was packed from other frames since this run was started: restart the run")
    return frames


def read_manifest(store: Path) -> Manifest:
    """Read the manifest of a finished store."""
    path = store / MANIFEST
    try:
        manifest = msgspec.json.decode(read_regular(path), type=Manifest)
    except FileNotFoundError as error:
        raise UserError(f"{store} is not a finished packed store ({MANIFEST} is missing): run prepare") from error
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {one_line(str(error))}; run prepare, which writes it again") from error
    format = FORMAT_OF_BITS[bits_of(manifest.source)]
    if manifest.format != format:
        raise UserError(f"{path} must have format {format}, got {manifest.format}: delete the store and run prepare")
    for name in (manifest.index, *(shard.file for shard in manifest.shards)):
        if not 0 < len(encode(name)) <= LONGEST_NAME or Path(name).name != name or name == ".." or "\0" in name:
            raise UserError(f"{path}: {one_line(name, 100)!r} must be the name of a file in the store; run prepare")
    return manifest


def map_index(store: Path, manifest: Manifest) -> tuple[BytesArray, AnyArray]:
    """Return the sorted names and their `FRAME` records; raise `ValueError` if they are missing or damaged."""
    folder = store / manifest.index
    try:
        names, frames = index_folder.mapped(folder, ("names", "frames")).values()
        if names.dtype.kind != "S" or names.ndim != 1 or frames.dtype != FRAME or frames.shape != names.shape:
            raise ValueError("wrong types")
        if index_checksum(names, frames) != manifest.index_crc:
            raise ValueError("wrong checksum")
    except Exception as error:  # numpy raises errors of many types on a damaged header, also SyntaxError
        raise UserError(f"{folder} is damaged: {one_line(str(error))}; run prepare, which writes it again") from error
    return names, frames


def index_checksum(names: BytesArray, frames: AnyArray) -> int:
    return zlib.crc32(frames.data, zlib.crc32(names.data))
