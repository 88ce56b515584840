"""Datasets of samples: a frame and its boxes, augmented for training or letterboxed for evaluation."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from yolo_lightning.data.batch import Sample
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.data.clip_backgrounds import with_difference
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.sampling.resumable_loader import SampleKey
from yolo_lightning.data.storage.frames import AbsentFrameError, FrameError
from yolo_lightning.data.transforms.augmentation_settings import Augmentation
from yolo_lightning.data.transforms.box_paste import ObjectPaster
from yolo_lightning.data.transforms.letterbox import Labelled, letterbox
from yolo_lightning.data.transforms.mosaic import mixup, mosaic, random_affine, random_flip
from yolo_lightning.data.transforms.photometric import random_photometry, random_range_drift, reference_index

SAMPLE_STREAM = 2  # Seed component of the samples; `epoch_order.ORDER_STREAM` is 1
PASTE_STREAM = 4  # Of box paste
MIXUP_STREAM = 5  # Of the second sample in mixup
SECOND_PASTE_STREAM = 6  # Of box paste into the second sample
DRIFT_STREAM = 7  # Of the drift of 16-bit frames

MIXUP_BETA = 32.0  # Both parameters of the distribution of the mixup ratio, as in Ultralytics
Reader = Callable[..., Labelled]  # `LabelledFrames.read` with the drift of a sample
UNAUGMENTED = Letterbox(1.0, 0, 0)  # Letterbox of training samples, which are never mapped back to the frame


def _sample(
    frames: LabelledFrames, index: int, labelled: Labelled, problems: Sequence[FrameError], **values: Any
) -> Sample:
    """Return the sample of frame `index`; `values` are the fields that differ between training and evaluation."""
    image = labelled.image
    if frames.backgrounds is not None:
        image = with_difference(image)
    return Sample(
        image=image,
        boxes=labelled.boxes,
        labels=labelled.labels,
        image_id=frames.index.image_id(index),
        frame_shape=frames.index.shape(index),
        bad_frames=tuple(map(str, problems)),
        absent=tuple(error.file for error in problems if isinstance(error, AbsentFrameError)),
        **values,
    )


class TrainingDataset(Dataset[Sample]):
    """Augmented samples; each depends on (seed, epoch, frame, occurrence) only, not on workers or interruptions.

    Samples have the size `image_size`. Mosaic, mixup and box paste are used if the key says so (`has_mosaic`).
    """

    def __init__(
        self,
        frames: LabelledFrames,
        image_size: int | Sequence[int],
        augmentation: Augmentation,
        seed: int,
    ) -> None:
        self.frames = frames
        self.image_size = ImageSize.of("image_size", image_size)
        self.augmentation = augmentation
        self.has_raw_frames = frames.pixel_range.mode is not None
        self.photometry = augmentation
        if self.has_raw_frames:
            # Gain and offset change the range of 16-bit frames before the mapping, see `random_range_drift`.
            self.photometry = replace(augmentation, gain=0, offset=0)
        self.seed = seed
        self.paster = ObjectPaster(frames.index, augmentation.paste) if augmentation.paste.probability else None

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, key: SampleKey | tuple[int, int]) -> Sample:
        key = SampleKey(*key)
        index = key.frame
        generator = self._generator(SAMPLE_STREAM, key)
        indices = self._tiles(key, index, key.partners, generator)
        is_gray = self.frames.channels == 1
        lender = reference_index(len(self), self.augmentation, generator) if is_gray else None
        drift = None
        if self.has_raw_frames:
            drift = random_range_drift(self.augmentation, self._generator(DRIFT_STREAM, key))
        problems: list[FrameError] = []
        # The sensor of a sample drifts once; the lender keeps its own histogram.
        read = partial(self.frames.read, drift=drift, problems=problems)
        parts = [read(part, place > 0) for place, part in enumerate(indices)]
        is_readable = parts[0].problem is None
        reference = None
        if lender is not None:
            lent = self.frames.read(lender, is_partner=True, problems=problems)
            if lent.problem is None:
                reference = lent.image
        labelled = self._compose(self._with_objects(read, PASTE_STREAM, key, indices, parts), generator)
        if key.has_mosaic and self.augmentation.mixup:
            labelled = self._with_second(read, key, labelled)
        labelled = random_flip(labelled, self.augmentation, generator)
        image = random_photometry(labelled.image, self.photometry, generator, reference, is_gray=is_gray)
        labelled = labelled._replace(image=image)
        return _sample(self.frames, index, labelled, problems, letterbox=UNAUGMENTED, readable=is_readable, key=key)

    def _generator(self, stream: int, key: SampleKey) -> np.random.Generator:
        return np.random.default_rng((stream, self.seed, *key.seeds))

    def _tiles(
        self, key: SampleKey, index: int, partners: tuple[int, ...] | None, generator: np.random.Generator
    ) -> list[int]:
        """Return the frames of a sample: frame `index`, and its partners if the sample is a mosaic."""
        if not key.has_mosaic or generator.random() >= self.augmentation.mosaic:
            return [index]
        if partners is None:
            partners = generator.integers(len(self), size=3).tolist()
        return [index, *partners]

    def _compose(self, parts: list[Labelled], generator: np.random.Generator) -> Labelled:
        """Return the mosaic of four frames, or one letterboxed frame, after the affine map."""
        if len(parts) > 1:
            labelled = mosaic(parts, self.image_size, generator)
        else:
            labelled = letterbox(parts[0], self.image_size, shrink_by_area=False)[0]
        return random_affine(labelled, self.image_size, self.augmentation, generator)

    def _with_objects(
        self, read: Reader, stream: int, key: SampleKey, indices: list[int], parts: list[Labelled]
    ) -> list[Labelled]:
        """Return the frames `indices` of a sample after box paste."""
        if self.paster is None or not key.has_mosaic:
            return parts
        return self.paster(indices, parts, partial(read, is_partner=True), self._generator(stream, key))

    def _with_second(self, read: Reader, key: SampleKey, first: Labelled) -> Labelled:
        """Return `first`, in some samples after mixup with a second sample."""
        generator = self._generator(MIXUP_STREAM, key)
        if generator.random() >= self.augmentation.mixup:
            return first
        ratio = generator.beta(MIXUP_BETA, MIXUP_BETA)
        index, *partners = key.second or generator.integers(len(self), size=4).tolist()
        indices = self._tiles(key, index, tuple(partners), generator)
        parts = [read(part, True) for part in indices]
        parts = self._with_objects(read, SECOND_PASTE_STREAM, key, indices, parts)
        return mixup(first, self._compose(parts, generator), ratio)


class EvaluationDataset(Dataset[Sample]):
    """Letterboxed frames of the size `image_size` with their boxes, in file order."""

    def __init__(self, frames: LabelledFrames, image_size: int | Sequence[int]) -> None:
        self.frames = frames
        self.image_size = ImageSize.of("image_size", image_size)

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> Sample:
        problems: list[FrameError] = []
        frame = self.frames.read(index, problems=problems)
        labelled, placement = letterbox(frame, self.image_size, shrink_by_area=self.frames.resize == "area")
        return _sample(
            self.frames,
            index,
            labelled,
            problems,
            letterbox=placement,
            readable=frame.problem is None,
            key=index,
            month=self.frames.index.month(index),
        )
