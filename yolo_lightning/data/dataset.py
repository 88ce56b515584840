"""Datasets of samples: a frame and its boxes, augmented for training or letterboxed for evaluation."""

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Self

import cv2
import numpy as np
from torch.utils.data import Dataset

from yolo_lightning.data.batch import Sample
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.data.index.clip_ranges import Ranges
from yolo_lightning.data.index.neighbours import Neighbours
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.sampling.resumable_loader import SampleKey
from yolo_lightning.data.storage.frames import Channels, Frame, FrameError, ImageFiles, Storage
from yolo_lightning.data.storage.image_cache import ImageCache
from yolo_lightning.data.storage.zip_frames import ZipFrames
from yolo_lightning.data.transforms.augmentation_settings import Augmentation, Image
from yolo_lightning.data.transforms.box_paste import ObjectPaster
from yolo_lightning.data.transforms.letterbox import PADDING, Labelled, letterbox
from yolo_lightning.data.transforms.mosaic import mixup, mosaic, random_affine, random_flip
from yolo_lightning.data.transforms.photometric import random_photometry, reference_index
from yolo_lightning.data.transforms.pixel_range import Drift, PixelRange, Span, random_range_drift

MIB = 2**20
SAMPLE_STREAM = 2  # Seed component of the samples; `sampling_rules.ORDER_STREAM` is 1
PASTE_STREAM, MIXUP_STREAM, SECOND_PASTE_STREAM, DRIFT_STREAM = 4, 5, 6, 7
"""Streams of box paste, of the second sample in mixup, of box paste there, and of the drift of 16-bit frames; they do
not change other choices."""

MIXUP_BETA = 32.0  # Both parameters of the distribution of the mixup ratio, as in Ultralytics
Reader = Callable[..., tuple[Labelled, str | None]]  # `LabelledFrames.read` with the drift of a sample
UNAUGMENTED = Letterbox(1.0, 0, 0)  # Letterbox of training samples, which are never mapped back to the frame


