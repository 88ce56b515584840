"""A thermal harbour drawn from numbers: weather, static scene, moving objects and their boxes.

Everything is drawn as temperature in degrees Celsius; only the last step turns degrees into 8-bit gray. That order is
what makes the seasonal drift honest: a summer quay in the sun overtakes the temperature of a person, so the person
turns dark, without any rule that says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import cv2
import numpy as np
import numpy.typing as npt

FloatImage = npt.NDArray[np.float32]
GrayImage = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Box = tuple[int, int, int, int]

CLASS_NAMES = ("person", "bicycle", "motorcycle", "vehicle")
REFERENCE_WIDTH, REFERENCE_HEIGHT = 384, 288
MINIMUM_BOX_SIDE = 6
"""Pixels; a smaller box holds too little to be recognised."""

_SUPERSAMPLING = 4
_MASK_COVERAGE = 0.4
_LEAST_VISIBLE = 0.3
_SMALLEST_SCALE = 0.75
"""Below this scale a far person would be narrower than the smallest box, so tiny frames keep larger objects."""

_FAR_GROUND, _NEAR_GROUND = 0.46, 0.97
"""Heights (fractions of the frame) between which objects stand on the quay."""

# Width and height in pixels at the reference frame: far end of the quay, near end of the quay.
_SIZES = {
    "person": ((10.0, 24.0), (16.0, 40.0)),
    "bicycle": ((24.0, 28.0), (36.0, 42.0)),
    "motorcycle": ((28.0, 26.0), (44.0, 40.0)),
    "vehicle": ((52.0, 26.0), (86.0, 40.0)),
}
# Slowest and fastest motion in pixels per frame at the near end of the quay.
_SPEEDS = {"person": (0.5, 2.5), "bicycle": (2.0, 5.0), "motorcycle": (2.5, 7.0), "vehicle": (2.0, 8.0)}


@dataclass(frozen=True)
class Month:
    """Climate of one month and the state of the sensor in it.

    Attributes:
        year: Calendar year.
        month: Calendar month, 1 to 12.
        ambient: Mean air temperature in degrees Celsius.
        water: Temperature of the harbour basin in degrees Celsius.
        sunrise: Hour of sunrise.
        sunset: Hour of sunset.
        radiation: Clear noon sun in watts per square metre.
        gain: Gray levels per degree; it drifts over the life of the camera.
    """

    year: int
    month: int
    ambient: float
    water: float
    sunrise: float
    sunset: float
    radiation: float
    gain: float


MONTHS = (
    Month(2020, 5, 12.0, 10.0, 5.2, 21.4, 760.0, 4.0),
    Month(2020, 6, 17.0, 15.0, 4.4, 22.3, 820.0, 3.9),
    Month(2020, 7, 19.0, 18.0, 4.7, 22.2, 800.0, 3.8),
    Month(2020, 8, 20.0, 19.0, 5.7, 21.1, 700.0, 3.7),
    Month(2021, 1, -1.0, 3.5, 8.7, 16.2, 140.0, 4.3),
    Month(2021, 2, -3.0, 2.0, 7.7, 17.3, 260.0, 4.4),
    Month(2021, 3, 4.0, 4.0, 6.5, 18.4, 430.0, 4.2),
    Month(2021, 4, 7.0, 6.5, 6.2, 20.4, 620.0, 4.1),
)


@dataclass(frozen=True)
class Weather:
    """What decides the look of one clip; temperatures in degrees Celsius.

    Attributes:
        ambient: Air temperature.
        water: Temperature of the basin.
        ground: Temperature of the quay.
        sun: Sun radiation in watts per square metre.
        humidity: Relative humidity in percent.
        gain: Gray levels per degree.
        noise: Standard deviation of the sensor noise in gray levels.
        pattern: Strength of the fixed row and column pattern, 1 being usual.
        night: Whether the sun is below the horizon.
    """

    ambient: float
    water: float
    ground: float
    sun: float
    humidity: float
    gain: float
    noise: float
    pattern: float
    night: bool


@dataclass(frozen=True)
class Actor:
    """One moving object of a clip.

    Attributes:
        class_index: Index in `CLASS_NAMES`.
        center: Horizontal position of its middle at frame 0 in pixels.
        ground: Vertical position of its feet or wheels in pixels.
        width: Intended width in pixels.
        height: Intended height in pixels.
        velocity: Pixels per frame, negative to the left.
        heading: 1 when it faces right, -1 when it faces left.
        warmth: Degrees by which it is warmer than its kind.
        shape: 0 or 1, the variant (car or van).
    """

    class_index: int
    center: float
    ground: float
    width: float
    height: float
    velocity: float
    heading: int
    warmth: float
    shape: int


@dataclass(frozen=True)
class _Part:
    """A painted piece: points as fractions of the object's box, thickness and radius as fractions of its height."""

    points: tuple[tuple[float, float], ...]
    heat: float
    radius: float = 0.0
    thickness: float = 0.0


