"""Frames as litdata chunks in a bucket or folder: for datasets that are larger than the local disk.

litdata is an optional dependency. The files stay encoded, a third of the size of their pixels; a frame is fetched by a
range request. litdata's own shuffling is not used: it shuffles within chunks, and neighbouring frames of a fixed camera
are near duplicates.
"""

import io
import os
import threading
import zlib
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import litdata
import numpy as np
import obstore

from yolo_lightning.data.index.index_folder import NameTable, encode
from yolo_lightning.data.storage.frames import FolderFrames, Frame, FrameError, decode_frame
from yolo_lightning.data.storage.image_header import FrameLimits
from yolo_lightning.data.storage.zip_frames import ZipFrames

NAMES = "names.npy"
CHUNK_BYTES = 64 << 20


class LitdataFrames:
    """Frames of a litdata store, a folder or a URL such as `s3://bucket/ltdv2`; `cache` is litdata's local cache.

    An instance is pickled as two texts; each process opens the store itself.
    """

    def __init__(self, store: str, cache: Path, limits: FrameLimits = FrameLimits()) -> None:  # noqa: B008
        self.store = store
        self.cache = cache
        self.limits = limits
        try:
            self._names = NameTable(np.load(io.BytesIO(read_object(store, NAMES)), allow_pickle=False))
        except (OSError, ValueError, obstore.exceptions.BaseError) as error:
            raise ValueError(f"{store} is not a litdata store of frames: {error}; run prepare") from error
        self._lock = threading.Lock()
        self._opened: tuple[int, litdata.StreamingDataset] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return LitdataFrames, (self.store, self.cache, self.limits)

    def __str__(self) -> str:
        return f"{self.store}, {len(self._names):,} frames in litdata chunks"

    def read(self, name: str) -> Frame:
        position = self._names.find(name)
        if position is None:
            raise FrameError(f"{name}: not in {self.store}")
        with self._lock:
            record = self._dataset()[position]
        content = bytes(record["content"])
        if record["problem"]:
            raise FrameError(f"{name}: {record['problem']}")
        if record["name"] != name or zlib.crc32(content) != record["crc"]:
            raise FrameError(f"{name}: damaged in {self.store}: wrong name or checksum in record {position}")
        return decode_frame(content, name, limits=self.limits)

    def missing(self, names: Iterable[str]) -> list[str]:
        return self._names.absent(names)

    def names(self, folders: Iterable[str]) -> list[str]:
        return self._names.inside(folders)

    def _dataset(self) -> litdata.StreamingDataset:
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), litdata.StreamingDataset(self.store, cache_dir=str(self.cache)))
        return self._opened[1]


def write_litdata(storage: FolderFrames | ZipFrames, names: Sequence[str], store: str, workers: int) -> None:
    """Write the encoded frames `names`, sorted and unique, to an empty folder or bucket.

    For a frame that cannot be read the reason is written, so that records and names have the same positions.
    """
    litdata.optimize(
        partial(record_of, storage),
        inputs=list(names),
        output_dir=store,
        chunk_bytes=CHUNK_BYTES,
        num_workers=workers,
        start_method="spawn",
        keep_data_ordered=True,
        reorder_files=False,
    )
    content = io.BytesIO()
    np.save(content, np.array([encode(name) for name in names]))
    write_object(store, NAMES, content.getvalue())


def record_of(storage: FolderFrames | ZipFrames, name: str) -> dict[str, Any]:
    content, problem = b"", ""
    try:
        content = storage.content(name)
    except FrameError as error:
        problem = str(error).removeprefix(f"{name}: ")
    return {"name": name, "content": content, "crc": zlib.crc32(content), "problem": problem}


def read_object(store: str, name: str) -> bytes:
    if "://" in store:
        return bytes(obstore.get(obstore.store.from_url(store), name).bytes())
    return (Path(store) / name).read_bytes()


def write_object(store: str, name: str, content: bytes) -> None:
    if "://" in store:
        obstore.put(obstore.store.from_url(store), name, content)
    else:
        (Path(store) / name).write_bytes(content)
