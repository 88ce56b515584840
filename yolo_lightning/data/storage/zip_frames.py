"""Storage that reads frames from `frames.zip` in place, without extracting a million files.

`zipfile` needs seconds and about 700 MB to read a central directory of a million members. So it is read once per
archive, not once per loader worker, and stored as memory-mapped arrays.
"""

import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import numpy as np

from yolo_lightning.data.array_types import AnyArray, BytesArray
from yolo_lightning.data.index import index_folder
from yolo_lightning.data.index.index_folder import NameTable, encode
from yolo_lightning.data.storage.frames import FrameError, unreadable
from yolo_lightning.data.storage.image_header import FrameLimits
from yolo_lightning.data.storage.positioned_file import PositionedFile, ReplacedFileError
from yolo_lightning.data.storage.storage import EncodedStorage
from yolo_lightning.data.storage.storage_settings import StorageSettings
from yolo_lightning.errors import UserError
from yolo_lightning.utils.paths import real_path
from yolo_lightning.utils.plain_text import one_line
from yolo_lightning.utils.regular_files import file_stamp
from yolo_lightning.utils.suggestions import missing

ARCHIVE = "frames.zip"
FORMAT = 3
MEMBER = np.dtype(
    [("header_offset", "<u8"), ("compressed_bytes", "<u8"), ("bytes", "<u8"), ("crc", "<u4"), ("method", "<u4")]
)
METHODS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflated"}
ENCRYPTED = 0x1
UNREADABLE_ARCHIVE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    MemoryError,
    OverflowError,
)
"""Errors of `zipfile` for damaged archives; a ValueError is a negative position, or a name that is not UTF-8."""
LONGEST_NAME = 512  # Bytes. A member with a longer name is not a frame; one such name would widen the whole array.
LEADING_FOLDERS = re.compile(r"^(?:.*?/)??(?:frames/)+|^(?:.*?/)??(?=\d{8}/)")
"""Folders up to the first `frames`, or before the first date: archives were packed above, at or below `frames`."""

LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Signature, length of the name, length of the extra fields (APPNOTE.TXT 4.3.7), which only this header has."""

LOCAL_SIGNATURE = b"PK\x03\x04"


class ZipFrames(EncodedStorage):
    """Frames in an archive with stored or deflated members, also zip64; its packed directory is under `index_root`.

    The checksum of a member is verified at each read. An instance is pickled as two paths; each process opens the
    archive itself.
    """

    kind = "zip"

    def __init__(self, archive: Path, index_root: Path, limits: FrameLimits = FrameLimits()) -> None:  # noqa: B008
        self.archive = archive
        self.index_root = index_root
        self.limits = limits
        folder = _open_directory(archive, index_root)
        directory = index_folder.mapped(folder, ("names", "members"))
        manifest = index_folder.read_manifest(folder)
        self._names = NameTable(directory["names"])
        self._members = directory["members"]
        # A hash of names, sizes and checksums, which is equal for copies of an archive.
        self.fingerprint: str = manifest["fingerprint"]
        # Neither time of change nor inode: a backup with hard links or a new mount of the disk changes them during a
        # run, and the checksum of each member detects other content.
        size_bytes, modified_ns, *_ = manifest["source"]["stamp"]
        self._file = PositionedFile(archive, size_bytes, modified_ns)

    @classmethod
    def exists(cls, root: Path, settings: StorageSettings) -> bool:
        return (root / ARCHIVE).is_file()

    @classmethod
    def open(cls, root: Path, settings: StorageSettings, limits: FrameLimits) -> Self:
        return cls(root / ARCHIVE, settings.index_folder, limits)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.archive, self.index_root, self.limits, self.fingerprint)

    def __str__(self) -> str:
        return f"{self.archive}, {len(self._names):,} frames"

    def origin(self) -> dict[str, str]:
        return {"fingerprint": self.fingerprint}

    def content(self, name: str) -> bytes:
        position = self._names.find(name)
        if position is None:
            raise FrameError(f"{name}: not in {self.archive.name}")
        offset, compressed_bytes, size, crc, method = self._members[position].item()
        if max(size, compressed_bytes) > self.limits.max_bytes:
            raise FrameError(f"{name}: {size:,} bytes, more than {self.limits.max_bytes:,}")
        try:
            content = self._compressed(offset, compressed_bytes)
            if method == zipfile.ZIP_DEFLATED:
                # At most one byte more than the expected size: a damaged member must not fill the memory.
                content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, size + 1)
        except OSError as error:
            raise unreadable(name, f"cannot be read from {self.archive.name}: {error}", error) from error
        except (zipfile.BadZipFile, zlib.error) as error:
            raise FrameError(f"{name}: damaged in {self.archive.name}: {error}") from error
        if len(content) != size or zlib.crc32(content) != crc:
            raise FrameError(f"{name}: damaged in {self.archive.name}: wrong checksum")
        return content

    def missing(self, names: Iterable[str]) -> list[str]:
        return self._names.absent(names)

    def state_of(self, names: Iterable[str]) -> str:
        return self.fingerprint

    def _compressed(self, header_offset: int, length: int) -> bytes:
        header = self._file.read(header_offset, LOCAL_HEADER.size)
        if not header.startswith(LOCAL_SIGNATURE) or len(header) < LOCAL_HEADER.size:
            raise zipfile.BadZipFile(f"no member begins at byte {header_offset:,}")
        _, name_length, extra_length = LOCAL_HEADER.unpack(header)
        data = self._file.read(header_offset + LOCAL_HEADER.size + name_length + extra_length, length)
        if len(data) < length:
            raise zipfile.BadZipFile(f"the archive ends inside the member, {length - len(data):,} bytes are missing")
        return data


def _reopen(archive: Path, index_root: Path, limits: FrameLimits, fingerprint: str) -> ZipFrames:
    """Open the archive in a spawned worker."""
    storage = ZipFrames(archive, index_root, limits)
    if storage.fingerprint != fingerprint:
        raise ReplacedFileError(f"{archive} has changed since this run was started: restart the run")
    return storage


def _open_directory(archive: Path, index_root: Path) -> Path:
    """Return the folder of the packed directory of `archive` under `index_root`, see `index_folder.open_folder`."""
    if not archive.is_file():
        raise UserError(f"frame archive {archive} {missing(archive)}")

    def build() -> tuple[index_folder.Arrays, dict[str, Any]]:
        names, members = read_directory(archive)
        fingerprint = sha256(names.tobytes())
        for column in ("bytes", "crc"):
            fingerprint.update(members[column].tobytes())
        return {"names": names, "members": members}, {"fingerprint": fingerprint.hexdigest()[:32]}

    source = {"format": FORMAT, "path": str(real_path(archive)), "stamp": list(file_stamp(archive))}
    return index_folder.open_folder(index_root, archive.name, source, build)


def read_directory(archive: Path) -> tuple[BytesArray, AnyArray]:
    """Return the sorted names and the `MEMBER` records of the files in an archive."""
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = opened.infolist()
    except UNREADABLE_ARCHIVE as error:
        reason = one_line(str(error)) or type(error).__name__
        raise UserError(
            f"{archive} ({archive.stat().st_size:,} bytes) cannot be read as a zip archive: {reason}; its directory "
            "is at the end of the file, so the download or copy may be incomplete"
        ) from error
    entries = [entry for entry in entries if 0 < len(encode(entry.filename)) <= LONGEST_NAME and not entry.is_dir()]
    if not entries:
        raise UserError(f"{archive} contains no files")
    archive_bytes = archive.stat().st_size
    for entry in entries:
        if entry.volume or not 0 <= entry.header_offset <= archive_bytes - entry.compress_size:
            raise UserError(
                f"{archive}: {entry.filename!r} has {entry.compress_size:,} bytes at {entry.header_offset:,} of disk "
                f"{entry.volume}, which is not inside the archive of {archive_bytes:,} bytes: its directory is "
                "damaged, or it is one of several disks, which have to be joined"
            )
        if entry.flag_bits & ENCRYPTED:
            raise UserError(f"{archive}: {entry.filename} is encrypted: extract the archive and use the folder")
        if entry.compress_type not in METHODS:
            supported = ", ".join(f"{method} ({name})" for method, name in METHODS.items())
            raise UserError(
                f"{archive}: the compression method of {entry.filename} must be one of {supported}, got "
                f"{entry.compress_type}: extract the archive and use the folder"
            )
    names = np.array([encode(frame_name(entry.filename)) for entry in entries])
    fields = (
        (entry.header_offset, entry.compress_size, entry.file_size, entry.CRC, entry.compress_type) for entry in entries
    )
    members = np.fromiter(fields, dtype=MEMBER, count=len(entries))
    order = np.argsort(names, kind="stable")
    names = names[order]
    repeated = names[1:] == names[:-1]
    if repeated.any():
        name = bytes(names[repeated.argmax()]).decode(errors="replace")
        raise UserError(f"{archive} contains {name} twice: extract the archive and use the folder")
    return names, members[order]


def frame_name(member: str) -> str:
    """Return the name of a member in annotation files.

    `LTDv2/frames/20200514/...`, `frames/frames/20200514/...` and `20200514/...` become `frames/20200514/...`; a name
    with neither a folder `frames` nor a date is unchanged. Some programs of Windows write a
    backslash between folders.
    """
    return LEADING_FOLDERS.sub("frames/", member.replace("\\", "/"), count=1)
