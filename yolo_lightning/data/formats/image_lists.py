"""Which images a split of a YOLO dataset holds: those below folders, and those that lists name."""

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from yolo_lightning.data.formats.yolo_description import DataDescription, Key

IMAGE_SUFFIXES = frozenset({"avif", "bmp", "jp2", "jpeg", "jpg", "mpo", "png", "tif", "tiff", "webp"})
"""Ultralytics' list without the formats that OpenCV does not decode (dng, heic, heif)."""

UNDECODED_SUFFIXES = frozenset({"dng", "heic", "heif"})


def list_images(description: DataDescription, key: Key) -> tuple[list[str], int, int]:
    """The image files of a split, sorted by path, each once.

    Returns:
        Absolute paths, how many were named again, and how many files have a format that is not decoded.

    Raises:
        ValueError: If there are none, or a list of images cannot be read.
    """
    places = description.places(key)
    found = [file for place in places for file in files_at(place, description.root)]
    images = [file for file in found if suffix(file) in IMAGE_SUFFIXES]
    if not images:
        raise ValueError(
            f"{description.file}: no images for '{key}' in {', '.join(map(str, places))} (formats: "
            f"{', '.join(sorted(IMAGE_SUFFIXES))})"
        )
    once = sorted(set(images))
    for file in once:
        if file.encode(errors="replace") != file.encode(errors="surrogateescape"):
            raise ValueError(f"{description.file}: the name of the image {file!r} is not UTF-8")
    return once, len(images) - len(once), sum(suffix(file) in UNDECODED_SUFFIXES for file in found)


def files_at(place: Path, root: Path) -> Iterable[str]:
    """Files below a folder, or those that a list names, one per line.

    In a list, `./` stands for the list's folder. Other relative names are looked for there, in the dataset's folder and
    in the working folder; the first name of the list decides.

    Raises:
        ValueError: If the list cannot be read.
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
    loose = next((name for name in names if not name.startswith("./")), "")
    bases = [base for base in (place.parent, root, Path.cwd()) if (base / loose).exists()]
    base = bases[0] if bases else place.parent
    return [
        os.path.join(place.parent, name[2:]) if name.startswith("./") else os.path.join(base, name) for name in names
    ]


def suffix(file: str) -> str:
    """What follows the last dot, in lower case."""
    return file.rpartition(".")[2].lower()
