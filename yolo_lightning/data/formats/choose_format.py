"""Selection of the dataset format."""

from pathlib import Path

from yolo_lightning.data.formats.coco import CocoFormat
from yolo_lightning.data.formats.dataset_format import DatasetFormat, DatasetSettings
from yolo_lightning.data.formats.ltdv2 import LTDv2Format
from yolo_lightning.data.formats.yolo import YoloFormat
from yolo_lightning.data.input_images import VIDEO_SUFFIXES
from yolo_lightning.errors import UserError

OTHER_LAYOUTS = (".csv", ".data", ".names", ".tsv", ".txt", ".xml")
"""Suffixes of annotation files of other tools."""

ARCHIVES = (".7z", ".bz2", ".gz", ".rar", ".tar", ".tgz", ".xz", ".zip")

FORMATS: tuple[type[DatasetFormat], ...] = (LTDv2Format, CocoFormat, YoloFormat)
"""All formats. A new format is a class in this list."""


def format_class(value: str) -> type[DatasetFormat]:
    """Return the class for a value of `data.format`."""
    for dataset_format in FORMATS:
        if value and dataset_format.accepts(value):
            return dataset_format
    *names, last_name = (dataset_format.accepted for dataset_format in FORMATS)
    raise UserError(f"data.format must be one of {', '.join(names)}, or {last_name}, got {value!r}{_hint(value)}")


def _hint(value: str) -> str:
    """Return what to do with an annotation file as the value of `data.format`; empty for other values."""
    suffix = Path(value).suffix.lower()
    if suffix == ".json":
        return f". A JSON file of COCO is read with --data.format coco --data.files.train {value}"
    if suffix in OTHER_LAYOUTS:
        return ". Datasets of other layouts are converted by: prepare convert FOLDER OUT"
    if suffix in ARCHIVES:
        return ". Unpack the archive, and set data.format to the data.yaml or the folder in it"
    if suffix in VIDEO_SUFFIXES:
        return ". A training needs images with annotations: extract and annotate frames. predict reads videos"
    if value.lower() in ("yolo", "ultralytics", "yaml"):
        return ". Datasets of Ultralytics are read with --data.format FOLDER/data.yaml, without data.root"
    return ""


def open_format(settings: DatasetSettings) -> DatasetFormat:
    """Return the dataset that the settings describe; raise `ValueError` if a setting does not apply."""
    return format_class(settings.format)(settings)
