"""Mapping of 16-bit frames to the range of the network, 0 to 255, and drift of the sensor before the mapping.

A frame is mapped where a dataset reads it, so that all transforms work on images with the range of 8-bit images. Drift
needs no 16-bit image of its own: mapping a drifted frame to a range equals mapping the frame to a moved range. The
values beyond the range become visible, as they do in a camera, and each pixel is rounded at most once.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple, Self

import numpy as np

from yolo_lightning.data.array_types import AnyArray, Float32Array, Int64Array, UInt8Array, UInt16Array
from yolo_lightning.data.transforms.augmentation_settings import Image
from yolo_lightning.errors import UserError
from yolo_lightning.utils.choices import settings_group

RangeMode = Literal["fixed", "frame", "full"]
LARGEST_VALUE = 2**16 - 1
DEFAULTS: dict[RangeMode | None, dict[str, float | None]] = {
    "fixed": {},
    "frame": {"low": 0.5, "high": 99.5},
    "full": {"low": 0, "high": LARGEST_VALUE},
    None: {"low": None, "high": None},
}
"""Values of `low` and `high` in place of null, by mode; 8-bit frames have no range."""


@settings_group("data.input.pixel_range")
class PixelRange:
    """Range of the values of 16-bit frames that is mapped to the gray levels 0 to 255.

    Values outside of the range become 0 or 255. The frames must be gray PNG or TIFF files with unsigned 16-bit pixels.

    Attributes:
        mode: `fixed` for the pixel values `low` to `high` in all frames, `frame` for two percentiles of each frame,
            `full` for the pixel values `low` to `high` as float32, neither rounded nor limited, or null for 8-bit
            frames, without `low` and `high`.
        low: Lower end: a pixel value from 0 to 65535 if `mode` is `fixed` or `full` (null: 0 for `full`), else a
            percentile from 0 to 100 (null: 0.5).
        high: Upper end, greater than `low`; as `low` (null: 65535 for `full`, percentile 99.5).
    """

    mode: RangeMode | None = None
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        for name, default in DEFAULTS[self.mode].items():
            if self.mode is None or getattr(self, name) is None:
                object.__setattr__(self, name, default)
        if self.mode is None:
            return
        largest = 100 if self.mode == "frame" else LARGEST_VALUE
        if self.low is None or self.high is None or not 0 <= self.low < self.high <= largest:
            unit = "a percentile" if self.mode == "frame" else "a pixel value"
            raise UserError(
                f"data.input.pixel_range.low must be {unit} >= 0 and less than data.input.pixel_range.high, which must "
                f"be <= {largest}, with data.input.pixel_range.mode {self.mode}, got {self.low} and {self.high}"
            )

    @classmethod
    def of(cls, recorded: object) -> Self:
        """Return the range in a record, a dictionary; None is the range of 8-bit frames.

        Raises:
            UserError: If the record is damaged.
        """
        names = cls.__dataclass_fields__.keys()
        if recorded is None:
            return cls()
        if not isinstance(recorded, Mapping) or not recorded.keys() <= names:
            raise UserError(f"pixel_range of the weights must be a dictionary of {', '.join(names)}, got {recorded!r}")
        return cls(**recorded)

    def __str__(self) -> str:
        if self.mode is None:
            return "null"
        unit = "percentiles" if self.mode == "frame" else "values"
        return f"{self.mode}, {unit} {self.low:g} to {self.high:g}"

    @property
    def bits(self) -> Literal[8, 16]:
        """Bits per pixel of the frames."""
        return 8 if self.mode is None else 16

    @property
    def has_full_depth(self) -> bool:
        """Whether images of 16-bit frames are float32, so that no value is rounded."""
        return self.mode == "full"

    def percentiles(self, counts: Int64Array) -> "Span":
        """Return the pixel values of the percentiles `low` and `high`, given `(65536,)` pixels per value.

        These are the values of `numpy.percentile(pixels, [low, high], method="inverted_cdf")`.
        """
        cumulated = counts.cumsum()
        ranks = np.maximum(np.array(self._limits()) / 100 * cumulated[-1], 1)
        low, high = np.searchsorted(cumulated, ranks)
        return Span(float(low), float(high))

    def of_frame(self, frame: UInt16Array) -> "Span":
        """Return the range of a frame."""
        if self.mode == "frame":
            return self.percentiles(value_counts(frame))
        assert self.mode is not None
        return Span(*self._limits())

    def image(self, frame: UInt16Array, drift: "Drift | None" = None) -> Image:
        """Return the image of a frame after `drift`: uint8, or float32 with full depth."""
        span = self.of_frame(frame)
        if drift is not None:
            span = span.drifted(drift)
        if self.has_full_depth:
            return span.scaled(frame)
        return span.levels(frame)

    def _limits(self) -> tuple[float, float]:
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high


class Span(NamedTuple):
    """Range of pixel values, `low` <= `high`."""

    low: float
    high: float

    def scaled(self, frame: AnyArray) -> Float32Array:
        """Return `(value - low) * 255 / (high - low)` of a frame of any shape, float32.

        A range with an extent below 1 is treated as a range with extent 1.
        """
        scaled: Float32Array = np.subtract(frame, np.float32(self.low), dtype=np.float32)
        scaled *= np.float32(255 / max(self.high - self.low, 1))
        return scaled

    def levels(self, frame: AnyArray) -> UInt8Array:
        """Return the gray levels of a frame of any shape: `scaled`, rounded and limited to 0 to 255, uint8."""
        levels = self.scaled(frame)
        np.rint(levels, out=levels)
        np.clip(levels, 0, 255, out=levels)
        return np.asarray(levels, dtype=np.uint8)

    def drifted(self, drift: "Drift") -> "Span":
        """Return the range that maps a frame as this range maps the frame after `drift`."""
        extent = self.high - self.low
        centre = (self.low + self.high) / 2
        moved = centre - drift.offset / drift.gain * extent
        return Span(moved - extent / 2 / drift.gain, moved + extent / 2 / drift.gain)


class Drift(NamedTuple):
    """Change of the sensor: `value` becomes `centre + gain * (value - centre) + offset * extent` of the range."""

    gain: float
    offset: float


def value_counts(frame: UInt16Array) -> Int64Array:
    """Return `(65536,)` int64: number of pixels of each value."""
    return np.bincount(frame.ravel(), minlength=LARGEST_VALUE + 1)
