"""Climate of eight months and weather of a clip. Temperatures are in degrees Celsius."""

import math
from dataclasses import dataclass
from datetime import datetime

import numpy as np


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
