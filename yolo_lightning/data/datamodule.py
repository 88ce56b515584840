"""Lightning data module: frames of each split, sample order, loaders and worker processes."""

import errno
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.utils.data import DataLoader

from yolo_lightning.data.batch import Batch, Sample, TrainingFacts, collate
from yolo_lightning.data.clip_backgrounds import ClipBackgrounds
from yolo_lightning.data.dataset import EvaluationDataset, TrainingDataset
from yolo_lightning.data.formats.choose_format import open_format
from yolo_lightning.data.formats.dataset_format import DatasetSettings, Files
from yolo_lightning.data.formats.frame_checks import (
    BadFrames,
    Limits,
    check_boxes,
    check_frames,
    check_labels,
    needed_channels,
)
from yolo_lightning.data.formats.ltdv2 import LTDv2Format
from yolo_lightning.data.frame_outage import FrameOutage, FrameOutageError
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.index.splits import Shares, Split, describe_split
from yolo_lightning.data.input_settings import InputSettings
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.loader import EvaluationLoader, LoaderSettings, describe
from yolo_lightning.data.sampling.epoch_order import FirstEpoch, SampledOrder, Sampling
from yolo_lightning.data.sampling.mosaic_partners import frames_to_cache
from yolo_lightning.data.sampling.resumable_loader import (
    EpochBatchSampler,
    EpochOrder,
    FileOrderBatches,
    GlobalBatches,
    ResumableLoader,
    limited,
)
from yolo_lightning.data.storage.frames import Channels
from yolo_lightning.data.storage.storage import StorageKind, StorageSettings
from yolo_lightning.data.transforms.augmentation_settings import Augmentation
from yolo_lightning.data.transforms.box_paste import PasteCandidates
from yolo_lightning.errors import UserError
from yolo_lightning.utils.accelerator import uses_pinned_memory
from yolo_lightning.utils.choices import as_settings, check_choices, checked_arguments, plain
from yolo_lightning.utils.distributed import check_agreement
from yolo_lightning.utils.host import worker_count
from yolo_lightning.utils.loop_position import LoaderLoop, steps_begun
from yolo_lightning.utils.paths import user_path
from yolo_lightning.utils.rank_zero import print_to_notebook

RGB_CHANNELS = 3

SPLITS_OF_STAGE: dict[str, tuple[Split, ...]] = {
    "fit": ("train", "valid"),
    "validate": ("valid",),
    "test": ("test",),
    "predict": ("predict",),
}
EVALUATED_SPLITS: tuple[Split, ...] = ("valid", "test")


