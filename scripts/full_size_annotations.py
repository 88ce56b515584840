"""Write an annotation file as large as the real Train.json (about 1 GB) without frames, to measure the index.

`python scripts/full_size_annotations.py FOLDER/Train.json` takes about half a minute. The file is indented by four
blanks, like the real files according to their sizes: TestNoLabels.json has about 700 bytes per image and no
annotations, Train.json and Valid.json about 3,050 bytes per image with eight to nine boxes.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from yolo_lightning.data.synthetic.clips import Clip, image_entry
from yolo_lightning.data.synthetic.drawn_dataset import CATEGORIES, annotation_entry
from yolo_lightning.data.synthetic.objects import CLASS_NAMES
from yolo_lightning.data.synthetic.scene import MONTHS, REFERENCE_HEIGHT, REFERENCE_WIDTH, Month, weather_at
from yolo_lightning.utils.files import replacing

IMAGES, BOXES = 329_299, 2_900_000  # of the real Train.json, the number of boxes rounded
CLIP_FRAMES = 120
CLASS_SHARES = (0.852, 0.043, 0.005, 0.100)  # fractions of all boxes, in the order of `CLASS_NAMES`
SEPTEMBER = Month(2020, 9, 15.0, 17.0, 6.7, 19.6, 520.0, 3.7)
"""Ninth month, of which the real dataset has only a few clips: every 500th clip here."""
SEPTEMBER_EVERY = 500
DAYS, CLIPS_PER_DAY, CLIP_SPACING_MINUTES = 28, 22, 62
LARGEST = len(MONTHS) * DAYS * CLIPS_PER_DAY * CLIP_FRAMES
"""Maximum number of frames without two simultaneous clips."""


def write_full_size(path: Path, images: int = IMAGES, boxes: int = BOXES, seed: int = 0) -> None:
    """Write an annotation file of the given size, equal bytes for equal arguments; raise ValueError out of range."""
    if not 1 <= images <= LARGEST:
        raise ValueError(f"images must be from 1 to {LARGEST:,}, got {images}")
    if boxes < 0:
        raise ValueError(f"boxes must be >= 0, got {boxes}")
    clips = plan(images, seed)
    counts = boxes_per_image(clips, boxes, seed)
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(b'{\n    "info": {\n        "description": "Synthetic LTDv2 annotations without frames"\n    },\n')
        write_array(file, "images", image_entries(clips, seed), b",\n")
        write_array(file, "annotations", annotation_entries(clips, counts, seed), b",\n")
        write_array(file, "categories", CATEGORIES, b"\n}\n")


def plan(images: int, seed: int) -> list[Clip]:
    """Distribute clips evenly over months, days and hours; the last clip may be shorter."""
    rng = np.random.default_rng([seed, 5000])
    slots = rng.permutation(DAYS * CLIPS_PER_DAY)
    clips = []
    for index in range(-(-images // CLIP_FRAMES)):
        month = MONTHS[index % len(MONTHS)] if (index + 1) % SEPTEMBER_EVERY else SEPTEMBER
        day, number = divmod(int(slots[index // len(MONTHS)]), CLIPS_PER_DAY)
        minutes = CLIP_SPACING_MINUTES * number + int(rng.integers(0, CLIP_SPACING_MINUTES - 12))
        start = datetime(month.year, month.month, day + 1) + timedelta(minutes=minutes, seconds=int(rng.integers(60)))
        clips.append(Clip("train", month, start, number, min(CLIP_FRAMES, images - index * CLIP_FRAMES), False))
    return sorted(clips, key=lambda clip: clip.start)


def boxes_per_image(clips: list[Clip], boxes: int, seed: int) -> npt.NDArray[np.int64]:
    """Distribute `boxes` over the frames: much variation between clips, little within a clip, some clips empty."""
    rng = np.random.default_rng([seed, 5001])
    crowds = rng.gamma(1.2, size=len(clips)) * (rng.random(len(clips)) > 0.04)
    crowds[0] = max(crowds[0], 0.1)  # a file of one clip must not be empty
    weights = np.concatenate([crowd * rng.gamma(20, size=one.frames) for crowd, one in zip(crowds, clips, strict=True)])
    ends = np.floor(np.cumsum(weights) / weights.sum() * boxes + 0.5).astype(np.int64)
    ends[-1] = boxes
    return np.asarray(np.diff(ends, prepend=0))


def image_entries(clips: list[Clip], seed: int) -> Iterator[dict[str, Any]]:
    """Yield the records of `images`."""
    for index, clip in enumerate(clips):
        weather = weather_at(clip.month, clip.start, np.random.default_rng([seed, 5002, index]))
        _, folder, name = clip.folder.split("/")
        for frame in range(clip.frames):
            entry = image_entry(clip, frame, weather, REFERENCE_WIDTH, REFERENCE_HEIGHT)
            moment = entry["date_captured"].replace("T", " ")
            place = {"Folder name": folder, "Clip Name": name, "Image Number": frame, "DateTime": moment}
            yield {**entry, "meta": place | entry["meta"]}


def annotation_entries(clips: list[Clip], counts: npt.NDArray[np.int64], seed: int) -> Iterator[dict[str, Any]]:
    """Yield the records of `annotations`, in the order of the images; nine in ten boxes are below 32 x 32 pixels."""
    number = first = 0
    for index, clip in enumerate(clips):
        rng = np.random.default_rng([seed, 5003, index])
        owners = np.repeat(np.arange(clip.frames), counts[first : first + clip.frames])
        first += clip.frames
        categories = 1 + rng.choice(len(CLASS_NAMES), size=len(owners), p=CLASS_SHARES)
        widths = np.clip(rng.lognormal(2.4, 0.6, len(owners)), 2, 200).astype(np.int64)
        heights = np.clip(widths * rng.uniform(0.8, 2.4, len(owners)), 2, 200).astype(np.int64)
        lefts = rng.integers(0, REFERENCE_WIDTH - widths)
        tops = rng.integers(0, REFERENCE_HEIGHT - heights)
        ids = [clip.image_id(frame) for frame in range(clip.frames)]
        for owner, category, *box in np.stack((owners, categories, lefts, tops, widths, heights), axis=1).tolist():
            number += 1
            yield annotation_entry(number, ids[owner], category, (box[0], box[1], box[2], box[3]))


def write_array(file: BinaryIO, key: str, entries: Iterable[dict[str, Any]], end: bytes) -> None:
    """Write one array of the top level, entry by entry, then `end`."""
    file.write(f'    "{key}": ['.encode())
    separator = b"\n        "
    for entry in entries:
        text = msgspec.json.format(msgspec.json.encode(entry), indent=4)
        file.write(separator + text.replace(b"\n", b"\n        "))
        separator = b",\n        "
    file.write(b"\n    ]" + end)


def main(arguments: list[str] | None = None) -> int:
    """Write the file and print its size; exit code 2 if an argument is invalid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="JSON file to write; its folder is created")
    parser.add_argument("--images", type=int, default=IMAGES, help="number of images")
    parser.add_argument("--boxes", type=int, default=BOXES, help="number of annotations")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    options = parser.parse_args(arguments)
    try:
        options.path.parent.mkdir(parents=True, exist_ok=True)
        write_full_size(options.path, options.images, options.boxes, options.seed)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{options.path}: {options.path.stat().st_size:,} bytes, {options.images:,} images, {options.boxes:,} boxes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
