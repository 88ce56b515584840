"""Input images with their neighbouring frames as channels, for networks trained with `data.input.neighbours`."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np

from yolo_lightning.data.index.neighbours import clamped, numbered
from yolo_lightning.data.input_images import InputImage, is_video, read_pictures
from yolo_lightning.data.storage.frames import FrameError
from yolo_lightning.data.transforms.augmentation_settings import Image
from yolo_lightning.data.transforms.pixel_range import PixelRange
from yolo_lightning.utils.rank_zero import rank_zero_warn


class ClipReader:
    """Reader of image files and videos; with `offsets` (`data.input.neighbours`), also of the neighbouring frames.

    A video is one clip. The clip of an image file consists of the files in its folder whose names differ in the last
    number only, in the order of this number, whether they are inputs or not. `ranges` map images with 16 bits.
    """

    def __init__(self, offsets: tuple[int, ...] = (), ranges: PixelRange | None = None) -> None:
        self.offsets = offsets
        self.ranges = ranges
        self._clips = lru_cache(1)(_clips_in)
        reach = offsets[-1] - offsets[0] + 1 if offsets else 0
        self._image = lru_cache(reach)(lambda path: next(read_pictures(path, ranges)))

    def read(self, path: Path) -> Iterator[InputImage]:
        """Yield the image of an image file, or the frames of a video."""
        if not self.offsets:
            yield from read_pictures(path, self.ranges)
        elif is_video(path):
            yield from with_neighbours(read_pictures(path, self.ranges), self.offsets)
        else:
            yield replace(self._image(path), channels=self._channels(path, gray(self._image(path))))

    def _channels(self, path: Path, own: Image) -> Image:
        pattern, number = numbered(path.name)
        clip = [(number, path.name)] if number < 0 else self._clips(path.parent)[pattern]
        places = clamped(clip.index((number, path.name)), len(clip), self.offsets)
        return _merged([self._neighbour(path.with_name(clip[place][1]), own) for place in places])

    def _neighbour(self, path: Path, own: Image) -> Image:
        """Return a frame of the clip of `own`, or `own` and log a warning if the frame cannot be used."""
        try:
            found = gray(self._image(path))
        except (FrameError, OSError, ValueError) as error:
            rank_zero_warn(f"a neighbouring frame cannot be used, the frame itself replaces it: {error}")
            return own
        if found.shape == own.shape:
            return found
        rank_zero_warn(f"{path} has another size than its neighbour, which replaces it: {found.shape} and {own.shape}")
        return own


def _clips_in(folder: Path) -> dict[str, list[tuple[int, str]]]:
    """Return number and name of the files of each clip, in their order, by the name without the number."""
    clips: dict[str, list[tuple[int, str]]] = {}
    for name in os.listdir(folder):
        pattern, number = numbered(name)
        clips.setdefault(pattern, []).append((number, name))
    return {pattern: sorted(files) for pattern, files in clips.items()}


def with_neighbours(frames: Iterable[InputImage], offsets: tuple[int, ...]) -> Iterator[InputImage]:
    """Yield the frames of one clip with their neighbours; reads as many frames ahead as the largest offset."""
    waiting: deque[InputImage] = deque()
    grays: dict[int, Image] = {}
    place = 0

    def next_image() -> InputImage:
        channels = _merged([grays[other] for other in clamped(place, place + len(waiting), offsets)])
        grays.pop(place + offsets[0], None)
        return replace(waiting.popleft(), channels=channels)

    for number, frame in enumerate(frames):
        waiting.append(frame)
        grays[number] = gray(frame)
        if len(waiting) > offsets[-1]:
            yield next_image()
            place += 1
    while waiting:
        yield next_image()
        place += 1


def channels_of(image: InputImage, offsets: tuple[int, ...]) -> Image:
    """Return the channels `(H, W, C)` of an image; the frame itself is all of them if its neighbours are unknown."""
    return _merged([gray(image)] * len(offsets)) if image.channels is None else image.channels


def _merged(frames: list[Image]) -> Image:
    dtype = np.result_type(*frames)  # float32 if one of them has full depth
    return np.asarray(cv2.merge([frame.astype(dtype, copy=False) for frame in frames]), dtype=dtype)


def gray(image: InputImage) -> Image:
    """Return the gray levels `(H, W)` of an image, with full depth if it has one."""
    return np.asarray(cv2.cvtColor(image.pixels, cv2.COLOR_RGB2GRAY), np.uint8) if image.full is None else image.full
