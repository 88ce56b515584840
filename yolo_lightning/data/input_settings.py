"""Settings of the input of the network: which pixels of which frames are the channels of an image."""

from collections.abc import Sequence
from dataclasses import field
from typing import get_args

from yolo_lightning.data.image_size import Resize
from yolo_lightning.data.storage.frames import Channels
from yolo_lightning.data.transforms.pixel_range import PixelRange
from yolo_lightning.utils.choices import check_choices, settings_group

MOST_NEIGHBOURS = 16
LARGEST_OFFSET = 100


@settings_group("data.input")
class InputSettings:
    """Channels of the images, and how frames become images.

    Attributes:
        channels: 1 for gray frames, 3 for RGB; null uses 1 for LTDv2, the value of a `data.yaml`, otherwise 3 unless
            all of some sampled images are gray.
        neighbours: Frame offsets used as input channels, in ascending order and including 0. `[-1, 0, 1]` stacks the
            gray levels of the previous, the current and the next frame of the clip; `[]` or null uses the frame alone.
            At the ends of a clip, the edge frame is repeated. LTDv2 only.
        pixel_range: Mapping of frames with 16 bits to the range of the network; see docs/datasets.md.
        resize: Interpolation that reduces frames larger than the input in evaluation and prediction: `area` is the mean
            of the covered pixels, `linear` is that of Ultralytics, for the scores of `YOLO.val`. Training is bilinear.
    """

    channels: Channels | None = None
    neighbours: tuple[int, ...] | None = ()
    pixel_range: PixelRange = field(default_factory=PixelRange)
    resize: Resize = "area"

    def __post_init__(self) -> None:
        if self.channels not in (None, *get_args(Channels)):
            raise ValueError(f"data.input.channels must be 1, 3 or null, got {self.channels}")
        check_choices("data.input.resize", [self.resize], Resize)
        object.__setattr__(self, "neighbours", check_neighbours(self.neighbours))
        if self.channels == 3 and self.pixel_range.mode is not None:
            raise ValueError(
                "data.input.channels must be 1 or null with data.input.pixel_range.mode (16-bit gray frames), got 3"
            )

    @property
    def offsets(self) -> tuple[int, ...]:
        """Frame offsets used as input channels, empty for the frame alone."""
        return self.neighbours or ()


def check_neighbours(offsets: Sequence[int] | None) -> tuple[int, ...]:
    """Return frame offsets as a tuple, empty for the frame alone; raise `ValueError` for invalid offsets."""
    if not offsets:
        return ()
    given = tuple(offsets)
    is_valid = all(type(offset) is int and abs(offset) <= LARGEST_OFFSET for offset in given)
    if not is_valid or 0 not in given or list(given) != sorted(set(given)) or len(given) > MOST_NEIGHBOURS:
        raise ValueError(
            f"data.input.neighbours must be [] or at most {MOST_NEIGHBOURS} different offsets in ascending order, from "
            f"-{LARGEST_OFFSET} to {LARGEST_OFFSET}, with 0 among them, such as [-1, 0, 1], got {list(given)}"
        )
    return () if given == (0,) else given
