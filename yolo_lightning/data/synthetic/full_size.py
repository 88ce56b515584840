"""An annotation file as large as the real Train.json, without frames, to measure what only shows at that size.

It is indented by four blanks, as the sizes of the real files suggest: TestNoLabels.json has about 700 bytes per image
and no annotations, Train.json and Valid.json about 3,050 bytes per image with eight to nine boxes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TextIO

import numpy as np
import numpy.typing as npt

from yolo_lightning.data.synthetic.climate import MONTHS, Month, weather_at
from yolo_lightning.data.synthetic.objects import CLASS_NAMES
from yolo_lightning.data.synthetic.scene import REFERENCE_HEIGHT, REFERENCE_WIDTH
from yolo_lightning.utils.files import replacing

IMAGES, BOXES = 329_299, 2_900_000
"""What the real Train.json holds, the boxes rounded."""

CLIP_FRAMES = 120
"""Consecutive frames of a clip, one second apart."""

CLASS_SHARES = (0.852, 0.043, 0.005, 0.100)
"""Of all boxes, in the order of `CLASS_NAMES`."""

SEPTEMBER = Month(2020, 9, 15.0, 17.0, 6.7, 19.6, 520.0, 3.7)
"""The ninth month, of which the real dataset has a few clips only: every 500th here."""
SEPTEMBER_EVERY = 500

DAYS, CLIPS_PER_DAY, CLIP_SPACING_MINUTES = 28, 22, 62
LARGEST = len(MONTHS) * DAYS * CLIPS_PER_DAY * CLIP_FRAMES
"""Frames that fit the calendar without two clips at once."""

IMAGE = """\
        {
            "id": %d,
            "file_name": "%s/image_%04d.jpg",
            "width": %d,
            "height": %d,
            "date_captured": "%s",
            "meta": {
                "Folder name": "%s",
                "Clip Name": "%s",
                "Image Number": %d,
                "DateTime": "%s",
                "Temperature": %.1f,
                "Humidity": %.1f,
                "Precipitation": %.1f,
                "Dew Point": %.1f,
                "Wind Direction": %.1f,
                "Wind Speed": %.1f,
                "Sun Radiation Intensity": %.1f,
                "Min of sunshine latest 10 min": %.1f
            }
        }"""
ANNOTATION = """\
        {
            "id": %d,
            "image_id": %d,
            "category_id": %d,
            "bbox": [
                %d,
                %d,
                %d,
                %d
            ],
            "area": %d,
            "iscrowd": 0
        }"""
CATEGORY = """\
        {
            "id": %d,
            "name": "%s"
        }"""


@dataclass(frozen=True)
class PlannedClip:
    """One clip: its month, its number in its day, the moment of its first frame and its length."""

    month: Month
    number: int
    start: datetime
    frames: int

    @property
    def name(self) -> str:
        """Name of its folder in the folder of its day."""
        return f"clip_{self.number}_{self.start:%H%M}"

    def image_id(self, frame: int) -> int:
        """Id of a frame: YYYYMM, clip, DD, HHMMSS."""
        moment = self.start + timedelta(seconds=frame)
        return int(f"{moment:%Y%m}{self.number:03d}{moment:%d%H%M%S}")


def write_full_size(path: Path, images: int = IMAGES, boxes: int = BOXES, seed: int = 0) -> None:
    """Write an annotation file of the given size; the same arguments give the same bytes.

    Memory stays at a few bytes per image. The file is written aside and renamed.

    Raises:
        ValueError: If a number is out of its range.
    """
    if not 1 <= images <= LARGEST:
        raise ValueError(f"images is {images}, allowed are 1 to {LARGEST:,}")
    if boxes < 0:
        raise ValueError(f"boxes is {boxes}, allowed are 0 and more")
    clips = plan(images, seed)
    counts = boxes_per_image(clips, boxes, seed)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write('{\n    "info": {\n        "description": "Synthetic LTDv2 annotations without frames"\n    },\n')
        write_array(file, "images", image_entries(clips, seed))
        write_array(file, "annotations", annotation_entries(clips, counts, seed))
        names = enumerate(("background", *CLASS_NAMES))
        write_array(file, "categories", (CATEGORY % named for named in names), last=True)


def plan(images: int, seed: int) -> list[PlannedClip]:
    """Spread clips evenly over months, days and hours; the last one may be shorter."""
    rng = np.random.default_rng([seed, 5000])
    total = -(-images // CLIP_FRAMES)
    slots = rng.permutation(DAYS * CLIPS_PER_DAY)
    clips = []
    for index in range(total):
        month = MONTHS[index % len(MONTHS)] if (index + 1) % SEPTEMBER_EVERY else SEPTEMBER
        day, number = divmod(int(slots[index // len(MONTHS)]), CLIPS_PER_DAY)
        minutes = CLIP_SPACING_MINUTES * number + int(rng.integers(0, CLIP_SPACING_MINUTES - 12))
        start = datetime(month.year, month.month, day + 1) + timedelta(minutes=minutes, seconds=int(rng.integers(60)))
        clips.append(PlannedClip(month, number, start, min(CLIP_FRAMES, images - index * CLIP_FRAMES)))
    return sorted(clips, key=lambda clip: clip.start)


def boxes_per_image(clips: list[PlannedClip], boxes: int, seed: int) -> npt.NDArray[np.int64]:
    """Share `boxes` among the frames: clips differ much, frames of a clip little; some clips are empty."""
    rng = np.random.default_rng([seed, 5001])
    crowds = rng.gamma(1.2, size=len(clips)) * (rng.random(len(clips)) > 0.04)
    crowds[0] = max(crowds[0], 0.1)  # a file of one clip has its boxes somewhere
    weights = np.concatenate(
        [crowd * rng.gamma(20, size=clip.frames) for crowd, clip in zip(crowds, clips, strict=True)]
    )
    ends = np.floor(np.cumsum(weights) / weights.sum() * boxes + 0.5).astype(np.int64)
    ends[-1] = boxes
    counts: npt.NDArray[np.int64] = np.diff(ends, prepend=0)
    return counts


def image_entries(clips: list[PlannedClip], seed: int) -> Iterator[str]:
    """The entries of `images`, clip after clip."""
    for index, clip in enumerate(clips):
        weather = weather_at(clip.month, clip.start, np.random.default_rng([seed, 5002, index]))
        folder = f"{clip.start:%Y%m%d}"
        dew_point = weather.ambient - (100 - weather.humidity) / 5
        measured = (weather.ambient, weather.humidity, 0.0, dew_point, index * 11 % 360, 2 + index % 60 / 10)
        sunshine = (weather.sun, weather.sun / clip.month.radiation * 10)
        for frame in range(clip.frames):
            moment = (clip.start + timedelta(seconds=frame)).isoformat()
            size = (REFERENCE_WIDTH, REFERENCE_HEIGHT)
            place = (f"frames/{folder}/{clip.name}", frame, *size, moment)
            yield IMAGE % (
                clip.image_id(frame), *place, folder, clip.name, frame, moment.replace("T", " "), *measured, *sunshine
            )  # fmt: skip


def annotation_entries(clips: list[PlannedClip], counts: npt.NDArray[np.int64], seed: int) -> Iterator[str]:
    """The entries of `annotations`, in the order of the images; nine in ten boxes are smaller than 32 x 32 pixels."""
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
        rows = np.stack((owners, categories, lefts, tops, widths, heights), axis=1).tolist()
        for owner, category, left, top, width, height in rows:
            number += 1
            yield ANNOTATION % (number, ids[owner], category, left, top, width, height, width * height)


def write_array(file: TextIO, key: str, entries: Iterator[str], *, last: bool = False) -> None:
    """Write one array of the top level, entry by entry."""
    file.write(f'    "{key}": [')
    separator = "\n"
    for entry in entries:
        file.write(separator + entry)
        separator = ",\n"
    file.write("\n    ]\n}\n" if last else "\n    ],\n")
