"""Background of a clip, the second input channel with `data.input.background`.

The background is the median of frames of the clip, pixel by pixel: what a camera that does not move sees without the
objects that move. Frame and background pass through all transforms together. Then the difference of both replaces the
background.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np

from yolo_lightning.data.array_types import AnyArray, Int64Array
from yolo_lightning.data.index import index_folder
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.storage.frames import AbsentFrameError, Frame, FrameError
from yolo_lightning.data.storage.storage import Storage
from yolo_lightning.data.transforms.augmentation_settings import Image
from yolo_lightning.data.transforms.letterbox import PADDING
from yolo_lightning.errors import UserError
from yolo_lightning.utils.optional_file import attempts

LEAST_FRAMES = 15  # of a longer clip, evenly spread; an object is absent if it covers a pixel in less than half of them
REREAD_PAUSES_S = (1.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds before each further attempt to read a clip, most of whose frames cannot be read at the moment."""
CONTRAST = 2  # Factor of the difference, because objects differ little from their surroundings
IMAGES = "backgrounds"  # `(N, H, W)`, array of the folder
CLIPS = "clips"  # `(N,)` clip numbers, array of the folder
T = TypeVar("T")


def median_of(frames: Sequence[AnyArray]) -> AnyArray:
    """Return the median of frames of one shape, pixel by pixel; the upper one of the two middle values."""
    middle = len(frames) // 2
    ordered: AnyArray = np.partition(np.stack(frames), middle, axis=0)
    return np.asarray(ordered[middle])


def spread(items: Iterable[T]) -> list[T]:
    """Return evenly spread items of a sequence of unknown length: `LEAST_FRAMES` to nearly twice as many, or all."""
    kept: list[T] = []
    step = 1
    for place, item in enumerate(items):
        if place % step == 0:
            kept.append(item)
            if len(kept) == 2 * LEAST_FRAMES:
                kept = kept[::2]
                step *= 2
    return kept


def with_difference(pair: Image) -> Image:
    """Return an image `(H, W, 2)`, frame and background, with the difference of both in place of the background.

    The difference is multiplied by `CONTRAST`, and 0 becomes the gray level of the padding. uint8 is limited to 0 to
    255, float32 is not.
    """
    difference = PADDING + CONTRAST * (pair[..., 0].astype(np.float32) - pair[..., 1])
    if pair.dtype == np.uint8:
        difference = difference.clip(0, 255)
    return np.asarray(cv2.merge([pair[..., 0], difference.astype(pair.dtype)]), dtype=pair.dtype)


@dataclass(frozen=True)
class ClipBackgrounds:
    """Backgrounds of the clips of a split, computed once and mapped from a file beside the packed index."""

    index: SplitIndex
    storage: Storage
    quarantined: frozenset[int] = frozenset()  # frames that must not be read

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes, and the folder of the backgrounds if this process has opened one.

        Workers then use the same backgrounds, even if a frame changes during the run.
        """
        return {name: value for name, value in vars(self).items() if name != "_arrays"}

    def of(self, position: int) -> Frame:
        """Return the background `(H, W)` of the clip of frame `position`, uint8 or uint16, read-only."""
        number = np.searchsorted(self._arrays[CLIPS], self.index.clips()[position])
        return np.asarray(self._arrays[IMAGES][number])

    def build(self) -> int:
        """Compute the backgrounds unless there is a file of the present frames; return the number of clips.

        Raises:
            UserError: If the frames have several sizes, most frames of a clip cannot be read at the moment, or the file
                cannot be written.
        """
        return len(self._arrays[CLIPS])

    @cached_property
    def _folder(self) -> Path:
        return index_folder.open_folder(self.index.folder.parent, "backgrounds", self._state(), self._computed)

    @cached_property
    def _arrays(self) -> index_folder.Arrays:
        return index_folder.mapped(self._folder, (IMAGES, CLIPS))

    def _state(self) -> index_folder.State:
        positions = (position for clip in self._clips() for position in spread(clip.tolist()))
        return {
            "path": str(self.index.folder),
            "fingerprint": self.index.fingerprint,
            "frames": f"{LEAST_FRAMES} of {self.storage}",
            "content": self.storage.state_of(map(self.index.file_name, positions)),
            "quarantined": sorted(self.quarantined),
        }

    def _computed(self) -> tuple[index_folder.Arrays, dict[str, Any]]:
        shapes = {self.index.shape(position) for position in range(len(self.index))}
        if len(shapes) != 1:
            raise UserError(
                f"data.input.background must be false unless all frames have one size, got true and frames of "
                f"{len(shapes)} sizes"
            )
        # Found before all reads: in an outage, all frames seem to be missing.
        missing = frozenset(self.storage.missing(self.index.file_names()))
        backgrounds = [self._of_clip(clip, missing, *shapes) for clip in self._clips()]
        return {IMAGES: np.stack(backgrounds), CLIPS: np.unique(self.index.clips())}, {}

    def _clips(self) -> list[Int64Array]:
        """Return the positions of the frames of each clip in their order, in the order of the clips' numbers."""
        order = np.lexsort((self.index.positions_in_clip(), self.index.clips()))
        _, starts = np.unique(self.index.clips()[order], return_index=True)
        return np.split(order, starts[1:])

    def _of_clip(self, positions: Int64Array, missing: frozenset[str], shape: tuple[int, int]) -> Frame:
        used = [position for position in spread(positions.tolist()) if position not in self.quarantined]
        names = [name for name in map(self.index.file_name, used) if name not in missing]
        for _ in attempts(REREAD_PAUSES_S):
            frames, absences = self._read(names)
            if 2 * len(absences) <= len(names):
                break
        else:  # the background would be kept for later runs
            raise UserError(
                f"data.input.background: {len(absences)} of {len(names)} frames of a clip cannot be read at the moment "
                f"({absences[0]}): start the command again when they can be read, or leave them out with "
                "data.limits.quarantine"
            )
        frames = [frame for frame in frames if frame.shape == shape]
        if not frames:
            return np.full(shape, PADDING, np.uint8)
        return median_of(frames)

    def _read(self, names: Iterable[str]) -> tuple[list[Frame], list[AbsentFrameError]]:
        """Return the frames that can be read, and the errors of those that may be readable later."""
        frames: list[Frame] = []
        absences: list[AbsentFrameError] = []
        for name in names:
            try:
                frames.append(self.storage.read(name))
            except AbsentFrameError as error:
                absences.append(error)
            except FrameError:  # reported where the frame itself is read
                continue
        return frames, absences
