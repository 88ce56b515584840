"""Size of an image from its header, before any pixel is decoded: a file of 4 KB can claim 30,000 x 30,000 pixels."""

import io
import sys
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO, Literal

from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

MAX_IMAGE_PIXELS = 89_478_485
"""Default of `data.limits.max_image_pixels`: the size above which Pillow warns about a decompression bomb. As 8-bit
RGB pixels such an image takes 268 MB, in each loader worker."""
PILLOW_LIMIT = 2 * MAX_IMAGE_PIXELS  # Pillow refuses larger images
REFUSED_BY_PILLOW = (PILLOW_LIMIT, PILLOW_LIMIT)  # In place of the size of such an image, which Pillow does not tell

BYTES_PER_PIXEL = 4
SMALLEST_LIMIT_BYTES = 1 << 20  # Files up to this size are read, whatever `max_image_pixels`

TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # TIFF and BigTIFF, in both byte orders
TIFF_WIDTH, TIFF_HEIGHT = 256, 257


@dataclass(frozen=True)
class FrameLimits:
    """Limits of what a storage reads for a name in an annotation file, and the expected bit depth."""

    max_pixels: int = MAX_IMAGE_PIXELS  # `data.limits.max_image_pixels`
    outside_root: bool = False  # `data.limits.allow_outside_root`: whether names may be absolute or contain `..`
    bits: Literal[8, 16] = 8  # Bits per pixel of the frames, 16 for gray frames of uint16

    @property
    def max_bytes(self) -> int:
        """Maximum size of an encoded file: the pixels uncompressed."""
        return max(SMALLEST_LIMIT_BYTES, BYTES_PER_PIXEL * self.max_pixels)

    def problem_of_name(self, name: str) -> str | None:
        """Return why a file must not be read because of its name."""
        path = PurePosixPath(name)
        if self.outside_root or not (path.is_absolute() or ".." in path.parts):
            return None
        return "is outside of the dataset folder; set data.limits.allow_outside_root true to read it"

    def problem_of_content(self, content: bytes) -> str | None:
        """Return why an encoded image must not be decoded."""
        size = header_size(content)
        if size is None:
            return f"not an image that can be decoded ({len(content)} bytes)"
        if size[0] * size[1] <= self.max_pixels:
            return None
        claimed = f"more than {PILLOW_LIMIT:,}" if size == REFUSED_BY_PILLOW else f"{size[0]:,} x {size[1]:,}"
        return f"the header claims {claimed} pixels, more than data.limits.max_image_pixels {self.max_pixels}"


def open_image(file: BinaryIO) -> Image.Image:
    """Open a file with Pillow's own function; the one of Ultralytics tries to install a package for unknown formats."""
    # Ultralytics 8.4 replaces `Image.open` when it is imported; not needed once it leaves Pillow's function in place.
    replaced = sys.modules.get("ultralytics.utils.patches")
    opened: Image.Image = getattr(replaced, "_image_open", Image.open)(file)
    return opened


def header_size(content: bytes) -> tuple[int, int] | None:
    """Return width and height in pixels that the header of an encoded image claims; None if it has no known header."""
    try:
        with open_image(io.BytesIO(content)) as image:
            return image.size
    except Image.DecompressionBombError:
        return REFUSED_BY_PILLOW
    except Exception:  # Pillow raises many types of exceptions for damaged headers, also struct.error
        return _tiff_size(content) if content.startswith(TIFF_STARTS) else None


def _tiff_size(content: bytes) -> tuple[int, int] | None:
    """Return width and height of a TIFF file whose kind of pixels Pillow does not know, such as float RGB."""
    try:
        header = content[:16] if content[2:3] == b"+" or content[3:4] == b"+" else content[:8]
        directory = ImageFileDirectory_v2(header)
        file = io.BytesIO(content)
        file.seek(directory.next)
        directory.load(file)
        return int(directory[TIFF_WIDTH]), int(directory[TIFF_HEIGHT])
    except Exception:
        return None
