"""Frames read from `frames.zip` in place, without extracting a million files."""

import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from yolo_lightning.data.storage.frames import FrameError, decode_frame
from yolo_lightning.data.storage.zip_directory import open_directory
from yolo_lightning.utils.files import PositionedFile

LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Signature, length of the name, length of the extra fields (APPNOTE.TXT 4.3.7)."""

LOCAL_SIGNATURE = b"PK\x03\x04"
HEADROOM_BYTES = 256
"""Read beyond header and content, because only the local header says how long its own name and extra fields are."""

RAW_DEFLATE = -zlib.MAX_WBITS


class ZipFrames:
    """Frames inside an archive whose members are stored or deflated; zip64 too.

    Every member is compared with its checksum when it is read. Pickles as two paths; each process opens the archive
    itself.

    Args:
        archive: The zip file.
        index_root: Where its packed table of contents is kept.

    Raises:
        ValueError: If the archive cannot be used.
    """

    def __init__(self, archive: Path, index_root: Path) -> None:
        self.archive = archive
        self.index_root = index_root
        directory = open_directory(archive, index_root)
        self.fingerprint = directory.fingerprint
        self._names = directory.names
        self._members = directory.members
        self._file = PositionedFile(archive, directory.size_bytes, directory.modified_ns)

    def __reduce__(self) -> tuple[Any, ...]:
        return reopen, (self.archive, self.index_root, self.fingerprint)

    def __str__(self) -> str:
        return f"{self.archive}, {len(self._names):,} frames"

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """The frame `(H, W)` uint8; see `FrameSource`.

        Raises:
            FrameError: If it is missing or damaged.
            ValueError: If the archive was replaced while it was in use.
        """
        return decode_frame(self.content(name), name)

    def content(self, name: str) -> bytes:
        """The member's bytes, uncompressed and checked.

        Raises:
            FrameError: If it is missing or damaged.
            ValueError: If the archive was replaced while it was in use.
        """
        position = self._names.find(name)
        if position is None:
            raise FrameError(f"{name}: not in {self.archive.name}")
        offset, compressed_bytes, size, crc, method = self._members[position].item()
        try:
            data = self._compressed(offset, compressed_bytes)
            content = data if method == zipfile.ZIP_STORED else inflate(data, size)
        except (OSError, zlib.error, DamagedMember) as error:
            raise FrameError(f"{name}: damaged in {self.archive.name}: {error}") from error
        if len(content) != size or zlib.crc32(content) != crc:
            raise FrameError(f"{name}: damaged in {self.archive.name}: wrong checksum")
        return content

    def missing(self, names: Iterable[str]) -> list[str]:
        """Names that are not in the table of contents."""
        return self._names.absent(names)

    def _compressed(self, header_offset: int, length: int) -> bytes:
        block = self._file.read(header_offset, LOCAL_HEADER.size + HEADROOM_BYTES + length)
        if not block.startswith(LOCAL_SIGNATURE) or len(block) < LOCAL_HEADER.size:
            raise DamagedMember(f"no member begins at byte {header_offset:,}")
        _, name_length, extra_length = LOCAL_HEADER.unpack_from(block)
        start = LOCAL_HEADER.size + name_length + extra_length
        data = block[start : start + length]
        if len(data) < length:
            data = self._file.read(header_offset + start, length)
        if len(data) < length:
            raise DamagedMember(f"the archive ends inside it, {length - len(data):,} bytes are missing")
        return data


def reopen(archive: Path, index_root: Path, fingerprint: str) -> ZipFrames:
    """What a spawned worker does with what it receives.

    Raises:
        ValueError: If it is not the archive any more that the parent opened.
    """
    source = ZipFrames(archive, index_root)
    if source.fingerprint != fingerprint:
        raise ValueError(f"{archive} has changed since this run was started: start again")
    return source


class DamagedMember(Exception):
    """A member that is not where the table of contents says."""


def inflate(data: bytes, size: int) -> bytes:
    """Uncompress to at most one byte more than `size`: a damaged member must not fill the memory.

    Raises:
        zlib.error: If `data` is no deflate stream.
    """
    return zlib.decompressobj(RAW_DEFLATE).decompress(data, size + 1)
