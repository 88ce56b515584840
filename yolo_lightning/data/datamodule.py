"""Lightning data module: frames of each split, sample order, loaders and worker processes."""

import errno
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.utils.data import DataLoader

from yolo_lightning.data.batch import Batch, Sample, TrainingFacts, collate
from yolo_lightning.data.batch_size import BATCH_SIZE_LIMITS, USUAL_BATCH, BatchSize, automatic_batch_size
from yolo_lightning.data.dataset import EvaluationDataset, TrainingDataset
from yolo_lightning.data.formats.choose_format import open_format
from yolo_lightning.data.formats.dataset_format import DatasetSettings
from yolo_lightning.data.formats.file_settings import Files
from yolo_lightning.data.formats.frame_checks import (
    BadFrames,
    check_frames,
    needed_channels,
    refuse_annotations,
    warn_of_boxes,
)
from yolo_lightning.data.formats.ltdv2 import LTDv2Format
from yolo_lightning.data.formats.yolo import UNKNOWN_SHAPE
from yolo_lightning.data.frame_outage import FrameOutage, FrameOutageError
from yolo_lightning.data.image_size import STRIDE, ImageSize
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.index.splits import SPLITS_OF_STAGE, Shares, Split, describe_split
from yolo_lightning.data.input_settings import Channels, InputSettings
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.layouts.choose_layout import check_layout
from yolo_lightning.data.limit_settings import Limits
from yolo_lightning.data.loader import EvaluationLoader, describe, evaluation_settings, loader_arguments
from yolo_lightning.data.loader_settings import LoaderSettings
from yolo_lightning.data.sampling.epoch_order import SampledOrder, Sampling
from yolo_lightning.data.sampling.global_batches import GlobalBatches, limited
from yolo_lightning.data.sampling.mosaic_partners import frames_to_cache
from yolo_lightning.data.sampling.resumable_loader import (
    EpochBatchSampler,
    FileOrderBatches,
    ResumableLoader,
)
from yolo_lightning.data.storage.storage_settings import StorageSettings
from yolo_lightning.data.training_limits import check_interval, check_training
from yolo_lightning.data.transforms.augmentation_settings import Augmentation
from yolo_lightning.errors import UserError
from yolo_lightning.utils.accelerator import uses_pinned_memory
from yolo_lightning.utils.choices import AUTO, check_choices, checked_arguments
from yolo_lightning.utils.distributed import check_agreement
from yolo_lightning.utils.host import worker_count
from yolo_lightning.utils.loop_position import LoaderLoop, steps_begun
from yolo_lightning.utils.paths import user_path
from yolo_lightning.utils.rank_zero import hide_harmless_lines

RGB_CHANNELS: Channels = 3


