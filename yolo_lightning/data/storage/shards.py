"""One file of raw frames and the description beside it: written, read back, checked, deleted.

A shard is named by a hash of what it is to hold. Two processes that write the same shard, say one whose parent was
killed a moment ago and its successor, write the same bytes under the same name.
"""

import zlib
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import msgspec
import numpy as np

from yolo_lightning.data.storage.frames import FrameError, FrameSource
from yolo_lightning.data.storage.packed_frames import Shard
from yolo_lightning.utils.files import replacing

PREFIX = "shard-"
SUFFIX = ".u8"
Source = dict[str, str]
"""What frames are read from, in words that identify its content."""


class ShardFrames(msgspec.Struct, frozen=True):
    """What a shard holds, kept beside it.

    Attributes:
        shard: The file.
        source: What the frames were read from.
        names: Frame names in the order of their pixels.
        heights: Pixels, frame by frame.
        widths: Pixels, frame by frame.
        crcs: CRC-32 of each frame's pixels.
    """

    shard: Shard
    source: Source
    names: list[str]
    heights: list[int]
    widths: list[int]
    crcs: list[int]


class PackedShard(msgspec.Struct, frozen=True):
    """What became of one task.

    Attributes:
        frames: The shard; None if no frame could be used.
        damaged: Reason by name of the frames left out.
    """

    frames: ShardFrames | None
    damaged: dict[str, str]


def write_shard(store: Path, source: FrameSource, description: Source, names: Sequence[str]) -> PackedShard:
    """Decode frames into one shard and describe it beside.

    Raises:
        OSError: If it cannot be written; then nothing of it is left.
    """
    key = sha256(msgspec.json.encode([description, list(names)])).hexdigest()[:16]
    path = store / f"{PREFIX}{key}{SUFFIX}"
    packed: list[tuple[str, int, int, int]] = []
    damaged: dict[str, str] = {}
    crc = size = 0
    with replacing(path) as temporary, temporary.open("wb") as file:
        for name in names:
            try:
                frame = np.ascontiguousarray(source.read(name))
            except FrameError as error:
                damaged[name] = str(error).removeprefix(f"{name}: ")
                continue
            file.write(frame.data)
            crc = zlib.crc32(frame.data, crc)
            size += frame.nbytes
            packed.append((name, *frame.shape, zlib.crc32(frame.data)))
    if not packed:
        path.unlink()
        return PackedShard(None, damaged)
    own_names, heights, widths, crcs = (list(column) for column in zip(*packed, strict=True))
    frames = ShardFrames(Shard(path.name, size, len(packed), crc), description, own_names, heights, widths, crcs)
    content = msgspec.json.encode(frames)
    with replacing(path.with_suffix(".json")) as temporary:
        temporary.write_bytes(b"%08x\n" % zlib.crc32(content) + content)
    return PackedShard(frames, damaged)


def read_shard_frames(path: Path) -> ShardFrames | None:
    """The description of a shard; None if it is damaged or the shard is missing or cut."""
    try:
        seal, _, content = path.read_bytes().partition(b"\n")
        if int(seal, 16) != zlib.crc32(content):
            return None
        frames = msgspec.json.decode(content, type=ShardFrames)
        return frames if (path.parent / frames.shard.file).stat().st_size == frames.shard.bytes else None
    except (OSError, ValueError, msgspec.MsgspecError):
        return None


def complete_shards(store: Path) -> tuple[list[ShardFrames], list[str]]:
    """The shards that are whole, and the names of those that are not; no frame is in two of the first."""
    whole: list[ShardFrames] = []
    broken: list[str] = []
    seen: set[str] = set()
    for path in shard_files(store):
        frames = read_shard_frames(path.with_suffix(".json"))
        if frames is None or frames.shard.file != path.name or not seen.isdisjoint(frames.names):
            broken.append(path.name)
        else:
            whole.append(frames)
            seen.update(frames.names)
    return whole, broken


def shard_files(store: Path) -> list[Path]:
    """Every shard of which there is the file or its description."""
    return sorted({path.with_suffix(SUFFIX) for path in store.glob(f"{PREFIX}*")})


def damaged_frames(store: Path, frames: ShardFrames) -> list[str]:
    """Names of the frames in a shard that fail their checksum."""
    names: list[str] = []
    with (store / frames.shard.file).open("rb") as file:
        for name, height, width, crc in zip(frames.names, frames.heights, frames.widths, frames.crcs, strict=True):
            if zlib.crc32(file.read(height * width)) != crc:
                names.append(name)
    return names


def remove_shard(store: Path, file: str) -> None:
    """Delete a shard, its description first: what has none is never taken for whole."""
    (store / file).with_suffix(".json").unlink(missing_ok=True)
    (store / file).unlink(missing_ok=True)
