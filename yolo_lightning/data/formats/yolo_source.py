"""Datasets that a `data.yaml` describes."""

from pathlib import Path

from lightning.pytorch.utilities import rank_zero_info

from yolo_lightning.data.formats.yolo import YoloSplit
from yolo_lightning.data.formats.yolo_description import Key, read_description
from yolo_lightning.data.index.annotation_index import SplitIndex, open_packed
from yolo_lightning.data.index.splits import Shares, Split
from yolo_lightning.data.storage.choose_storage import FrameStorage
from yolo_lightning.data.storage.frames import Channels, FrameSource, ImageFiles


class YoloSource:
    """Images and label files that a `data.yaml` names.

    Args:
        file: The `data.yaml`, or a folder that holds one.
        root: Takes the place of the file's `path`; None takes what the file says.
        shares: What of the splits is used; a share held out for validation takes the place of `val`.
        index_root: Where packed indexes are kept.

    Raises:
        ValueError: If the file cannot be used.
    """

    storages: tuple[FrameStorage, ...] = ("folder",)

    def __init__(self, file: Path, root: Path | None, shares: Shares, index_root: Path) -> None:
        self.description = read_description(file, root)
        if self.description.download:
            rank_zero_info(f"{self.description.file}: 'download' is passed over, nothing is downloaded")
        self.root = self.description.root
        self.shares = shares
        self.index_root = index_root

    @property
    def class_names(self) -> tuple[str, ...]:
        """See `DataSource`."""
        return self.description.class_names

    @property
    def category_ids(self) -> tuple[int, ...]:
        """See `DataSource`."""
        return tuple(range(len(self.class_names)))

    @property
    def channels(self) -> Channels | None:
        """See `DataSource`."""
        return self.description.channels

    def name(self, split: Split) -> str:
        """See `DataSource`."""
        return f"{self.description.file.name} {self._key(split)}"

    def origin(self, split: Split) -> str:
        """See `DataSource`."""
        return f"data.format {self.description.file} '{self._key(split)}'"

    def open(self, split: Split) -> SplitIndex:
        """See `DataSource`."""
        key = self._key(split)
        images = YoloSplit(self.description, key)
        index = open_packed(f"{self.description.file.stem}-{key}", images.state, images.read, self.index_root)
        part: Split = "valid" if split in ("test", "predict") and key == "train" else split
        return self.shares.part(part, index)

    def frames(self, split: Split, channels: Channels, storage: FrameStorage | None = None) -> FrameSource:
        """See `DataSource`."""
        return ImageFiles(self.description.root, channels)

    def _key(self, split: Split) -> Key:
        """The key of the `data.yaml` that a split is taken from.

        Raises:
            ValueError: If it is not there.
        """
        named = self.description.entries
        valid: Key = "val" if self.shares.valid_share is None else "train"
        keys: dict[Split, Key] = {"train": "train", "valid": valid}
        key = keys.get(split, "test" if "test" in named else valid)
        if key not in named:
            hint = "; data.valid_share holds out a part of 'train'" if key == "val" else ""
            raise ValueError(f"{self.description.file} names no '{key}', which is needed here{hint}")
        return key
