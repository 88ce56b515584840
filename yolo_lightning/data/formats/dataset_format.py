"""Dataset formats: LTDv2's layout, plain COCO JSON, or a `data.yaml` with YOLO labels."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from yolo_lightning.data.formats.coco import image_folder, read_coco
from yolo_lightning.data.formats.ltdv2 import CATEGORY_IDS, CLASS_NAMES
from yolo_lightning.data.formats.yolo import YoloFormat
from yolo_lightning.data.index.split_index import SplitIndex, open_index
from yolo_lightning.data.index.splits import Shares, Split
from yolo_lightning.data.storage.choose_storage import StorageKind, open_frames
from yolo_lightning.data.storage.frames import Channels, ImageFiles, Storage
from yolo_lightning.data.storage.image_header import FrameLimits

LTDV2, COCO = "ltdv2", "coco"
TRAIN_FILE, VALID_FILE, PREDICT_FILE = "Train.json", "Valid.json", "TestNoLabels.json"
"""Names of LTDv2's official annotation files."""


@dataclass(frozen=True)
class JsonFormat:
    """Common part of the formats with one JSON file per split."""

    root: Path  # Dataset folder
    # JSON file of each split, relative to `root`. Without a file, `predict` reads that of `test`, `test` that of
    # `valid`, and `valid` a share of `train`.
    files: Mapping[Split, str | None]
    shares: Shares
    index_root: Path  # Folder of the packed indexes
    limits: FrameLimits  # Limits of the frames that are read

    def replacement(self, split: Split) -> Split:
        """Return `split`, or the split that replaces it if it has no file."""
        if split == "predict" and self.files["predict"] is None:
            split = "test"
        return "valid" if split == "test" and self.files["test"] is None else split

    def name(self, split: Split) -> str:
        """Return the file that `split` is read from, for messages."""
        return self.files[self.replacement(split)] or str(self.files["train"])

    def origin(self, split: Split) -> str:
        """Return the option that names the annotations of `split`, and its value."""
        split = self.replacement(split)
        return f"data.{split if self.files[split] else 'train'}_file {self.name(split)}"


@dataclass(frozen=True)
class LTDv2Format(JsonFormat):
    """LTDv2's JSON files and its gray frames in any storage; `storage` and `store` as in `open_frames`."""

    storage: StorageKind
    store: str | None

    class_names: ClassVar = CLASS_NAMES
    category_ids: ClassVar = CATEGORY_IDS
    channels: ClassVar[Channels | None] = 1
    storages: ClassVar[tuple[StorageKind, ...]] = ("packed", "folder", "zip")

    def open_index(self, split: Split) -> SplitIndex:
        """Return the packed index of `split`; raise `ValueError` if the annotations cannot be used."""
        return self.shares.part(split, open_index(self.root / self.name(split), self.index_root))

    def open_storage(self, split: Split, channels: Channels, storage: StorageKind | None = None) -> Storage:
        """Return the storage of the frames of `split`: `storage`, one of `storages`, or the configured one."""
        return open_frames(
            self.root, storage or self.storage, index_root=self.index_root, store=self.store, limits=self.limits
        )


@dataclass(frozen=True)
class CocoFormat(JsonFormat):
    """Plain COCO JSON files, and images in `folders` relative to `root` (if empty, in the usual folders).

    The classes are those of the training file or, if it does not exist, of the validation file. All files must have the
    same classes.
    """

    folders: tuple[str, ...]

    channels: ClassVar[Channels | None] = None
    storages: ClassVar[tuple[StorageKind, ...]] = ("folder",)

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
        folder = image_folder(self.root / self.name(split), self.root, self.folders, names)
        return ImageFiles(folder, channels, self.limits)

    def _whole(self, split: Split) -> SplitIndex:
        return open_index(self.root / self.name(split), self.index_root, read_coco)

    def _reference(self) -> SplitIndex:
        return self._whole("train" if (self.root / self.name("train")).is_file() else "valid")


DatasetFormat = LTDv2Format | CocoFormat | YoloFormat
"""Classes, annotations and storage of a dataset; `LTDv2Format` documents the methods.

Attributes: `class_names`, and `category_ids`, their numbers in the dataset's own files, index 0 first; `root`, the
dataset folder; `storages`, the supported storages, the fastest first; `channels` of the frames, if the dataset defines
them.
"""


def choose_format(
    format: str,
    root: Path | None,
    files: dict[Split, str | None],
    image_folders: tuple[str, ...],
    shares: Shares,
    storage: StorageKind,
    store: str | None,
    index_root: Path,
    limits: FrameLimits = FrameLimits(),  # noqa: B008 - frozen
) -> DatasetFormat:
    """Return the dataset format for the options of `DetectionDataModule`; `files` are the JSON files by split."""
    if format != LTDV2 and (storage not in ("auto", "folder") or store is not None):
        raise ValueError(
            f"data.storage must be one of auto, folder, and data.store must be null, with data.format {format} (packed "
            f"stores and archives are supported for ltdv2 only), got data.storage {storage} and data.store {store}"
        )
    if format != COCO and image_folders:
        raise ValueError(f"data.image_folders must be [] unless data.format is coco, got {list(image_folders)}")
    if format not in (LTDV2, COCO):
        for split, value in files.items():
            if value not in (None, {"train": TRAIN_FILE, "valid": VALID_FILE}.get(split)):
                raise ValueError(
                    f"data.{split}_file must not be set with data.format {format}, which names the splits, got {value}"
                )
        file = Path(format).expanduser()
        if file.suffix not in (".yaml", ".yml") and not file.is_dir():
            raise ValueError(f"data.format must be one of {LTDV2}, {COCO}, or the path of a data.yaml, got {format!r}")
        return YoloFormat(file, root, shares, index_root, limits)
    if root is None:
        raise ValueError("data.root must be the dataset folder, got null (or set data.format to a data.yaml)")
    if (files["valid"] is None) == (shares.valid_share is None):
        raise ValueError(
            "exactly one of data.valid_file and data.valid_share must be null, got data.valid_file "
            f"{files['valid']} and data.valid_share {shares.valid_share}"
        )
    if format == COCO:
        return CocoFormat(root, files, shares, index_root, limits, image_folders)
    files |= {"test": files["test"] or VALID_FILE, "predict": files["predict"] or PREDICT_FILE}
    return LTDv2Format(root, files, shares, index_root, limits, storage, store)
