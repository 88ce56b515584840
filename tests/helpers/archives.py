"""Small frames, the annotation file that names them, and zip archives, byte by byte where `zipfile` is too strict."""

import json
import multiprocessing
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np

from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.data.storage.frames import decode_frame
from yolo_lightning.data.storage.packing import describe, write_index, write_shard
from yolo_lightning.data.storage.storage import EncodedStorage, Storage

LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
ENCRYPTED = 1
NO_SIZE = 0xFFFFFFFF


def drawn_frames(
    count: int, clip: str = "frames/20200502/clip_1_1142", height: int = 24, width: int = 32
) -> dict[str, bytes]:
    """Return different JPEG files by frame name."""
    frames = {}
    for number in range(count):
        coarse = np.random.default_rng(number).integers(0, 256, (6, 8), dtype=np.uint8)
        image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
        frames[f"{clip}/image_{number:04d}.jpg"] = cv2.imencode(".jpg", image)[1].tobytes()
    return frames


def pixels(frames: Mapping[str, bytes]) -> dict[str, np.ndarray]:
    """Return the decoded frames."""
    return {name: decode_frame(content, name) for name, content in frames.items()}


def assert_same_in_threads_and_processes(source: Storage, frames: Mapping[str, bytes]) -> None:
    """Assert that four threads and two spawned processes read the pixels of the files, twenty times each."""
    expected, names = pixels(frames), list(frames) * 20
    with (
        ThreadPoolExecutor(4) as threads,
        ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as processes,
    ):
        in_processes = processes.map(source.read, names, chunksize=15)
        for read in (threads.map(source.read, names), in_processes):
            for name, frame in zip(names, read, strict=True):
                assert np.array_equal(frame, expected[name])


def write_annotations(path: Path, names: list[str], height: int = 24, width: int = 32) -> None:
    """Write an annotation file of the frames; the first frame has one box."""
    images = [
        {"id": 20200502114223000 + k, "file_name": name, "width": width, "height": height}
        for k, name in enumerate(names)
    ]
    boxes = [{"id": 1, "image_id": images[0]["id"], "category_id": 1, "bbox": [0, 0, 1, 1]}]
    categories = [{"id": number, "name": name} for number, name in enumerate(("background", *CLASS_NAMES))]
    path.write_text(json.dumps({"images": images, "annotations": boxes, "categories": categories}))


def put(root: Path, frames: Mapping[str, bytes]) -> None:
    """Write frames into a folder."""
    for name, content in frames.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def pack(store: Path, source: EncodedStorage, names: Sequence[str], shard_frames: int = 4) -> Path:
    """Write a new packed store of the frames."""
    store.mkdir()
    parts = [names[start : start + shard_frames] for start in range(0, len(names), shard_frames)]
    done = [write_shard(store, source, describe(source), part) for part in parts]
    damaged = {name: reason for _, reasons in done for name, reason in reasons.items()}
    write_index(store, [shard for shard, _ in done if shard], damaged, describe(source))
    return store


def write_zip(path: Path, frames: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    """Write an archive with entries for the folders, as common tools do."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for folder in sorted({name.rpartition("/")[0] for name in frames}):
            archive.writestr(f"{folder}/", b"")
        for name, content in frames.items():
            archive.writestr(name, content)
    return path


def write_zip_by_hand(
    path: Path,
    frames: Mapping[str, bytes],
    *,
    zip64: bool = False,
    local_extra: bytes = b"",
    flags: int = 0,
    disk: int = 0,
) -> Path:
    """Write stored members whose local headers have extra fields that are not in the central directory.

    With `zip64`, every size and position is in the zip64 extra field, as beyond 4 GiB.
    """
    body, directory = b"", b""
    for name, content in frames.items():
        encoded, position, crc, size = name.encode(), len(body), zlib.crc32(content), len(content)
        body += LOCAL + struct.pack(
            "<HHHHHIIIHH", 20, flags, 0, 0, 0x21, crc, size, size, len(encoded), len(local_extra)
        )
        body += encoded + local_extra + content
        extra = struct.pack("<HHQQQ", 1, 24, size, size, position) if zip64 else b""
        sizes = (NO_SIZE, NO_SIZE) if zip64 else (size, size)
        directory += CENTRAL + struct.pack("<HHHHHHIII", 0x031E, 45, flags, 0, 0, 0x21, crc, *sizes)
        directory += struct.pack("<HHHHHII", len(encoded), len(extra), 0, disk, 0, 0, NO_SIZE if zip64 else position)
        directory += encoded + extra
    end = END + struct.pack("<HHHHIIH", 0, 0, len(frames), len(frames), len(directory), len(body), 0)
    if zip64:
        place = len(body) + len(directory)
        end64 = b"PK\x06\x06" + struct.pack(
            "<QHHIIQQQQ", 44, 45, 45, 0, 0, len(frames), len(frames), len(directory), len(body)
        )
        locator = b"PK\x06\x07" + struct.pack("<IQI", 0, place, 1)
        end = end64 + locator + END + struct.pack("<HHHHIIH", 0, 0, 0xFFFF, 0xFFFF, NO_SIZE, NO_SIZE, 0)
    path.write_bytes(body + directory + end)
    return path
