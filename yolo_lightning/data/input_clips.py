"""Input images with the background of their clip, for networks trained with `data.input.background`."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np

from yolo_lightning.data.clip_backgrounds import median_of, spread
from yolo_lightning.data.formats.annotations import IMAGE_NUMBER
from yolo_lightning.data.input_images import InputImage, is_video, read_pictures
from yolo_lightning.data.storage.frames import FrameError
from yolo_lightning.data.transforms.augmentation_settings import Image
from yolo_lightning.data.transforms.pixel_range import PixelRange
from yolo_lightning.utils.rank_zero import rank_zero_warn


class ClipReader:
    """Reader of image files and videos; with `background` (`data.input.background`), also of the background.

    A video is one clip and is read twice. The clip of an image file consists of the files in its folder whose names
    differ in the last number only, whether they are inputs or not. `ranges` map images with 16 bits.
    """

    def __init__(self, background: bool = False, ranges: PixelRange | None = None) -> None:
        self.background = background
        self.ranges = ranges
        self._has_reported = False
        self._of_files = lru_cache(1)(self._median_of_files)

    def read(self, path: Path) -> Iterator[InputImage]:
        """Yield the image of an image file, or the frames of a video."""
        pictures = self._reported(read_pictures(path, self.ranges))
        if not self.background:
            yield from pictures
        elif is_video(path):
            medians = _medians_by_shape(spread(map(gray, pictures)))
            for picture in read_pictures(path, self.ranges):
                yield replace(picture, background=medians.get(picture.pixels.shape[:2]))
        else:
            picture = next(pictures)
            background = self._of_files(path.parent, *numbered(path.name), gray(picture).shape)
            yield replace(picture, background=background)

    def _reported(self, pictures: Iterator[InputImage]) -> Iterator[InputImage]:
        """Yield the pictures; warn of the first image file that is not read as a whole."""
        for picture in pictures:
            if picture.unread and not self._has_reported:
                self._has_reported = True
                rank_zero_warn(f"{picture.source} has {picture.unread}; other files like this are not reported")
            yield picture

    def _median_of_files(self, folder: Path, start: str, end: str, shape: tuple[int, int]) -> Image | None:
        """Return the background of the images `start`, number, `end`; None if no other image can be used."""
        names = [name for name in os.listdir(folder) if numbered(name) == (start, end)]
        names.sort(key=lambda name: int("0" + name[len(start) : len(name) - len(end)]))
        frames = []
        for name in spread(names):
            with suppress(FrameError, OSError, ValueError):  # reported if the image is an input itself
                frames += [gray(picture) for picture in read_pictures(folder / name, self.ranges)]
        frames = [frame for frame in frames if frame.shape == shape]
        if not frames:
            return None
        return median_of(frames)


def _medians_by_shape(frames: Sequence[Image]) -> dict[tuple[int, ...], Image]:
    """Return the background of the frames of each shape: the size can change within a video."""
    shapes = {frame.shape for frame in frames}
    return {shape: median_of([frame for frame in frames if frame.shape == shape]) for shape in shapes}


def numbered(name: str) -> tuple[str, str]:
    """Return the parts of a file name before and after the last number of its stem; the whole name without a number."""
    number = IMAGE_NUMBER.search(name.rpartition(".")[0])
    if number is None:
        return name, ""
    return name[: number.start(1)], name[number.end(1) :]


def pair_of(image: InputImage) -> Image:
    """Return gray levels and background `(H, W, 2)` of an image, which is its own background if that is unknown."""
    frame = gray(image)
    background = frame if image.background is None else image.background
    dtype = np.result_type(frame, background)  # float32 if one of them has full depth
    return np.asarray(cv2.merge([frame.astype(dtype), background.astype(dtype)]), dtype=dtype)


def gray(image: InputImage) -> Image:
    """Return the gray levels `(H, W)` of an image, with full depth if it has one."""
    if image.full is not None:
        return image.full
    return np.asarray(cv2.cvtColor(image.pixels, cv2.COLOR_RGB2GRAY), np.uint8)