class DetectionDataModule(LightningDataModule):
    """Frames and boxes of a dataset in its own format: LTDv2, COCO JSON, or a `data.yaml` of Ultralytics.

    Args:
        root: Dataset folder with frames and JSON files. If `format` is a `data.yaml`, replaces its `path`.
        format: `ltdv2` for LTDv2's official files, `coco` for COCO JSON, or the path of a `data.yaml` for images and
            label files in Ultralytics' layout.
        batch_size: Frames per batch and process, >= 1. `auto`: 16; 8 for fewer than 1,000 training frames.
        image_size: Size of the network input, pixels, multiples of 32. One number is the longer side: the input has the
            shape of the frames if all frames have one (384 x 288 with 640: 640 x 480), and else is a square.
            `[640, 640]` is a square in any case, and `[height, width]` any other shape.
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

    @checked_arguments("data", unchecked=("image_size",), batch_size=BATCH_SIZE_LIMITS, seed=">= 0")
    def __init__(
        self,
        root: str | None = None,
        format: str = LTDv2Format.accepted,
        batch_size: BatchSize = 16,
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
        hide_harmless_lines()
        self.image_size = ImageSize.of("data.image_size", image_size).check("data.image_size")
        self._longer_side = None if isinstance(image_size, list | tuple) else max(self.image_size)
        self._input_sizes: set[ImageSize] = set()  # of the frames of all opened splits, if one number is configured
        self._has_auto_batch_size = batch_size == AUTO
        if batch_size == AUTO:
            batch_size = USUAL_BATCH  # of evaluations; `_set_up_training` replaces it
        self.batch_size: int = batch_size
        self.seed = seed
        self.storage = storage
        self.limits = limits
        self.input = input
        self.sampling = sampling
        self.loader = loader
        self.augmentation = augmentation
        settings = DatasetSettings(
            root=user_path(root).absolute() if root else None,  # files are opened later, perhaps in another folder
            format=format,
            files=files,
            split=split,
            storage=self.storage,
            limits=self.limits,
            input=self.input,
        )
        check_layout(settings)
        self.dataset_format = open_format(settings)
        self.root = self.dataset_format.root
        self.channels: Channels | None = self.input.channels or self.dataset_format.channels
        if self.input.pixel_range.mode is not None:
            self.channels = 1
        if self.input.pixel_range.has_full_depth and self.augmentation.pixel_transforms:
            raise UserError(
                "data.augmentation.pixel_transforms must be empty with data.input.pixel_range.mode full, because the "
                "transforms of albumentations work on 8-bit images; use mode fixed or frame with them"
            )
        self.bad_frames = BadFrames(self.limits.max_bad_frames)
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
        fingerprints = {}
        for split in SPLITS_OF_STAGE[stage]:
            if split not in self._splits:
                self._splits[split] = self._open_checked(split)
            fingerprints[f"frames and boxes of {split}"] = self.index(split).fingerprint
        check_agreement(fingerprints)
        if stage == "fit":
            self._set_up_training()

    def _open_checked(self, split: Split) -> LabelledFrames:
        """Return a split whose frames and boxes have been checked, and log a summary."""
        frames = self.open(split)
        index = frames.index
        origin = self.dataset_format.origin(split)
        rank_zero_info(f"{split}: frames from {frames.storage}")
        self.bad_frames.quarantined |= {index.file_name(position) for position in frames.quarantined}
        if frames.quarantined:
            names = [f"{index.image_id(place)} ({index.file_name(place)})" for place in sorted(frames.quarantined)]
            rank_zero_warn(f"{split}: left out because of data.limits.quarantine: {', '.join(names)}")
        check_frames(index, frames.storage, self.bad_frames)
        refuse_annotations(index, split, self.limits, origin)
        warn_of_boxes(index, origin)
        if frames.backgrounds is not None:
            rank_zero_info(f"{split}: backgrounds of {frames.backgrounds.build():,} clips")
        summary = f"{self.dataset_format.name(split)} ({index.facts.describe_boxes()}): {describe_split(index)}"
        for note in (summary, *index.facts.notes):
            rank_zero_info(f"{split}: {note}")
        return frames

    def _set_up_training(self) -> None:
        """Set the order of the training frames, and check the settings that depend on their number."""
        index = self.index("train")
        if index.fingerprint == self.index("valid").fingerprint:
            rank_zero_warn("train and valid have the same frames and boxes: the scores do not show what is learned")
        trainer = self.trainer
        is_overfit = trainer is not None and bool(trainer.overfit_batches)  # type: ignore[attr-defined]
        self._order = SampledOrder(index, self.sampling, self.seed, is_overfit=is_overfit)
        rank_zero_info(f"train: {self._order.describe()}")
        if self._has_auto_batch_size:
            self.batch_size = automatic_batch_size(self._order.length, self._batches().processes)
        name = self.dataset_format.name("train")
        check_training(index, self._order, self.augmentation.paste, self._batches(), name)
        if trainer is None or not trainer.check_val_every_n_epoch or not trainer.limit_val_batches:
            return
        interval = getattr(trainer, "val_check_interval", None)  # Lightning sets none for DD:HH:MM:SS
        check_interval(interval, self._epoch_batches())

    def _epoch_batches(self) -> int:
        """Return the number of training batches per epoch and process."""
        limit = None if self.trainer is None else self.trainer.limit_train_batches
        return limited(self._batches().count(self._order.length), limit)

    def open(self, split: Split) -> LabelledFrames:
        """Return a split with its frames, unchecked."""
        check_choices("split", [split], Split)
        opened_storage = self.dataset_format.open_storage(split, self.channels or RGB_CHANNELS)
        index = self.dataset_format.open_index(split)
        self._follow_frames(index, split)
        if self.channels is None:
            self.channels = needed_channels(index, opened_storage)
            if self.channels == 1:
                rank_zero_info(f"{split}: all sampled frames are gray, so all are read as gray (data.input.channels)")
            opened_storage = self.dataset_format.open_storage(split, self.channels)
        return LabelledFrames(index, opened_storage, self.channels, self.input, self.limits.quarantined(index, split))

    def _follow_frames(self, index: SplitIndex, split: Split) -> None:
        """Give the input of `data.image_size` as one number the shape of the frames opened so far, if they have one.

        Damaged images, whose shape is unknown, do not count.
        """
        if self._longer_side is None:
            return
        # P6 graphs have a larger stride.
        stride = getattr(getattr(self.trainer, "lightning_module", None), "stride", STRIDE)
        shapes = [shape for shape in index.distinct_shapes() if shape != UNKNOWN_SHAPE] or [UNKNOWN_SHAPE]
        self._input_sizes |= {ImageSize.following(self._longer_side, *shape, stride) for shape in shapes}
        size = ImageSize(self._longer_side, self._longer_side)
        reason = "frames of several shapes"
        if len(self._input_sizes) == 1:
            (size,) = self._input_sizes
            height, width = shapes[0]
            reason = f"the shape of the frames, such as {width} x {height}; [{max(size)}, {max(size)}] is the square"
        if size == self.image_size:
            return
        self.image_size = size
        rank_zero_info(f"{split}: data.image_size {self._longer_side}: input of {size.width} x {size.height}, {reason}")

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
        ids = zip(index.image_ids(), index.text_ids().tolist(), strict=True)
        return [image_id if is_text else int(image_id) for image_id, is_text in ids]

    def training_facts(self) -> TrainingFacts:
        """Return the facts about the training split that the model needs; call it after `setup`."""
        counts = np.bincount(self.index("train").all_labels(), minlength=len(self.class_names))
        return TrainingFacts(
            batch_size=self.batch_size,
            seed=self.seed,
            class_counts=tuple(counts.tolist()),
            image_size=self.image_size,
            background=self.input.background,
            pixel_range=self.input.pixel_range,
            channels=self.channels,
            resize=self.input.resize,
            category_ids=self.category_ids,
            has_auto_batch_size=self._has_auto_batch_size,
            epoch_batches=self._epoch_batches(),
        )

    def describe_crowded_frames(self, stage: str, max_detections: int) -> list[str]:
        """Return a line for each split evaluated in `stage` with frames of more than `max_detections` objects.

        Such frames limit the recall. Call it after `setup`.
        """
        lines = []
        for split in SPLITS_OF_STAGE[stage]:
            if split in ("train", "predict"):
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
        frames = self._opened("train")
        trainer = self.trainer
        batches = self._batches()
        processes = max(1, worker_count(self.loader.num_workers)) * batches.processes
        has_mixup = self.augmentation.mixup > 0
        window = frames_to_cache(self._order.length, processes, self.batch_size, has_mixup=has_mixup)
        frames = frames.cached(self.storage.image_cache_mib, window)
        keys = EpochBatchSampler(self._order, self.batch_size, batches.rank, batches.processes, has_mixup=has_mixup)
        arguments = self._loader_arguments(self.loader, persistent=True)
        cached = f"image cache of {frames.cache.max_frames:,} frames per process"
        rank_zero_info(f"train loader: batch {self.batch_size}, {describe(arguments)}, {cached}")
        if trainer is not None and self.augmentation.close_mosaic_epochs == AUTO:
            epochs = trainer.max_epochs or 0
            without_mosaic = self.augmentation.epochs_without_mosaic(epochs)
            rank_zero_info(f"data.augmentation.close_mosaic_epochs auto: {without_mosaic} of {epochs} epochs")
        dataset = TrainingDataset(frames, self.image_size, self.augmentation, self.seed)
        self._datasets["train"] = dataset
        return ResumableLoader(
            dataset,
            keys,
            collate,
            epoch_batches=self._epoch_batches(),
            loop=None if trainer is None else LoaderLoop(trainer),
            mosaic_epochs=self._mosaic_epochs,
            **arguments,
        )

    def _mosaic_epochs(self) -> int:
        if self.trainer is None:
            return sys.maxsize
        epochs = self.trainer.max_epochs or 0
        return max(0, epochs - self.augmentation.epochs_without_mosaic(epochs))

    def state_dict(self) -> dict[str, Any]:
        """Return the fingerprint of the training data, the size of the input and the batch size for a checkpoint."""
        if "train" not in self._splits:
            return {}
        return {
            "train_fingerprint": self.index("train").fingerprint,
            "image_size": self.image_size.plain(),
            "batch_size": self.batch_size,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that the training data is that of the checkpoint, so that the position in its order is valid.

        An input that follows the frames gets the shape in the checkpoint, if the longer side is equal. With
        `batch_size: auto`, the batch size is that of the checkpoint.

        Raises:
            UserError: If the content of the training split has changed.
        """
        if self._has_auto_batch_size:
            self.batch_size = state_dict.get("batch_size", self.batch_size)
        saved = state_dict.get("train_fingerprint")
        now = self.state_dict().get("train_fingerprint", saved)
        if saved not in (None, now):
            raise UserError(
                f"the checkpoint was made on other training data (fingerprint {saved}, now {now}): resume with the "
                f"same {self.dataset_format.name('train')}, data.split.train_fraction and data.split.valid_share, or "
                "start a new run from its weights with model.weights"
            )
        # One number was a square where the state contains no size.
        size = ImageSize.of("data.image_size", state_dict.get("image_size", self._longer_side or 0))
        if max(size) == self._longer_side:
            self._longer_side = None
            if size != self.image_size:
                rank_zero_info(
                    f"data.image_size {max(size)}: input of {size.width} x {size.height}, as in the checkpoint"
                )
            self.image_size = size

    def val_dataloader(self) -> DataLoader[Sample]:
        return self._evaluation_loader("valid")

    def test_dataloader(self) -> DataLoader[Sample]:
        return self._evaluation_loader("test")

    def predict_dataloader(self) -> DataLoader[Sample]:
        return self._evaluation_loader("predict")

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Warn about each frame of the batch that could not be used; raise an error if there are too many.

        In a fit, whose setup has found all other frames, frames that cannot be read at the moment are read again first.
        While many frames cannot be read, the training waits.
        """
        trainer = self.trainer
        if trainer is None or trainer.state.fn != "fit":
            self.bad_frames.add(batch.bad_frames)
            return batch
        if batch.absent:
            split: Split = "train" if trainer.training else "valid"
            batch = self._outage.whole(batch, self._datasets[split])
        try:
            self.bad_frames.add(batch.bad_frames)
        except UserError as error:
            if steps_begun(trainer) > 0:
                raise FrameOutageError(errno.EIO, str(error)) from error
            raise
        return batch

    def _evaluation_loader(self, split: Split) -> DataLoader[Sample]:
        frames = self._opened(split)
        dataset = EvaluationDataset(frames, self.image_size)
        self._datasets[split] = dataset
        settings = evaluation_settings(self.loader, frames.values())
        return EvaluationLoader(
            dataset,
            batch_sampler=FileOrderBatches(len(dataset), self._batches()),
            collate_fn=collate,
            **self._loader_arguments(settings, persistent=False),
        )

    def _batches(self) -> GlobalBatches:
        if self.trainer is None:
            return GlobalBatches(self.batch_size)
        return GlobalBatches(self.batch_size, self.trainer.global_rank, self.trainer.world_size)

    def _loader_arguments(self, settings: LoaderSettings, *, persistent: bool) -> dict[str, Any]:
        on_gpu = self.trainer is not None and uses_pinned_memory(self.trainer.strategy.root_device)
        # Without a generator of its own, each iterator of a loader draws from the global stream.
        generator = torch.Generator().manual_seed(self.seed)
        return {"generator": generator, **loader_arguments(settings, on_gpu=on_gpu, persistent=persistent)}
