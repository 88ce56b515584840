"""Datasets of samples: a frame and its boxes, augmented for training or letterboxed for evaluation."""

from copy import copy
from typing import NamedTuple, Self

import cv2
import numpy as np
from torch.utils.data import Dataset

from yolo_lightning.data.batch import Sample
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.data.index.neighbours import Neighbours
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.storage.frames import Channels, FrameError, ImageFiles, Storage
from yolo_lightning.data.storage.image_cache import ImageCache
from yolo_lightning.data.storage.zip_frames import ZipFrames
from yolo_lightning.data.transforms.augmentation_settings import Augmentation, Image
from yolo_lightning.data.transforms.letterbox import PADDING, Labelled, letterbox
from yolo_lightning.data.transforms.mosaic import mosaic, random_affine, random_flip
from yolo_lightning.data.transforms.photometric import random_photometry, reference_index

MIB = 2**20
SAMPLE_STREAM = 2  # Seed component of the samples; `sampling_rules.ORDER_STREAM` is 1
UNAUGMENTED = Letterbox(1.0, 0, 0)  # Letterbox of training samples, which are never mapped back to the frame


class SampleKey(NamedTuple):
    """Key of a training sample; with the seed, determines the sample.

    The order of an epoch determines `partners`, so that a sample depends on the seed, the sampling rules, `epoch`,
    `frame` and `occurrence` only.
    """

    epoch: int  # From 0
    frame: int  # Index of the frame in the split
    occurrence: int = 0  # Number of earlier occurrences of the frame in the epoch, > 0 if sampling repeats the frame
    # Indices of the other three frames of a mosaic, see `mosaic_partners`; None draws them from the whole split
    partners: tuple[int, ...] | None = None