def weather_at(month: Month, moment: datetime, rng: np.random.Generator) -> Weather:
    """Draw the weather of a clip.

    Args:
        month: Climate to draw from.
        moment: Local time of the clip.
        rng: Source of chance.

    Returns:
        The weather.
    """
    hour = moment.hour + moment.minute / 60
    daylight = math.sin(math.pi * min(max((hour - month.sunrise) / (month.sunset - month.sunrise), 0.0), 1.0))
    sun = month.radiation * daylight * float(rng.uniform(0.25, 1.0))
    ambient = month.ambient + float(rng.normal(0, 1.8)) + 3.5 * math.sin(math.pi * (hour - 9) / 12)
    # Stone stores the day: it stays a little above the air at night and runs far ahead of it in the sun.
    ground = ambient + 1.0 + 0.022 * sun
    humidity = float(np.clip(88 - 0.03 * sun + rng.normal(0, 6), 35, 100))
    return Weather(
        ambient=ambient,
        water=month.water + float(rng.normal(0, 0.5)),
        ground=ground,
        sun=sun,
        humidity=humidity,
        gain=month.gain * float(rng.uniform(0.95, 1.05)),
        noise=float(rng.uniform(1.4, 2.8)),
        pattern=float(rng.uniform(0.6, 1.6)),
        night=daylight <= 0,
    )


def _material_heat(weather: Weather) -> dict[str, float]:
    """Temperature of every material of the static scene in degrees Celsius."""
    ambient, sun = weather.ambient, weather.sun
    heating = max(0.0, 15.0 - ambient) * 0.35
    return {
        "far buildings": ambient + 0.5 + 0.008 * sun,
        "far windows": ambient + 1.5 + heating,
        "quay": weather.ground,
        "road": weather.ground + 0.6 + 0.002 * sun,
        "quay wall": (weather.ground + weather.water) / 2 - 1.0,
        "warehouse": ambient + 1.0 + 0.014 * sun,
        "window": ambient + 3.0 + heating,
        "roof": ambient - 3.0 + 0.02 * sun,
        "hull": weather.water + 1.5 + 0.006 * sun,
        "cabin": ambient + 2.5 + 0.01 * sun,
        "crate": ambient - 1.5 + 0.016 * sun,
        "post": ambient + 0.5 + 0.005 * sun,
        "lamp": ambient + (22.0 if weather.night else 2.0),
    }


def _rectangle(left: float, top: float, right: float, bottom: float) -> tuple[tuple[float, float], ...]:
    return ((left, top), (right, top), (right, bottom), (left, bottom))


def _static_shapes() -> list[tuple[str, tuple[tuple[float, float], ...]]]:
    """The harbour from far to near: (material, corners as fractions of the frame)."""
    shapes: list[tuple[str, tuple[tuple[float, float], ...]]] = []
    houses = ((0.0, 0.13, 0.1), (0.1, 0.09, 0.2), (0.22, 0.12, 0.36), (0.4, 0.14, 0.56), (0.58, 0.1, 1.0))
    for left, top, right in houses:
        shapes.append(("far buildings", _rectangle(left, top, right, 0.19)))
        columns = np.arange(left + 0.015, right - 0.015, 0.026).tolist()
        shapes.extend(("far windows", _rectangle(x, top + 0.02, x + 0.01, top + 0.035)) for x in columns)
    for left, size in ((0.05, 0.2), (0.31, 0.15), (0.5, 0.17)):
        hull = ((left, 0.295), (left + size, 0.28), (left + 0.9 * size, 0.335), (left + 0.1 * size, 0.335))
        shapes.append(("hull", hull))
        shapes.append(("cabin", _rectangle(left + 0.3 * size, 0.25, left + 0.65 * size, 0.29)))
        shapes.append(("post", _rectangle(left + 0.5 * size, 0.16, left + 0.5 * size + 0.005, 0.25)))
    shapes.append(("quay wall", ((0.0, 0.35), (1.0, 0.37), (1.0, 0.4), (0.0, 0.38))))
    shapes.append(("quay", ((0.0, 0.37), (1.0, 0.39), (1.0, 1.0), (0.0, 1.0))))
    shapes.append(("road", ((0.0, 0.6), (1.0, 0.56), (1.0, 0.78), (0.0, 0.86))))
    shapes.append(("warehouse", _rectangle(0.76, 0.15, 1.0, 0.42)))
    shapes.append(("roof", ((0.74, 0.15), (0.8, 0.1), (1.0, 0.1), (1.0, 0.15))))
    shapes.extend(("window", _rectangle(x, 0.22, x + 0.03, 0.28)) for x in (0.79, 0.85, 0.91, 0.96))
    shapes.extend(("crate", _rectangle(x, 0.375, x + 0.045, 0.425)) for x in (0.12, 0.17, 0.44, 0.68))
    # The posts stand behind the farthest object, for the objects are painted over the empty harbour.
    for x, top in ((0.05, 0.08), (0.28, 0.2), (0.63, 0.2), (0.9, 0.06)):
        shapes.append(("post", _rectangle(x, top, x + 0.009, 0.45)))
        shapes.append(("lamp", _rectangle(x - 0.015, top - 0.012, x + 0.024, top + 0.008)))
    return shapes


