"""Where frames come from. One protocol, so that other stores can take the folder's place."""

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import cv2
import numpy as np
import numpy.typing as npt

Channels = Literal[1, 3]
"""Of a decoded frame: gray, or red, green and blue."""

JPEG_START = b"\xff\xd8"
JPEG_END = b"\xff\xd9"
TRAILING_BYTES = 64
"""How far before the end of a file its end marker is looked for first; some writers pad."""

TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""TIFF and BigTIFF, in both byte orders."""

SCAN_MARKER = 0xDA
"""Second byte of the JPEG marker behind whose segment the pixels begin (ISO/IEC 10918-1, table B.1)."""


class FrameError(Exception):
    """A frame that cannot be used; the message is `<file name>: <reason>`."""


class BitDepthError(FrameError):
    """A frame whose pixels are not 8-bit unsigned integers.

    A decoder would keep the upper 8 bits alone, which makes raw thermal values of 7,000 to 9,040 the gray levels 27 to
    35.

    Attributes:
        name: File of the frame.
        dtype: NumPy's name of the type of the pixels.
        lowest: Smallest value in the frame.
        highest: Largest value in the frame.
    """

    def __init__(self, name: str, dtype: str, lowest: float, highest: float) -> None:
        super().__init__(name, dtype, lowest, highest)
        self.name, self.dtype, self.lowest, self.highest = name, dtype, lowest, highest

    @classmethod
    def of(cls, name: str, pixels: npt.NDArray[Any]) -> Self:
        """The error of a decoded frame."""
        return cls(name, pixels.dtype.name, np.nanmin(pixels).item(), np.nanmax(pixels).item())

    def __str__(self) -> str:
        values = f"values {self.lowest:.7g} to {self.highest:.7g}"
        return f"{self.name}: the pixels are {self.dtype}, {values}; {conversion_to_8_bits(self.lowest, self.highest)}"


def conversion_to_8_bits(lowest: float, highest: float) -> str:
    """Return the instruction to convert images whose values lie in a range; the command in it works as it is."""
    low, high = f"{lowest:.7g}", f"{highest:.7g}"
    side = f"{float(high) - float(low):.7g}" if float(high) > float(low) else "1"
    program = (
        f"import cv2; i = cv2.imread('IN', -1).astype('f8'); "
        f"cv2.imwrite('OUT.png', ((i.clip({low}, {high}) - {low}) * 255 / {side}).astype('u1'))"
    )
    return (
        "only 8-bit images are read: convert all images with one range (docs/datasets.md), "
        f'for example python -c "{program}"'
    )


class FrameSource(Protocol):
    """Reads frames by the name the annotation file gives them."""

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """The frame, `(H, W)` uint8 if the source gives gray frames, `(H, W, 3)` RGB if colour.

        Raises:
            FrameError: If it is missing or damaged.
        """
        ...

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that the source does not hold, without decoding anything."""
        ...


class ImageFiles:
    """Image files below a folder, and others by their absolute names.

    Args:
        base: Folder that names are relative to.
        channels: What they are decoded to.
    """

    def __init__(self, base: Path, channels: Channels = 1) -> None:
        self.base = base
        self.channels = channels

    def __str__(self) -> str:
        return str(self.base)

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """The frame `(H, W)` or `(H, W, 3)` uint8; see `FrameSource`."""
        return decode_frame(self.content(name), name, self.channels)

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
        """Names without a file; lists each folder once instead of asking for every file."""
        by_folder: dict[str, list[str]] = defaultdict(list)
        for name in names:  # half a million: os.path would take longer than the folders
            folder, slash, file = name.rpartition("/")
            by_folder[folder + slash].append(file)
        absent: list[str] = []
        for folder, files in by_folder.items():
            try:
                present = set(os.listdir(self.base / folder))
            except OSError:
                present = set()
            if not present.issuperset(files):
                absent.extend(folder + file for file in files if file not in present)
        return absent


class FolderFrames(ImageFiles):
    """Gray frames extracted into a folder, as `<root>/frames/<date>/<clip>/image_<n>.jpg`.

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
        super().__init__(root / "frames" if (root / "frames" / "frames").is_dir() else root)

    def __str__(self) -> str:
        return str(self.base / "frames")


def decode_frame(content: bytes, name: str, channels: Channels = 1) -> npt.NDArray[np.uint8]:
    """Decode an image file to `(H, W)` uint8 or, for three channels, `(H, W, 3)` RGB; turned as its EXIF data say.

    OpenCV fills the missing rows of a torn JPEG with gray and reports success, so the end marker is checked first.

    Raises:
        BitDepthError: If the pixels are not 8-bit unsigned integers.
        FrameError: If `content` is torn or not an image.
    """
    if not content:
        raise FrameError(f"{name}: the file is empty")
    if content.startswith(JPEG_START) and JPEG_END not in content[-TRAILING_BYTES:] and is_torn(content):
        raise FrameError(f"{name}: the JPEG is torn ({len(content)} bytes, no end marker)")
    if content.startswith(TIFF_STARTS):  # OpenCV fails, with lines on stderr, to make gray pixels of colour floats
        refuse_other_types(content, name, decode(content, cv2.IMREAD_UNCHANGED))
    flag = cv2.IMREAD_GRAYSCALE if channels == 1 else cv2.IMREAD_COLOR
    frame = decode(content, flag | cv2.IMREAD_ANYDEPTH)
    if frame is None:
        raise FrameError(f"{name}: not an image that can be decoded ({len(content)} bytes)")
    refuse_other_types(content, name, frame)
    return np.asarray(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB) if channels == 3 else frame, dtype=np.uint8)


def decode(content: bytes, flags: int) -> npt.NDArray[Any] | None:
    """Decode an image file as `cv2.imdecode` does; None if that fails."""
    try:
        return cv2.imdecode(np.frombuffer(content, dtype=np.uint8), flags)
    except cv2.error:  # a damaged header may claim billions of pixels
        return None


def refuse_other_types(content: bytes, name: str, frame: npt.NDArray[Any] | None) -> None:
    """Refuse a decoded frame whose pixels are not 8-bit unsigned integers.

    Raises:
        BitDepthError: If they are not; its range is that of all channels of the file.
    """
    if frame is None or frame.dtype == np.uint8:
        return
    stored = decode(content, cv2.IMREAD_UNCHANGED)
    raise BitDepthError.of(name, frame if stored is None else stored)


def is_torn(content: bytes) -> bool:
    """Whether a JPEG has no end marker after its pixels begin; behind it, cameras append what they like.

    The segments before hold lengths, and may hold a thumbnail with an end marker of its own.
    """
    position = len(JPEG_START)
    while position + 4 <= len(content) and content[position] == 0xFF:
        marker, length = content[position + 1], int.from_bytes(content[position + 2 : position + 4], "big")
        if marker == SCAN_MARKER:
            return JPEG_END not in content[position + 2 + length :]
        position += 1 if marker == 0xFF else 2 + length  # any number of FF may stand before a marker
    return True
