"""Lightning data module: frames of each split, sample order, loaders and worker processes."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.utils.data import DataLoader

from yolo_lightning.data.batch import Batch, Sample, TrainingFacts, collate
from yolo_lightning.data.dataset import EvaluationDataset, TrainingDataset
from yolo_lightning.data.formats.dataset_format import LTDV2, TRAIN_FILE, VALID_FILE, LTDv2Format, choose_format
from yolo_lightning.data.formats.frame_checks import (
    BadFrames,
    check_frames,
    check_labels,
    check_quarantine,
    needed_channels,
    quarantined_positions,
)
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.data.index.clip_ranges import clip_ranges
from yolo_lightning.data.index.neighbours import Neighbours, check_neighbours
from yolo_lightning.data.index.split_index import SplitIndex, default_index_root
from yolo_lightning.data.index.splits import Shares, Split, describe_split
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.loader import LoaderSettings, describe
from yolo_lightning.data.sampling.mosaic_partners import frames_to_cache
from yolo_lightning.data.sampling.paste_candidates import paste_candidates
from yolo_lightning.data.sampling.resumable_loader import (
    EpochBatchSampler,
    FileOrderBatches,
    GlobalBatches,
    ResumableLoader,
    limited,
)
from yolo_lightning.data.sampling.sampling_rules import SampledOrder, Sampling
from yolo_lightning.data.storage.choose_storage import StorageKind
from yolo_lightning.data.storage.frames import Channels
from yolo_lightning.data.storage.image_header import MAX_IMAGE_PIXELS, FrameLimits
from yolo_lightning.data.transforms.augmentation_settings import Augmentation
from yolo_lightning.data.transforms.pixel_range import PixelRange
from yolo_lightning.utils.accelerator import uses_pinned_memory
from yolo_lightning.utils.host import worker_count
from yolo_lightning.utils.loop_position import epochs_trained, recount

RGB_CHANNELS = 3

SPLITS_OF_STAGE: dict[str, tuple[Split, ...]] = {
    "fit": ("train", "valid"),
    "validate": ("valid",),
    "test": ("test",),
    "predict": ("predict",),
}


class ValidationLoader(DataLoader[Sample]):
    """Loader whose workers do not start for the sanity check of a fit.

    Starting workers takes seconds, and the training starts its own right after the sanity check.
    """

    is_sanity_check: Callable[[], bool]

    def __iter__(self) -> Any:
        if not self.is_sanity_check():
            return super().__iter__()
        # An own generator: otherwise, the iterator draws from the global stream.
        return iter(
            DataLoader(
                self.dataset,
                batch_sampler=self.batch_sampler,
                collate_fn=self.collate_fn,
                pin_memory=self.pin_memory,
                generator=torch.Generator(),
            )
        )


class DetectionDataModule(LightningDataModule):
    """Frames and boxes of a dataset in its own format: LTDv2, COCO JSON, or a `data.yaml` of Ultralytics.

    Args:
        root: Dataset folder with frames and JSON files. If `format` is a `data.yaml`, replaces its `path`.
        format: `ltdv2` for LTDv2's official files, `coco` for COCO JSON, or the path of a `data.yaml` for images and
            label files in Ultralytics' layout.
        train_file: JSON file of the training split, relative to `root`.
        valid_file: JSON file of the validation split, relative to `root`; null uses `valid_share` instead.
        test_file: Labelled JSON file for `test`, relative to `root`; null uses Valid.json of LTDv2, otherwise the
            validation split.
        predict_file: JSON file of the frames for `predict`, relative to `root`; null uses TestNoLabels.json of LTDv2,
            otherwise the split of `test`.
        image_folders: Image folders of a COCO dataset, relative to `root`; empty searches the usual folders.
        channels: 1 for gray frames, 3 for RGB; null uses 1 for LTDv2, the value of a `data.yaml`, otherwise 3 unless
            all of some sampled images are gray.
        neighbours: Offsets of the frames of the same clip whose gray levels are the channels of an image, ascending
            and with 0 among them, such as `[-1, 0, 1]` for the previous, this and the next frame; `[]` or null: the
            frame itself. At the ends of a clip the edge frame is repeated. LTDv2 only.
        pixel_range: Mapping of frames with 16 bits to the 8 bits of the network; see docs/datasets.md.
        storage: Storage of LTDv2's frames: `packed`, `folder` (`frames`), `zip` (`frames.zip`), `auto` for the first of
            these that exists, or `litdata` for a store that may be in a bucket.
        store: Folder of the packed store, null for `packed` under `root`; or folder or URL of the litdata store.
        train_fraction: Fraction of each month's clips to train on, > 0 and <= 1. The subset consists of whole clips, at
            least one per month, is the same for every seed and is contained in every larger subset. Frames outside the
            subset need not be on the disk.
        valid_fraction: Fraction of each month's clips to validate on. `test` and `predict` always use the whole file.
        valid_share: Fraction of each month's clips of `train_file` that is used for validation instead of training,
            > 0 and < 1. Requires `valid_file: null`; replaces the `val` of a `data.yaml`. For datasets without clips
            (COCO, YOLO), fractions refer to images.
        index_root: Folder of the packed index; null uses `yolo_lightning` in the user's cache folder.
        image_size: Size of the network input, pixels, multiples of 32: the side of a square, or `[height, width]`.
        batch_size: Frames per batch and process.
        max_bad_frames: Number of missing or damaged frames that are left out with a warning; one more ends the run. A
            frame counts once, however often it is sampled.
        allow_unlabelled: Whether a split without any box may be used for training, validation or test.
        max_image_pixels: Maximum width x height of a frame according to its header, 1 to 178956970. A larger frame is
            not decoded and counts as a bad frame.
        allow_outside_root: Whether annotation files and image lists may name files outside of the dataset folder
            (absolute paths, `..`). Otherwise such a frame is not read.
        quarantine: Frames that are not read and not counted by `max_bad_frames`: `id=<image id>`, or `index=<position>`
            in the training split, from 0. `fit` adds frames at which its supervisor saw training fail repeatedly.
        seed: Seed of order and augmentation. The command line sets it from `seed_everything`.
        loader: Worker processes.
        image_cache_mib: Largest memory per loader process for decoded training frames, MiB; see docs/loader.md. It
            changes the speed only.
        augmentation: Strength of the training augmentation.
        sampling: Frames of each training epoch.

    Raises:
        ValueError: If a value is out of range. Errors in the data are raised by `setup`, before training starts.
    """

    def __init__(
        self,
        root: str | None = None,
        format: str = LTDV2,
        train_file: str = TRAIN_FILE,
        valid_file: str | None = VALID_FILE,
        test_file: str | None = None,
        predict_file: str | None = None,
        image_folders: tuple[str, ...] = (),
        channels: Channels | None = None,
        neighbours: tuple[int, ...] | None = (),
        pixel_range: PixelRange = PixelRange(),  # noqa: B008 - frozen
        storage: StorageKind = "auto",
        store: str | None = None,
        train_fraction: float = 1.0,
        valid_fraction: float = 1.0,
        valid_share: float | None = None,
        index_root: str | None = None,
        image_size: int | Sequence[int] = 640,
        batch_size: int = 16,
        max_bad_frames: int = 100,
        max_image_pixels: int = MAX_IMAGE_PIXELS,
        allow_outside_root: bool = False,
        allow_unlabelled: bool = False,
        quarantine: tuple[str, ...] = (),
        seed: int = 0,
        loader: LoaderSettings = LoaderSettings(),  # noqa: B008 - frozen
        image_cache_mib: int = 256,
        augmentation: Augmentation = Augmentation(),  # noqa: B008 - frozen
        sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__()
        self.image_size = ImageSize.of("data.image_size", image_size).check("data.image_size")
        limits = {"batch_size": (batch_size, 1), "image_cache_mib": (image_cache_mib, 0), "seed": (seed, 0)}
        for name, (value, least) in limits.items():
            if value < least:
                raise ValueError(f"data.{name} must be >= {least}, got {value}")
        if channels not in (None, *get_args(Channels)):
            raise ValueError(f"data.channels must be 1, 3 or null, got {channels}")
        self.index_root = Path(index_root).expanduser() if index_root else default_index_root()
        self.dataset_format = choose_format(
            format,
            None if root is None else Path(root).expanduser(),
            {"train": train_file, "valid": valid_file, "test": test_file, "predict": predict_file},
            tuple(image_folders),
            Shares(train_fraction, valid_fraction, valid_share),
            storage,
            store,
            self.index_root,
            FrameLimits(max_image_pixels, allow_outside_root, pixel_range.bits),
        )
        self.root = self.dataset_format.root
        if format == LTDV2 and channels == 3:
            raise ValueError("data.channels must be 1 or null for LTDv2, whose frames are gray, got 3")
        self.neighbours = check_neighbours(neighbours)
        if format != LTDV2 and self.neighbours:
            raise ValueError(
                f"data.neighbours must be [] with data.format {format}, whose images do not form clips, got "
                f"{list(self.neighbours)}"
            )
        self.channels: Channels | None = channels or self.dataset_format.channels
        self.pixel_range = pixel_range
        if pixel_range.mode is not None:
            if self.channels == 3:
                raise ValueError(
                    "data.channels must be 1 or null with data.pixel_range.mode (16-bit gray frames), got 3"
                )
            self.channels = 1
        if pixel_range.mode == "clip" and not self.is_ltdv2:
            raise ValueError(
                "data.pixel_range.mode must be fixed or frame unless data.format is ltdv2, because clips are unknown, "
                f"got clip with data.format {format}"
            )
        self.batch_size = batch_size
        self.seed = seed
        self.loader = loader
        self.image_cache_mib = image_cache_mib
        self.augmentation = augmentation
        self.sampling = sampling
        self.allow_unlabelled = allow_unlabelled
        check_quarantine(quarantine)
        self.quarantine = tuple(quarantine)
        self.bad_frames = BadFrames(max_bad_frames)
        self._splits: dict[Split, LabelledFrames] = {}
        self._order: SampledOrder

    def setup(self, stage: str) -> None:
        """Open the indexes that `stage` needs and check their frames.

        Raises:
            ValueError: If the dataset cannot be used; the message names file and record.
        """
        for split in SPLITS_OF_STAGE[stage]:
            if split in self._splits:
                continue
            frames = self.open(split)
            index = frames.index
            rank_zero_info(f"{split}: frames from {frames.storage}")
            if frames.neighbours is not None:
                rank_zero_info(f"{split}: {frames.neighbours.describe()}")
            frames.quarantined = quarantined_positions(self.quarantine, index, split)
            self.bad_frames.quarantined |= {index.file_name(place) for place in frames.quarantined}
            if frames.quarantined:
                names = [f"{index.image_id(place)} ({index.file_name(place)})" for place in sorted(frames.quarantined)]
                rank_zero_warn(f"{split}: left out because of data.quarantine: {', '.join(names)}")
            check_frames(index, frames.storage, self.bad_frames)
            if split != "predict" and not self.allow_unlabelled:
                check_labels(index, frames.quarantined, self.dataset_format.origin(split))
            self._splits[split] = frames
            rank_zero_info(
                f"{split}: {self.dataset_format.name(split)} ({index.counts.describe()}): {describe_split(index)}"
            )
            for note in index.notes:
                rank_zero_info(f"{split}: {note}")
        if stage == "fit":
            self._order = SampledOrder(self.index("train"), self.sampling, self.seed)
            rank_zero_info(f"train: {self._order.describe()}")
            if self.augmentation.paste.probability:
                objects = paste_candidates(self.index("train"), self.augmentation.paste.classes)
                rank_zero_info(f"train: {objects.describe()}")
            batches = self._batches()
            if batches.size > self._order.length:
                times = f" x {batches.processes} processes" if batches.processes > 1 else ""
                raise ValueError(
                    f"data.batch_size must be at most the {self._order.length} frames of an epoch of "
                    f"{self.dataset_format.name('train')}, got {self.batch_size}{times}"
                )

    def open(self, split: Split, storage: StorageKind | None = None) -> LabelledFrames:
        """Return a split with its frames, unchecked; `storage` None uses `data.storage`."""
        opened = self.dataset_format.open_storage(split, self.channels or 3, storage)
        index = self.dataset_format.open_index(split)
        if self.channels is None:
            self.channels = needed_channels(index, opened)
            opened = self.dataset_format.open_storage(split, self.channels, storage)
        neighbours = Neighbours.find(index, opened, self.neighbours) if self.neighbours else None
        by_clip = self.pixel_range.mode == "clip"
        ranges = clip_ranges(index, opened, self.pixel_range, self.index_root) if by_clip else None
        return LabelledFrames(index, opened, self.channels, neighbours, self.pixel_range, ranges)

    @property
    def input_channels(self) -> int:
        """Channels of the network's input; the command line passes them to the model.

        A network for RGB also accepts gray frames without neighbours.
        """
        return len(self.neighbours) or RGB_CHANNELS

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, index 0 first; the command line passes them to the model."""
        return self.dataset_format.class_names

    @property
    def category_ids(self) -> tuple[int, ...]:
        """Number of each class in the dataset's own files, index 0 first."""
        return self.dataset_format.category_ids

    @property
    def is_ltdv2(self) -> bool:
        """Whether the dataset is LTDv2, for which `predict` writes a challenge submission."""
        return isinstance(self.dataset_format, LTDv2Format)

    def index(self, split: Split) -> SplitIndex:
        """Return the index of a split that `setup` has opened."""
        return self._splits[split].index

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
        return TrainingFacts(self.batch_size, self.seed, counts_of, self.image_size, self.neighbours, self.pixel_range)

    def train_dataloader(self) -> ResumableLoader:
        """Return augmented batches in an order that depends on (seed, epoch) only; the position is resumable."""
        assert self.trainer is not None
        processes = max(1, worker_count(self.loader.num_workers)) * self.trainer.world_size
        has_mixup = self.augmentation.mixup > 0
        wanted = frames_to_cache(self._order.length, processes, self.batch_size, has_mixup=has_mixup)
        frames = self._splits["train"].cached(self.image_cache_mib, wanted)
        keys = EpochBatchSampler(
            self._order, self.batch_size, self.trainer.global_rank, self.trainer.world_size, has_mixup=has_mixup
        )
        keys.epoch = epochs_trained(self.trainer)  # Lightning restores no loader state at the end of an epoch
        mosaic_epochs = max(0, (self.trainer.max_epochs or 0) - self.augmentation.close_mosaic_epochs)
        arguments = self._loader_arguments(persistent=True)
        rank_zero_info(f"train loader: batch {self.batch_size}, {describe(arguments)}, {frames.describe_cache()}")
        return ResumableLoader(
            TrainingDataset(frames, self.image_size, self.augmentation, mosaic_epochs, self.seed),
            keys,
            collate,
            epoch_batches=limited(len(keys), self.trainer.limit_train_batches),
            repositioned=partial(recount, self.trainer),
            **arguments,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the fingerprint of the training data for a checkpoint."""
        return {"train_fingerprint": self.index("train").fingerprint}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that the training data is that of the checkpoint, so that the position in its order is valid.

        Raises:
            ValueError: If the content of the training split has changed.
        """
        saved = state_dict["train_fingerprint"]
        if "train" in self._splits and self.index("train").fingerprint != saved:
            raise ValueError(
                f"the checkpoint was made on other training data (fingerprint {saved}, now "
                f"{self.index('train').fingerprint}): resume with the same {self.dataset_format.name('train')}, "
                "data.train_fraction and data.valid_share, or start a new run from its weights with --model.weights"
            )

    def val_dataloader(self) -> ValidationLoader:
        assert self.trainer is not None
        trainer = self.trainer
        loader = self._evaluation_loader("valid", ValidationLoader)
        assert isinstance(loader, ValidationLoader)
        loader.is_sanity_check = lambda: trainer.sanity_checking
        return loader

    def test_dataloader(self) -> DataLoader[Sample]:
        return self._evaluation_loader("test")

    def predict_dataloader(self) -> DataLoader[Sample]:
        return self._evaluation_loader("predict")

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Warn about each frame of the batch that could not be used; raise an error if there are too many."""
        self.bad_frames.add(batch.bad_frames)
        return batch

    def _evaluation_loader(self, split: Split, kind: type[DataLoader[Sample]] = DataLoader) -> DataLoader[Sample]:
        frames = self._splits[split].cached_in_order(self.image_cache_mib)
        return kind(
            EvaluationDataset(frames, self.image_size),
            batch_sampler=FileOrderBatches(len(frames), self._batches()),
            collate_fn=collate,
            **self._loader_arguments(persistent=False),
        )

    def _batches(self) -> GlobalBatches:
        if self.trainer is None:
            return GlobalBatches(self.batch_size)
        return GlobalBatches(self.batch_size, self.trainer.global_rank, self.trainer.world_size)

    def _loader_arguments(self, *, persistent: bool) -> dict[str, Any]:
        assert self.trainer is not None
        on_gpu = uses_pinned_memory(self.trainer.strategy.root_device)
        # Without a generator of its own, each iterator of a loader draws from the global stream.
        generator = torch.Generator().manual_seed(self.seed)
        return {"generator": generator, **self.loader.arguments(on_gpu=on_gpu, persistent=persistent)}
