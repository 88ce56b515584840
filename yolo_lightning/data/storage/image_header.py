"""Size, bands and pages of an image from its header, before any pixel is decoded.

A file of 4 KB can claim 30,000 x 30,000 pixels.
"""

import io
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from PIL import ExifTags, Image, TiffImagePlugin

from yolo_lightning.data.limit_settings import MAX_IMAGE_PIXELS, PILLOW_LIMIT
from yolo_lightning.data.storage.pillow_images import NEEDS_HEIF, is_heif, open_image, reads_heif
from yolo_lightning.utils.paths import plain_path
from yolo_lightning.utils.plain_text import first_look

TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # TIFF and BigTIFF, in both byte orders
RGB_PHOTOMETRIC = 2  # Value of the TIFF tag PhotometricInterpretation
READ_BANDS = {"RGB": 3, "RGBA": 3, "RGBX": 3, "RGBa": 3, "L": 1, "LA": 1, "La": 1, "PA": 1}
"""Number of bands that are read, by Pillow's mode. In other modes, all bands are read."""
PAGED_FORMATS = frozenset({"AVIF", "GIF", "HEIF", "PNG", "TIFF", "WEBP"})
"""Pillow's names of formats whose further pages or frames are images; the further images of a JPEG are previews."""
ORIENTATION = ExifTags.Base.Orientation  # EXIF tag of the camera's orientation
UPRIGHT = 1  # EXIF orientation of an image that is stored as it is shown
TURNED = frozenset({5, 6, 7, 8})  # EXIF orientations that exchange rows and columns
BYTES_PER_PIXEL = 4
SMALLEST_LIMIT_BYTES = 1 << 20  # Files up to this size are read, whatever `max_image_pixels`


@dataclass(frozen=True)
class FrameLimits:
    """Limits of what a storage reads for a name in an annotation file, and the expected bit depth."""

    max_pixels: int = MAX_IMAGE_PIXELS  # `data.limits.max_image_pixels`
    outside_root: bool = False  # `data.limits.allow_outside_root`: whether names may lead out of the dataset folder
    bits: Literal[8, 16] = 8  # Bits per pixel of the frames, 16 for gray frames of uint16

    @property
    def max_bytes(self) -> int:
        """Maximum size of an encoded file: the pixels uncompressed."""
        return max(SMALLEST_LIMIT_BYTES, BYTES_PER_PIXEL * self.max_pixels)

    def problem_of_path(self, path: str, root: Path) -> str | None:
        """Return why a file must not be read because of its path; `root` is the dataset folder."""
        folder = os.path.join(plain_path(root), "")
        if self.outside_root or plain_path(path).startswith(folder):
            return None
        return "is outside of the dataset folder; set data.limits.allow_outside_root true to read it"

    def problem_of_content(self, content: bytes) -> str | None:
        """Return why an encoded image must not be decoded."""
        if is_heif(content) and not reads_heif():
            return NEEDS_HEIF
        try:
            with open_image(io.BytesIO(content)) as image:
                width, height = image.size
        except Image.DecompressionBombError:
            claimed = f"more than {PILLOW_LIMIT:,}"
        except Exception:  # Pillow raises many types of exceptions for damaged headers, also struct.error
            unreadable = f"not an image that can be decoded ({len(content)} bytes): it {first_look(content)}"
            return _unknown_bands(content) or unreadable
        else:
            if width * height <= self.max_pixels:
                return None
            claimed = f"{width:,} x {height:,}"
        return f"the header claims {claimed} pixels, more than data.limits.max_image_pixels {self.max_pixels}"


def unread_parts(content: bytes) -> str:
    """Return which bands and pages of an image file are not read, "" if the file is read as a whole or is damaged."""
    parts = []
    with suppress(Exception), open_image(io.BytesIO(content)) as image:  # see `problem_of_content`
        bands = _tiff_tags(image).get(TiffImagePlugin.SAMPLESPERPIXEL, len(image.getbands()))
        read_bands = READ_BANDS.get(image.mode, bands)
        pages = getattr(image, "n_frames", 1) if image.format in PAGED_FORMATS else 1
        if bands > read_bands:
            names = "the first one is" if read_bands == 1 else f"the first {read_bands} are"
            parts.append(f"{bands} bands, of which {names} read")
        if pages > 1:
            parts.append(f"{pages} pages, of which the first one is read")
    return " and ".join(parts)


def has_extra_bands(content: bytes) -> bool:
    """Return whether an image file is a TIFF with bands of 8 bits, red, green, blue and others.

    OpenCV multiplies red, green and blue of such a file by the fourth band if that is an opacity.
    """
    if not content.startswith(TIFF_STARTS):
        return False
    with suppress(Exception), open_image(io.BytesIO(content)) as image:  # see `problem_of_content`
        tags = _tiff_tags(image)
        is_rgb = tags.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION) == RGB_PHOTOMETRIC
        bits = tags.get(TiffImagePlugin.BITSPERSAMPLE, ())
        return is_rgb and len(bits) > READ_BANDS["RGB"] and set(bits) == {8}
    return False


def is_rotated_avif(content: bytes) -> bool:
    """Return whether an image file is an AVIF that is not upright; OpenCV does not turn such an image."""
    if content[4:8] != b"ftyp":
        return False
    with suppress(Exception), open_image(io.BytesIO(content)) as image:  # see `problem_of_content`
        return image.format == "AVIF" and image.getexif().get(ORIENTATION, UPRIGHT) != UPRIGHT
    return False


def _tiff_tags(image: Image.Image) -> Mapping[int, Any]:
    return getattr(image, "tag_v2", {})


def _unknown_bands(content: bytes) -> str | None:
    """Return the reason why a TIFF with bands that are not red, green and blue is not read; None for other files."""
    if not content.startswith(TIFF_STARTS):
        return None
    with suppress(Exception):  # see `problem_of_content`
        header_bytes = 16 if b"+" in content[2:4] else 8
        directory = TiffImagePlugin.ImageFileDirectory_v2(content[:header_bytes])
        file = io.BytesIO(content)
        file.seek(directory.next)
        directory.load(file)
        bands = directory.get(TiffImagePlugin.SAMPLESPERPIXEL, 1)
        if bands > 1:
            return (
                f"a TIFF with {bands} bands that are not red, green and blue: save the bands to use as a gray or RGB "
                "image"
            )
    return None


def is_turned(content: bytes) -> bool:
    """Return whether the EXIF orientation of an image file exchanges its width and height."""
    with suppress(Exception), open_image(io.BytesIO(content)) as image:  # see `problem_of_content`
        return image.getexif().get(ORIENTATION) in TURNED
    return False
