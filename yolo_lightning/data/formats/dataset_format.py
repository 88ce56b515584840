"""Which dataset is read, as its users have it: LTDv2's layout, plain COCO JSON, or a `data.yaml`."""

from pathlib import Path
from typing import Protocol

from yolo_lightning.data.formats.json_sources import CocoSource, LTDv2Source, SplitFiles
from yolo_lightning.data.formats.yolo_source import YoloSource
from yolo_lightning.data.index.annotation_index import SplitIndex
from yolo_lightning.data.index.splits import Shares, Split
from yolo_lightning.data.storage.choose_storage import FrameStorage
from yolo_lightning.data.storage.frames import Channels, FrameSource

LTDV2, COCO = "ltdv2", "coco"
TRAIN_FILE, VALID_FILE, PREDICT_FILE = "Train.json", "Valid.json", "TestNoLabels.json"
"""LTDv2's own."""


class DataSource(Protocol):
    """A dataset: its classes, and for each split the annotations and where the frames are."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Index 0 first."""
        ...

    @property
    def category_ids(self) -> tuple[int, ...]:
        """Number of each class in the dataset's own files, index 0 first."""
        ...

    @property
    def root(self) -> Path:
        """The dataset's folder."""
        ...

    @property
    def storages(self) -> tuple[FrameStorage, ...]:
        """Where frames may be stored, the fastest first."""
        ...

    @property
    def channels(self) -> Channels | None:
        """Of the frames, where the dataset itself says so."""
        ...

    def name(self, split: Split) -> str:
        """What `split` is taken from, for messages."""
        ...

    def origin(self, split: Split) -> str:
        """Return the option that names the annotations of `split`, and its value."""
        ...

    def open(self, split: Split) -> SplitIndex:
        """The packed index of `split`.

        Raises:
            ValueError: If the annotations cannot be used; the message names file and record.
        """
        ...

    def frames(self, split: Split, channels: Channels, storage: FrameStorage | None = None) -> FrameSource:
        """Where the frames of `split` are read from.

        Args:
            split: Which of them.
            channels: What they are decoded to.
            storage: One of `storages`; None takes the configured one.

        Raises:
            ValueError: If there are none.
        """
        ...


def choose_source(
    format: str,
    root: Path | None,
    train_file: str,
    valid_file: str | None,
    test_file: str | None,
    predict_file: str | None,
    image_folders: tuple[str, ...],
    shares: Shares,
    storage: FrameStorage,
    store: str | None,
    index_root: Path,
) -> DataSource:
    """The dataset that the options of the data module mean; see there.

    Raises:
        ValueError: If an option is not allowed, or does not apply to this dataset.
    """
    if format != LTDV2 and (storage not in ("auto", "folder") or store is not None):
        raise ValueError(
            f"data.storage is {storage} and data.store {store}: packed stores and archives are LTDv2's; with "
            f"data.format {format} allowed are auto or folder, and null"
        )
    if format != COCO and image_folders:
        raise ValueError(f"data.image_folders is {list(image_folders)}, which belongs to data.format coco")
    if format not in (LTDV2, COCO):
        named = {
            "train_file": train_file,
            "valid_file": valid_file,
            "test_file": test_file,
            "predict_file": predict_file,
        }
        usual = {"train_file": TRAIN_FILE, "valid_file": VALID_FILE}
        for name, value in named.items():
            if value not in (None, usual.get(name)):
                raise ValueError(f"data.{name} is {value}: the splits of data.format {format} are named in that file")
        file = Path(format).expanduser()
        if file.suffix not in (".yaml", ".yml") and not file.is_dir():
            raise ValueError(f"data.format is {format!r}, allowed are {LTDV2}, {COCO} and the path of a data.yaml")
        return YoloSource(file, root, shares, index_root)
    if root is None:
        raise ValueError("data.root is null: name the dataset folder, or a data.yaml with data.format")
    if (valid_file is None) == (shares.valid_share is None):
        raise ValueError(
            f"data.valid_file is {valid_file} and data.valid_share {shares.valid_share}: exactly one must be null"
        )
    if format == COCO:
        files = SplitFiles(train_file, valid_file, test_file, predict_file)
        return CocoSource(root, files, shares, image_folders, index_root)
    files = SplitFiles(train_file, valid_file, test_file or VALID_FILE, predict_file or PREDICT_FILE)
    return LTDv2Source(root, files, shares, storage, store, index_root)
