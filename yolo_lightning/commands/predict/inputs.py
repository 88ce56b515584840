"""Which pictures somebody means by a path, a pattern, a folder or a video, and what is in them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from yolo_lightning.data.storage.frames import IMAGE_SUFFIXES, FrameError, decode_frame

VIDEO_SUFFIXES = frozenset({".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm", ".wmv"})

RAW_GRAY = b"Y1\0"
"""FFmpeg's tag of gray pixels of more than 8 bits: these bytes and the number of bits, reversed for big-endian ones."""


@dataclass(frozen=True, slots=True)
class InputImage:
    """One image, or one frame of a video.

    Attributes:
        source: File that it comes from.
        frame: Number within the video, from 0; None for an image.
        pixels: `(H, W, 3)` uint8, RGB.
    """

    source: Path
    frame: int | None
    pixels: npt.NDArray[np.uint8]

    def is_gray(self) -> bool:
        """Whether its three channels are equal."""
        first = self.pixels[..., 0]
        return bool((first == self.pixels[..., 1]).all() and (first == self.pixels[..., 2]).all())


def find_files(sources: Sequence[str]) -> list[Path]:
    """Images and videos that `sources` name, each once, in the order given, those of a folder or pattern by name.

    Args:
        sources: Files, patterns such as `frames/**/*.jpg`, or folders, which count with all that lies below.

    Raises:
        ValueError: If a source does not exist, is of another kind, or holds nothing to look at.
    """
    files: dict[Path, None] = {}
    for source in sources:
        path = Path(source).expanduser()
        if path.is_dir():
            found = sorted(file for file in path.rglob("*") if is_known(file) and file.is_file())
        elif path.is_file():
            if not is_known(path):
                raise ValueError(f"{source} is no image or video, known endings are {', '.join(known_suffixes())}")
            found = [path]
        elif has_magic(source):
            found = sorted(file for name in glob(str(path), recursive=True) if is_known(file := Path(name)))
        else:
            raise ValueError(f"{source} does not exist")
        if not found:
            raise ValueError(f"{source} holds no image or video, known endings are {', '.join(known_suffixes())}")
        files |= dict.fromkeys(found)
    return list(files)


def is_known(path: Path) -> bool:
    """Whether the name is that of an image or a video."""
    return path.suffix.lower() in IMAGE_SUFFIXES | VIDEO_SUFFIXES


def is_video(path: Path) -> bool:
    """Whether the name is that of a video."""
    return path.suffix.lower() in VIDEO_SUFFIXES


def known_suffixes() -> list[str]:
    """Endings of images and videos."""
    return sorted(IMAGE_SUFFIXES | VIDEO_SUFFIXES)


def read_pictures(path: Path) -> Iterator[InputImage]:
    """The picture of an image file, or the frames of a video.

    Raises:
        FrameError: If the image cannot be decoded, or a gray video has more than 8 bits per pixel.
        OSError: If the file cannot be read.
        ValueError: If the video cannot be opened.
    """
    if not is_video(path):
        yield InputImage(path, None, decode_frame(path.read_bytes(), str(path), channels=3))
        return
    video = cv2.VideoCapture(str(path))
    try:
        if not video.isOpened():
            raise ValueError(f"{path} cannot be opened as a video")
        refuse_raw_video(video, path)
        number = 0
        while (answer := video.read())[0]:
            yield InputImage(path, number, np.asarray(cv2.cvtColor(answer[1], cv2.COLOR_BGR2RGB), dtype=np.uint8))
            number += 1
        if number == 0:
            raise ValueError(f"{path} is a video without frames")
    finally:
        video.release()


def refuse_raw_video(video: cv2.VideoCapture, path: Path) -> None:
    """Refuse a gray video of more than 8 bits per pixel, of which OpenCV would keep the upper 8: nearly black.

    Videos in colour of 10 and 12 bits use their whole range and are converted well.

    Raises:
        FrameError: If it is one.
    """
    tag = (int(video.get(cv2.CAP_PROP_CODEC_PIXEL_FORMAT)) & 0xFFFFFFFF).to_bytes(4, "little")
    bits = tag[3] if tag.startswith(RAW_GRAY) else tag[0] if tag.endswith(RAW_GRAY[::-1]) else 8
    if bits > 8:
        raise FrameError(
            f"{path}: the video is gray with {bits} bits per pixel, only 8-bit videos are read: convert its frames to "
            "8 bits with one range (docs/datasets.md)"
        )


def frames_per_second(path: Path) -> float:
    """Rate of a video as the file says, 25 where it does not."""
    video = cv2.VideoCapture(str(path))
    try:
        return float(video.get(cv2.CAP_PROP_FPS)) or 25.0
    finally:
        video.release()
