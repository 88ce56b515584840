"""The table of contents of `frames.zip`, packed into memory-mapped arrays.

`zipfile` takes seconds and some 700 MB of objects to read the table of contents of a million members, so that is done
once for an archive, not once for every loader worker.
"""

import re
import struct
import zipfile
import zlib
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from yolo_lightning.data.index import index_folder
from yolo_lightning.data.index.name_table import NamesArray, NameTable, encode

FORMAT = 1
ARRAYS = ("names", "members")
MEMBER = np.dtype(
    [("header_offset", "<u8"), ("compressed_bytes", "<u8"), ("bytes", "<u8"), ("crc", "<u4"), ("method", "<u4")]
)
MEMBER_ATTRIBUTES = {
    "header_offset": "header_offset",
    "compressed_bytes": "compress_size",
    "bytes": "file_size",
    "crc": "CRC",
    "method": "compress_type",
}
METHODS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflated"}
ENCRYPTED = 0x1
LONGEST_NAME = 512
"""Bytes. What has a longer name is no frame, and one such name would widen the whole array."""

LEADING_FOLDERS = re.compile(r"^(?:.*/)?(?:frames/|(?=\d{8}/))")
"""What may stand before `<date>/<clip>/<frame>`: archives were packed above, at or below the folder `frames`."""


@dataclass(frozen=True)
class ZipDirectory:
    """Where each member of an archive lies.

    Attributes:
        names: Frame names as annotation files write them, sorted.
        members: `MEMBER` records in the order of the names.
        size_bytes: Size of the archive that the records describe.
        modified_ns: Time of its last change.
        fingerprint: Hash of names, sizes and checksums; the same for copies of one archive.
    """

    names: NameTable
    members: npt.NDArray[Any]
    size_bytes: int
    modified_ns: int
    fingerprint: str


def open_directory(archive: Path, index_root: Path) -> ZipDirectory:
    """The packed table of contents of `archive` under `index_root`, built first where it is missing or out of date.

    Several processes may ask at once: one builds under a lock, beside the final folder, and renames.

    Raises:
        ValueError: If the archive cannot be used or `index_root` cannot be written.
    """
    if not archive.is_file():
        raise ValueError(f"frame archive {archive} does not exist")
    source = describe_archive(archive)
    key = sha256(source["path"].encode()).hexdigest()[:16]
    folder = index_root / f"{archive.name}-{key}"
    directory = load_directory(folder, source)
    if directory is not None:
        return directory
    try:
        index_root.mkdir(parents=True, exist_ok=True)
        with index_folder.exclusive_lock(index_root / f"{folder.name}.lock"):
            index_folder.remove_leftovers(index_root, folder.name)
            directory = load_directory(folder, source)
            if directory is None:
                build_directory(archive, folder, source)
                directory = load_directory(folder, source)
    except OSError as error:
        raise ValueError(f"cannot write the table of contents of {archive} under {index_root}: {error}") from error
    assert directory is not None
    return directory


def describe_archive(archive: Path) -> dict[str, Any]:
    """What must be unchanged for a packed table of contents to be current."""
    status = archive.stat()
    return {
        "format": FORMAT,
        "path": str(archive.resolve()),
        "bytes": status.st_size,
        "modified_ns": status.st_mtime_ns,
    }


def load_directory(folder: Path, source: dict[str, Any]) -> ZipDirectory | None:
    """Map the arrays; None where they are missing, damaged or describe another archive."""
    if not index_folder.is_current(folder, source):
        return None
    manifest = index_folder.read_manifest(folder)
    try:
        names, members = (np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in ARRAYS)
    except (OSError, ValueError):
        return None
    if manifest.get("checksums") != [zlib.crc32(names.data), zlib.crc32(members.data)]:
        return None
    return ZipDirectory(NameTable(names), members, source["bytes"], source["modified_ns"], manifest["fingerprint"])


