"""Interface of the dataset formats, and the settings from which a format is opened."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from yolo_lightning.data.formats.annotations import Annotations
from yolo_lightning.data.formats.file_settings import Files
from yolo_lightning.data.index.split_index import SplitIndex, open_index
from yolo_lightning.data.index.splits import Shares, Split
from yolo_lightning.data.input_settings import Channels, InputSettings
from yolo_lightning.data.limit_settings import Limits
from yolo_lightning.data.storage.folder_frames import check_root
from yolo_lightning.data.storage.image_header import FrameLimits
from yolo_lightning.data.storage.storage import Storage
from yolo_lightning.data.storage.storage_settings import StorageKind, StorageSettings
from yolo_lightning.errors import UserError
from yolo_lightning.utils.suggestions import missing

REPLACEMENTS: dict[Split, Split] = {"predict": "test", "test": "valid", "valid": "train"}
"""Split whose JSON file is read for a split without a file."""


@dataclass(frozen=True)
class DatasetSettings:
    """Settings of `DetectionDataModule` on which the frames and annotations depend."""

    root: Path | None
    format: str
    files: Files = field(default_factory=Files)
    split: Shares = field(default_factory=Shares)
    storage: StorageSettings = field(default_factory=StorageSettings)
    limits: Limits = field(default_factory=Limits)
    input: InputSettings = field(default_factory=InputSettings)

    @property
    def frame_limits(self) -> FrameLimits:
        return FrameLimits(self.limits.max_image_pixels, self.limits.allow_outside_root, self.input.pixel_range.bits)


class DatasetFormat(ABC):
    """Classes, annotations and frames of a dataset in one format.

    Raises:
        UserError: If a setting does not apply to the format.
    """

    accepted: ClassVar[str]
    """Values of `data.format`, for messages."""
    storages: ClassVar[tuple[StorageKind, ...]] = ("folder",)
    """Supported storages, the fastest first."""
    is_gray: ClassVar[bool] = False
    """Whether all frames of this format are gray."""
    has_clips: ClassVar[bool] = False
    """Whether the frames form clips."""
    has_submission: ClassVar[bool] = False
    """Whether `predict` writes a submission of LTDv2's challenge instead of COCO's results."""
    has_image_folders: ClassVar[bool] = False
    """Whether `data.files.image_folders` applies."""

    root: Path  # Dataset folder
    class_names: tuple[str, ...]  # Index 0 first
    category_ids: tuple[int, ...]  # Number of each class in the files of the dataset, index 0 first
    channels: Channels | None = None  # Channels of the frames, None if the dataset does not define them

    def __init__(self, settings: DatasetSettings) -> None:
        self.settings = settings
        format = settings.format
        storage = settings.storage
        has_store = "packed" in self.storages
        if storage.kind not in ("auto", *self.storages) or (storage.store is not None and not has_store):
            raise UserError(
                f"data.storage.kind must be one of auto, {', '.join(self.storages)}, and data.storage.store must be "
                f"null, with data.format {format} (packed stores and archives are supported for ltdv2 only), got "
                f"data.storage.kind {storage.kind} and data.storage.store {storage.store}"
            )
        if settings.files.image_folders and not self.has_image_folders:
            folders = list(settings.files.image_folders)
            raise UserError(f"data.files.image_folders must be [] unless data.format is coco, got {folders}")
        if self.is_gray and settings.input.channels == 3:
            raise UserError(
                f"data.input.channels must be 1 or null with data.format {format}, whose frames are gray, got 3"
            )
        if settings.input.background and not self.has_clips:
            raise UserError(
                f"data.input.background must be false with data.format {format}, whose images do not form clips, got "
                "true"
            )

    @classmethod
    def accepts(cls, value: str) -> bool:
        """Return whether a value of `data.format` names this format."""
        return value == cls.accepted

    @abstractmethod
    def name(self, split: Split) -> str:
        """Return the file, or the key of a file, that `split` is read from, for messages."""

    @abstractmethod
    def origin(self, split: Split) -> str:
        """Return the option that names the annotations of `split`, and its value."""

    @abstractmethod
    def check_files(self, split: Split) -> None:
        """Raise a UserError if the annotations of `split`, or a folder that contains them, do not exist."""

    @abstractmethod
    def open_index(self, split: Split) -> SplitIndex:
        """Return the packed index of `split`; raise `ValueError` if the annotations cannot be used."""

    @abstractmethod
    def open_storage(self, split: Split, channels: Channels) -> Storage:
        """Return the storage of the frames of `split`."""


class JsonFormat(DatasetFormat):
    """Common part of the formats with one JSON file per split.

    Without a file, `predict` reads that of `test`, `test` that of `valid`, and `valid` a share of `train`.
    """

    def __init__(self, settings: DatasetSettings) -> None:
        super().__init__(settings)
        if settings.root is None:
            raise UserError("data.root must be the dataset folder, got null (or set data.format to a data.yaml)")
        self.root = settings.root
        self.files = settings.files
        if (self.files.valid is None) == (settings.split.valid_share is None):
            raise UserError(
                "exactly one of data.files.valid and data.split.valid_share must be null, got data.files.valid "
                f"{self.files.valid} and data.split.valid_share {settings.split.valid_share}"
            )

    @staticmethod
    @abstractmethod
    def read(path: Path) -> Annotations:
        """Read and check an annotation file; the name of the function identifies its packed indexes."""

    def name(self, split: Split) -> str:
        return str(getattr(self.files, self._key(split)))

    def origin(self, split: Split) -> str:
        return f"data.files.{self._key(split)} {self.name(split)}"

    def _key(self, split: Split) -> Split:
        """Return the key of `data.files` that names the file of `split`."""
        while getattr(self.files, split) is None:
            split = REPLACEMENTS[split]
        return split

    def remedy(self) -> str:
        """Return what to do if an annotation file does not exist."""
        return "Set data.root and data.files to existing files."

    def check_files(self, split: Split) -> None:
        self._check_file(self.name(split))

    def open_index(self, split: Split) -> SplitIndex:
        if split != "train" and self._key(split) == "train":
            split = "valid"
        return self.settings.split.part(split, self.open_file(self.name(split)))

    def open_file(self, name: str) -> SplitIndex:
        """Return the packed index of an annotation file, relative to the dataset folder."""
        self._check_file(name)
        return open_index(self.root / name, self.settings.storage.index_folder, self.read)

    def _check_file(self, name: str) -> None:
        file = self.root / name
        if file.is_file():
            return
        remedy = self.remedy()
        check_root(self.root, remedy)
        raise UserError(f"annotation file {file} {missing(file)} {remedy}")
