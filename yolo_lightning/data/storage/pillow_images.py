"""Images that Pillow decodes in place of OpenCV: HEIC with `pillow-heif`, the first frame of a GIF, and rotated AVIF.

OpenCV decodes no HEIC, GIF only since 4.11, and does not turn AVIF.
"""

import io
import sys
from functools import cache
from importlib.util import find_spec
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps

from yolo_lightning.data.array_types import UInt8Array

GIF_STARTS = (b"GIF87a", b"GIF89a")
HEIF_SUFFIXES = frozenset({".heic", ".heif"})
HEIF_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"})
"""Brands of files whose images are encoded with HEVC (ISO/IEC 23008-12); AVIF has others."""
HEIF_START_BYTES = 64  # The first box of a file names its brands

NEEDS_HEIF = "HEIC images are read with pillow-heif: pip install 'yolo-lightning[heic]'"


@cache
def reads_heif() -> bool:
    """Return whether the optional package `pillow-heif` is installed."""
    return find_spec("pillow_heif") is not None


def is_heif(content: bytes) -> bool:
    """Return whether the first `HEIF_START_BYTES` of a file are those of a HEIC image."""
    if content[4:8] != b"ftyp":
        return False
    stop = min(int.from_bytes(content[:4], "big"), len(content), HEIF_START_BYTES)
    return any(content[start : start + 4] in HEIF_BRANDS for start in range(8, stop, 4))


def open_image(file: BinaryIO) -> Image.Image:
    """Open a file with Pillow's own function, and a HEIC file with `pillow-heif`; only the header is read.

    The function of Ultralytics tries to install a package for unknown formats. The opener of `pillow-heif` is not
    registered, because that would change Pillow for all other code of the process.
    """
    start = file.read(HEIF_START_BYTES)
    file.seek(0)
    if is_heif(start) and reads_heif():
        from pillow_heif import HeifImageFile

        heif_image: Image.Image = HeifImageFile(file)
        return heif_image
    # Ultralytics 8.4 replaces `Image.open` when it is imported; not needed once it leaves Pillow's function in place.
    replaced = sys.modules.get("ultralytics.utils.patches")
    opened: Image.Image = getattr(replaced, "_image_open", Image.open)(file)
    return opened


def is_decoded_by_pillow(content: bytes) -> bool:
    return content.startswith(GIF_STARTS) or is_heif(content)


def decode_first_image(content: bytes) -> UInt8Array | None:
    """Decode the first image of a file to `(H, W, 3)` uint8, RGB, upright; return None if decoding fails."""
    try:
        with open_image(io.BytesIO(content)) as image:
            if image.format == "AVIF":  # Pillow itself turns TIFF images, and `pillow-heif` HEIC images
                ImageOps.exif_transpose(image, in_place=True)
            return np.asarray(image.convert("RGB"), dtype=np.uint8)
    except Exception:  # Pillow raises many types of exceptions for damaged files, also struct.error
        return None