class LabelledFrames:
    """Frames of a split with their boxes; frames whose index is in `quarantined` are treated as unreadable.

    With `neighbours`, the channels of an image are the gray frame and its neighbours in the clip.
    """

    def __init__(
        self, index: SplitIndex, storage: Storage, channels: Channels = 1, neighbours: Neighbours | None = None
    ) -> None:
        self.index = index
        self.storage = storage
        self.channels = channels
        self.neighbours = neighbours
        self.quarantined: frozenset[int] = frozenset()
        self.cache = ImageCache(max_bytes=0, max_frames=0, keep_partners=False)

    def __len__(self) -> int:
        return len(self.index)

    def cached(self, budget_mib: int, window: int) -> Self:
        """Return a copy with an image cache of at most `budget_mib` per process.

        It contains all frames if all fit and the storage has encoded images; otherwise the own frames of the last
        `window` samples, because frames of a packed store need no decoding and share the memory of the page cache.
        """
        copied, budget = copy(self), budget_mib * MIB
        is_encoded = isinstance(self.storage, ImageFiles | ZipFrames)
        count, read_per_sample = len(self), 1
        if self.neighbours is not None:
            count, read_per_sample = count + len(self.neighbours.unlisted), len(self.neighbours.offsets)
        keeps_all = is_encoded and self._frame_bytes() * count <= budget
        wanted = count if keeps_all else min(window * read_per_sample, count)
        copied.cache = ImageCache(budget, wanted, keep_partners=keeps_all)
        return copied

    def cached_in_order(self, budget_mib: int) -> Self:
        """Return a copy that decodes each frame once if the frames of a clip are read in their order."""
        copied = copy(self)
        if self.neighbours is not None:
            first, last = self.neighbours.offsets[0], self.neighbours.offsets[-1]
            copied.cache = ImageCache(budget_mib * MIB, last - first + 1, keep_partners=False)
        return copied

    def describe_cache(self) -> str:
        """Return the number of frames that fit into the image cache, at the mean size of a frame."""
        frame_bytes = self._frame_bytes()
        held, wanted = min(self.cache.max_bytes // frame_bytes, self.cache.max_frames), self.cache.max_frames
        more = f" (all {wanted:,}: {-(-wanted * frame_bytes // MIB):,} MiB)" if held < wanted else ""
        return f"image cache of {held:,} frames per process{more}"

    def _frame_bytes(self) -> int:
        """Return the mean size of a decoded frame."""
        return max(1, self.index.pixels() * self.channels // len(self))

    def read(
        self, index: int, is_partner: bool = False, problems: list[str] | None = None
    ) -> tuple[Labelled, str | None]:
        """Return frame `index` and None, or an empty gray frame without boxes and the reason.

        A neighbour that cannot be used is replaced by the frame, and the reason is appended to `problems`.
        """
        height, width = self.index.shape(index)
        image_id = self.index.image_id(index)  # read by the supervisor from the stack of a worker that hangs here
        try:
            image = self._decoded(index, index, is_partner)
            if self.neighbours is not None:
                image = self._with_neighbours(index, image, is_partner, [] if problems is None else problems)
        except FrameError as error:
            channels = self.channels if self.neighbours is None else len(self.neighbours.offsets)
            shape = (height, width) if channels == 1 else (height, width, channels)
            empty = np.full(shape, PADDING, dtype=np.uint8)
            return Labelled(empty, np.zeros((0, 4), np.float32), np.zeros(0, np.int64)), str(error)
        except Exception as error:
            error.add_note(f"while reading image id={image_id}")  # read by the supervisor from the log
            raise
        return Labelled(image, self.index.boxes(index), self.index.labels(index)), None

    def _decoded(self, place: int, index: int, is_partner: bool) -> Image:
        """Return the frame at a place of `Neighbours`, which must have the size of frame `index`."""
        name = self.index.file_name(place) if self.neighbours is None else self.neighbours.file_name(place)
        if place in self.quarantined:
            raise FrameError(f"{name}: image {self.index.image_id(place)} is in data.quarantine")
        image = self.cache.get(place)
        if image is None:
            image = self.storage.read(name)
        if self.cache.keep_partners or not is_partner:
            self.cache.add(place, image)
        height, width = self.index.shape(index)
        if image.shape[:2] != (height, width):
            raise FrameError(
                f"{name}: the file has {image.shape[1]} x {image.shape[0]} pixels, "
                f"the annotation of image {self.index.image_id(index)} has {width} x {height}"
            )
        return image

    def _with_neighbours(self, index: int, image: Image, is_partner: bool, problems: list[str]) -> Image:
        """Return the `(H, W, C)` image of the neighbours of frame `index`, whose own pixels are `image` `(H, W)`."""
        assert self.neighbours is not None
        frames, places = {index: image}, self.neighbours.places(index)
        for place in places:
            if place not in frames:
                try:
                    frames[place] = self._decoded(place, index, is_partner)
                except FrameError as error:
                    problems.append(str(error))
                    frames[place] = image
        return np.asarray(cv2.merge([frames[place] for place in places]), dtype=np.uint8)


class TrainingDataset(Dataset[Sample]):
    """Augmented samples; each depends on (seed, epoch, frame, occurrence) only, not on workers or interruptions.

    Mosaic is used in the first `mosaic_epochs` epochs; samples have `image_size` x `image_size` pixels.
    """

    def __init__(
        self, frames: LabelledFrames, image_size: int, augmentation: Augmentation, mosaic_epochs: int, seed: int
    ) -> None:
        self.frames = frames
        self.image_size = image_size
        self.augmentation = augmentation
        self.mosaic_epochs = mosaic_epochs
        self.seed = seed

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, key: SampleKey | tuple[int, int]) -> Sample:
        epoch, index, occurrence, partners = SampleKey(*key)
        stream = (SAMPLE_STREAM, self.seed, epoch, index)
        generator = np.random.default_rng((*stream, occurrence) if occurrence else stream)
        indices = [index]
        if epoch < self.mosaic_epochs and generator.random() < self.augmentation.mosaic:
            indices += generator.integers(len(self), size=3).tolist() if partners is None else partners
        lender = reference_index(len(self), self.augmentation, generator) if self.frames.channels == 1 else None
        if lender is not None:
            indices.append(lender)
        bad_neighbours: list[str] = []
        frames = (self.frames.read(part, place > 0, bad_neighbours) for place, part in enumerate(indices))
        read, problems = zip(*frames, strict=True)
        parts: list[Labelled] = list(read)
        lent = parts.pop().image if lender is not None else None
        reference = lent if problems[-1] is None else None
        if len(parts) > 1:
            labelled = mosaic(parts, self.image_size, generator)
        else:
            labelled = letterbox(parts[0], self.image_size, shrink_by_area=False)[0]
        labelled = random_affine(labelled, self.image_size, self.augmentation, generator)
        labelled = random_flip(labelled, self.augmentation, generator)
        return Sample(
            image=random_photometry(
                labelled.image, self.augmentation, generator, reference, is_gray=self.frames.channels == 1
            ),
            boxes=labelled.boxes,
            labels=labelled.labels,
            image_id=self.frames.index.image_id(index),
            frame_shape=self.frames.index.shape(index),
            letterbox=UNAUGMENTED,
            readable=problems[0] is None,
            bad_frames=(*(problem for problem in problems if problem is not None), *bad_neighbours),
        )


class EvaluationDataset(Dataset[Sample]):
    """Letterboxed frames of `image_size` x `image_size` pixels with their boxes, in file order."""

    def __init__(self, frames: LabelledFrames, image_size: int) -> None:
        self.frames = frames
        self.image_size = image_size

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> Sample:
        bad_neighbours: list[str] = []
        frame, problem = self.frames.read(index, problems=bad_neighbours)
        labelled, placement = letterbox(frame, self.image_size, shrink_by_area=True)
        return Sample(
            image=labelled.image,
            boxes=labelled.boxes,
            labels=labelled.labels,
            image_id=self.frames.index.image_id(index),
            frame_shape=self.frames.index.shape(index),
            letterbox=placement,
            readable=problem is None,
            bad_frames=tuple(bad_neighbours) if problem is None else (problem,),
            month=self.frames.index.month(index),
        )
