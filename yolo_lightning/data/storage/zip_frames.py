"""Storage that reads frames from `frames.zip` in place, without extracting a million files."""

import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from yolo_lightning.data.index.name_table import NameTable
from yolo_lightning.data.storage.frames import FrameError, decode_frame
from yolo_lightning.data.storage.zip_directory import open_directory
from yolo_lightning.utils.files import PositionedFile

LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Signature, length of the name, length of the extra fields (APPNOTE.TXT 4.3.7)."""

LOCAL_SIGNATURE = b"PK\x03\x04"
HEADROOM_BYTES = 256
"""Bytes read in addition to header and content: only the local header has the lengths of its name and extra fields."""


class ZipFrames:
    """Frames in an archive with stored or deflated members, also zip64; its packed directory is under `index_root`.

    The checksum of a member is verified at each read. An instance is pickled as two paths; each process opens the
    archive itself.
    """

    def __init__(self, archive: Path, index_root: Path) -> None:
        self.archive = archive
        self.index_root = index_root
        names, self._members, manifest = open_directory(archive, index_root)
        self._names = NameTable(names)
        self.fingerprint: str = manifest["fingerprint"]
        self._file = PositionedFile(archive, manifest["source"]["bytes"], manifest["source"]["modified_ns"])

    def __reduce__(self) -> tuple[Any, ...]:
        return reopen, (self.archive, self.index_root, self.fingerprint)

    def __str__(self) -> str:
        return f"{self.archive}, {len(self._names):,} frames"

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        return decode_frame(self.content(name), name)

    def content(self, name: str) -> bytes:
        """Return the uncompressed content of a member."""
        position = self._names.find(name)
        if position is None:
            raise FrameError(f"{name}: not in {self.archive.name}")
        offset, compressed_bytes, size, crc, method = self._members[position].item()
        try:
            content = self._compressed(offset, compressed_bytes)
            if method == zipfile.ZIP_DEFLATED:
                # At most one byte more than the expected size: a damaged member must not fill the memory.
                content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, size + 1)
        except (OSError, zlib.error) as error:
            raise FrameError(f"{name}: damaged in {self.archive.name}: {error}") from error
        if len(content) != size or zlib.crc32(content) != crc:
            raise FrameError(f"{name}: damaged in {self.archive.name}: wrong checksum")
        return content

    def missing(self, names: Iterable[str]) -> list[str]:
        return self._names.absent(names)

    def _compressed(self, header_offset: int, length: int) -> bytes:
        block = self._file.read(header_offset, LOCAL_HEADER.size + HEADROOM_BYTES + length)
        if not block.startswith(LOCAL_SIGNATURE) or len(block) < LOCAL_HEADER.size:
            raise OSError(f"no member begins at byte {header_offset:,}")
        _, name_length, extra_length = LOCAL_HEADER.unpack_from(block)
        start = LOCAL_HEADER.size + name_length + extra_length
        data = block[start : start + length]
        if len(data) < length:
            data = self._file.read(header_offset + start, length)
        if len(data) < length:
            raise OSError(f"the archive ends inside the member, {length - len(data):,} bytes are missing")
        return data


def reopen(archive: Path, index_root: Path, fingerprint: str) -> ZipFrames:
    """Open the archive in a spawned worker; raise `ValueError` if it was replaced."""
    storage = ZipFrames(archive, index_root)
    if storage.fingerprint != fingerprint:
        raise ValueError(f"{archive} has changed since this run was started: restart the run")
    return storage
