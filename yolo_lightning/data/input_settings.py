"""Settings of the input of the network: which pixels of which frames are the channels of an image."""

from dataclasses import field
from typing import Literal

from yolo_lightning.data.image_size import Resize
from yolo_lightning.data.transforms.pixel_range import PixelRange
from yolo_lightning.errors import UserError
from yolo_lightning.utils.choices import settings_group

Channels = Literal[1, 3]  # Number of channels of a decoded frame: gray, or red, green and blue


@settings_group("data.input")
class InputSettings:
    """Channels of the images, and how frames become images.

    Attributes:
        channels: 1 for gray frames, 3 for RGB; null uses 1 for LTDv2, the value of a `data.yaml`, otherwise 3 unless
            all of some sampled images are gray.
        background: Whether a second channel is the difference of the frame from the median of its clip, for a camera
            that does not move. LTDv2 only.
        pixel_range: Mapping of frames with 16 bits to the range of the network; see docs/dataset_formats.md.
        resize: Interpolation that reduces frames larger than the input in evaluation and prediction: `area` is the mean
            of the covered pixels, `linear` is that of Ultralytics, for the scores of `YOLO.val`. Training is bilinear.
    """

    channels: Channels | None = None
    background: bool = False
    pixel_range: PixelRange = field(default_factory=PixelRange)
    resize: Resize = "area"

    def __post_init__(self) -> None:
        if self.channels == 3 and self.pixel_range.mode is not None:
            raise UserError(
                "data.input.channels must be 1 or null with data.input.pixel_range.mode (16-bit gray frames), got 3"
            )
