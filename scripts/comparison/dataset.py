"""One dataset for both trainers: read in place by this project, as links and text labels by Ultralytics."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from yolo_lightning.data.boxes import corners_to_centres
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.formats.coco import CocoFormat
from yolo_lightning.data.formats.dataset_format import DatasetFormat
from yolo_lightning.data.formats.file_settings import Files
from yolo_lightning.data.formats.ltdv2 import LTDv2Format
from yolo_lightning.data.index.splits import Split
from yolo_lightning.data.input_settings import InputSettings
from yolo_lightning.data.loader_settings import LoaderSettings
from yolo_lightning.data.storage.folder_frames import ImageFiles
from yolo_lightning.data.storage.storage_settings import StorageKind

SPLITS: dict[str, Split] = {"train": "train", "val": "valid"}
"""Splits of this project by the names of Ultralytics."""
CONFIGS = Path(__file__).parents[2] / "configs"
TURN_VALIDATION_IMAGES = 64
LTDV2_CONFIG, OTHER_CONFIG = CONFIGS / "ltdv2.yaml", CONFIGS / "yolo.yaml"


@dataclass(frozen=True)
class Dataset:
    """Location and kind of a dataset."""

    options: dict[str, str]  # options of `DetectionDataModule` by name
    config: Path  # configuration file of this project for this kind of data
    files: Mapping[str, str] = field(default_factory=dict)  # fields of `Files`

    @classmethod
    def find(cls, root: Path | None, data: Path | None, train_file: str = "", valid_file: str = "") -> "Dataset":
        """Return the dataset that the command line names; raise ValueError if the options are ambiguous."""
        if root is not None and data is None:
            return cls({"format": LTDv2Format.accepted, "root": str(root)}, LTDV2_CONFIG)
        if data is None or root is not None:
            raise ValueError(f"exactly one of --root and --data must be given, got {root} and {data}")
        if data.suffix in (".yaml", ".yml") or (data / "data.yaml").is_file():
            return cls({"format": str(data)}, OTHER_CONFIG)
        if train_file and (data / train_file).is_file():
            return cls(
                {"format": CocoFormat.accepted, "root": str(data)},
                OTHER_CONFIG,
                {"train": train_file, "valid": valid_file},
            )
        folder = f" or a folder that contains {train_file}" if train_file else ""
        raise ValueError(f"--data must be a data.yaml{folder}, got {data}")

    def words(self) -> list[str]:
        """Return the options for the command line of `fit`."""
        files = {f"files.{name}": value for name, value in self.files.items()}
        return [word for name, value in (self.options | files).items() for word in (f"--data.{name}", value)]

    def module(self, batch_size: int, image_size: int | list[int], *, background: bool = False) -> DetectionDataModule:
        """Return a data module without workers, for scoring."""
        return DetectionDataModule(
            **self.options,  # type: ignore[arg-type]
            batch_size=batch_size,
            image_size=image_size,
            files=Files(**self.files),  # type: ignore[arg-type]
            input=InputSettings(background=background),
            loader=LoaderSettings(num_workers=0),
        )


def with_storage(dataset_format: DatasetFormat, kind: StorageKind) -> DatasetFormat:
    """Return the dataset with its frames in a storage of another kind."""
    settings = dataset_format.settings
    return type(dataset_format)(replace(settings, storage=replace(settings.storage, kind=kind)))


def convert(module: DetectionDataModule, target: Path) -> Path:
    """Write YOLO text labels and links to the images, unless they exist; return the `data.yaml`."""
    indexes = {name: module.open(split).index for name, split in SPLITS.items()}
    head = "# " + " ".join(index.fingerprint for index in indexes.values()) + "\n"
    description = target / "data.yaml"
    if description.is_file() and description.read_text().startswith(head):
        return description
    shutil.rmtree(target, ignore_errors=True)
    making = target.with_name(f"{target.name}-{os.getpid()}")
    shutil.rmtree(making, ignore_errors=True)
    for name, index in indexes.items():
        source = with_storage(module.dataset_format, "folder").open_storage(SPLITS[name], module.channels or 3)
        for kind in ("images", "labels"):
            (making / kind / name).mkdir(parents=True)
        assert isinstance(source, ImageFiles)
        base = source.base.resolve()
        for number, file in enumerate(index.file_names()):
            height, width = index.shape(number)
            shares = corners_to_centres(index.boxes(number)) / [width, height, width, height]
            rows = zip(index.labels(number).tolist(), shares.tolist(), strict=True)
            lines = [f"{label} " + " ".join(f"{share:.8f}" for share in row) + "\n" for label, row in rows]
            (making / "images" / name / f"{number:06d}{Path(file).suffix}").symlink_to(base / file)
            (making / "labels" / name / f"{number:06d}.txt").write_text("".join(lines))
    _write_description(making / "data.yaml", target, module.class_names, "images/train", "images/val", head)
    try:
        making.rename(target)
    except OSError:  # another process has created the target
        shutil.rmtree(making)
    return description


def short_list(converted: Path, class_names: tuple[str, ...], images: int) -> Path:
    """Describe `images` evenly spaced training images as a dataset of their own; return its `data.yaml`.

    The validation split consists of the first `TURN_VALIDATION_IMAGES` of them, because its time is not measured.
    """
    folder = converted.parent.resolve()
    every = sorted((folder / "images" / "train").iterdir())
    count = min(images, len(every))
    chosen = [every[number * len(every) // count] for number in range(count)]
    training_list, validation_list = "short.txt", "short-validation.txt"
    (folder / training_list).write_text("".join(f"{path}\n" for path in chosen))
    (folder / validation_list).write_text("".join(f"{path}\n" for path in chosen[:TURN_VALIDATION_IMAGES]))
    description = folder / "short.yaml"
    _write_description(description, folder, class_names, training_list, validation_list)
    return description


def _write_description(
    file: Path, root: Path, class_names: tuple[str, ...], train: str, val: str, head: str = ""
) -> None:
    """Write a `data.yaml` with an absolute path; Ultralytics resolves a relative path from the working folder."""
    names = json.dumps(list(class_names))
    file.write_text(f"{head}path: {root.resolve()}\ntrain: {train}\nval: {val}\nnames: {names}\n")
