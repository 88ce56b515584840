"""Datasets whose annotations are one JSON file per split: LTDv2 in its own layout, and plain COCO."""

from dataclasses import dataclass
from pathlib import Path

from yolo_lightning.data.formats.coco import image_folder, read_coco
from yolo_lightning.data.formats.ltdv2 import CATEGORY_IDS, CLASS_NAMES
from yolo_lightning.data.index.annotation_index import SplitIndex, open_index
from yolo_lightning.data.index.splits import Shares, Split
from yolo_lightning.data.storage.choose_storage import FrameStorage, open_frames
from yolo_lightning.data.storage.frames import Channels, FrameSource, ImageFiles


@dataclass(frozen=True)
class SplitFiles:
    """The annotation files of the splits, relative to the dataset root.

    Attributes:
        train: Of the training split.
        valid: Of the validation split; None takes a share of the training split.
        test: Of the split that `test` scores; None takes validation.
        predict: Of the frames that `predict` answers for; None takes those of `test`.
    """

    train: str
    valid: str | None
    test: str | None
    predict: str | None

    def meant(self, split: Split) -> Split:
        """The split that stands in for `split` where that has no file of its own."""
        if split == "predict" and self.predict is None:
            split = "test"
        return "valid" if split == "test" and self.test is None else split

    def name(self, split: Split) -> str:
        """The file that `split` is taken from."""
        files = {"train": self.train, "valid": self.valid, "test": self.test, "predict": self.predict}
        return files[self.meant(split)] or self.train

    def origin(self, split: Split) -> str:
        """The option that names the file that `split` is taken from, and the file."""
        meant = self.meant(split)
        option = "train" if meant == "valid" and self.valid is None else meant
        return f"data.{option}_file {self.name(split)}"


class LTDv2Source:
    """LTDv2's JSON files, and its gray frames wherever they are stored.

    Args:
        root: Dataset folder.
        files: The JSON files.
        shares: What of them is used.
        storage: See `open_frames`.
        store: See `open_frames`.
        index_root: Where packed indexes are kept.
    """

    class_names = CLASS_NAMES
    category_ids = CATEGORY_IDS
    channels: Channels | None = 1
    storages: tuple[FrameStorage, ...] = ("packed", "folder", "zip")

    def __init__(
        self, root: Path, files: SplitFiles, shares: Shares, storage: FrameStorage, store: str | None, index_root: Path
    ) -> None:
        self.root = root
        self.files = files
        self.shares = shares
        self.storage = storage
        self.store = store
        self.index_root = index_root

    def name(self, split: Split) -> str:
        """See `DataSource`."""
        return self.files.name(split)

    def origin(self, split: Split) -> str:
        """See `DataSource`."""
        return self.files.origin(split)

    def open(self, split: Split) -> SplitIndex:
        """See `DataSource`."""
        return self.shares.part(split, open_index(self.root / self.name(split), self.index_root))

    def frames(self, split: Split, channels: Channels, storage: FrameStorage | None = None) -> FrameSource:
        """See `DataSource`."""
        assert channels == 1
        return open_frames(self.root, storage or self.storage, index_root=self.index_root, store=self.store)


class CocoSource:
    """Plain COCO JSON files, and images in folders.

    The classes are those of the training file or, where that is absent, of the validation file; the others must agree.

    Args:
        root: Dataset folder.
        files: The JSON files.
        shares: What of them is used.
        folders: Where the images may be, relative to `root`; empty looks in the usual places.
        index_root: Where packed indexes are kept.
    """

    channels: Channels | None = None
    storages: tuple[FrameStorage, ...] = ("folder",)

    def __init__(
        self, root: Path, files: SplitFiles, shares: Shares, folders: tuple[str, ...], index_root: Path
    ) -> None:
        self.root = root
        self.files = files
        self.shares = shares
        self.folders = folders
        self.index_root = index_root

    @property
    def class_names(self) -> tuple[str, ...]:
        """See `DataSource`."""
        return self._reference().class_names

    @property
    def category_ids(self) -> tuple[int, ...]:
        """See `DataSource`."""
        return self._reference().category_ids

    def name(self, split: Split) -> str:
        """See `DataSource`."""
        return self.files.name(split)

    def origin(self, split: Split) -> str:
        """See `DataSource`."""
        return self.files.origin(split)

    def open(self, split: Split) -> SplitIndex:
        """See `DataSource`."""
        index, reference = self._whole(split), self._reference()
        own, expected = (dict(zip(one.category_ids, one.class_names, strict=True)) for one in (index, reference))
        if own != expected:
            identifier = min(
                number for number in own.keys() | expected.keys() if own.get(number) != expected.get(number)
            )
            raise ValueError(
                f"{self.root / self.name(split)}: category {identifier} is {own.get(identifier, 'absent')!r}, in "
                f"{self.name('train')} it is {expected.get(identifier, 'absent')!r}: allowed are the same categories"
            )
        return self.shares.part(self.files.meant(split) if self.files.valid is None else split, index)

    def frames(self, split: Split, channels: Channels, storage: FrameStorage | None = None) -> FrameSource:
        """See `DataSource`."""
        names = self._whole(split).file_names()
        return ImageFiles(image_folder(self.root / self.name(split), self.root, self.folders, names), channels)

    def _whole(self, split: Split) -> SplitIndex:
        return open_index(self.root / self.name(split), self.index_root, read_coco)

    def _reference(self) -> SplitIndex:
        return self._whole("train" if (self.root / self.name("train")).is_file() else "valid")