class LabelledFrames:
    """Frames of a split with their boxes; frames whose index is in `quarantined` are treated as unreadable.

    With `neighbours`, the channels of an image are the gray frame and its neighbours in the clip. Frames with 16 bits
    are mapped to 8 bits by `pixel_range`, with `clip_ranges` if its mode is `clip`.
    """

    def __init__(
        self,
        index: SplitIndex,
        storage: Storage,
        channels: Channels = 1,
        neighbours: Neighbours | None = None,
        pixel_range: PixelRange = PixelRange(),  # noqa: B008 - frozen
        clip_ranges: Ranges | None = None,
    ) -> None:
        self.index = index
        self.storage = storage
        self.channels = channels
        self.neighbours = neighbours
        self.pixel_range = pixel_range
        self.clip_ranges = clip_ranges
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
        """Return the mean size of a decoded frame, before the mapping of a 16-bit frame."""
        return max(1, self.index.pixels() * self.channels * self.pixel_range.bits // 8 // len(self))

    def read(
        self, index: int, is_partner: bool = False, drift: Drift | None = None, problems: list[str] | None = None
    ) -> tuple[Labelled, str | None]:
        """Return frame `index` and None, or an empty gray frame without boxes and the reason.

        `drift` is applied to frames with 16 bits before they are mapped to 8 bits. A neighbour that cannot be used is
        replaced by the frame, and the reason is appended to `problems`.
        """
        height, width = self.index.shape(index)
        image_id = self.index.image_id(index)  # read by the supervisor from the stack of a worker that hangs here
        try:
            image = self._frame(index, index, is_partner, drift)
            if self.neighbours is not None:
                image = self._with_neighbours(index, image, is_partner, drift, [] if problems is None else problems)
        except FrameError as error:
            channels = self.channels if self.neighbours is None else len(self.neighbours.offsets)
            shape = (height, width) if channels == 1 else (height, width, channels)
            empty = np.full(shape, PADDING, dtype=np.uint8)
            return Labelled(empty, np.zeros((0, 4), np.float32), np.zeros(0, np.int64)), str(error)
        except Exception as error:
            error.add_note(f"while reading image id={image_id}")  # read by the supervisor from the log
            raise
        return Labelled(image, self.index.boxes(index), self.index.labels(index)), None

    def _frame(self, place: int, index: int, is_partner: bool, drift: Drift | None) -> Image:
        """Return the gray levels of the frame at a place of `Neighbours`, which must have the size of frame `index`."""
        name = self.index.file_name(place) if self.neighbours is None else self.neighbours.file_name(place)
        if place in self.quarantined:
            raise FrameError(f"{name}: image {self.index.image_id(place)} is in data.quarantine")
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
        return self._levels(frame, name, index, drift)

    def _levels(self, frame: Frame, name: str, index: int, drift: Drift | None) -> Image:
        """Return an 8-bit frame unchanged, and a 16-bit frame after `drift` mapped to gray levels.

        The frame is in the clip of frame `index`.
        """
        if self.pixel_range.mode is None:
            return np.asarray(frame, dtype=np.uint8)
        raw = np.asarray(frame, dtype=np.uint16)
        if self.clip_ranges is None:
            span = self.pixel_range.of_frame(raw)
        else:
            span = Span(*self.clip_ranges[self.index.clip(index)].tolist())
            if math.isnan(span.low):
                raise FrameError(f"{name}: no sampled frame of the clip can be read")
        return (span if drift is None else span.drifted(drift)).levels(raw)

    def _with_neighbours(
        self, index: int, image: Image, is_partner: bool, drift: Drift | None, problems: list[str]
    ) -> Image:
        """Return the `(H, W, C)` image of the neighbours of frame `index`, whose own pixels are `image` `(H, W)`."""
        assert self.neighbours is not None
        frames, places = {index: image}, self.neighbours.places(index)
        for place in places:
            if place not in frames:
                try:
                    frames[place] = self._frame(place, index, is_partner, drift)
                except FrameError as error:
                    problems.append(str(error))
                    frames[place] = image
        return np.asarray(cv2.merge([frames[place] for place in places]), dtype=np.uint8)


class TrainingDataset(Dataset[Sample]):
    """Augmented samples; each depends on (seed, epoch, frame, occurrence) only, not on workers or interruptions.

    Mosaic, mixup and box paste are used in the first `mosaic_epochs` epochs; samples have the size
    `image_size`.
    """

    def __init__(
        self,
        frames: LabelledFrames,
        image_size: int | Sequence[int],
        augmentation: Augmentation,
        mosaic_epochs: int,
        seed: int,
    ) -> None:
        self.frames = frames
        self.image_size = ImageSize.of("image_size", image_size)
        self.augmentation = augmentation
        self.has_raw_frames = frames.pixel_range.mode is not None
        # Gain and offset change the range of 16-bit frames before the mapping, see `random_range_drift`.
        self.photometry = replace(augmentation, gain=0, offset=0) if self.has_raw_frames else augmentation
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
        drift = None
        if self.has_raw_frames:
            drift = random_range_drift(self.augmentation, self._generator(DRIFT_STREAM, key))
        bad_neighbours: list[str] = []
        # The sensor of a sample drifts once; the lender keeps its own histogram.
        read = partial(self.frames.read, drift=drift, problems=bad_neighbours)
        parts, problems = self._read(read, indices, has_own=True)
        reference = None
        if lender is not None:
            lent, problem = self.frames.read(lender, is_partner=True)
            reference = lent.image if problem is None else None
            problems.append(problem)
        parts = self._with_objects(read, PASTE_STREAM, key, indices, parts, problems)
        labelled = self._compose(parts, generator)
        if key.epoch < self.mosaic_epochs and self.augmentation.mixup:
            labelled = self._with_second(read, key, labelled, problems)
        labelled = random_flip(labelled, self.augmentation, generator)
        return Sample(
            image=random_photometry(
                labelled.image, self.photometry, generator, reference, is_gray=self.frames.channels == 1
            ),
            boxes=labelled.boxes,
            labels=labelled.labels,
            image_id=self.frames.index.image_id(index),
            frame_shape=self.frames.index.shape(index),
            letterbox=UNAUGMENTED,
            readable=problems[0] is None,
            bad_frames=(*(problem for problem in problems if problem is not None), *bad_neighbours),
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

    def _read(self, read: Reader, indices: list[int], *, has_own: bool) -> tuple[list[Labelled], list[str | None]]:
        """Return frames and the reasons of unreadable ones; with `has_own`, the first is the sample's own."""
        found = [read(part, not has_own or place > 0) for place, part in enumerate(indices)]
        return [frame for frame, _ in found], [problem for _, problem in found]

    def _compose(self, parts: list[Labelled], generator: np.random.Generator) -> Labelled:
        """Return the mosaic of four frames, or one letterboxed frame, after the affine map."""
        if len(parts) > 1:
            labelled = mosaic(parts, self.image_size, generator)
        else:
            labelled = letterbox(parts[0], self.image_size, shrink_by_area=False)[0]
        return random_affine(labelled, self.image_size, self.augmentation, generator)

    def _with_objects(
        self,
        read: Reader,
        stream: int,
        key: SampleKey,
        indices: list[int],
        parts: list[Labelled],
        problems: list[str | None],
    ) -> list[Labelled]:
        """Return the frames `indices` of a sample after box paste; append the reasons of unreadable frames."""
        if self.paster is None or key.epoch >= self.mosaic_epochs:
            return parts
        readable = [problem is None for problem in problems[: len(parts)]]
        pasted, bad = self.paster(
            indices, parts, readable, partial(read, is_partner=True), self._generator(stream, key)
        )
        problems += bad
        return pasted

    def _with_second(self, read: Reader, key: SampleKey, first: Labelled, problems: list[str | None]) -> Labelled:
        """Return `first`, in some samples after mixup with a second sample; append the reasons of unreadable frames."""
        generator = self._generator(MIXUP_STREAM, key)
        if generator.random() >= self.augmentation.mixup:
            return first
        ratio = generator.beta(MIXUP_BETA, MIXUP_BETA)
        index, *partners = key.second or generator.integers(len(self), size=4).tolist()
        indices = self._tiles(key.epoch, index, tuple(partners), generator)
        parts, bad = self._read(read, indices, has_own=False)
        parts = self._with_objects(read, SECOND_PASTE_STREAM, key, indices, parts, bad)
        problems += bad
        return mixup(first, self._compose(parts, generator), ratio)


class EvaluationDataset(Dataset[Sample]):
    """Letterboxed frames of the size `image_size` with their boxes, in file order."""

    def __init__(self, frames: LabelledFrames, image_size: int | Sequence[int]) -> None:
        self.frames = frames
        self.image_size = ImageSize.of("image_size", image_size)

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
