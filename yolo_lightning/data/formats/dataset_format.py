"""Dataset formats: LTDv2's layout, plain COCO JSON, or a `data.yaml` with YOLO labels."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from yolo_lightning.data.formats.coco import image_folder, read_coco
from yolo_lightning.data.formats.ltdv2 import CATEGORY_IDS, CLASS_NAMES
from yolo_lightning.data.formats.yolo import YoloFormat
from yolo_lightning.data.index.annotation_index import SplitIndex, open_index
from yolo_lightning.data.index.splits import Shares, Split
from yolo_lightning.data.storage.choose_storage import StorageKind, open_frames
from yolo_lightning.data.storage.frames import Channels, ImageFiles, Storage

LTDV2, COCO = "ltdv2", "coco"
TRAIN_FILE, VALID_FILE, PREDICT_FILE = "Train.json", "Valid.json", "TestNoLabels.json"
"""Names of LTDv2's official annotation files."""


class DatasetFormat(Protocol):
    """Classes of a dataset, and the annotations and the storage of each split."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Class names, index 0 first."""
        ...

    @property
    def category_ids(self) -> tuple[int, ...]:
        """Number of each class in the dataset's own files, index 0 first."""
        ...

    @property
    def root(self) -> Path:
        """Dataset folder."""
        ...

    @property
    def storages(self) -> tuple[StorageKind, ...]:
        """Supported storages, the fastest first."""
        ...

    @property
    def channels(self) -> Channels | None:
        """Number of channels of the frames, if the dataset defines it."""
        ...

    def name(self, split: Split) -> str:
        """Return the file or key that `split` is read from, for messages."""
        ...

    def origin(self, split: Split) -> str:
        """Return the option that names the annotations of `split`, and its value."""
        ...

    def open_index(self, split: Split) -> SplitIndex:
        """Return the packed index of `split`.

        Raises:
            ValueError: If the annotations cannot be used; the message names file and record.
        """
        ...

    def open_storage(self, split: Split, channels: Channels, storage: StorageKind | None = None) -> Storage:
        """Return the storage of the frames of `split`.

        Args:
            split: Name of the split.
            channels: Number of channels of the decoded frames.
            storage: One of `storages`; None is the configured one.

        Raises:
            ValueError: If the storage does not exist or cannot be used.
        """
        ...


class JsonFormat:
    """Common part of the formats with one JSON file per split.

    Args:
        root: Dataset folder.
        files: JSON file of each split, relative to `root`. Without a file, `predict` reads that of `test`, `test` that
            of `valid`, and `valid` a share of `train`.
        shares: Shares of the splits that are used.
        index_root: Folder of the packed indexes.
    """

    def __init__(self, root: Path, files: Mapping[Split, str | None], shares: Shares, index_root: Path) -> None:
        self.root = root
        self.files = files
        self.shares = shares
        self.index_root = index_root

    def replacement(self, split: Split) -> Split:
        """Return `split`, or the split that replaces it if it has no file."""
        if split == "predict" and self.files["predict"] is None:
            split = "test"
        return "valid" if split == "test" and self.files["test"] is None else split

    def name(self, split: Split) -> str:
        return self.files[self.replacement(split)] or str(self.files["train"])

    def origin(self, split: Split) -> str:
        split = self.replacement(split)
        return f"data.{split if self.files[split] else 'train'}_file {self.name(split)}"


class LTDv2Format(JsonFormat):
    """LTDv2's JSON files and its gray frames in any storage; `storage` and `store` as in `open_frames`."""

    class_names = CLASS_NAMES
    category_ids = CATEGORY_IDS
    channels: Channels | None = 1
    storages: tuple[StorageKind, ...] = ("packed", "folder", "zip")

    def __init__(
        self,
        root: Path,
        files: Mapping[Split, str | None],
        shares: Shares,
        index_root: Path,
        storage: StorageKind,
        store: str | None,
    ) -> None:
        super().__init__(root, files, shares, index_root)
        self.storage = storage
        self.store = store

    def open_index(self, split: Split) -> SplitIndex:
        return self.shares.part(split, open_index(self.root / self.name(split), self.index_root))

    def open_storage(self, split: Split, channels: Channels, storage: StorageKind | None = None) -> Storage:
        return open_frames(self.root, storage or self.storage, index_root=self.index_root, store=self.store)


