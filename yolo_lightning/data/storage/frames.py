"""Decoding of encoded frames, and the errors of frames that cannot be used."""

import errno
from dataclasses import dataclass
from typing import Self

import cv2
import numpy as np

from yolo_lightning.data.array_types import AnyArray, UInt8Array, UInt16Array
from yolo_lightning.data.input_settings import Channels
from yolo_lightning.data.storage.image_header import TIFF_STARTS, FrameLimits, has_extra_bands, is_rotated_avif
from yolo_lightning.data.storage.pillow_images import HEIF_SUFFIXES, decode_first_image, is_decoded_by_pillow

JPEG_SUFFIXES = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".jif", ".mpo"})
NETPBM_SUFFIXES = frozenset({".pbm", ".pgm", ".pnm", ".ppm"})
OTHER_SUFFIXES = frozenset({".avif", ".bmp", ".dib", ".gif", ".jp2", ".png", ".tif", ".tiff", ".webp"})
IMAGE_SUFFIXES = JPEG_SUFFIXES | NETPBM_SUFFIXES | OTHER_SUFFIXES | HEIF_SUFFIXES
"""Suffixes of image files, in lower case; a file is decoded by its content, whatever its suffix."""

JPEG_START = b"\xff\xd8"
JPEG_END = b"\xff\xd9"
TRAILING_BYTES = 64
"""Length of the end of a file that is searched for the end marker first; some writers append padding."""

SCAN_MARKER = 0xDA  # Second byte of the JPEG marker of the segment before the pixels (ISO/IEC 10918-1, table B.1)


Frame = UInt8Array | UInt16Array
"""Pixels of a frame: uint8, or uint16 if `FrameLimits.bits` is 16."""

CONVERT = "convert all images with one range, see docs/dataset_formats.md"


def file_of(problem: str) -> str:
    """Return the file name in the message of a `FrameError`."""
    return problem.partition(": ")[0]


def reason_of(error: Exception, name: str) -> str:
    """Return the message of an error about a file without the file name that a `FrameError` begins with."""
    return str(error).removeprefix(f"{name}: ")


class FrameError(Exception):
    """A frame that cannot be used; the message is `<file name>: <reason>`."""

    @property
    def file(self) -> str:
        """Name of the file, as in the annotation file."""
        return file_of(str(self))


TRANSIENT = frozenset(
    {
        errno.ENOENT,
        errno.EIO,
        errno.ESTALE,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENXIO,
        errno.ENODEV,
        errno.ENOTCONN,
        errno.ETIMEDOUT,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EREMOTEIO,
        errno.EACCES,
        errno.EKEYEXPIRED,
    }
)
"""Errors of a read that can pass: a file system that is not mounted or does not answer, no free file descriptor."""


class AbsentFrameError(FrameError):
    """A frame that cannot be read at the moment, see `TRANSIENT`."""


def unreadable(name: str, reason: str, error: OSError) -> FrameError:
    """Return the error of a frame whose file cannot be read."""
    if error.errno in TRANSIENT:
        return AbsentFrameError(f"{name}: {reason}")
    return FrameError(f"{name}: {reason}")


@dataclass(eq=False)
class BitDepthError(FrameError):
    """A frame whose pixels are not unsigned integers of `bits` bits, with its NumPy dtype, lowest and highest value.

    `channels` is the number of channels of the file.

    A decoder of 8-bit images would only keep the upper 8 bits, which turns raw thermal values of 7,000 to 9,040 into
    the gray levels 27 to 35.
    """

    name: str
    dtype: str
    lowest: float
    highest: float
    bits: int
    channels: int

    @classmethod
    def of(cls, name: str, pixels: AnyArray, bits: int = 8) -> Self:
        channels = pixels.shape[2] if pixels.ndim == 3 else 1
        return cls(name, pixels.dtype.name, np.nanmin(pixels).item(), np.nanmax(pixels).item(), bits, channels)

    @property
    def is_gray_16(self) -> bool:
        """Whether the file is a gray 16-bit image, in place of an 8-bit image."""
        return self.dtype == "uint16" and self.bits == 8 and self.channels == 1

    @property
    def remedy(self) -> str:
        if self.dtype == "uint8":
            return "set data.input.pixel_range.mode null (prepare: --bits 8) to read 8-bit images"
        if self.is_gray_16:
            option = "--data.input.pixel_range"
            return (
                f"to read 16-bit gray images, add: {option}.mode fixed {option}.low {self.lowest} {option}.high "
                f"{self.highest} (predict PICTURES: --pixel_range.mode and so on, prepare: --bits 16, Detector: "
                "pixel_range), see docs/dataset_formats.md"
            )
        return f"only 8-bit images and 16-bit gray images are supported: {CONVERT}"

    def __str__(self) -> str:
        return (
            f"{self.name}: the pixels are {self.dtype}, values {self.lowest:.7g} to {self.highest:.7g}; {self.remedy}"
        )


