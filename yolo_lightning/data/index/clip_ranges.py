"""Ranges of the pixel values of clips of 16-bit frames, computed once and stored beside the packed index."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from yolo_lightning.data.index import index_folder
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.storage.frames import FrameError
from yolo_lightning.data.storage.storage import Storage
from yolo_lightning.data.transforms.pixel_range import LARGEST_VALUE, PixelRange, Span, value_counts
from yolo_lightning.utils.host import available_cores

FORMAT = 1
CLIP_FRAMES = 8  # Number of frames, evenly spread over a clip, whose percentiles are the range of the clip

Item = TypeVar("Item")

Ranges = npt.NDArray[np.float32]
"""`(K, 2)` float32: lowest and highest value by clip number; NaN for a clip without a readable sampled frame."""


def clip_ranges(index: SplitIndex, storage: Storage, pixel_range: PixelRange, index_root: Path) -> Ranges:
    """Return the ranges of all clips in `index`.

    They are stored under `index_root` if each clip has one, and used again as long as annotations and frames are
    unchanged. One of several processes computes them under a lock.
    """
    clips, positions = index.clips(), index.positions_in_clip()
    order = np.lexsort((positions, clips))
    numbers, starts = np.unique(clips[order], return_index=True)
    members = np.split(order, starts[1:])
    names = [[index.file_name(frame) for frame in evenly_spread(frames.tolist())] for frames in members]
    source = {
        "format": FORMAT,
        "annotations": index.fingerprint,
        "frames": sha256(storage.state([name for own in names for name in own]).encode()).hexdigest(),
        "percentiles": [pixel_range.low, pixel_range.high],
    }
    name = f"clip-ranges-{sha256(repr(source).encode()).hexdigest()[:16]}"
    folder = index_root / name
    if (stored := _load(folder, source)) is not None:
        return stored
    try:
        with index_folder.sole_builder(index_root, name):
            if (stored := _load(folder, source)) is not None:
                return stored
            ranges = np.full((int(clips.max()) + 1, 2), np.nan, dtype=np.float32)
            with ThreadPoolExecutor(available_cores()) as pool:
                ranges[numbers] = list(pool.map(lambda own: range_of(own, storage, pixel_range), names))
            if np.isfinite(ranges[numbers]).all():
                index_folder.write_folder(folder, {"ranges": ranges}, {"source": source})
    except OSError as error:
        raise ValueError(f"cannot write the ranges of the clips under {index_root}: {error}") from error
    return ranges


def range_of(names: Sequence[str], storage: Storage, pixel_range: PixelRange) -> Span:
    """Return the percentiles of the pixels of all readable frames, NaN if there is none."""
    counts = np.zeros(LARGEST_VALUE + 1, dtype=np.int64)
    for name in names:
        try:
            counts += value_counts(np.asarray(storage.read(name), dtype=np.uint16))
        except FrameError:  # counted as a bad frame when it is sampled
            continue
    return pixel_range.percentiles(counts) if counts.any() else Span(float("nan"), float("nan"))


def evenly_spread(frames: Sequence[Item]) -> list[Item]:
    """Return at most `CLIP_FRAMES` of the frames of a clip, evenly spread; all of them if there are not more."""
    count = min(len(frames), CLIP_FRAMES)
    return [frames[place * len(frames) // count] for place in range(count)]


def _load(folder: Path, source: dict[str, object]) -> Ranges | None:
    """Return stored ranges; None if they are missing, damaged or of another source."""
    if not index_folder.is_current(folder, source):
        return None
    try:
        ranges: Ranges = np.load(folder / "ranges.npy")
    except (OSError, ValueError):
        return None
    return ranges