class DetectionDataModule(LightningDataModule):
    """Frames and boxes of a dataset in its own format: LTDv2, COCO JSON, or a `data.yaml` of Ultralytics.

    Args:
        root: Dataset folder with frames and JSON files. If `format` is a `data.yaml`, replaces its `path`.
        format: `ltdv2` for LTDv2's official files, `coco` for COCO JSON, or the path of a `data.yaml` for images and
            label files in Ultralytics' layout.
        batch_size: Frames per batch and process.
        image_size: Size of the network input, pixels, multiples of 32: the side of a square, or `[height, width]`.
        seed: Seed of order and augmentation. The command line sets it from `seed_everything`.
        files: Names of the annotation files and image folders.
        split: Fractions of the clips that are used.
        storage: Location of the frames and of the packed index.
        limits: Frames that must not be used, and number of frames that may be unusable.
        input: Channels of the images.
        sampling: Frames of each training epoch.
        loader: Worker processes.
        augmentation: Strength of the training augmentation.

    Raises:
        UserError: If a value is out of range. Errors in the data are raised by `setup`, before training starts.
    """

    @checked_arguments("data", unchecked=("image_size",), batch_size=">= 1", seed=">= 0")
    def __init__(
        self,
        root: str | None = None,
        format: str = LTDv2Format.accepted,
        batch_size: int = 16,
        image_size: int | Sequence[int] = 640,
        seed: int = 0,
        files: Files = Files(),  # noqa: B008 - frozen, as all groups
        split: Shares = Shares(),  # noqa: B008
        storage: StorageSettings = StorageSettings(),  # noqa: B008
        limits: Limits = Limits(),  # noqa: B008
        input: InputSettings = InputSettings(),  # noqa: B008
        sampling: Sampling = Sampling(),  # noqa: B008
        loader: LoaderSettings = LoaderSettings(),  # noqa: B008
        augmentation: Augmentation = Augmentation(),  # noqa: B008
    ) -> None:
        super().__init__()
        print_to_notebook()
        self.image_size = ImageSize.of("data.image_size", image_size).check("data.image_size")
        files, split = as_settings(Files, files), as_settings(Shares, split)
        storage, limits = as_settings(StorageSettings, storage), as_settings(Limits, limits)
        input, sampling = as_settings(InputSettings, input), as_settings(Sampling, sampling)
        loader, augmentation = as_settings(LoaderSettings, loader), as_settings(Augmentation, augmentation)
        folder = user_path(root) if root else None
        self.dataset_format = open_format(DatasetSettings(folder, format, files, split, storage, limits, input))
        self.root = self.dataset_format.root
        self.input = input
        self.channels: Channels | None = input.channels or self.dataset_format.channels
        if input.pixel_range.mode is not None:
            self.channels = 1
        if input.pixel_range.has_full_depth and augmentation.pixel_transforms:
            raise UserError(
                "data.augmentation.pixel_transforms must be empty with data.input.pixel_range.mode full, because the "
                "transforms of albumentations work on 8-bit images; use mode fixed or frame with them"
            )
        self.batch_size, self.seed = plain(batch_size), plain(seed)
        self.storage = storage
        self.limits = limits
        self.loader = loader
        self.augmentation = augmentation
        self.sampling = sampling
        self.bad_frames = BadFrames(limits.max_bad_frames)
        self._splits: dict[Split, LabelledFrames] = {}
        self._datasets: dict[Split, TrainingDataset | EvaluationDataset] = {}  # of the loaders
        self._outage = FrameOutage(self.bad_frames)
        self._order: SampledOrder

    def setup(self, stage: str) -> None:
        """Open the indexes that `stage` needs and check their frames.

        Raises:
            UserError: If the dataset cannot be used; the message names file and record.
        """
        if stage not in list(SPLITS_OF_STAGE):
            raise UserError(f"stage must be one of {', '.join(SPLITS_OF_STAGE)}, got {stage!r}")
        for split in SPLITS_OF_STAGE[stage]:
            if split in self._splits:
                continue
            frames = self.open(split)
            index = frames.index
            rank_zero_info(f"{split}: frames from {frames.storage}")
            frames.quarantined = self.limits.quarantined(index, split)
            self.bad_frames.quarantined |= {index.file_name(place) for place in frames.quarantined}
            if frames.quarantined:
                names = [f"{index.image_id(place)} ({index.file_name(place)})" for place in sorted(frames.quarantined)]
                rank_zero_warn(f"{split}: left out because of data.limits.quarantine: {', '.join(names)}")
            check_frames(index, frames.storage, self.bad_frames)
            if split != "predict" and not self.limits.allow_unlabelled:
                check_labels(index, frames.quarantined, self.dataset_format.origin(split))
            check_boxes(index, self.limits, self.dataset_format.origin(split))
            if frames.backgrounds is not None:
                frames.backgrounds = replace(frames.backgrounds, quarantined=frames.quarantined)
                rank_zero_info(f"{split}: backgrounds of {frames.backgrounds.build():,} clips")
            self._splits[split] = frames
            rank_zero_info(
                f"{split}: {self.dataset_format.name(split)} ({index.facts.describe_boxes()}): {describe_split(index)}"
            )
            for note in index.facts.notes:
                rank_zero_info(f"{split}: {note}")
        fingerprints = {split: self.index(split).fingerprint for split in SPLITS_OF_STAGE[stage]}
        check_agreement({f"frames and boxes of {split}": value for split, value in fingerprints.items()})
        if stage == "fit" and self.index("train").fingerprint == self.index("valid").fingerprint:
            rank_zero_warn("train and valid have the same frames and boxes: the scores do not show what is learned")
        if stage == "fit":
            self._order = SampledOrder(self.index("train"), self.sampling, self.seed)
            rank_zero_info(f"train: {self._order.describe()}")
            if self.augmentation.paste.probability:
                PasteCandidates(self.index("train"), self.augmentation.paste.classes)  # raises ValueError
            batches = self._batches()
            if batches.size > self._order.length:
                times = f" x {batches.processes} processes" if batches.processes > 1 else ""
                raise UserError(
                    f"data.batch_size must be at most the {self._order.length} frames of an epoch of "
                    f"{self.dataset_format.name('train')}, got {self.batch_size}{times}"
                )
            if (trainer := self.trainer) is not None and trainer.check_val_every_n_epoch and trainer.limit_val_batches:
                most = limited(batches.count(self._order.length), trainer.limit_train_batches)
                if isinstance(every := trainer.val_check_interval, int) and every > most:
                    raise UserError(f"trainer.val_check_interval must be <= {most}, the batches per epoch, got {every}")

    def open(self, split: Split, storage: StorageKind | None = None) -> LabelledFrames:
        """Return a split with its frames, unchecked; `storage` None uses `data.storage.kind`."""
        check_choices("split", [split], Split)
        opened = self.dataset_format.open_storage(split, self.channels or 3, storage)
        index = self.dataset_format.open_index(split)
        if self.channels is None:
            self.channels = needed_channels(index, opened)
            if self.channels == 1:
                rank_zero_info(f"{split}: all sampled frames are gray, so all are read as gray (data.input.channels)")
            opened = self.dataset_format.open_storage(split, self.channels, storage)
        backgrounds = ClipBackgrounds(index, opened) if self.input.background else None
        return LabelledFrames(index, opened, self.channels, backgrounds, self.input.pixel_range, self.input.resize)

    @property
    def input_channels(self) -> int:
        """Channels of the network's input for the model; a network for RGB also accepts gray frames."""
        return 2 if self.input.background else RGB_CHANNELS

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, index 0 first; the command line passes them to the model."""
        return self.dataset_format.class_names

    @property
    def category_ids(self) -> tuple[int, ...]:
        """Number of each class in the dataset's own files, index 0 first."""
        return self.dataset_format.category_ids

    @property
    def has_submission(self) -> bool:
        """Whether `predict` writes a submission of LTDv2's challenge instead of COCO's results."""
        return self.dataset_format.has_submission

    def index(self, split: Split) -> SplitIndex:
        """Return the index of a split that `setup` has opened."""
        return self._opened(split).index

    def _opened(self, split: Split) -> LabelledFrames:
        check_choices("split", [split], Split)
        if split not in self._splits:
            calls = [f"setup({stage!r})" for stage, splits in SPLITS_OF_STAGE.items() if split in splits]
            raise UserError(f"the {split} split is not open: call {' or '.join(calls)} of the data module first")
        return self._splits[split]

    @property
    def predict_image_ids(self) -> list[str]:
        """Ids of the images to predict, in file order; a submission must contain all of them."""
        return self.index("predict").image_ids()

    @property
    def predict_original_ids(self) -> list[int | str]:
        """Ids of the images to predict with the type of the dataset's file, number or string, in file order."""
        index = self.index("predict")
        flags = index.text_ids().tolist()
        return [text if is_text else int(text) for text, is_text in zip(index.image_ids(), flags, strict=True)]

    def training_facts(self) -> TrainingFacts:
        """Return the facts about the training split that the model needs; call it after `setup`."""
        counts = np.bincount(self.index("train").all_labels(), minlength=len(self.class_names))
        counts_of = tuple(counts.tolist())
        frames = self.input.background, self.input.pixel_range, self.channels, self.input.resize
        return TrainingFacts(self.batch_size, self.seed, counts_of, self.image_size, *frames, self.category_ids)

    def describe_crowded_frames(self, stage: str, max_detections: int) -> list[str]:
        """Return a line for each split evaluated in `stage` with frames of more than `max_detections` objects.

        Such frames limit the recall. Call it after `setup`.
        """
        lines = []
        for split in SPLITS_OF_STAGE[stage]:
            if split not in EVALUATED_SPLITS:
                continue
            index = self.index(split)
            objects = np.diff(index.box_offsets())
            crowded = int((objects > max_detections).sum())
            if crowded:
                fullest = int(objects.argmax())
                recall = np.minimum(objects, max_detections).sum() / objects.sum()
                lines.append(
                    f"{split}: {crowded:,} of {len(index):,} frames have more objects than model.detections."
                    f"max_detections {max_detections}, such as {index.file_name(fullest)} with {objects[fullest]:,}. "
                    f"The recall is therefore at most {recall:.2f}; {objects[fullest]} scores all objects."
                )
        return lines

    def train_dataloader(self) -> ResumableLoader:
        """Return augmented batches in an order that depends on (seed, epoch) only; the position is resumable."""
        frames, trainer, batches = self._opened("train"), self.trainer, self._batches()
        processes = max(1, worker_count(self.loader.num_workers)) * batches.processes
        has_mixup = self.augmentation.mixup > 0
        wanted = frames_to_cache(self._order.length, processes, self.batch_size, has_mixup=has_mixup)
        frames = frames.cached(self.storage.image_cache_mib, wanted)
        order: EpochOrder = self._order
        if trainer is not None and trainer.overfit_batches:  # type: ignore[attr-defined]
            order = FirstEpoch(self._order)
        keys = EpochBatchSampler(order, self.batch_size, batches.rank, batches.processes, has_mixup=has_mixup)
        arguments = self._loader_arguments(persistent=True)
        cached = f"image cache of {frames.cache.max_frames:,} frames per process"
        rank_zero_info(f"train loader: batch {self.batch_size}, {describe(arguments)}, {cached}")
        dataset = TrainingDataset(frames, self.image_size, self.augmentation, self.seed)
        self._datasets["train"] = dataset
        return ResumableLoader(
            dataset,
            keys,
            collate,
            epoch_batches=limited(len(keys), None if trainer is None else trainer.limit_train_batches),
            loop=None if trainer is None else LoaderLoop(trainer),
            mosaic_epochs=self._mosaic_epochs,
            **arguments,
        )

    def _mosaic_epochs(self) -> int:
        if self.trainer is None:
            return sys.maxsize
        return max(0, (self.trainer.max_epochs or 0) - self.augmentation.close_mosaic_epochs)

    def state_dict(self) -> dict[str, Any]:
        """Return the fingerprint of the training data for a checkpoint."""
        return {"train_fingerprint": self.index("train").fingerprint} if "train" in self._splits else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that the training data is that of the checkpoint, so that the position in its order is valid.

        Raises:
            UserError: If the content of the training split has changed.
        """
        saved = state_dict.get("train_fingerprint")
        if saved is not None and "train" in self._splits and self.index("train").fingerprint != saved:
            raise UserError(
                f"the checkpoint was made on other training data (fingerprint {saved}, now "
                f"{self.index('train').fingerprint}): resume with the same {self.dataset_format.name('train')}, "
                "data.split.train_fraction and data.split.valid_share, or start a new run from its weights with "
                "model.weights"
            )

    def val_dataloader(self) -> DataLoader[Sample]:
        return self._evaluation_loader("valid")

    def test_dataloader(self) -> DataLoader[Sample]:
        return self._evaluation_loader("test")

    def predict_dataloader(self) -> DataLoader[Sample]:
        return self._evaluation_loader("predict")

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Warn about each frame of the batch that could not be used; raise an error if there are too many.

        In a training that has begun, frames that cannot be read at the moment are read again before. While many frames
        cannot be read, the training waits.
        """
        trainer = self.trainer
        has_begun = trainer is not None and trainer.state.fn == "fit" and steps_begun(trainer) > 0
        if trainer is not None and has_begun and batch.absent:
            batch = self._outage.whole(batch, self._datasets["train" if trainer.training else "valid"])
        try:
            self.bad_frames.add(batch.bad_frames)
        except UserError as error:
            if has_begun:
                raise FrameOutageError(errno.EIO, str(error)) from error
            raise
        return batch

    def _evaluation_loader(self, split: Split) -> DataLoader[Sample]:
        dataset = self._datasets[split] = EvaluationDataset(self._opened(split), self.image_size)
        return EvaluationLoader(
            dataset,
            batch_sampler=FileOrderBatches(len(dataset), self._batches()),
            collate_fn=collate,
            **self._loader_arguments(persistent=False),
        )

    def _batches(self) -> GlobalBatches:
        if self.trainer is None:
            return GlobalBatches(self.batch_size)
        return GlobalBatches(self.batch_size, self.trainer.global_rank, self.trainer.world_size)

    def _loader_arguments(self, *, persistent: bool) -> dict[str, Any]:
        on_gpu = self.trainer is not None and uses_pinned_memory(self.trainer.strategy.root_device)
        # Without a generator of its own, each iterator of a loader draws from the global stream.
        generator = torch.Generator().manual_seed(self.seed)
        return {"generator": generator, **self.loader.arguments(on_gpu=on_gpu, persistent=persistent)}
