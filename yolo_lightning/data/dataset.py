"""Datasets of samples: a frame and its boxes, augmented for training or letterboxed for evaluation."""

from copy import copy
from functools import partial
from typing import NamedTuple, Self

import numpy as np
from torch.utils.data import Dataset

from yolo_lightning.data.batch import Sample
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.storage.frames import Channels, FrameError, ImageFiles, Storage
from yolo_lightning.data.storage.image_cache import ImageCache
from yolo_lightning.data.storage.zip_frames import ZipFrames
from yolo_lightning.data.transforms.augmentation_settings import Augmentation
from yolo_lightning.data.transforms.box_paste import ObjectPaster
from yolo_lightning.data.transforms.letterbox import PADDING, Labelled, letterbox
from yolo_lightning.data.transforms.mosaic import mixup, mosaic, random_affine, random_flip
from yolo_lightning.data.transforms.photometric import random_photometry, reference_index

MIB = 2**20
SAMPLE_STREAM = 2  # Seed component of the samples; `sampling_rules.ORDER_STREAM` is 1
PASTE_STREAM, MIXUP_STREAM, SECOND_PASTE_STREAM = 4, 5, 6
"""Streams of box paste, of the second sample in mixup, and of box paste there; they do not change other choices."""

MIXUP_BETA = 32.0  # Both parameters of the distribution of the mixup ratio, as in Ultralytics
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
    # Index of the second sample's frame in mixup and of its partners; None draws them from the whole split
    second: tuple[int, ...] | None = None


