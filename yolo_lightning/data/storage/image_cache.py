"""Small datasets stay decoded in memory: a mosaic reads four frames per sample, and decoding is most of its cost."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from yolo_lightning.data.dataset import LabelledFrames
from yolo_lightning.data.storage.frames import FrameSource, ImageFiles
from yolo_lightning.data.storage.zip_frames import ZipFrames

MIB = 2**20


class KeptFrames:
    """Decodes each frame once per process, and keeps it; a copy in another process begins empty.

    Args:
        source: Where the frames come from. What cannot be read there is not kept.
    """

    def __init__(self, source: FrameSource) -> None:
        self._source = source
        self._kept: dict[str, npt.NDArray[np.uint8]] = {}

    def __str__(self) -> str:
        return str(self._source)

    def __reduce__(self) -> tuple[type["KeptFrames"], tuple[FrameSource]]:
        return KeptFrames, (self._source,)

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """The frame, read-only; see `FrameSource`."""
        frame = self._kept.get(name)
        if frame is None:
            frame = self._source.read(name)
            frame.flags.writeable = False  # it is lent again and again
            self._kept[name] = frame
        return frame

    def missing(self, names: Iterable[str]) -> list[str]:
        """See `FrameSource`."""
        return self._source.missing(names)


def kept_decoded(frames: LabelledFrames, budget_mib: int) -> LabelledFrames:
    """`frames` as they are, or kept in memory where they are encoded images that all fit into `budget_mib`.

    Frames of a packed store need no decoding, and share the memory of the disk cache.
    """
    size_mib = frames.index.pixels() * frames.channels / MIB
    if size_mib > budget_mib or not isinstance(frames.source, ImageFiles | ZipFrames):
        return frames
    kept = LabelledFrames(frames.index, KeptFrames(frames.source), frames.channels)
    kept.quarantined = frames.quarantined
    return kept
