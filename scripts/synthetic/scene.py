"""Climate, weather and static background of the drawn dataset. Temperatures are in degrees Celsius."""

import math
from dataclasses import dataclass
from datetime import datetime

import cv2
import numpy as np
import numpy.typing as npt

FloatImage = npt.NDArray[np.float32]
Corners = tuple[tuple[float, float], ...]

REFERENCE_WIDTH, REFERENCE_HEIGHT = 384, 288
SMALLEST_SCALE = 0.75  # Minimum scale; below it, a far person would be narrower than the smallest box
HORIZON = 0.19  # Boundary of sky and water, fraction of the frame height


@dataclass(frozen=True)
class Month:
    """Climate of one month and gain of the sensor."""

    year: int
    month: int
    ambient: float  # Mean air temperature
    water: float  # Temperature of the harbour basin
    sunrise: float  # Hour of sunrise
    sunset: float  # Hour of sunset
    radiation: float  # Clear noon sun in watts per square metre
    gain: float  # Gray levels per degree


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
    """Conditions of one clip."""

    ambient: float  # Air temperature
    water: float  # Temperature of the basin
    ground: float  # Temperature of the quay
    sun: float  # Sun radiation in watts per square metre
    humidity: float  # Relative humidity in percent
    gain: float  # Gray levels per degree
    noise: float  # Standard deviation of the sensor noise in gray levels
    pattern: float  # Strength of the fixed row and column pattern relative to the usual strength
    lamps_lit: bool  # Whether the lamps are hot, which is the case from midnight to sunrise
    precipitation: float = 0.0  # Millimetres per hour


def weather_at(month: Month, moment: datetime, rng: np.random.Generator) -> Weather:
    """Draw the weather of a clip that starts at `moment`, local time."""
    hour = moment.hour + moment.minute / 60
    daylight = math.sin(math.pi * min(max((hour - month.sunrise) / (month.sunset - month.sunrise), 0.0), 1.0))
    sun = month.radiation * daylight * float(rng.uniform(0.25, 1.0))
    ambient = month.ambient + float(rng.normal(0, 1.8)) + 3.5 * math.sin(math.pi * (hour - 9) / 12)
    humidity = float(np.clip(88 - 0.03 * sun + rng.normal(0, 6), 35, 100))
    return Weather(
        ambient=ambient,
        water=month.water + float(rng.normal(0, 0.5)),
        # Stone stores heat: slightly warmer than the air at night, much warmer in the sun.
        ground=ambient + 1.0 + 0.022 * sun,
        sun=sun,
        humidity=humidity,
        gain=month.gain * float(rng.uniform(0.95, 1.05)),
        noise=float(rng.uniform(1.4, 2.8)),
        pattern=float(rng.uniform(0.6, 1.6)),
        lamps_lit=hour <= month.sunrise,
    )


