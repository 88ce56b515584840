"""Objects and weather of drawn surveillance clips: what a camera that does not move sees for a minute.

Persons walk on two footpaths, wait at certain points and stop on their way. Cyclists ride beside the road, motorcycles
and vehicles drive on its two lanes, and vehicles stand on parking places. Paths, waiting points and parking places
belong to the scene: they are the same in every clip of a dataset. Objects enter and leave at any time of the clip. Fog
and rain take contrast from some clips.
"""

from dataclasses import replace

import numpy as np

from synthetic.clips import FAR_GROUND, NEAR_GROUND, standing_actor
from synthetic.objects import KINDS, Actor
from synthetic.scene import Scene, Weather

_VISIBLE = {"person": 1.6, "bicycle": 0.6, "motorcycle": 0.3, "vehicle": 0.8}
"""Mean number of moving objects in a frame."""
_PATHS = {
    "person": ((0.46, 0.54), (0.86, 0.96)),
    "bicycle": ((0.55, 0.58), (0.82, 0.86)),
    "motorcycle": ((0.62, 0.68), (0.74, 0.8)),
    "vehicle": ((0.62, 0.68), (0.74, 0.8)),
}
"""Vertical positions of the path to the left and of the path to the right, fractions of the frame height."""
_WAITING_POINTS, _WAITING_SHARE = 4, 0.35
_PARKING_PLACES, _PARKING_SHARE = 4, 0.5
_PARKING_GROUND = 0.6
_STOPPING_SHARE = {"person": 0.3, "bicycle": 0.1, "motorcycle": 0.1, "vehicle": 0.2}
_PAUSES = 3.0, 20.0  # Range of the duration of a stop, frames
_VEILED_SHARE = 0.3
_TRANSMISSIONS = 0.2, 0.7  # Range of the share of the contrast that fog or rain leave


def veiled(weather: Weather, rng: np.random.Generator) -> Weather:
    """Return the weather of a clip with fog or rain, or in most cases without."""
    if rng.random() >= _VEILED_SHARE:
        return weather
    rain = float(rng.uniform(0.2, 6.0)) if rng.random() < 0.5 else 0.0
    gain = weather.gain * float(rng.uniform(*_TRANSMISSIONS))
    return replace(weather, gain=gain, humidity=100.0, noise=weather.noise * 1.2, precipitation=rain)


def cast_surveillance(scene: Scene, frames: int, rng: np.random.Generator, pace: float = 1.0) -> list[Actor]:
    """Choose the objects of a clip; `pace` is a factor of the usual speeds, > 0."""
    actors = []

    def still(class_index: int, ground: float, heading: int) -> tuple[Actor, float]:
        depth = (ground - FAR_GROUND) / (NEAR_GROUND - FAR_GROUND)
        size = scene.scale * float(rng.uniform(0.94, 1.06))
        return standing_actor(scene, class_index, depth, size, heading, rng), depth

    for class_index, kind in enumerate(KINDS):
        # The time in which an object of mean speed crosses the frame.
        crossing = scene.width / (pace * scene.scale * sum(kind.speeds) / 2)
        for _ in range(rng.poisson(_VISIBLE[kind.name] * (frames + crossing) / crossing)):
            heading = int(rng.choice((-1, 1)))
            actor, depth = still(class_index, float(rng.uniform(*_PATHS[kind.name][heading > 0])), heading)
            velocity = heading * float(rng.uniform(*kind.speeds)) * scene.scale * (0.6 + 0.4 * depth) * pace
            middle = float(rng.uniform(-crossing / 2, frames + crossing / 2))
            actor = replace(actor, center=scene.width / 2 - velocity * middle, velocity=velocity)
            if rng.random() < _STOPPING_SHARE[kind.name]:
                actor = replace(actor, stop=float(rng.uniform(0, frames)), pause=float(rng.uniform(*_PAUSES)))
            actors.append(actor)
    places = np.random.default_rng([scene.seed, 5000])
    standing = [(0, _WAITING_SHARE, float(places.uniform(0.48, 0.94))) for _ in range(_WAITING_POINTS)]
    standing += [(3, _PARKING_SHARE, _PARKING_GROUND)] * _PARKING_PLACES
    for class_index, share, ground in standing:
        center = float(places.uniform(0.08, 0.92)) * scene.width
        if rng.random() < share:
            actor, _ = still(class_index, ground, int(rng.choice((-1, 1))))
            actors.append(replace(actor, center=center + float(rng.normal(0, 2)) * scene.scale))
    return actors
