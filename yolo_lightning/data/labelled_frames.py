"""Frames of a split with their boxes: reading, image cache, backgrounds, mapping of 16-bit frames."""

from copy import copy
from typing import Self

import cv2
import numpy as np

from yolo_lightning.data.clip_backgrounds import ClipBackgrounds
from yolo_lightning.data.formats.frame_checks import other_size
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.input_settings import Channels, InputSettings
from yolo_lightning.data.storage.frames import Frame, FrameError
from yolo_lightning.data.storage.image_cache import ImageCache
from yolo_lightning.data.storage.positioned_file import ReplacedFileError
from yolo_lightning.data.storage.storage import EncodedStorage, Storage
from yolo_lightning.data.transforms.augmentation_settings import Image
from yolo_lightning.data.transforms.letterbox import PADDING, Labelled
from yolo_lightning.data.transforms.pixel_range import Drift

MIB = 2**20


class LabelledFrames:
    """Frames of a split with their boxes; frames whose index is in `quarantined` are treated as unreadable.

    With `input.background`, the channels of an image are the gray frame and the background of its clip. Frames with 16
    bits are mapped to 0 to 255 by `input.pixel_range`, with its full depth to float32 images. `resize` is used in
    evaluation.
    """

    def __init__(
        self,
        index: SplitIndex,
        storage: Storage,
        channels: Channels = 1,
        input: InputSettings = InputSettings(),  # noqa: B008 - frozen
        quarantined: frozenset[int] = frozenset(),
    ) -> None:
        self.index = index
        self.storage = storage
        self.channels = channels
        self.pixel_range = input.pixel_range
        self.resize = input.resize
        self.quarantined = quarantined
        self.backgrounds = ClipBackgrounds(index, storage, quarantined) if input.background else None
        self.cache = ImageCache(max_frames=0, keep_partners=False)

    def __len__(self) -> int:
        return len(self.index)

    def values(self) -> int:
        """Return the number of pixel values (pixels times channels) of all frames, from the annotation file."""
        return self.index.pixels() * self.channels

    def cached(self, budget_mib: int, window: int) -> Self:
        """Return a copy with an image cache of `budget_mib` per process, at the mean size of a frame.

        It contains all frames if all fit and the storage has encoded images; otherwise the own frames of the last
        `window` samples, because frames of a packed store need no decoding and share the memory of the page cache.
        """
        count = len(self)
        frame_bytes = self.values() * self.pixel_range.bits // 8  # before the mapping
        fitting = budget_mib * MIB * count // frame_bytes
        keeps_all = isinstance(self.storage, EncodedStorage) and count <= fitting
        copied = copy(self)
        cached_frames = min(window, count, fitting)
        if keeps_all:
            cached_frames = count
        copied.cache = ImageCache(cached_frames, keep_partners=keeps_all)
        return copied

    def read(
        self, index: int, is_partner: bool = False, drift: Drift | None = None, problems: list[FrameError] | None = None
    ) -> Labelled:
        """Return frame `index`, or an empty gray frame without boxes if it cannot be used.

        `drift` is applied to frames with 16 bits before they are mapped. The error is appended to `problems`.
        """
        image_id = self.index.image_id(index)  # read by the supervisor from the stack of a worker that hangs here
        try:
            image = self._frame(index, is_partner, drift)
            if self.backgrounds is not None:
                image = np.asarray(cv2.merge([image, self._levels(self.backgrounds.of(index), drift)]), image.dtype)
        except FrameError as error:
            if problems is not None:
                problems.append(error)
            shape: tuple[int, ...] = self.index.shape(index)
            if self.backgrounds is not None:
                shape += (2,)
            elif self.channels == 3:
                shape += (3,)
            empty = np.full(shape, PADDING, np.float32 if self.pixel_range.has_full_depth else np.uint8)
            return Labelled.without_boxes(empty, str(error))
        except (ArithmeticError, LookupError, RuntimeError, ValueError, cv2.error) as error:
            if not isinstance(error, ReplacedFileError):  # not a matter of this frame
                error.add_note(f"while reading image id={image_id}")  # part of the failure record
            raise
        return Labelled(image, self.index.boxes(index), self.index.labels(index))

    def _frame(self, index: int, is_partner: bool, drift: Drift | None) -> Image:
        """Return the pixels of frame `index`."""
        name = self.index.file_name(index)
        if index in self.quarantined:
            raise FrameError(f"{name}: image {self.index.image_id(index)} is in data.limits.quarantine")
        frame = self.cache.get(index)
        if frame is None:
            frame = self.storage.read(name)
        if self.cache.keep_partners or not is_partner:
            self.cache.add(index, frame)
        if frame.shape[:2] != self.index.shape(index):
            raise FrameError(other_size(self.index, index, self.storage, frame.shape[:2]))
        return self._levels(frame, drift)

    def _levels(self, frame: Frame, drift: Drift | None) -> Image:
        """Return an 8-bit frame unchanged, and a 16-bit frame after `drift` mapped to gray levels."""
        if self.pixel_range.mode is None:
            return np.asarray(frame, dtype=np.uint8)
        return self.pixel_range.image(np.asarray(frame, dtype=np.uint16), drift)
