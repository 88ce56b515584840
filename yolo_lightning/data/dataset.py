"""Datasets of samples: a frame and its boxes, augmented for training or letterboxed for evaluation."""

import math
from copy import copy
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np
from torch.utils.data import Dataset

from yolo_lightning.data.batch import Sample
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.data.index.clip_ranges import Ranges
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.storage.frames import Channels, Frame, FrameError, ImageFiles, Storage
from yolo_lightning.data.storage.image_cache import ImageCache
from yolo_lightning.data.storage.zip_frames import ZipFrames
from yolo_lightning.data.transforms.augmentation_settings import Augmentation, Image
from yolo_lightning.data.transforms.letterbox import PADDING, Labelled, letterbox
from yolo_lightning.data.transforms.mosaic import mosaic, random_affine, random_flip
from yolo_lightning.data.transforms.photometric import random_photometry, reference_index
from yolo_lightning.data.transforms.pixel_range import Drift, PixelRange, Span, random_range_drift

MIB = 2**20
SAMPLE_STREAM = 2  # Seed component of the samples; `sampling_rules.ORDER_STREAM` is 1
DRIFT_STREAM = 1  # Last seed component of the drift of 16-bit frames
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

    Frames with 16 bits are mapped to 8 bits by `pixel_range`, with `clip_ranges` if its mode is `clip`.
    """

    def __init__(
        self,
        index: SplitIndex,
        storage: Storage,
        channels: Channels = 1,
        pixel_range: PixelRange = PixelRange(),  # noqa: B008 - frozen
        clip_ranges: Ranges | None = None,
    ) -> None:
        self.index = index
        self.storage = storage
        self.channels = channels
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
        keeps_all = is_encoded and self._decoded_bytes() <= budget
        copied.cache = ImageCache(budget, len(self) if keeps_all else min(window, len(self)), keep_partners=keeps_all)
        return copied

    def describe_cache(self) -> str:
        """Return the number of frames that fit into the image cache, at the mean size of a frame."""
        frame_bytes = max(1, self._decoded_bytes() // len(self))
        held, wanted = min(self.cache.max_bytes // frame_bytes, self.cache.max_frames), self.cache.max_frames
        more = f" (all {wanted:,}: {-(-wanted * frame_bytes // MIB):,} MiB)" if held < wanted else ""
        return f"image cache of {held:,} frames per process{more}"

    def _decoded_bytes(self) -> int:
        """Return the memory of all decoded frames, before the mapping of 16-bit frames."""
        return self.index.pixels() * self.channels * self.pixel_range.bits // 8

    def read(self, index: int, is_partner: bool = False, drift: Drift | None = None) -> tuple[Labelled, str | None]:
        """Return frame `index` and None, or an empty gray frame without boxes and the reason.

        `drift` is applied to a frame with 16 bits before the frame is mapped to 8 bits.
        """
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
            levels = self._levels(image, index, drift)
        except FrameError as error:
            shape = (height, width) if self.channels == 1 else (height, width, self.channels)
            empty = np.full(shape, PADDING, dtype=np.uint8)
            return Labelled(empty, np.zeros((0, 4), np.float32), np.zeros(0, np.int64)), str(error)
        except Exception as error:
            error.add_note(f"while reading image id={image_id}")  # read by the supervisor from the log
            raise
        return Labelled(levels, self.index.boxes(index), self.index.labels(index)), None

    def _levels(self, frame: Frame, index: int, drift: Drift | None) -> Image:
        """Return an 8-bit frame unchanged, and a 16-bit frame after `drift` mapped to gray levels."""
        if self.pixel_range.mode is None:
            return np.asarray(frame, dtype=np.uint8)
        raw = np.asarray(frame, dtype=np.uint16)
        if self.clip_ranges is None:
            span = self.pixel_range.of_frame(raw)
        else:
            span = Span(*self.clip_ranges[self.index.clip(index)].tolist())
            if math.isnan(span.low):
                raise FrameError(f"{self.index.file_name(index)}: no sampled frame of the clip can be read")
        return (span if drift is None else span.drifted(drift)).levels(raw)


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
        self.has_raw_frames = frames.pixel_range.mode is not None
        # Gain and offset change the range of 16-bit frames before the mapping, see `random_range_drift`.
        self.photometry = replace(augmentation, gain=0, offset=0) if self.has_raw_frames else augmentation
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
        drift = None
        if self.has_raw_frames:  # its own stream: the geometry is that of a sample of 8-bit frames
            drift = random_range_drift(self.augmentation, np.random.default_rng((*stream, occurrence, DRIFT_STREAM)))
        # The sensor of a mosaic drifts once; the lender keeps its own histogram.
        drifts = [drift] * (len(indices) - (lender is not None)) + [None]
        frames = (self.frames.read(part, place > 0, drifts[place]) for place, part in enumerate(indices))
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
            image=random_photometry(labelled.image, self.photometry, generator, reference),
            boxes=labelled.boxes,
            labels=labelled.labels,
            image_id=self.frames.index.image_id(index),
            frame_shape=self.frames.index.shape(index),
            letterbox=UNAUGMENTED,
            readable=problems[0] is None,
            bad_frames=tuple(problem for problem in problems if problem is not None),
        )


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
