"""Size of the network input: height and width, or one number, which is a square outside of `data.image_size`."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal, NamedTuple, Self

from yolo_lightning.errors import UserError
from yolo_lightning.utils.suggestions import did_you_mean

STRIDE = 32  # Pixels. Largest stride of most graphs; the sides of the network input are multiples of it.
LARGEST = 16_352  # Pixels. OpenCV warps images of less than 2^15 pixels per side; a mosaic has twice the size.

Resize = Literal["area", "linear"]
"""Interpolation of frames larger than the input in evaluation: mean of the covered pixels, or bilinear."""


class ImageSize(NamedTuple):
    """Height and width of the network input, pixels.

    Options, checkpoints and exported files contain the result of `plain`, and `of` reads it.
    """

    height: int
    width: int

    @classmethod
    def of(cls, name: str, value: int | Sequence[int]) -> Self:
        """Return the size of the option `name`: one number is the side of a square, two are height and width.

        Raises:
            UserError: If the value is neither.
        """
        sides: Sequence[Any] = [value, value]
        if isinstance(value, list | tuple):
            sides = value
        if len(sides) != 2 or any(isinstance(side, bool) or not isinstance(side, Integral) for side in sides):
            raise UserError(f"{name} must be one integer (a square) or two ([height, width]), got {value!r}")
        return cls(*map(int, sides))

    @classmethod
    def following(cls, longer_side: int, height: int, width: int, stride: int = STRIDE) -> Self:
        """Return the smallest input of this longer side, in multiples of the stride, in which a frame has this side."""
        longest = max(height, width)
        sides = (max(1, round(side * longer_side / longest)) for side in (height, width))
        return cls(*(-(-side // stride) * stride for side in sides))

    def check(self, name: str, least: int = STRIDE, stride: int = STRIDE) -> Self:
        """Return the size if its sides are multiples of the stride from `least` to LARGEST, else raise a ValueError."""
        least = max(least, stride)
        if max(self) > LARGEST:
            raise UserError(f"{name} must be <= {LARGEST}, got {self}")
        if min(self) < least or any(side % stride for side in self):
            multiple = "a multiple" if self.height == self.width else "two multiples"
            nearest = []
            if min(self) >= least:
                nearest = [str(type(self)(*(round(side / stride) * stride for side in self)))]
            accepted = f"{multiple} of {stride} and >= {least}"
            raise UserError(f"{name} must be {accepted}, got {self}{did_you_mean(nearest)}")
        return self

    def plain(self) -> int | list[int]:
        """Return the side of a square, otherwise `[height, width]`."""
        return self.height if self.height == self.width else list(self)

    def __str__(self) -> str:
        return str(self.plain())