class Scene:
    """Fixed view of the camera.

    Attributes:
        scale: Object size relative to the reference frame.
        pattern: Fixed row and column pattern of the sensor at usual strength, gray levels.
        water: `(H, 1)`, 1 in the rows of the basin, 0 elsewhere.
    """

    def __init__(self, width: int, height: int, seed: int) -> None:
        rng = np.random.default_rng([seed, 1000])
        self.width, self.height, self.seed = width, height, seed
        self.scale = max(SMALLEST_SCALE, min(width / REFERENCE_WIDTH, height / REFERENCE_HEIGHT))
        by_column, by_row = rng.normal(0, 0.8, (1, width)), rng.normal(0, 0.5, (height, 1))
        self.pattern: FloatImage = (by_column + by_row).astype(np.float32)
        coarse = rng.normal(0, 1, (max(2, height // 12), max(2, width // 12))).astype(np.float32)
        self._texture = resized(coarse, width, height, cv2.INTER_LINEAR)
        self._rows = _rows(height)
        self.water: FloatImage = ((self._rows > HORIZON) & (self._rows < 0.36)).astype(np.float32)

    def background(self, weather: Weather) -> FloatImage:
        """Return the empty harbour, `(H, W)` float32."""
        width, height = 2 * self.width, 2 * self.height  # antialiasing
        rows = _rows(height)
        # A clear sky is much colder than the air except at the horizon; humidity reduces the difference.
        sky = weather.ambient - (26 - 0.2 * weather.humidity) * (1 - rows / HORIZON)
        water = weather.water + 1.5 * (rows - HORIZON) / 0.17 * (1 if weather.sun > 100 else -1)
        canvas = np.repeat(np.where(rows < HORIZON, sky, water), width, axis=1).astype(np.float32)
        heat = _material_heat(weather)
        for material, corners in _static_shapes():
            points = np.round(np.array(corners) * (width, height)).astype(np.int32)
            cv2.fillPoly(canvas, [points], heat[material])
        near_glow = np.maximum(self._rows - 0.4, 0) * (0.6 + 0.002 * weather.sun)
        image = resized(canvas, self.width, self.height, cv2.INTER_AREA)
        return np.asarray(image + near_glow + 0.35 * self._texture, np.float32)


def resized(image: FloatImage, width: int, height: int, interpolation: int) -> FloatImage:
    return np.asarray(cv2.resize(image, (width, height), interpolation=interpolation), np.float32)


def _rows(height: int) -> FloatImage:
    """Return `(height, 1)` vertical positions as fractions of the frame height."""
    return np.linspace(0, 1, height, dtype=np.float32)[:, None]


def _material_heat(weather: Weather) -> dict[str, float]:
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
        "lamp": ambient + (22.0 if weather.lamps_lit else 2.0),
    }


def _rectangle(x1: float, y1: float, x2: float, y2: float) -> Corners:
    return ((x1, y1), (x2, y1), (x2, y2), (x1, y2))


def _static_shapes() -> list[tuple[str, Corners]]:
    """Return material and corners, as fractions of the frame, of all shapes from far to near."""
    shapes: list[tuple[str, Corners]] = []
    houses = ((0.0, 0.13, 0.1), (0.1, 0.09, 0.2), (0.22, 0.12, 0.36), (0.4, 0.14, 0.56), (0.58, 0.1, 1.0))
    for x1, y1, x2 in houses:
        shapes.append(("far buildings", _rectangle(x1, y1, x2, HORIZON)))
        columns = np.arange(x1 + 0.015, x2 - 0.015, 0.026).tolist()
        shapes.extend(("far windows", _rectangle(x, y1 + 0.02, x + 0.01, y1 + 0.035)) for x in columns)
    for x1, size in ((0.05, 0.2), (0.31, 0.15), (0.5, 0.17)):
        hull = ((x1, 0.295), (x1 + size, 0.28), (x1 + 0.9 * size, 0.335), (x1 + 0.1 * size, 0.335))
        shapes.append(("hull", hull))
        shapes.append(("cabin", _rectangle(x1 + 0.3 * size, 0.25, x1 + 0.65 * size, 0.29)))
        shapes.append(("post", _rectangle(x1 + 0.5 * size, 0.16, x1 + 0.5 * size + 0.005, 0.25)))
    shapes.append(("quay wall", ((0.0, 0.35), (1.0, 0.37), (1.0, 0.4), (0.0, 0.38))))
    shapes.append(("quay", ((0.0, 0.37), (1.0, 0.39), (1.0, 1.0), (0.0, 1.0))))
    shapes.append(("road", ((0.0, 0.6), (1.0, 0.56), (1.0, 0.78), (0.0, 0.86))))
    shapes.append(("warehouse", _rectangle(0.76, 0.15, 1.0, 0.42)))
    shapes.append(("roof", ((0.74, 0.15), (0.8, 0.1), (1.0, 0.1), (1.0, 0.15))))
    shapes.extend(("window", _rectangle(x, 0.22, x + 0.03, 0.28)) for x in (0.79, 0.85, 0.91, 0.96))
    shapes.extend(("crate", _rectangle(x, 0.375, x + 0.045, 0.425)) for x in (0.12, 0.17, 0.44, 0.68))
    # Posts are behind the farthest object, because objects are drawn over the background.
    for x, top in ((0.05, 0.08), (0.28, 0.2), (0.63, 0.2), (0.9, 0.06)):
        shapes.append(("post", _rectangle(x, top, x + 0.009, 0.45)))
        shapes.append(("lamp", _rectangle(x - 0.015, top - 0.012, x + 0.024, top + 0.008)))
    return shapes
