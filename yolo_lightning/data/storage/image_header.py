"""Size of an image from its header, before any pixel is decoded: a file of 4 KB can claim 30,000 x 30,000 pixels."""

import io
import sys
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO, Literal

from PIL import ExifTags, Image

from yolo_lightning.utils.plain_text import first_look

MAX_IMAGE_PIXELS = 89_478_485
"""Default of `data.limits.max_image_pixels`: the size above which Pillow warns about a decompression bomb. As 8-bit
RGB pixels such an image takes 268 MB, in each loader worker."""
PILLOW_LIMIT = 2 * MAX_IMAGE_PIXELS  # Pillow refuses larger images

TURNED = frozenset({5, 6, 7, 8})  # EXIF orientations that exchange rows and columns
BYTES_PER_PIXEL = 4
SMALLEST_LIMIT_BYTES = 1 << 20  # Files up to this size are read, whatever `max_image_pixels`


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
        try:
            with open_image(io.BytesIO(content)) as image:
                width, height = image.size
        except Image.DecompressionBombError:
            claimed = f"more than {PILLOW_LIMIT:,}"
        except Exception:  # Pillow raises many types of exceptions for damaged headers, also struct.error
            return f"not an image that can be decoded ({len(content)} bytes): it {first_look(content)}"
        else:
            if width * height <= self.max_pixels:
                return None
            claimed = f"{width:,} x {height:,}"
        return f"the header claims {claimed} pixels, more than data.limits.max_image_pixels {self.max_pixels}"


def is_turned(content: bytes) -> bool:
    """Return whether the EXIF orientation of an image file exchanges its width and height."""
    try:
        with open_image(io.BytesIO(content)) as image:
            return image.getexif().get(ExifTags.Base.Orientation) in TURNED
    except Exception:  # Pillow raises many types of exceptions for damaged headers, also struct.error
        return False


def open_image(file: BinaryIO) -> Image.Image:
    """Open a file with Pillow's own function; the one of Ultralytics tries to install a package for unknown formats."""
    # Ultralytics 8.4 replaces `Image.open` when it is imported; not needed once it leaves Pillow's function in place.
    replaced = sys.modules.get("ultralytics.utils.patches")
    opened: Image.Image = getattr(replaced, "_image_open", Image.open)(file)
    return opened
