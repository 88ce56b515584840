"""Clips of the drawn dataset: date, file names, image records and moving objects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from synthetic.objects import CLASS_NAMES, KINDS, Actor
from synthetic.scene import MONTHS, REFERENCE_HEIGHT, REFERENCE_WIDTH, Month, Scene, Weather

_CLIP_FRAMES = 8
_EMPTY_SHARE = 0.08
_DRIFT_PERIODS = 8.0, 40.0  # Range of the period of a drifting gain, frames
_MOST_OBJECTS = 7
FAR_GROUND, NEAR_GROUND = 0.46, 0.97
"""Range of the vertical position of objects on the quay, fractions of the frame height."""


@dataclass(frozen=True)
class Clip:
    """A planned clip of frames one second apart."""

    split: str  # "train", "valid" or "test"
    month: Month
    start: datetime  # Local time of the first frame
    number: int  # Number of the clip, unique within a day
    frames: int
    empty: bool  # Whether the clip has no objects

    @property
    def folder(self) -> str:
        return f"frames/{self.start:%Y%m%d}/clip_{self.number}_{self.start:%H%M}"

    def image_id(self, frame: int) -> int:
        """Return the id of a frame: YYYYMM, clip number (3 digits), DD, HHMMSS."""
        moment = self.start + timedelta(seconds=frame)
        return int(f"{moment:%Y%m}{self.number:03d}{moment:%d%H%M%S}")


def plan_clips(counts: Mapping[str, int], seed: int, clip_frames: int | None = None) -> list[Clip]:
    """Distribute the clips of every split over the months; `counts` are the frames of each split.

    With `clip_frames`, clips have this length, and a small split does not contain all months.
    """
    rng = np.random.default_rng([seed, 2000])
    taken: set[tuple[Month, int, int]] = set()
    clips: list[Clip] = []
    for split, count in counts.items():
        empty = max(round(_EMPTY_SHARE * count), 1 if count >= len(MONTHS) else 0)
        # Shorter clips in a small split, so that it contains all months.
        longest = clip_frames or min(max((count - empty) // len(MONTHS), 1), _CLIP_FRAMES)
        lengths = [
            (min(longest, total - done), is_empty)
            for total, is_empty in ((count - empty, False), (empty, True))
            for done in range(0, total, longest)
        ]
        for index, (length, is_empty) in enumerate(lengths):
            month = MONTHS[index % len(MONTHS)]
            while True:
                day, half_hour = int(rng.integers(1, 29)), int(rng.integers(0, 48))
                if (month, day, half_hour) not in taken:
                    break
            taken.add((month, day, half_hour))
            minutes, seconds = 30 * half_hour + int(rng.integers(0, 26)), int(rng.integers(0, 60))
            start = datetime(month.year, month.month, day) + timedelta(minutes=minutes, seconds=seconds)
            clips.append(Clip(split, month, start, half_hour, length, is_empty))
    return clips


def image_entry(clip: Clip, frame: int, weather: Weather, width: int, height: int) -> dict[str, Any]:
    moment = clip.start + timedelta(seconds=frame)
    return {
        "id": clip.image_id(frame),
        "file_name": f"{clip.folder}/image_{frame:04d}.jpg",
        "width": width,
        "height": height,
        "date_captured": moment.isoformat(),
        "meta": {
            "Temperature": round(weather.ambient, 1),
            "Humidity": round(weather.humidity, 1),
            "Precipitation": round(weather.precipitation, 1),
            "Sun Radiation Intensity": round(weather.sun, 1),
        },
    }


def gain_curve(frames: int, drift: float, rng: np.random.Generator) -> list[float]:
    """Return the gain of each frame of a clip relative to its mean: a sine of amplitude `drift` with random phase."""
    period, phase = rng.uniform(*_DRIFT_PERIODS), rng.uniform(0, 2 * np.pi)
    return [1 + drift * float(np.sin(2 * np.pi * frame / period + phase)) for frame in range(frames)]


def cast_clip(
    scene: Scene, frames: int, boxes: Mapping[str, int], rng: np.random.Generator, pace: float = 1.0
) -> list[Actor]:
    """Choose the objects of a clip, given the number of boxes per class so far; small frames get fewer objects.

    `pace` is a factor of the usual speeds.
    """
    room = (scene.width * scene.height / (REFERENCE_WIDTH * REFERENCE_HEIGHT)) ** 0.5 / scene.scale
    most = int(np.clip(round(_MOST_OBJECTS * room), 2, _MOST_OBJECTS))
    shares = np.array([kind.share for kind in KINDS])
    expected = np.array([boxes[name] for name in CLASS_NAMES], float)
    actors: list[Actor] = []
    for _ in range(int(rng.integers(1, most + 1))):
        # The class that is farthest below its share comes next, so that even a tiny split contains all four.
        class_index = int(np.argmax(shares * (expected.sum() + frames) - expected))
        expected[class_index] += frames
        actors.append(cast_actor(scene, class_index, frames, actors, rng, pace))
    return actors


def cast_actor(
    scene: Scene, class_index: int, frames: int, placed: Sequence[Actor], rng: np.random.Generator, pace: float = 1.0
) -> Actor:
    """Place one object inside the frame at the middle of the clip, away from other objects if there is room.

    `pace` is a factor of the usual speed.
    """
    kind = KINDS[class_index]
    middle = (frames - 1) / 2
    for _ in range(4):
        depth = float(rng.uniform(0, 1))
        size = scene.scale * float(rng.uniform(0.94, 1.06))
        heading = int(rng.choice((-1, 1)))
        parked = kind.name == "vehicle" and rng.random() < 0.3
        speed = 0.0 if parked else float(rng.uniform(*kind.speeds)) * scene.scale * (0.6 + 0.4 * depth) * pace
        center = float(rng.uniform(0.08, 0.92)) * scene.width - heading * speed * middle
        still = standing_actor(scene, class_index, depth, size, heading, rng)
        actor = replace(still, center=center, velocity=heading * speed)
        if not any(_overlaps(actor, other, middle) for other in placed):
            break
    return actor


def standing_actor(
    scene: Scene, class_index: int, depth: float, size: float, heading: int, rng: np.random.Generator
) -> Actor:
    """Return an object at the left edge of the frame; `depth` is 0 at the far end of the quay and 1 at the near end."""
    kind = KINDS[class_index]
    return Actor(
        class_index=class_index,
        center=0.0,
        ground=(FAR_GROUND + depth * (NEAR_GROUND - FAR_GROUND)) * scene.height,
        width=size * (kind.far[0] + depth * (kind.near[0] - kind.far[0])),
        height=size * (kind.far[1] + depth * (kind.near[1] - kind.far[1])),
        velocity=0.0,
        heading=heading,
        warmth=float(rng.normal(0, 1.2)),
        shape=int(rng.integers(0, 2)),
    )


def _overlaps(first: Actor, second: Actor, frame: float) -> bool:
    """Return whether two objects largely cover each other in a frame."""
    distance = abs(first.center + first.velocity * frame - second.center - second.velocity * frame)
    rise = abs((first.ground - first.height / 2) - (second.ground - second.height / 2))
    return distance < 0.4 * (first.width + second.width) and rise < 0.4 * (first.height + second.height)