class CocoFormat(JsonFormat):
    """Plain COCO JSON files, and images in `folders` relative to `root` (if empty, in the usual folders).

    The classes are those of the training file or, if it does not exist, of the validation file. All files must have the
    same classes.
    """

    channels: Channels | None = None
    storages: tuple[StorageKind, ...] = ("folder",)

    def __init__(
        self,
        root: Path,
        files: Mapping[Split, str | None],
        shares: Shares,
        index_root: Path,
        folders: tuple[str, ...],
    ) -> None:
        super().__init__(root, files, shares, index_root)
        self.folders = folders

    @property
    def class_names(self) -> tuple[str, ...]:
        return self._reference().class_names

    @property
    def category_ids(self) -> tuple[int, ...]:
        return self._reference().category_ids

    def open_index(self, split: Split) -> SplitIndex:
        index, reference = self._whole(split), self._reference()
        own, expected = (dict(zip(one.category_ids, one.class_names, strict=True)) for one in (index, reference))
        if own != expected:
            different = min(
                number for number in own.keys() | expected.keys() if own.get(number) != expected.get(number)
            )
            raise ValueError(
                f"{self.root / self.name(split)}: category {different} must be {expected.get(different, 'absent')!r} "
                f"as in {self.name('train')}, got {own.get(different, 'absent')!r}"
            )
        return self.shares.part(self.replacement(split) if self.files["valid"] is None else split, index)

    def open_storage(self, split: Split, channels: Channels, storage: StorageKind | None = None) -> Storage:
        names = self._whole(split).file_names()
        return ImageFiles(image_folder(self.root / self.name(split), self.root, self.folders, names), channels)

    def _whole(self, split: Split) -> SplitIndex:
        return open_index(self.root / self.name(split), self.index_root, read_coco)

    def _reference(self) -> SplitIndex:
        return self._whole("train" if (self.root / self.name("train")).is_file() else "valid")


def choose_format(
    format: str,
    root: Path | None,
    train_file: str,
    valid_file: str | None,
    test_file: str | None,
    predict_file: str | None,
    image_folders: tuple[str, ...],
    shares: Shares,
    storage: StorageKind,
    store: str | None,
    index_root: Path,
) -> DatasetFormat:
    """Return the dataset format for the options of `DetectionDataModule`.

    Raises:
        ValueError: If a value is invalid, or an option does not apply to the format.
    """
    if format != LTDV2 and (storage not in ("auto", "folder") or store is not None):
        raise ValueError(
            f"data.storage must be one of auto, folder, and data.store must be null, with data.format {format} (packed "
            f"stores and archives are supported for ltdv2 only), got data.storage {storage} and data.store {store}"
        )
    if format != COCO and image_folders:
        raise ValueError(f"data.image_folders must be [] unless data.format is coco, got {list(image_folders)}")
    files: dict[Split, str | None] = {
        "train": train_file,
        "valid": valid_file,
        "test": test_file,
        "predict": predict_file,
    }
    if format not in (LTDV2, COCO):
        for split, value in files.items():
            if value not in (None, {"train": TRAIN_FILE, "valid": VALID_FILE}.get(split)):
                raise ValueError(
                    f"data.{split}_file must not be set with data.format {format}, which names the splits, got {value}"
                )
        file = Path(format).expanduser()
        if file.suffix not in (".yaml", ".yml") and not file.is_dir():
            raise ValueError(f"data.format must be one of {LTDV2}, {COCO}, or the path of a data.yaml, got {format!r}")
        return YoloFormat(file, root, shares, index_root)
    if root is None:
        raise ValueError("data.root must be the dataset folder, got null (or set data.format to a data.yaml)")
    if (valid_file is None) == (shares.valid_share is None):
        raise ValueError(
            "exactly one of data.valid_file and data.valid_share must be null, got data.valid_file "
            f"{valid_file} and data.valid_share {shares.valid_share}"
        )
    if format == COCO:
        return CocoFormat(root, files, shares, index_root, image_folders)
    files |= {"test": test_file or VALID_FILE, "predict": predict_file or PREDICT_FILE}
    return LTDv2Format(root, files, shares, index_root, storage, store)
