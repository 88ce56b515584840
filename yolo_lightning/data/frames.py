"""Where frames come from. One protocol, so that other stores can take the folder's place."""

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np
import numpy.typing as npt

JPEG_START = b"\xff\xd8"
JPEG_END = b"\xff\xd9"
TRAILING_BYTES = 64
"""How far before the end of a file its end marker may stand; some writers pad."""


class FrameError(Exception):
    """A frame that cannot be used; the message is `<file name>: <reason>`."""


class FrameSource(Protocol):
    """Reads frames by the name the annotation file gives them."""

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """The frame `(H, W)` uint8, one channel.

        Raises:
            FrameError: If it is missing or damaged.
        """
        ...

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that the source does not hold, without decoding anything."""
        ...


class FolderFrames:
    """Frames extracted into a folder, as `<root>/frames/<date>/<clip>/image_<n>.jpg`.

    Extracting `frames.zip` into a folder called `frames` gives `frames/frames/...`; that is found too.

    Args:
        root: The dataset root.

    Raises:
        ValueError: If `root` or the frame folder below it does not exist.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise ValueError(f"dataset root {root} does not exist or is not a folder")
        if not (root / "frames").is_dir():
            raise ValueError(f"dataset root {root} has no folder 'frames': extract frames.zip there")
        self.base = root / "frames" if (root / "frames" / "frames").is_dir() else root

    def __str__(self) -> str:
        return str(self.base / "frames")

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """The frame `(H, W)` uint8; see `FrameSource`."""
        return decode_frame(self.content(name), name)

    def content(self, name: str) -> bytes:
        """The file's bytes.

        Raises:
            FrameError: If it cannot be read.
        """
        try:
            return (self.base / name).read_bytes()
        except OSError as error:
            raise FrameError(f"{name}: {error.strerror}") from error

    def missing(self, names: Iterable[str]) -> list[str]:
        """Names without a file; lists each clip folder once instead of asking for every file."""
        by_folder: dict[str, list[str]] = defaultdict(list)
        for name in names:
            by_folder[os.path.dirname(name)].append(name)
        absent: list[str] = []
        for folder, members in by_folder.items():
            try:
                present = set(os.listdir(self.base / folder))
            except OSError:
                present = set()
            absent.extend(name for name in members if os.path.basename(name) not in present)
        return absent


def decode_frame(content: bytes, name: str) -> npt.NDArray[np.uint8]:
    """Decode an image file to `(H, W)` uint8.

    OpenCV fills the missing rows of a torn JPEG with gray and reports success, so the end marker is checked first.

    Raises:
        FrameError: If `content` is torn or not an image.
    """
    if not content:
        raise FrameError(f"{name}: the file is empty")
    if content.startswith(JPEG_START) and JPEG_END not in content[-TRAILING_BYTES:]:
        raise FrameError(f"{name}: the JPEG is torn ({len(content)} bytes, no end marker)")
    try:
        frame = cv2.imdecode(np.frombuffer(content, dtype=np.uint8), cv2.IMREAD_GRAYSCALE)
    except cv2.error:  # a damaged header may claim billions of pixels
        frame = None
    if frame is None:
        raise FrameError(f"{name}: not an image that can be decoded ({len(content)} bytes)")
    return np.asarray(frame, dtype=np.uint8)
