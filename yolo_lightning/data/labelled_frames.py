"""Frames of a split with their boxes: reading, image cache, neighbouring frames, mapping of 16-bit frames."""

from copy import copy
from typing import Self

import cv2
import numpy as np

from yolo_lightning.data.image_size import Resize
from yolo_lightning.data.index.neighbours import Neighbours
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.storage.frames import Channels, Frame, FrameError
from yolo_lightning.data.storage.image_cache import ImageCache
from yolo_lightning.data.storage.storage import Storage
from yolo_lightning.data.transforms.augmentation_settings import Image
from yolo_lightning.data.transforms.letterbox import PADDING, Labelled
from yolo_lightning.data.transforms.pixel_range import Drift, PixelRange

MIB = 2**20


class LabelledFrames:
    """Frames of a split with their boxes; frames whose index is in `quarantined` are treated as unreadable.

    With `neighbours`, the channels of an image are the gray frame and its neighbours in the clip. Frames with 16 bits
    are mapped to 0 to 255 by `pixel_range`, with its full depth to float32 images. `resize` is used in evaluation, see
    `InputSettings`.
    """

    def __init__(
        self,
        index: SplitIndex,
        storage: Storage,
        channels: Channels = 1,
        neighbours: Neighbours | None = None,
        pixel_range: PixelRange = PixelRange(),  # noqa: B008 - frozen
        resize: Resize = "area",
    ) -> None:
        self.index = index
        self.storage = storage
        self.channels = channels
        self.neighbours = neighbours
        self.pixel_range = pixel_range
        self.resize = resize
        self.quarantined: frozenset[int] = frozenset()
        self.cache = ImageCache(max_frames=0, keep_partners=False)

    def __len__(self) -> int:
        return len(self.index)

    def cached(self, budget_mib: int, window: int) -> Self:
        """Return a copy with an image cache of `budget_mib` per process, at the mean size of a frame.

        It contains all frames if all fit and the storage has encoded images; otherwise the own frames of the last
        `window` samples, because frames of a packed store need no decoding and share the memory of the page cache.
        """
        copied, count, fitting = copy(self), len(self), self._frames_in(budget_mib)
        read_per_sample = 1 if self.neighbours is None else len(self.neighbours.offsets)
        keeps_all = self.storage.is_encoded and count <= fitting
        wanted = count if keeps_all else min(window * read_per_sample, count, fitting)
        copied.cache = ImageCache(wanted, keep_partners=keeps_all)
        return copied

    def cached_in_order(self, budget_mib: int) -> Self:
        """Return a copy that decodes each frame once if the frames of a clip are read in their order."""
        copied = copy(self)
        if self.neighbours is not None:
            first, last = self.neighbours.offsets[0], self.neighbours.offsets[-1]
            copied.cache = ImageCache(min(last - first + 1, self._frames_in(budget_mib)), keep_partners=False)
        return copied

    def _frames_in(self, budget_mib: int) -> int:
        """Return how many decoded frames, before the mapping of 16-bit frames, have the size `budget_mib`."""
        return budget_mib * MIB * len(self) // (self.index.pixels() * self.channels * self.pixel_range.bits // 8)

    def read(
        self, index: int, is_partner: bool = False, drift: Drift | None = None, problems: list[str] | None = None
    ) -> Labelled:
        """Return frame `index`, or an empty gray frame without boxes if it cannot be used.

        `drift` is applied to frames with 16 bits before they are mapped. A neighbour that cannot be used is
        replaced by the frame. The reasons are appended to `problems`.
        """
        problems = [] if problems is None else problems
        height, width = self.index.shape(index)
        image_id = self.index.image_id(index)  # read by the supervisor from the stack of a worker that hangs here
        try:
            image = self._frame(index, index, is_partner, drift)
            if self.neighbours is not None:
                image = self._with_neighbours(index, image, is_partner, drift, problems)
        except FrameError as error:
            channels = self.channels if self.neighbours is None else len(self.neighbours.offsets)
            shape = (height, width) if channels == 1 else (height, width, channels)
            empty = np.full(shape, PADDING, np.float32 if self.pixel_range.has_full_depth else np.uint8)
            problems.append(str(error))
            return Labelled(empty, np.zeros((0, 4), np.float32), np.zeros(0, np.int64), problem=str(error))
        except Exception as error:
            error.add_note(f"while reading image id={image_id}")  # read by the supervisor from the log
            raise
        return Labelled(image, self.index.boxes(index), self.index.labels(index))

    def _frame(self, place: int, index: int, is_partner: bool, drift: Drift | None) -> Image:
        """Return the gray levels of frame `place`, which must have the size of frame `index`."""
        name = self.index.file_name(place)
        if place in self.quarantined:
            raise FrameError(f"{name}: image {self.index.image_id(place)} is in data.limits.quarantine")
        frame = self.cache.get(place)
        if frame is None:
            frame = self.storage.read(name)
        if self.cache.keep_partners or not is_partner:
            self.cache.add(place, frame)
        height, width = self.index.shape(index)
        if frame.shape[:2] != (height, width):
            raise FrameError(
                f"{name}: the file has {frame.shape[1]} x {frame.shape[0]} pixels, "
                f"the annotation of image {self.index.image_id(index)} has {width} x {height}"
            )
        return self._levels(frame, drift)

    def _levels(self, frame: Frame, drift: Drift | None) -> Image:
        """Return an 8-bit frame unchanged, and a 16-bit frame after `drift` mapped to gray levels."""
        if self.pixel_range.mode is None:
            return np.asarray(frame, dtype=np.uint8)
        return self.pixel_range.image(np.asarray(frame, dtype=np.uint16), drift)

    def _with_neighbours(
        self, index: int, image: Image, is_partner: bool, drift: Drift | None, problems: list[str]
    ) -> Image:
        """Return the `(H, W, C)` image of the neighbours of frame `index`, whose own pixels are `image` `(H, W)`."""
        assert self.neighbours is not None
        frames, places = {index: image}, self.neighbours.positions(index)
        for place in places:
            if place not in frames:
                try:
                    frames[place] = self._frame(place, index, is_partner, drift)
                except FrameError as error:
                    problems.append(str(error))
                    frames[place] = image
        return np.asarray(cv2.merge([frames[place] for place in places]), dtype=image.dtype)
