"""Decoded-image cache for small datasets: a mosaic reads four frames per sample, and decoding is most of its cost."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from yolo_lightning.data.dataset import LabelledFrames
from yolo_lightning.data.storage.frames import ImageFiles, Storage
from yolo_lightning.data.storage.zip_frames import ZipFrames

MIB = 2**20


class ImageCache:
    """Storage that decodes each readable frame of another storage once per process; a pickled copy is empty."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._frames: dict[str, npt.NDArray[np.uint8]] = {}

    def __str__(self) -> str:
        return str(self._storage)

    def __reduce__(self) -> tuple[type["ImageCache"], tuple[Storage]]:
        return ImageCache, (self._storage,)

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the cached frame, read-only."""
        frame = self._frames.get(name)
        if frame is None:
            frame = self._storage.read(name)
            frame.flags.writeable = False  # shared by all samples that contain the frame
            self._frames[name] = frame
        return frame

    def missing(self, names: Iterable[str]) -> list[str]:
        return self._storage.missing(names)


def cache_images(frames: LabelledFrames, budget_mib: int) -> LabelledFrames:
    """Add an image cache if the storage holds encoded images and all decoded frames fit into `budget_mib`.

    Frames of a packed store need no decoding, and share the memory of the page cache.
    """
    size_mib = frames.index.pixels() * frames.channels / MIB
    if size_mib > budget_mib or not isinstance(frames.storage, ImageFiles | ZipFrames):
        return frames
    cached = LabelledFrames(frames.index, ImageCache(frames.storage), frames.channels)
    cached.quarantined = frames.quarantined
    return cached
