"""Recognition of the layout of a folder."""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from yolo_lightning.data.formats.coco import CocoFormat
from yolo_lightning.data.formats.dataset_format import DatasetSettings
from yolo_lightning.data.formats.ltdv2 import LTDv2Format
from yolo_lightning.data.formats.yolo_description import FILE_NAME, description_file
from yolo_lightning.data.layouts.label_studio import LABEL_STUDIO, label_studio_files, read_label_studio
from yolo_lightning.data.layouts.labelled_folder import SourceFolder
from yolo_lightning.data.layouts.source_dataset import Advance, SourceDataset
from yolo_lightning.data.layouts.table_annotations import CSV, csv_files, read_csv
from yolo_lightning.data.layouts.text_annotations import LABEL_FILES, read_label_files
from yolo_lightning.data.layouts.xml_annotations import CVAT, VOC, read_xml, xml_files
from yolo_lightning.errors import UserError
from yolo_lightning.utils.paths import user_path
from yolo_lightning.utils.suggestions import on_other_levels

MOST_FOLDERS = 1000  # Folders that are searched for annotations to explain an error


@dataclass(frozen=True)
class Layout:
    """Reader of the annotation files of one or several tools."""

    title: str
    files: Callable[[SourceFolder], list[str]]  # Annotation files of a folder; empty if it has another layout
    read: Callable[[SourceFolder, list[str], Advance], SourceDataset]


LAYOUTS = (
    Layout(f"{VOC} or {CVAT}", xml_files, read_xml),
    Layout(CSV, csv_files, read_csv),
    Layout(LABEL_STUDIO, label_studio_files, read_label_studio),
    Layout(LABEL_FILES, attrgetter("label_files"), read_label_files),
)
"""All layouts; the first one that has files in a folder is read. A new layout is an entry of this list."""


def find_layout(folder: SourceFolder) -> tuple[Layout, list[str]] | None:
    """Return the layout of a folder and its annotation files, None for an unknown layout."""
    if not folder.images:
        return None
    for layout in LAYOUTS:
        files = layout.files(folder)
        if files:
            return layout, files
    return None


def check_layout(settings: DatasetSettings) -> None:
    """Raise a UserError if `data.root` or `data.format` is a dataset in the layout of another tool."""
    if settings.format in (LTDv2Format.accepted, CocoFormat.accepted):
        files = settings.files
        names = filter(None, (files.train, files.valid, files.test, files.predict))
        if settings.root and not any((settings.root / name).exists() for name in names):
            refuse_other_layout("data.root", settings.root)
        return
    path = user_path(settings.format)
    description = description_file(path)
    # A missing data.yaml, or an existing file of another kind; any other text is refused by `format_class`.
    if os.path.lexists(description) != (description.suffix in (".yaml", ".yml")):
        refuse_other_layout("data.format", path)


def refuse_other_layout(option: str, path: Path) -> None:
    """Raise a UserError with the command that converts a dataset if a folder, or that of a file, has another layout.

    Nothing is raised if there is a YAML file below the folder, or a data.yaml above, which may describe the dataset.
    """
    folder = path
    if not os.path.isdir(path):
        folder = path.parent
    if on_other_levels(folder / FILE_NAME):  # the folder is a part of a dataset with a data.yaml
        return
    try:
        source = SourceFolder(folder, MOST_FOLDERS)
        match = find_layout(source)
    except (OSError, UserError):  # the caller reports that there is no usable dataset
        return
    if source.of(".yaml", ".yml"):
        return
    if match is None:
        if source.images and option == "data.format" and folder == path:
            raise UserError(
                f"{option} {path}: {folder} contains {len(source.images):,} images, such as {source.images[0]}, and "
                "neither a data.yaml nor annotations: a training needs boxes. See docs/datasets.md"
            )
        return
    layout, _ = match
    words = ("python", "-m", "yolo_lightning", "prepare", "convert", str(folder), f"{folder.absolute().name}_yolo")
    raise UserError(f"{option} {path}: {folder} contains {layout.title}. Convert it: {shlex.join(words)}")
