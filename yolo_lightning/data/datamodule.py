"""Owns the loaders: which frames, in which order, by which worker processes."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.utils.data import DataLoader

from yolo_lightning.data.batch import Batch, Sample, TrainingFacts, collate
from yolo_lightning.data.boxes import check_image_size
from yolo_lightning.data.dataset import EvaluationDataset, LabelledFrames, TrainingDataset
from yolo_lightning.data.formats.dataset_format import LTDV2, TRAIN_FILE, VALID_FILE, choose_source
from yolo_lightning.data.formats.frame_checks import BadFrames, check_frames, check_labels, needed_channels
from yolo_lightning.data.formats.json_sources import LTDv2Source
from yolo_lightning.data.formats.quarantine import check_names, places
from yolo_lightning.data.index.annotation_index import SplitIndex, default_index_root
from yolo_lightning.data.index.splits import Shares, Split, describe_split, frame_table
from yolo_lightning.data.loader import LoaderSettings, describe
from yolo_lightning.data.sampling.global_batches import FileOrderBatches, GlobalBatches
from yolo_lightning.data.sampling.sampler import EpochBatchSampler, ResumableLoader, limited
from yolo_lightning.data.sampling.sampling_rules import SampledOrder, Sampling
from yolo_lightning.data.storage.choose_storage import FrameStorage
from yolo_lightning.data.storage.frames import Channels
from yolo_lightning.data.storage.image_cache import kept_decoded
from yolo_lightning.data.transforms.augmentation_settings import Augmentation
from yolo_lightning.utils.loop_position import epochs_trained, recount


class DetectionDataModule(LightningDataModule):
    """Frames and boxes of a dataset, read as they are: LTDv2, COCO JSON, or the `data.yaml` of a YOLO dataset.

    Args:
        root: Dataset folder that holds the frames and the JSON files. With a `data.yaml` it takes the place of `path`
            there, where it is given.
        format: `ltdv2` reads LTDv2's official files, `coco` plain COCO JSON, and the path of a `data.yaml` images and
            label files in the layout of Ultralytics.
        train_file: JSON file of the training split, relative to `root`.
        valid_file: JSON file of the validation split, relative to `root`; null holds out `valid_share`.
        test_file: Labelled JSON file that `test` scores, relative to `root`; null takes Valid.json of LTDv2, else
            validation.
        predict_file: JSON file of the frames that `predict` answers for, relative to `root`; null takes
            TestNoLabels.json of LTDv2, else what `test` scores.
        image_folders: Where the images of a COCO dataset are looked for, relative to `root`; empty tries the usual
            places.
        channels: 1 reads gray frames, 3 RGB; null takes 1 for LTDv2, what a `data.yaml` says, else 3 unless a sample of
            the images is gray throughout.
        storage: Where the frames of LTDv2 lie: a packed store, the folder `frames` or `frames.zip`, in this order for
            `auto`; or `litdata`, a store that may lie in a bucket.
        store: Folder of the packed store, null takes `packed` under `root`; or folder or address of the litdata store.
        train_fraction: Fraction of each month's clips to train on, > 0 and <= 1. The subset consists of whole clips, at
            least one per month, is the same for every seed and is contained in every larger subset. Frames outside the
            subset need not be on the disk.
        valid_fraction: Fraction of each month's clips to validate on. `test` and `predict` always use the whole file.
        valid_share: Share of each month's clips of `train_file` to validate on instead of training on them, between 0
            and 1. For data without a `valid_file`, which must then be null; with a `data.yaml` instead of its `val`.
            Where no clips are known, as in COCO JSON and YOLO datasets, shares are of the images.
        index_root: Folder of the packed index; null takes `yolo_lightning` in the user's cache folder.
        image_size: Side of the square network input, pixels, a multiple of 32.
        batch_size: Frames per batch and process.
        max_bad_frames: So many missing or damaged frames are left out with a warning; one more ends the run. A frame
            counts once, however often it is sampled.
        allow_unlabelled: Whether a split may be trained on or scored though none of its frames in use has a box.
        quarantine: Frames that are not read, and count as bad without limit: `id=<image id>`, or `index=<place>` in the
            training split, from 0. `fit` adds those at which its supervisor saw training end again and again.
        seed: Seed of order and augmentation. The command line sets it from `seed_everything`.
        loader: Worker processes.
        image_cache_mib: Memory of each process for decoded training frames, MiB. Where all of them fit, none is
            decoded twice; else none is kept.
        augmentation: Strength of the training augmentation.
        sampling: Which frames of the training split an epoch holds.

    Raises:
        ValueError: If a value is out of range. Data problems are raised by `setup`, before training starts.
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
        storage: FrameStorage = "auto",
        store: str | None = None,
        train_fraction: float = 1.0,
        valid_fraction: float = 1.0,
        valid_share: float | None = None,
        index_root: str | None = None,
        image_size: int = 640,
        batch_size: int = 16,
        max_bad_frames: int = 100,
        allow_unlabelled: bool = False,
        quarantine: tuple[str, ...] = (),
        seed: int = 0,
        loader: LoaderSettings = LoaderSettings(),  # noqa: B008 - frozen
        image_cache_mib: int = 256,
        augmentation: Augmentation = Augmentation(),  # noqa: B008 - frozen
        sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__()
        check_image_size("data.image_size", image_size)
        if batch_size < 1:
            raise ValueError(f"data.batch_size is {batch_size}, allowed are 1 and more")
        if image_cache_mib < 0:
            raise ValueError(f"data.image_cache_mib is {image_cache_mib}, allowed are 0 and more")
        if seed < 0:
            raise ValueError(f"data.seed is {seed}, allowed are 0 and more")
        if channels not in (None, *get_args(Channels)):
            raise ValueError(f"data.channels is {channels}, allowed are 1, 3 and null")
        self.storage = storage
        self.store = store
        self.index_root = Path(index_root).expanduser() if index_root else default_index_root()
        self.source = choose_source(
            format,
            None if root is None else Path(root).expanduser(),
            train_file,
            valid_file,
            test_file,
            predict_file,
            tuple(image_folders),
            Shares(train_fraction, valid_fraction, valid_share),
            storage,
            store,
            self.index_root,
        )
        self.root = self.source.root
        if format == LTDV2 and channels == 3:
            raise ValueError("data.channels is 3, but the frames of LTDv2 are gray: allowed are 1 and null")
        self.channels: Channels | None = channels or self.source.channels
        self.image_size = image_size
        self.batch_size = batch_size
        self.seed = seed
        self.loader = loader
        self.image_cache_mib = image_cache_mib
        self.augmentation = augmentation
        self.sampling = sampling
        self.allow_unlabelled = allow_unlabelled
        check_names(quarantine)
        self.quarantine = tuple(quarantine)
        self.bad_frames = BadFrames(max_bad_frames)
        self._splits: dict[Split, LabelledFrames] = {}
        self._order: SampledOrder

    def setup(self, stage: str) -> None:
        """Open the indexes that `stage` needs and check the frames behind them.

        Raises:
            ValueError: If the dataset cannot be used; the message names file and record.
        """
        needed: dict[str, Sequence[Split]] = {
            "fit": ("train", "valid"),
            "validate": ("valid",),
            "test": ("test",),
            "predict": ("predict",),
        }
        for split in needed[stage]:
            if split in self._splits:
                continue
            frames = self.open(split)
            index = frames.index
            rank_zero_info(f"{split} frames: {frames.source}")
            self._set_aside(split, frames)
            check_frames(index, frames.source, self.bad_frames)
            if split != "predict" and not self.allow_unlabelled:
                check_labels(index, frames.quarantined, self.source.origin(split))
            self._splits[split] = frames
            rank_zero_info(f"{split}: {self.source.name(split)} ({index.counts.describe()}): {describe_split(index)}")
            for note in index.notes:
                rank_zero_info(f"{split}: {note}")
        if stage == "fit":
            order = SampledOrder(frame_table(self.index("train")), self.sampling, self.seed)
            rank_zero_info(f"train: {order.describe()}")
            global_batch = self._deal().size
            if global_batch > order.length:
                times = f" times {self._deal().processes} processes" if self._deal().processes > 1 else ""
                raise ValueError(
                    f"data.batch_size is {self.batch_size}{times}, more than the {order.length} frames of an epoch "
                    f"of {self.source.name('train')}"
                )
            self._order = order

    def _set_aside(self, split: Split, frames: LabelledFrames) -> None:
        index = frames.index
        frames.quarantined = places(self.quarantine, index, split)
        self.bad_frames.quarantined |= {index.file_name(place) for place in frames.quarantined}
        if frames.quarantined:
            listed = [f"{index.image_id(place)} ({index.file_name(place)})" for place in sorted(frames.quarantined)]
            rank_zero_warn(f"{split}: left out, in quarantine (data.quarantine): {', '.join(listed)}")

    def open(self, split: Split, storage: FrameStorage | None = None) -> LabelledFrames:
        """A split with its frames, before `setup` has checked them.

        Args:
            split: Which of them.
            storage: Where its frames are read from; None takes the configured one.

        Raises:
            ValueError: If the dataset cannot be used.
        """
        source = self.source.frames(split, self.channels or 3, storage)
        index = self.source.open(split)
        if self.channels is None:
            self.channels = needed_channels(index, source)
            source = self.source.frames(split, self.channels, storage)
        return LabelledFrames(index, source, self.channels)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, index 0 first; the command line gives them to the model."""
        return self.source.class_names

    @property
    def category_ids(self) -> tuple[int, ...]:
        """Number of each class in the dataset's own files, index 0 first."""
        return self.source.category_ids

    @property
    def is_ltdv2(self) -> bool:
        """Whether the dataset is LTDv2, whose challenge has an answer form of its own."""
        return isinstance(self.source, LTDv2Source)

    def index(self, split: Split) -> SplitIndex:
        """The opened index of a split."""
        return self._splits[split].index

    @property
    def predict_image_ids(self) -> list[str]:
        """Ids of the images to predict, in file order; a submission must answer for each."""
        return self.index("predict").image_ids()

    @property
    def predict_original_ids(self) -> list[int | str]:
        """Ids of the images to predict as the dataset's file has them, numbers or text, in file order."""
        index = self.index("predict")
        flags = index.text_ids().tolist()
        return [text if is_text else int(text) for text, is_text in zip(index.image_ids(), flags, strict=True)]

    def training_facts(self) -> TrainingFacts:
        """Return the facts about the training split that the model needs; call it after `setup`."""
        counts = np.bincount(self.index("train").all_labels(), minlength=len(self.class_names))
        return TrainingFacts(self.batch_size, self.seed, tuple(counts.tolist()))

    def train_dataloader(self) -> ResumableLoader:
        """Augmented batches in an order that depends on (seed, epoch) alone; resumes where it was saved."""
        assert self.trainer is not None
        frames = kept_decoded(self._splits["train"], self.image_cache_mib)
        keys = EpochBatchSampler(self._order, self.batch_size, self.trainer.global_rank, self.trainer.world_size)
        keys.epoch = epochs_trained(self.trainer)  # Lightning restores no loader state at the end of an epoch
        mosaic_epochs = max(0, (self.trainer.max_epochs or 0) - self.augmentation.close_mosaic_epochs)
        arguments = self._loader_arguments(persistent=True)
        kept = "; frames stay decoded in memory" if frames is not self._splits["train"] else ""
        rank_zero_info(f"train loader: batch {self.batch_size}, {describe(arguments)}{kept}")
        return ResumableLoader(
            TrainingDataset(frames, self.image_size, self.augmentation, mosaic_epochs, self.seed),
            keys,
            collate,
            epoch_batches=limited(len(keys), self.trainer.limit_train_batches),
            repositioned=partial(recount, self.trainer),
            generator=self._generator(),
            **arguments,
        )

    def state_dict(self) -> dict[str, Any]:
        """Identifies the training data in a checkpoint."""
        return {"train_fingerprint": self.index("train").fingerprint}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse to continue on other training data: the position in their order would mean nothing.

        Raises:
            ValueError: If the training split's content has changed.
        """
        saved = state_dict["train_fingerprint"]
        if "train" in self._splits and self.index("train").fingerprint != saved:
            raise ValueError(
                f"the checkpoint was made on other training data (fingerprint {saved}, now "
                f"{self.index('train').fingerprint}): resume with the same {self.source.name('train')}, "
                "data.train_fraction and data.valid_share, or start a new run from its weights with --model.weights"
            )

    def val_dataloader(self) -> DataLoader[Sample]:
        """Letterboxed validation batches in file order."""
        return self._evaluation_loader("valid")

    def test_dataloader(self) -> DataLoader[Sample]:
        """Letterboxed test batches in file order."""
        return self._evaluation_loader("test")

    def predict_dataloader(self) -> DataLoader[Sample]:
        """Letterboxed batches of the frames to predict, in file order."""
        return self._evaluation_loader("predict")

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Name the frames that could not be used, once each, and end the run when there are too many."""
        self.bad_frames.add(batch.bad_frames)
        return batch

    def _evaluation_loader(self, split: Split) -> DataLoader[Sample]:
        frames = self._splits[split]
        return DataLoader(
            EvaluationDataset(frames, self.image_size),
            batch_sampler=FileOrderBatches(len(frames), self._deal()),
            collate_fn=collate,
            generator=self._generator(),
            **self._loader_arguments(persistent=False),
        )

    def _deal(self) -> GlobalBatches:
        """How frames are dealt to the processes of this run."""
        if self.trainer is None:
            return GlobalBatches(self.batch_size)
        return GlobalBatches(self.batch_size, self.trainer.global_rank, self.trainer.world_size)

    def _loader_arguments(self, *, persistent: bool) -> dict[str, Any]:
        assert self.trainer is not None
        on_gpu = self.trainer.strategy.root_device.type == "cuda"
        return self.loader.arguments(on_gpu=on_gpu, persistent=persistent)

    def _generator(self) -> torch.Generator:
        """A generator of the loader's own: an iterator without one draws from the global stream when it is made."""
        return torch.Generator().manual_seed(self.seed)
