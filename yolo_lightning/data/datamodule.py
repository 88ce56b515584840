"""Owns the loaders: which frames, in which order, by which worker processes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info
from torch.utils.data import DataLoader

from yolo_lightning.batch import Batch, Sample, collate
from yolo_lightning.data.augmentation import Augmentation
from yolo_lightning.data.checks import BadFrames, check_frames
from yolo_lightning.data.dataset import EvaluationDataset, LabelledFrames, TrainingDataset
from yolo_lightning.data.frame_sources import FrameStorage, open_frames
from yolo_lightning.data.index import SplitIndex, default_index_root
from yolo_lightning.data.loader import LoaderSettings, describe
from yolo_lightning.data.ltdv2 import CLASS_NAMES
from yolo_lightning.data.sampler import EpochBatchSampler, ResumableLoader, limited
from yolo_lightning.data.sampling import SampledOrder, Sampling
from yolo_lightning.data.splits import Split, SplitFiles, describe_split, frame_table

STRIDE = 32
"""Pixels. The coarsest stride of YOLOv8; the input side must be a multiple of it."""


class LTDv2DataModule(LightningDataModule):
    """LTDv2's frames and boxes, read from the official JSON files and frames as they are.

    Args:
        root: Dataset folder that holds the frames and the JSON files.
        train_file: Annotation file of the training split, relative to `root`.
        valid_file: Annotation file of the validation split, relative to `root`; null holds out `valid_share`.
        test_file: Labelled annotation file that `test` scores, relative to `root`.
        predict_file: Annotation file of the frames that `predict` answers for, relative to `root`.
        frames: Where the frames lie: a packed store, the folder `frames` or `frames.zip`, in this order for `auto`; or
            `litdata`, a store that may lie in a bucket.
        store: Folder of the packed store, null takes `packed` under `root`; or folder or address of the litdata store.
        train_subset: Share of each month's clips to train on, above 0 to 1. It is the same for every seed, whole clips,
            at least one of each month, and a part of any larger subset. What lies outside need not be on the disk.
        valid_subset: The same for validation. `test` and `predict` always take the whole file.
        valid_share: Share of each month's clips of `train_file` to validate on instead of training on them, between 0
            and 1. For data without a `valid_file`, which must then be null.
        index_root: Folder of the packed index; null takes `yolo_lightning` in the user's cache folder.
        image_size: Side of the square network input, pixels, a multiple of 32.
        batch_size: Frames per batch and process.
        max_bad_frames: So many missing or damaged frames are left out with a warning; one more ends the run. A frame
            counts once, however often it is sampled.
        seed: Seed of order and augmentation. The command line sets it from `seed_everything`.
        loader: Worker processes.
        augmentation: Strength of the training augmentation.
        sampling: Which frames of the training split an epoch holds.

    Raises:
        ValueError: If a value is out of range. Data problems are raised by `setup`, before training starts.
    """

    class_names: tuple[str, ...] = CLASS_NAMES

    def __init__(
        self,
        root: str,
        train_file: str = "Train.json",
        valid_file: str | None = "Valid.json",
        test_file: str = "Valid.json",
        predict_file: str = "TestNoLabels.json",
        frames: FrameStorage = "auto",
        store: str | None = None,
        train_subset: float = 1.0,
        valid_subset: float = 1.0,
        valid_share: float | None = None,
        index_root: str | None = None,
        image_size: int = 640,
        batch_size: int = 16,
        max_bad_frames: int = 100,
        seed: int = 0,
        loader: LoaderSettings = LoaderSettings(),  # noqa: B008 - frozen
        augmentation: Augmentation = Augmentation(),  # noqa: B008 - frozen
        sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__()
        if image_size < STRIDE or image_size % STRIDE:
            raise ValueError(f"data.image_size is {image_size}, allowed are multiples of {STRIDE}")
        if batch_size < 1:
            raise ValueError(f"data.batch_size is {batch_size}, allowed are 1 and more")
        if seed < 0:
            raise ValueError(f"data.seed is {seed}, allowed are 0 and more")
        self.root = Path(root).expanduser()
        self.files = SplitFiles(
            train_file, valid_file, test_file, predict_file, train_subset, valid_subset, valid_share
        )
        self.frames = frames
        self.store = store
        self.index_root = Path(index_root).expanduser() if index_root else default_index_root()
        self.image_size = image_size
        self.batch_size = batch_size
        self.seed = seed
        self.loader = loader
        self.augmentation = augmentation
        self.sampling = sampling
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
        source = open_frames(self.root, self.frames, index_root=self.index_root, store=self.store)
        rank_zero_info(f"frames: {source}")
        for split in needed[stage]:
            if split in self._splits:
                continue
            index = self.files.open(split, self.root, self.index_root)
            check_frames(index, source, self.bad_frames)
            self._splits[split] = LabelledFrames(index, source)
            rank_zero_info(f"{split}: {self.files.name(split)} ({index.counts.describe()}): {describe_split(index)}")
        if stage == "fit":
            order = SampledOrder(frame_table(self.index("train")), self.sampling, self.seed)
            rank_zero_info(f"train: {order.describe()}")
            if self.batch_size > order.length:
                raise ValueError(
                    f"data.batch_size is {self.batch_size}, more than the {order.length} frames of an epoch "
                    f"of {self.files.train}"
                )
            self._order = order

    def index(self, split: Split) -> SplitIndex:
        """The opened index of a split."""
        return self._splits[split].index

    @property
    def predict_image_ids(self) -> list[str]:
        """Ids that a submission must answer for, in file order."""
        return self.index("predict").image_ids()

    def train_dataloader(self) -> ResumableLoader:
        """Augmented batches in an order that depends on (seed, epoch) alone; resumes where it was saved."""
        assert self.trainer is not None
        frames = self._splits["train"]
        keys = EpochBatchSampler(self._order, self.batch_size)
        mosaic_epochs = max(0, (self.trainer.max_epochs or 0) - self.augmentation.close_mosaic_epochs)
        # A run resumed at an epoch's end restores no loader state, and current_epoch still names the old epoch here.
        keys.epoch = self.trainer.fit_loop.epoch_progress.current.processed  # type: ignore[attr-defined]
        arguments = self._loader_arguments(persistent=True)
        rank_zero_info(f"train loader: batch {self.batch_size}, " + describe(arguments))
        return ResumableLoader(
            TrainingDataset(frames, self.image_size, self.augmentation, mosaic_epochs, self.seed),
            keys,
            collate,
            epoch_batches=limited(len(keys), self.trainer.limit_train_batches),
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
                f"{self.index('train').fingerprint}): resume with the same {self.files.train}, data.train_subset "
                "and data.valid_share, or start a new run from its weights with --model.weights"
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
        return DataLoader(
            EvaluationDataset(self._splits[split], self.image_size),
            batch_size=self.batch_size,
            collate_fn=collate,
            generator=self._generator(),
            **self._loader_arguments(persistent=False),
        )

    def _loader_arguments(self, *, persistent: bool) -> dict[str, Any]:
        assert self.trainer is not None
        on_gpu = self.trainer.strategy.root_device.type == "cuda"
        return self.loader.arguments(on_gpu=on_gpu, persistent=persistent)

    def _generator(self) -> torch.Generator:
        """A generator of the loader's own: an iterator without one draws from the global stream when it is made."""
        return torch.Generator().manual_seed(self.seed)
