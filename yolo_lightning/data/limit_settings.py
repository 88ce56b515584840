"""Settings of the limits of a dataset: which frames may be used, and how many may be unusable."""

from typing import TYPE_CHECKING

from yolo_lightning.errors import UserError
from yolo_lightning.utils.choices import settings_group

if TYPE_CHECKING:
    from yolo_lightning.data.index.split_index import SplitIndex
    from yolo_lightning.data.index.splits import Split

MAX_IMAGE_PIXELS = 89_478_485
"""Default of `data.limits.max_image_pixels`: the size above which Pillow warns about a decompression bomb. As 8-bit
RGB pixels such an image takes 268 MB, in each loader worker."""
PILLOW_LIMIT = 2 * MAX_IMAGE_PIXELS  # Pillow refuses larger images


@settings_group("data.limits", max_bad_frames=">= 0")
class Limits:
    """Which frames and annotations may be used, and how many frames may be unusable.

    Attributes:
        max_bad_frames: Number of missing or damaged frames that are left out with a warning; one more ends the run. A
            frame counts once, however often it is sampled.
        max_image_pixels: Maximum width x height of a frame according to its header, 1 to 178956970. A larger frame is
            not decoded and counts as a bad frame.
        allow_outside_root: Whether annotation files and image lists may name files outside of the dataset folder
            (absolute paths, `..`). Otherwise such a frame is not read.
        allow_unlabelled: Whether a split without any box may be used for training, validation or test.
        allow_suspicious_boxes: Whether annotations that cannot be right may be used: all boxes are smaller than a
            pixel, most extend beyond their image, or several entries of `images` name one file.
        quarantine: Frames that are not read and not counted by `max_bad_frames`: `id=<image id>`, or `index=<position>`
            in the training split, from 0. `fit` adds frames at which its supervisor saw training fail repeatedly.
    """

    max_bad_frames: int = 100
    max_image_pixels: int = MAX_IMAGE_PIXELS
    allow_outside_root: bool = False
    allow_unlabelled: bool = False
    allow_suspicious_boxes: bool = False
    quarantine: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.max_image_pixels <= PILLOW_LIMIT:
            raise UserError(
                f"data.limits.max_image_pixels must be 1 to {PILLOW_LIMIT} (Pillow's limit), got "
                f"{self.max_image_pixels}"
            )
        for entry in self.quarantine:
            name, _, value = entry.partition("=")
            if not value or name not in ("id", "index") or (name == "index" and not value.isdecimal()):
                raise UserError(
                    "entries of data.limits.quarantine must be id=<image id> or index=<position of a training frame, "
                    f"from 0>, got {entry!r}"
                )

    def quarantined(self, index: "SplitIndex", split: "Split") -> frozenset[int]:
        """Return the positions of the frames of a split in quarantine; `index=<number>` applies to training only."""
        positions: set[int] = set()
        ids: set[str] = set()
        for entry in self.quarantine:
            name, _, value = entry.partition("=")
            if name == "id":
                ids.add(value)
            elif split == "train" and int(value) < len(index):
                positions.add(int(value))
        if ids:
            positions |= {position for position, image_id in enumerate(index.image_ids()) if image_id in ids}
        return frozenset(positions)
