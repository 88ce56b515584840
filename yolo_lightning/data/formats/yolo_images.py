"""Image files of a YOLO split: search in folders and lists, and image sizes from file headers."""

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

from yolo_lightning.data.formats.yolo_description import DataDescription, Key
from yolo_lightning.data.storage.frames import IMAGE_SUFFIXES, FrameError, decode_frame

UNDECODED_SUFFIXES = frozenset({".dng", ".heic", ".heif"})
"""Suffixes of Ultralytics' image formats that OpenCV does not decode."""

ORIENTATION = 0x0112
"""EXIF tag of the camera's orientation."""
TURNED = frozenset({5, 6, 7, 8})
"""Orientations that exchange rows and columns."""
TURNED_BY_ALL = frozenset({"JPEG", "MPO"})
"""Formats whose orientation is applied by every OpenCV version."""


def list_images(description: DataDescription, key: Key) -> tuple[list[str], int, int]:
    """List the image files of a split.

    Returns:
        Absolute paths, sorted and unique; number of duplicates; number of files in formats that cannot be decoded.
    """
    places = description.places(key)
    found = [file for place in places for file in files_at(place, description.root)]
    images = [file for file in found if suffix(file) in IMAGE_SUFFIXES]
    if not images:
        raise ValueError(
            f"{description.file}: no images for '{key}' in {', '.join(map(str, places))} (formats: "
            f"{', '.join(sorted(IMAGE_SUFFIXES))})"
        )
    unique = sorted(set(images))
    for file in unique:
        if file.encode(errors="replace") != file.encode(errors="surrogateescape"):
            raise ValueError(f"{description.file}: the name of the image {file!r} is not UTF-8")
    return unique, len(images) - len(unique), sum(suffix(file) in UNDECODED_SUFFIXES for file in found)


def files_at(place: Path, root: Path) -> Iterable[str]:
    """Return the files below a folder, or the files in a list of images.

    In a list, `./` is the folder of the list. Other relative names are relative to the folder of the list, the dataset
    folder or the working folder: the first of them in which the first name exists.
    """
    if place.is_dir():
        return glob.iglob(os.path.join(glob.escape(str(place)), "**", "*.*"), recursive=True)
    if suffix(str(place)) in IMAGE_SUFFIXES:
        return [str(place)]
    try:
        lines = place.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"image list {place} cannot be read: {error}") from error
    names = [line.strip() for line in lines if line.strip()]
    first = next((name for name in names if not name.startswith("./")), "")
    base = next((base for base in (place.parent, root, Path.cwd()) if (base / first).exists()), place.parent)
    return [
        os.path.join(place.parent, name[2:]) if name.startswith("./") else os.path.join(base, name) for name in names
    ]


def suffix(file: str) -> str:
    return os.path.splitext(file)[1].lower()


def image_shape(path: Path) -> tuple[int, int] | None:
    """Return `(height, width)` of the decoded image in pixels, after its EXIF orientation; None if it is damaged.

    Only the header is read, except for formats whose orientation depends on the OpenCV version.
    """
    with path.open("rb") as file:
        try:
            with Image.open(file) as image:
                width, height = image.size
                # Pillow would decode the whole PNG to search for EXIF data.
                without_exif = image.format == "PNG" and "exif" not in image.info
                if without_exif or image.getexif().get(ORIENTATION) not in TURNED:
                    return height, width
                if image.format in TURNED_BY_ALL:
                    return width, height
        except Exception:  # Pillow raises many types of exceptions for damaged headers, also struct.error
            pass
    try:
        height, width = decode_frame(path.read_bytes(), path.name).shape[:2]
    except FrameError:
        return None
    return height, width
