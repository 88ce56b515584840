"""Persons, bicycles, motorcycles and vehicles: size, speed, temperature and shape."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np

from synthetic.scene import FloatImage, Weather, resized

_FINENESS = 4  # Resolution of an object's canvas relative to the frame


@dataclass(frozen=True)
class Actor:
    """One moving object of a clip. Lengths are in pixels."""

    class_index: int  # Index in `KINDS`
    center: float  # Horizontal position of the middle at frame 0
    ground: float  # Vertical position of feet or wheels
    width: float
    height: float
    velocity: float  # Pixels per frame, negative to the left
    heading: int  # 1 when it faces right, -1 when it faces left
    warmth: float  # Temperature difference to the mean of the class, degrees
    shape: int  # 0 or 1, the variant (car or van)
    stop: float = math.inf  # Frame at which the object stops
    pause: float = 0.0  # Frames for which it then stands

    def center_at(self, frame: float) -> float:
        """Return the horizontal position of the middle at a frame."""
        return self.center + self.velocity * (frame - min(max(frame - self.stop, 0.0), self.pause))

    def is_standing(self, frame: float) -> bool:
        return not self.velocity or self.stop < frame <= self.stop + self.pause


@dataclass(frozen=True)
class _Part:
    """A shape: a disc (radius), a ring (both), a line (thickness) or a polygon (neither).

    Points are fractions of the object's box, radius and thickness of its height.
    """

    points: tuple[tuple[float, float], ...]
    heat: float
    radius: float = 0.0
    thickness: float = 0.0


def _apart(heat: float, weather: Weather, least: float) -> float:
    """Return `heat`, shifted if necessary to differ from the temperature of the ground by `least` degrees."""
    # Halfway between quay and road, which differ by about two degrees in full sun.
    ground = weather.ground + 0.5 + 0.0015 * weather.sun
    gap = heat - ground
    return heat if abs(gap) >= least else ground + math.copysign(least, gap)


def _body_heat(actor: Actor, weather: Weather) -> float:
    """Return the surface temperature of clothing: between skin and air, different from the ground."""
    return _apart(20.5 + 0.38 * weather.ambient + 0.005 * weather.sun + actor.warmth, weather, 5.5)


def _person(actor: Actor, weather: Weather, stride: float) -> list[_Part]:
    body = _body_heat(actor, weather)
    return [
        _Part(((0.42, 0.52), (0.5 - 0.36 * stride, 0.96)), body - 2.0, thickness=0.1),
        _Part(((0.58, 0.52), (0.5 + 0.36 * stride, 0.96)), body - 2.0, thickness=0.1),
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


_CAR = ((0.0, 0.48), (0.16, 0.4), (0.28, 0.0), (0.7, 0.0), (0.82, 0.42), (1.0, 0.5), (1.0, 0.86), (0.0, 0.86))
_CAR_PANES = (
    ((0.23, 0.38), (0.31, 0.09), (0.46, 0.09), (0.46, 0.38)),
    ((0.5, 0.38), (0.5, 0.09), (0.67, 0.09), (0.75, 0.38)),
)
_VAN = ((0.0, 0.0), (0.76, 0.0), (0.88, 0.4), (1.0, 0.5), (1.0, 0.86), (0.0, 0.86))
_VAN_PANES = (((0.62, 0.38), (0.62, 0.1), (0.74, 0.1), (0.83, 0.38)),)


def _vehicle(actor: Actor, weather: Weather, stride: float) -> list[_Part]:
    paint = _apart(weather.ambient + 5.0 + 0.008 * weather.sun + 2 * actor.warmth, weather, 4.5)
    running = actor.velocity != 0
    bonnet = paint + (13.0 if running else 6.0)
    wheel = weather.ground + (9.0 if running else 5.0)
    return [
        _Part(((0.05, 0.94), (0.95, 0.94), (0.95, 0.84), (0.05, 0.84)), weather.ground - 2.0),
        _Part(_VAN if actor.shape else _CAR, paint),
        _Part(((0.84, 0.46), (1.0, 0.53), (1.0, 0.72), (0.84, 0.72)), bonnet),
        *(_Part(pane, paint + 5.0) for pane in (_VAN_PANES if actor.shape else _CAR_PANES)),
        _Part(((0.2, 0.83),), wheel, radius=0.165),
        _Part(((0.8, 0.83),), wheel, radius=0.165),
    ]


@dataclass(frozen=True)
class Kind:
    """One class of objects."""

    name: str
    share: float  # Share of all boxes
    far: tuple[float, float]  # Width and height at the far end of the quay, pixels of the reference frame
    near: tuple[float, float]  # Width and height at the near end
    speeds: tuple[float, float]  # Minimum and maximum speed at the near end, pixels per frame
    # Returns the shapes, given the object, the weather and the phase of the stride, -1 to 1
    parts: Callable[[Actor, Weather, float], list[_Part]]


KINDS = (
    Kind("person", 0.45, (10.0, 24.0), (16.0, 40.0), (0.5, 2.5), _person),
    Kind("bicycle", 0.18, (24.0, 28.0), (36.0, 42.0), (2.0, 5.0), _bicycle),
    Kind("motorcycle", 0.12, (28.0, 26.0), (44.0, 40.0), (2.5, 7.0), _motorcycle),
    Kind("vehicle", 0.25, (52.0, 26.0), (86.0, 40.0), (2.0, 8.0), _vehicle),
)
CLASS_NAMES = tuple(kind.name for kind in KINDS)


def paint(actor: Actor, weather: Weather, frame: int) -> tuple[FloatImage, FloatImage, int, int]:
    """Return temperature times coverage, coverage, and the x and y of their corner in the frame."""
    exact_x = actor.center_at(frame) - actor.width / 2
    exact_y = actor.ground - actor.height
    origin_x = math.floor(exact_x) - 2
    origin_y = math.floor(exact_y) - 2
    columns, rows = math.ceil(actor.width) + 5, math.ceil(actor.height) + 5
    heat: FloatImage = np.zeros((rows * _FINENESS, columns * _FINENESS), np.float32)
    coverage: FloatImage = np.zeros_like(heat)
    stride = 0.0 if actor.is_standing(frame) else math.sin(1.1 * frame + 2.0 * actor.warmth)
    unit = actor.height * _FINENESS
    for part in KINDS[actor.class_index].parts(actor, weather, stride):
        points = np.array(part.points)
        if actor.heading < 0:
            points[:, 0] = 1 - points[:, 0]
        shifted = points * (actor.width, actor.height) + (exact_x - origin_x, exact_y - origin_y)
        pixels = np.round(shifted * _FINENESS).astype(np.int32)
        thickness = max(1, round(part.thickness * unit)) if part.thickness else -1
        for canvas, value in ((heat, part.heat), (coverage, 1.0)):
            if part.radius:
                cv2.circle(canvas, pixels[0].tolist(), round(part.radius * unit), value, thickness)
            elif part.thickness:
                cv2.polylines(canvas, [pixels], False, value, thickness)
            else:
                cv2.fillPoly(canvas, [pixels], value)
    heat, coverage = (resized(canvas, columns, rows, cv2.INTER_AREA) for canvas in (heat, coverage))
    return heat, coverage, origin_x, origin_y