def build_directory(archive: Path, folder: Path, source: dict[str, Any]) -> None:
    """Read the table of contents and write its arrays, with a hash of what they say, into `folder`.

    Raises:
        ValueError: If the archive cannot be used.
        OSError: If the folder cannot be written.
    """
    names, members = read_directory(archive)
    fingerprint = sha256(names.tobytes())
    for column in ("bytes", "crc"):
        fingerprint.update(members[column].tobytes())
    manifest = {
        "source": source,
        "fingerprint": fingerprint.hexdigest()[:32],
        "checksums": [zlib.crc32(names.data), zlib.crc32(members.data)],
    }
    index_folder.write_folder(folder, {"names": names, "members": members}, manifest)


def read_directory(archive: Path) -> tuple[NamesArray, npt.NDArray[Any]]:
    """Names, sorted, and `MEMBER` records of the files in an archive.

    Raises:
        ValueError: If the archive is cut, holds no files, or holds members that cannot be read in place.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = opened.infolist()
    except (zipfile.BadZipFile, NotImplementedError, EOFError, struct.error, OSError) as error:
        raise ValueError(
            f"{archive} ({archive.stat().st_size:,} bytes) cannot be read as a zip archive: {error}; "
            "its table of contents stands at its end, so a download or copy that was cut off looks like this"
        ) from error
    entries = [entry for entry in entries if is_candidate(entry)]
    if not entries:
        raise ValueError(f"{archive} holds no files")
    for entry in entries:
        check_readable(archive, entry)
    names = np.array([encode(frame_name(entry.filename)) for entry in entries])
    members = np.empty(len(entries), dtype=MEMBER)
    for column, attribute in MEMBER_ATTRIBUTES.items():
        members[column] = np.fromiter((getattr(entry, attribute) for entry in entries), dtype=np.uint64)
    order = np.argsort(names, kind="stable")
    return single(archive, names[order], members[order])


def is_candidate(entry: zipfile.ZipInfo) -> bool:
    """Whether a member can be a frame at all."""
    return not entry.is_dir() and len(encode(entry.filename)) <= LONGEST_NAME


def check_readable(archive: Path, entry: zipfile.ZipInfo) -> None:
    """Refuse what cannot be read in place.

    Raises:
        ValueError: If the member is encrypted, compressed in an unknown way or on another disk.
    """
    if entry.flag_bits & ENCRYPTED:
        raise ValueError(f"{archive}: {entry.filename} is encrypted: extract the archive and use the folder")
    if entry.volume:
        raise ValueError(f"{archive}: {entry.filename} is on disk {entry.volume} of several: join the archive first")
    if entry.compress_type not in METHODS:
        raise ValueError(
            f"{archive}: {entry.filename} is compressed by method {entry.compress_type}, allowed are "
            + " and ".join(f"{name} ({method})" for method, name in METHODS.items())
            + ": extract the archive and use the folder"
        )


def frame_name(member: str) -> str:
    """The name under which annotation files know a member.

    `LTDv2/frames/20200514/...`, `frames/frames/20200514/...` and `20200514/...` are `frames/20200514/...`; a name with
    neither a folder `frames` nor a date stays as it is.
    """
    found = LEADING_FOLDERS.match(member)
    return f"frames/{member[found.end() :]}" if found else member


def single(archive: Path, names: NamesArray, members: npt.NDArray[Any]) -> tuple[NamesArray, npt.NDArray[Any]]:
    """Drop the repetitions of members that stand in the archive more than once with the same content.

    Raises:
        ValueError: If the contents differ.
    """
    repeated = np.flatnonzero(names[1:] == names[:-1])
    for column in ("crc", "bytes"):
        differing = repeated[members[column][repeated] != members[column][repeated + 1]]
        if len(differing):
            name = bytes(names[differing[0]]).decode(errors="replace")
            raise ValueError(
                f"{archive} holds {name} twice with different content: extract the right one, or all into a folder"
            )
    keep = np.ones(len(names), dtype=bool)
    keep[repeated + 1] = False
    return names[keep], members[keep]
