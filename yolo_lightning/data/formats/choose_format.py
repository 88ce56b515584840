"""Selection of the dataset format."""

from yolo_lightning.data.formats.coco import CocoFormat
from yolo_lightning.data.formats.dataset_format import DatasetFormat, DatasetSettings
from yolo_lightning.data.formats.ltdv2 import LTDv2Format
from yolo_lightning.data.formats.yolo import YoloFormat
from yolo_lightning.errors import UserError

FORMATS: tuple[type[DatasetFormat], ...] = (LTDv2Format, CocoFormat, YoloFormat)
"""All formats. A new format is a class in this list."""


def format_class(value: str) -> type[DatasetFormat]:
    """Return the class for a value of `data.format`."""
    found = next((one for one in FORMATS if value and one.accepts(value)), None)
    if found is None:
        names = [one.accepted for one in FORMATS]
        raise UserError(f"data.format must be one of {', '.join(names[:-1])}, or {names[-1]}, got {value!r}")
    return found


def open_format(settings: DatasetSettings) -> DatasetFormat:
    """Return the dataset that the settings describe; raise `ValueError` if a setting does not apply."""
    return format_class(settings.format)(settings)