def decode_frame(
    content: bytes,
    name: str,
    channels: Channels = 1,
    limits: FrameLimits = FrameLimits(),  # noqa: B008 - frozen
) -> Frame:
    """Decode an image file to `(H, W)` uint8 or, with three channels, `(H, W, 3)` RGB; its EXIF orientation is applied.

    If `limits.bits` is 16, the result is `(H, W)` uint16, with the pixel values of the file.

    The size in the header is checked first. The end marker is checked, too, because OpenCV fills missing rows of a
    truncated JPEG with gray and reports success.

    Raises:
        BitDepthError: If the pixels are not unsigned integers of `limits.bits` bits.
        FrameError: If `content` is truncated, not an image, or larger than `limits`.
    """
    if not content:
        raise FrameError(f"{name}: the file is empty")
    if content.startswith(JPEG_START) and JPEG_END not in content[-TRAILING_BYTES:] and is_truncated(content):
        raise FrameError(f"{name}: the JPEG is truncated ({len(content)} bytes, no end marker)")
    problem = limits.problem_of_content(content)
    if problem:
        raise FrameError(f"{name}: {problem}")
    uses_pillow = is_decoded_by_pillow(content) or has_extra_bands(content) or is_rotated_avif(content)
    if uses_pillow:
        frame: AnyArray | None = decode_first_image(content)
    elif limits.bits == 16:
        frame = decode(content, cv2.IMREAD_ANYDEPTH | cv2.IMREAD_ANYCOLOR)
    else:
        if content.startswith(TIFF_STARTS):  # OpenCV cannot convert float pixels to RGB, and prints lines to stderr
            _refuse_other_types(content, name, decode(content, cv2.IMREAD_UNCHANGED))
        flag = cv2.IMREAD_GRAYSCALE if channels == 1 else cv2.IMREAD_COLOR
        frame = decode(content, flag | cv2.IMREAD_ANYDEPTH)
    if frame is None:
        raise FrameError(f"{name}: not an image that can be decoded ({len(content)} bytes)")
    if limits.bits == 16:
        return _gray_16_bits(frame, name)
    _refuse_other_types(content, name, frame)
    if uses_pillow and channels == 1:
        frame = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
    elif channels == 3 and not uses_pillow:
        frame = cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)
    return np.asarray(frame, dtype=np.uint8)


def _gray_16_bits(frame: AnyArray, name: str) -> UInt16Array:
    """Return a decoded frame if it is `(H, W)` uint16."""
    if frame.dtype != np.uint16:
        raise BitDepthError.of(name, frame, bits=16)
    if frame.ndim != 2:
        raise FrameError(f"{name}: images with 16 bits must be gray, got {frame.shape[2]} channels: {CONVERT}")
    return np.asarray(frame, dtype=np.uint16)


def decode(content: bytes, flags: int) -> AnyArray | None:
    """Return the result of `cv2.imdecode`, or None if decoding fails."""
    try:
        return cv2.imdecode(np.frombuffer(content, dtype=np.uint8), flags)
    except cv2.error:  # for example a damaged header with billions of pixels
        return None


def _refuse_other_types(content: bytes, name: str, frame: AnyArray | None) -> None:
    """Raise `BitDepthError`, with the range of all channels of the file, if a decoded frame is not uint8."""
    if frame is not None and frame.dtype != np.uint8:
        stored = decode(content, cv2.IMREAD_UNCHANGED)
        if stored is None:
            stored = frame
        raise BitDepthError.of(name, stored)


def is_truncated(content: bytes) -> bool:
    """Return whether a JPEG has no end marker after the start of its pixels.

    Cameras append other data after the end marker. The segments before the pixels contain their lengths, and may
    contain a thumbnail with an end marker of its own.
    """
    position = len(JPEG_START)
    while position + 4 <= len(content) and content[position] == 0xFF:
        marker = content[position + 1]
        end = position + 2 + int.from_bytes(content[position + 2 : position + 4], "big")
        if marker == SCAN_MARKER:
            return JPEG_END not in content[end:]
        position = position + 1 if marker == 0xFF else end  # any number of bytes FF may precede a marker
    return True
