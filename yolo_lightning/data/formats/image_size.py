"""Height and width of an image file as it is decoded, read from its header."""

from pathlib import Path

from PIL import Image

from yolo_lightning.data.storage.frames import FrameError, decode_frame

ORIENTATION = 0x0112
"""EXIF tag of how the camera was held."""
TURNED = frozenset({5, 6, 7, 8})
"""Orientations in which rows and columns change places."""

TURNED_BY_ALL = frozenset({"JPEG", "MPO"})
"""Formats whose orientation every OpenCV applies; for others it depends on OpenCV's version."""


def image_shape(path: Path) -> tuple[int, int] | None:
    """`(height, width)` in pixels of the decoded image, which an EXIF orientation may turn; None if it is damaged.

    Only the header is read, except for images whose header leaves open what a decoder makes of them.

    Raises:
        OSError: If there is no such file, or it may not be read.
    """
    with path.open("rb") as file:
        try:
            with Image.open(file) as image:
                width, height = image.size
                if not is_turned(image):
                    return height, width
                if image.format in TURNED_BY_ALL:
                    return width, height
        except Exception:  # damaged headers make Pillow raise nearly anything, struct.error among it
            pass
    return decoded_shape(path)


def is_turned(image: Image.Image) -> bool:
    """Whether an EXIF orientation swaps rows and columns; without decoding, which Pillow does to search a whole PNG."""
    if image.format == "PNG" and "exif" not in image.info:
        return False
    return image.getexif().get(ORIENTATION) in TURNED


def decoded_shape(path: Path) -> tuple[int, int] | None:
    """As `image_shape`, by decoding the file."""
    try:
        height, width = decode_frame(path.read_bytes(), path.name).shape[:2]
    except FrameError:
        return None
    return height, width