class LabelledFrames:
    """Frames of a split with their boxes; frames whose index is in `quarantined` are treated as unreadable."""

    def __init__(self, index: SplitIndex, storage: Storage, channels: Channels = 1) -> None:
        self.index = index
        self.storage = storage
        self.channels = channels
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
        keeps_all = is_encoded and self.index.pixels() * self.channels <= budget
        copied.cache = ImageCache(budget, len(self) if keeps_all else min(window, len(self)), keep_partners=keeps_all)
        return copied

    def describe_cache(self) -> str:
        """Return the number of frames that fit into the image cache, at the mean size of a frame."""
        frame_bytes = max(1, self.index.pixels() * self.channels // len(self))
        held, wanted = min(self.cache.max_bytes // frame_bytes, self.cache.max_frames), self.cache.max_frames
        more = f" (all {wanted:,}: {-(-wanted * frame_bytes // MIB):,} MiB)" if held < wanted else ""
        return f"image cache of {held:,} frames per process{more}"

    def read(self, index: int, is_partner: bool = False) -> tuple[Labelled, str | None]:
        """Return frame `index` and None, or an empty gray frame without boxes and the reason."""
        height, width = self.index.shape(index)
        image_id = self.index.image_id(index)  # read by the supervisor from the stack of a worker that hangs here
        try:
            if index in self.quarantined:
                raise FrameError(f"{self.index.file_name(index)}: image {image_id} is in data.quarantine")
            image = self.cache.get(index)
            if image is None:
                image = self.storage.read(self.index.file_name(index))
            if self.cache.keep_partners or not is_partner:
                self.cache.add(index, image)
            if image.shape[:2] != (height, width):
                raise FrameError(
                    f"{self.index.file_name(index)}: the file has {image.shape[1]} x {image.shape[0]} pixels, "
                    f"the annotation of image {image_id} has {width} x {height}"
                )
        except FrameError as error:
            shape = (height, width) if self.channels == 1 else (height, width, self.channels)
            empty = np.full(shape, PADDING, dtype=np.uint8)
            return Labelled(empty, np.zeros((0, 4), np.float32), np.zeros(0, np.int64)), str(error)
        except Exception as error:
            error.add_note(f"while reading image id={image_id}")  # read by the supervisor from the log
            raise
        return Labelled(image, self.index.boxes(index), self.index.labels(index)), None


class TrainingDataset(Dataset[Sample]):
    """Augmented samples; each depends on (seed, epoch, frame, occurrence) only, not on workers or interruptions.

    Mosaic, mixup and box paste are used in the first `mosaic_epochs` epochs; samples have `image_size` x `image_size`
    pixels.
    """

    def __init__(
        self, frames: LabelledFrames, image_size: int, augmentation: Augmentation, mosaic_epochs: int, seed: int
    ) -> None:
        self.frames = frames
        self.image_size = image_size
        self.augmentation = augmentation
        self.mosaic_epochs = mosaic_epochs
        self.seed = seed
        self.paster = ObjectPaster(frames.index, augmentation.paste) if augmentation.paste.probability else None

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, key: SampleKey | tuple[int, int]) -> Sample:
        key = SampleKey(*key)
        index = key.frame
        generator = self._generator(SAMPLE_STREAM, key)
        indices = self._tiles(key.epoch, index, key.partners, generator)
        lender = reference_index(len(self), self.augmentation, generator) if self.frames.channels == 1 else None
        parts, problems = self._read(indices, has_own=True)
        reference = None
        if lender is not None:
            lent, problem = self.frames.read(lender, is_partner=True)
            reference = lent.image if problem is None else None
            problems.append(problem)
        parts = self._with_objects(PASTE_STREAM, key, indices, parts, problems)
        labelled = self._compose(parts, generator)
        if key.epoch < self.mosaic_epochs and self.augmentation.mixup:
            labelled = self._with_second(key, labelled, problems)
        labelled = random_flip(labelled, self.augmentation, generator)
        return Sample(
            image=random_photometry(labelled.image, self.augmentation, generator, reference),
            boxes=labelled.boxes,
            labels=labelled.labels,
            image_id=self.frames.index.image_id(index),
            frame_shape=self.frames.index.shape(index),
            letterbox=UNAUGMENTED,
            readable=problems[0] is None,
            bad_frames=tuple(problem for problem in problems if problem is not None),
        )

    def _generator(self, stream: int, key: SampleKey) -> np.random.Generator:
        seeds = (stream, self.seed, key.epoch, key.frame)
        return np.random.default_rng((*seeds, key.occurrence) if key.occurrence else seeds)

    def _tiles(
        self, epoch: int, index: int, partners: tuple[int, ...] | None, generator: np.random.Generator
    ) -> list[int]:
        """Return the frames of a sample: frame `index`, and its partners if the sample is a mosaic."""
        if epoch < self.mosaic_epochs and generator.random() < self.augmentation.mosaic:
            return [index, *(generator.integers(len(self), size=3).tolist() if partners is None else partners)]
        return [index]

    def _read(self, indices: list[int], *, has_own: bool) -> tuple[list[Labelled], list[str | None]]:
        """Return frames and the reasons of unreadable ones; with `has_own`, the first is the sample's own."""
        read = [self.frames.read(part, not has_own or place > 0) for place, part in enumerate(indices)]
        return [frame for frame, _ in read], [problem for _, problem in read]

    def _compose(self, parts: list[Labelled], generator: np.random.Generator) -> Labelled:
        """Return the mosaic of four frames, or one letterboxed frame, after the affine map."""
        if len(parts) > 1:
            labelled = mosaic(parts, self.image_size, generator)
        else:
            labelled = letterbox(parts[0], self.image_size, shrink_by_area=False)[0]
        return random_affine(labelled, self.image_size, self.augmentation, generator)

    def _with_objects(
        self, stream: int, key: SampleKey, indices: list[int], parts: list[Labelled], problems: list[str | None]
    ) -> list[Labelled]:
        """Return the frames `indices` of a sample after box paste; append the reasons of unreadable frames."""
        if self.paster is None or key.epoch >= self.mosaic_epochs:
            return parts
        readable = [problem is None for problem in problems[: len(parts)]]
        pasted, bad = self.paster(
            indices, parts, readable, partial(self.frames.read, is_partner=True), self._generator(stream, key)
        )
        problems += bad
        return pasted

    def _with_second(self, key: SampleKey, first: Labelled, problems: list[str | None]) -> Labelled:
        """Return `first`, in some samples after mixup with a second sample; append the reasons of unreadable frames."""
        generator = self._generator(MIXUP_STREAM, key)
        if generator.random() >= self.augmentation.mixup:
            return first
        ratio = generator.beta(MIXUP_BETA, MIXUP_BETA)
        index, *partners = key.second or generator.integers(len(self), size=4).tolist()
        indices = self._tiles(key.epoch, index, tuple(partners), generator)
        parts, bad = self._read(indices, has_own=False)
        parts = self._with_objects(SECOND_PASTE_STREAM, key, indices, parts, bad)
        problems += bad
        return mixup(first, self._compose(parts, generator), ratio)


class EvaluationDataset(Dataset[Sample]):
    """Letterboxed frames of `image_size` x `image_size` pixels with their boxes, in file order."""

    def __init__(self, frames: LabelledFrames, image_size: int) -> None:
        self.frames = frames
        self.image_size = image_size

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> Sample:
        frame, problem = self.frames.read(index)
        labelled, placement = letterbox(frame, self.image_size, shrink_by_area=True)
        return Sample(
            image=labelled.image,
            boxes=labelled.boxes,
            labels=labelled.labels,
            image_id=self.frames.index.image_id(index),
            frame_shape=self.frames.index.shape(index),
            letterbox=placement,
            readable=problem is None,
            bad_frames=() if problem is None else (problem,),
            month=self.frames.index.month(index),
        )