@dataclass
class Scene:
    """The fixed view of the camera: geometry, sensor pattern and the scale of the objects.

    Attributes:
        width: Frame width in pixels.
        height: Frame height in pixels.
        seed: Seed of the sensor pattern and of the ground texture.
        scale: Object size relative to the reference frame.
    """

    width: int
    height: int
    seed: int
    scale: float = field(init=False)

    def __post_init__(self) -> None:
        """Fix what every frame shares."""
        rng = np.random.default_rng([self.seed, 1000])
        self.scale = max(_SMALLEST_SCALE, min(self.width / REFERENCE_WIDTH, self.height / REFERENCE_HEIGHT))
        by_column, by_row = rng.normal(0, 0.8, (1, self.width)), rng.normal(0, 0.5, (self.height, 1))
        self._pattern: FloatImage = (by_column + by_row).astype(np.float32)
        coarse = rng.normal(0, 1, (max(2, self.height // 12), max(2, self.width // 12))).astype(np.float32)
        self._texture = _resized(coarse, self.width, self.height)
        rows = np.linspace(0, 1, self.height, dtype=np.float32)[:, None]
        self._rows: FloatImage = np.broadcast_to(rows, (self.height, self.width)).astype(np.float32)
        self._water: FloatImage = ((self._rows > 0.19) & (self._rows < 0.36)).astype(np.float32)

    def background(self, weather: Weather) -> FloatImage:
        """Draw the empty harbour.

        Args:
            weather: Weather of the clip.

        Returns:
            Temperatures in degrees Celsius, height x width.
        """
        heat = _material_heat(weather)
        factor = 2
        rows = np.linspace(0, 1, self.height * factor, dtype=np.float32)[:, None]
        # A clear sky is far colder than the air overhead and meets it at the horizon; humid air closes that gap.
        sky = weather.ambient - (26 - 0.2 * weather.humidity) * (1 - rows / 0.19)
        water = weather.water + 1.5 * (rows - 0.19) / 0.17 * (1 if weather.sun > 100 else -1)
        column = np.where(rows < 0.19, sky, water)
        canvas = np.repeat(column, self.width * factor, axis=1).astype(np.float32)
        for material, corners in _static_shapes():
            size = np.array([self.width * factor, self.height * factor])
            points = np.round(np.array(corners) * size).astype(np.int32)
            cv2.fillPoly(canvas, [points], heat[material], cv2.LINE_8)
        image = np.asarray(cv2.resize(canvas, (self.width, self.height), interpolation=cv2.INTER_AREA), np.float32)
        near_glow = np.maximum(self._rows - 0.4, 0) * (0.6 + 0.002 * weather.sun)
        return np.asarray(image + near_glow + 0.35 * self._texture, np.float32)

    def expose(self, heat: FloatImage, weather: Weather, rng: np.random.Generator) -> GrayImage:
        """Turn temperatures into the frame that the camera would store.

        Args:
            heat: Temperatures in degrees Celsius.
            weather: Weather of the clip, with gain and noise of the sensor.
            rng: Source of the noise.

        Returns:
            The 8-bit frame.
        """
        ripples = rng.standard_normal((max(2, self.height // 4), max(2, self.width // 10)), dtype=np.float32)
        noise = rng.standard_normal((self.height, self.width), dtype=np.float32)
        heat = heat + 0.4 * self._water * _resized(ripples, self.width, self.height)
        blurred = np.asarray(cv2.GaussianBlur(heat, (0, 0), 0.75), np.float32)
        gray = 55 + weather.gain * blurred + weather.noise * noise + weather.pattern * self._pattern
        return np.asarray(np.clip(np.rint(gray), 0, 255), np.uint8)


def _resized(image: FloatImage, width: int, height: int) -> FloatImage:
    return np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR), np.float32)


def cast_actor(scene: Scene, class_index: int, frames: int, placed: Sequence[Actor], rng: np.random.Generator) -> Actor:
    """Place one object of a clip, away from the others where there is room.

    Args:
        scene: The scene that it enters.
        class_index: Index in `CLASS_NAMES`.
        frames: Length of the clip; the object is inside the frame in its middle.
        placed: Objects that are there already.
        rng: Source of chance.

    Returns:
        The object.
    """
    name = CLASS_NAMES[class_index]
    (far_width, far_height), (near_width, near_height) = _SIZES[name]
    middle = (frames - 1) / 2
    for _ in range(4):
        depth = float(rng.uniform(0, 1))
        size = scene.scale * float(rng.uniform(0.94, 1.06))
        heading = int(rng.choice((-1, 1)))
        parked = name == "vehicle" and rng.random() < 0.3
        speed = 0.0 if parked else float(rng.uniform(*_SPEEDS[name])) * scene.scale * (0.6 + 0.4 * depth)
        actor = Actor(
            class_index=class_index,
            center=float(rng.uniform(0.08, 0.92)) * scene.width - heading * speed * middle,
            ground=(_FAR_GROUND + depth * (_NEAR_GROUND - _FAR_GROUND)) * scene.height,
            width=size * (far_width + depth * (near_width - far_width)),
            height=size * (far_height + depth * (near_height - far_height)),
            velocity=heading * speed,
            heading=heading,
            warmth=float(rng.normal(0, 1.2)),
            shape=int(rng.integers(0, 2)),
        )
        if not any(_collide(actor, other, middle) for other in placed):
            break
    return actor


def _collide(first: Actor, second: Actor, frame: float) -> bool:
    """Whether two objects cover each other by more than half of both half sizes at a moment."""
    distance = abs(first.center + first.velocity * frame - second.center - second.velocity * frame)
    rise = abs((first.ground - first.height / 2) - (second.ground - second.height / 2))
    return distance < 0.4 * (first.width + second.width) and rise < 0.4 * (first.height + second.height)


def _apart(heat: float, weather: Weather, least: float) -> float:
    """The temperature, moved away from that of the ground where the two could not be told apart."""
    # Halfway between quay and road, which differ by about two degrees in full sun.
    ground = weather.ground + 0.5 + 0.0015 * weather.sun
    gap = heat - ground
    return heat if abs(gap) >= least else ground + math.copysign(least, gap)


def _body_heat(actor: Actor, weather: Weather) -> float:
    """Surface temperature of clothing: between skin and air, and never equal to the ground behind it."""
    return _apart(20.5 + 0.38 * weather.ambient + 0.005 * weather.sun + actor.warmth, weather, 5.5)


def _person(actor: Actor, weather: Weather, stride: float) -> list[_Part]:
    body = _body_heat(actor, weather)
    left, right = 0.5 - 0.36 * stride, 0.5 + 0.36 * stride
    return [
        _Part(((0.42, 0.52), (left, 0.96)), body - 2.0, thickness=0.1),
        _Part(((0.58, 0.52), (right, 0.96)), body - 2.0, thickness=0.1),
        _Part(((0.2, 0.25), (0.5 + 0.42 * stride, 0.52)), body - 1.0, thickness=0.07),
        _Part(((0.8, 0.25), (0.5 - 0.42 * stride, 0.52)), body - 1.0, thickness=0.07),
        _Part(((0.07, 0.23), (0.28, 0.17), (0.72, 0.17), (0.93, 0.23), (0.78, 0.57), (0.22, 0.57)), body),
        _Part(((0.52, 0.09),), max(body + 2.5, 31.0), radius=0.088),
    ]


def _bicycle(actor: Actor, weather: Weather, stride: float) -> list[_Part]:
    body = _body_heat(actor, weather)
    rubber = weather.ground - 5.5
    return [
        _Part(((0.24, 0.78),), rubber, radius=0.19, thickness=0.075),
        _Part(((0.76, 0.78),), rubber, radius=0.19, thickness=0.075),
        _Part(((0.24, 0.78), (0.4, 0.55), (0.7, 0.55), (0.76, 0.78)), rubber + 1.0, thickness=0.05),
        _Part(((0.4, 0.52), (0.56, 0.63), (0.5 + 0.06 * stride, 0.84)), body - 2.0, thickness=0.09),
        _Part(((0.5, 0.24), (0.72, 0.47)), body - 1.0, thickness=0.06),
        _Part(((0.3, 0.52), (0.42, 0.17), (0.6, 0.19), (0.48, 0.55)), body),
        _Part(((0.57, 0.1),), max(body + 2.5, 31.0), radius=0.088),
    ]


def _motorcycle(actor: Actor, weather: Weather, stride: float) -> list[_Part]:
    body = _body_heat(actor, weather)
    frame = max(weather.ambient + 7.0, weather.ground - 3.0)
    return [
        _Part(((0.18, 0.8),), frame + 2.0, radius=0.19),
        _Part(((0.82, 0.8),), frame + 2.0, radius=0.19),
        _Part(((0.04, 0.5), (0.45, 0.52), (0.74, 0.42), (0.86, 0.52), (0.7, 0.86), (0.3, 0.86)), frame),
        _Part(((0.5, 0.8), (0.1, 0.74)), 52.0 + actor.warmth, thickness=0.07),
        _Part(((0.5, 0.73),), 68.0 + 2.0 * stride, radius=0.13),
        _Part(((0.5, 0.24), (0.76, 0.42)), body - 1.0, thickness=0.08),
        _Part(((0.26, 0.54), (0.38, 0.17), (0.58, 0.18), (0.52, 0.56)), body),
        _Part(((0.54, 0.1),), body - 2.0, radius=0.1),
    ]


def _vehicle(actor: Actor, weather: Weather, stride: float) -> list[_Part]:
    paint = _apart(weather.ambient + 5.0 + 0.008 * weather.sun + 2 * actor.warmth, weather, 4.5)
    running = abs(actor.velocity) > 0
    glass = paint + 5.0
    bonnet = paint + (13.0 if running else 6.0)
    wheel = weather.ground + (9.0 if running else 5.0)
    hull: tuple[tuple[float, float], ...]
    if actor.shape == 0:
        hull = ((0.0, 0.48), (0.16, 0.4), (0.28, 0.0), (0.7, 0.0), (0.82, 0.42), (1.0, 0.5), (1.0, 0.86), (0.0, 0.86))
        panes = [((0.23, 0.38), (0.31, 0.09), (0.46, 0.09), (0.46, 0.38))]
        panes.append(((0.5, 0.38), (0.5, 0.09), (0.67, 0.09), (0.75, 0.38)))
    else:
        hull = ((0.0, 0.0), (0.76, 0.0), (0.88, 0.4), (1.0, 0.5), (1.0, 0.86), (0.0, 0.86))
        panes = [((0.62, 0.38), (0.62, 0.1), (0.74, 0.1), (0.83, 0.38))]
    return [
        _Part(((0.05, 0.94), (0.95, 0.94), (0.95, 0.84), (0.05, 0.84)), weather.ground - 2.0),
        _Part(hull, paint),
        _Part(((0.84, 0.46), (1.0, 0.53), (1.0, 0.72), (0.84, 0.72)), bonnet),
        *(_Part(pane, glass) for pane in panes),
        _Part(((0.2, 0.83),), wheel, radius=0.165),
        _Part(((0.8, 0.83),), wheel, radius=0.165),
    ]


_PART_MAKERS = (_person, _bicycle, _motorcycle, _vehicle)


@dataclass(frozen=True)
class _Sprite:
    """A painted object: temperatures already multiplied by coverage, and the coverage, at a place of the frame."""

    heat: FloatImage
    coverage: FloatImage
    left: int
    top: int


def _paint(actor: Actor, weather: Weather, frame: int) -> _Sprite:
    """Paint one object on its own small canvas, several times finer than the frame."""
    center = actor.center + actor.velocity * frame
    stride = math.sin(1.1 * frame + 2.0 * actor.warmth)
    left, top = center - actor.width / 2, actor.ground - actor.height
    origin_x, origin_y = math.floor(left) - 2, math.floor(top) - 2
    columns, rows = math.ceil(actor.width) + 5, math.ceil(actor.height) + 5
    heat: FloatImage = np.zeros((rows * _SUPERSAMPLING, columns * _SUPERSAMPLING), np.float32)
    coverage: FloatImage = np.zeros_like(heat)
    for part in _PART_MAKERS[actor.class_index](actor, weather, stride):
        points = np.array(part.points)
        if actor.heading < 0:
            points[:, 0] = 1 - points[:, 0]
        shifted = points * (actor.width, actor.height) + (left - origin_x, top - origin_y)
        pixels = np.round(shifted * _SUPERSAMPLING).astype(np.int32)
        unit = actor.height * _SUPERSAMPLING
        thickness = max(1, round(part.thickness * unit))
        for canvas, value in ((heat, part.heat), (coverage, 1.0)):
            if part.radius:
                spot = (int(pixels[0, 0]), int(pixels[0, 1]))
                cv2.circle(canvas, spot, round(part.radius * unit), value, thickness if part.thickness else -1)
            elif part.thickness:
                cv2.polylines(canvas, [pixels], False, value, thickness)
            else:
                cv2.fillPoly(canvas, [pixels], value)
    size = (columns, rows)
    return _Sprite(
        np.asarray(cv2.resize(heat, size, interpolation=cv2.INTER_AREA), np.float32),
        np.asarray(cv2.resize(coverage, size, interpolation=cv2.INTER_AREA), np.float32),
        origin_x,
        origin_y,
    )


def _box_of(mask: Mask) -> Box | None:
    """The tight box (left, top, width, height) of a mask in pixels, None when it is too small for a label."""
    columns, rows = np.flatnonzero(mask.any(axis=0)), np.flatnonzero(mask.any(axis=1))
    if columns.size == 0:
        return None
    width, height = int(columns[-1] - columns[0]) + 1, int(rows[-1] - rows[0]) + 1
    if min(width, height) < MINIMUM_BOX_SIDE:
        return None
    return int(columns[0]), int(rows[0]), width, height


def draw_frame(
    scene: Scene,
    background: FloatImage,
    actors: Sequence[Actor],
    weather: Weather,
    frame: int,
    rng: np.random.Generator,
) -> tuple[GrayImage, list[tuple[int, Box]]]:
    """Draw one frame of a clip.

    Args:
        scene: The fixed view.
        background: The empty harbour from `Scene.background`, in degrees Celsius; it is left as it is.
        actors: The objects of the clip.
        weather: The weather of the clip.
        frame: Index of the frame in its clip.
        rng: Source of the sensor noise; the same amount is taken from it whatever the objects are.

    Returns:
        The 8-bit frame, and per labelled object its class index and its box (left, top, width, height) in pixels,
        tight around what of the object can be seen.
    """
    heat = background.copy()
    covered: Mask = np.zeros(heat.shape, np.bool_)
    drawn: list[tuple[int, tuple[slice, slice], Mask, int]] = []
    for actor in sorted(actors, key=lambda item: item.ground):
        sprite = _paint(actor, weather, frame)
        rows, columns = sprite.coverage.shape
        top, left = max(sprite.top, 0), max(sprite.left, 0)
        bottom, right = min(sprite.top + rows, scene.height), min(sprite.left + columns, scene.width)
        if top >= bottom or left >= right:
            continue
        place = (slice(top, bottom), slice(left, right))
        inside = (slice(top - sprite.top, bottom - sprite.top), slice(left - sprite.left, right - sprite.left))
        coverage = sprite.coverage[inside]
        heat[place] = heat[place] * (1 - coverage) + sprite.heat[inside]
        whole = int(np.count_nonzero(sprite.coverage > _MASK_COVERAGE))
        drawn.append((actor.class_index, place, coverage > _MASK_COVERAGE, whole))
    labels: list[tuple[int, Box]] = []
    for class_index, place, mask, whole in reversed(drawn):
        visible: Mask = mask & ~covered[place]
        covered[place] |= mask
        box = _box_of(visible)
        if box is not None and np.count_nonzero(visible) >= _LEAST_VISIBLE * whole:
            rows_slice, columns_slice = place
            labels.append((class_index, (box[0] + columns_slice.start, box[1] + rows_slice.start, box[2], box[3])))
    return scene.expose(heat, weather, rng), labels[::-1]
