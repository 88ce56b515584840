"""Reader of images with label files `class x y width height` and without a data.yaml: Darknet, YOLO exports."""

import os
from dataclasses import replace

import msgspec

from yolo_lightning.data.formats.yolo import YoloSplit
from yolo_lightning.data.formats.yolo_description import FILE_NAME, MOST_CLASSES, DataDescription
from yolo_lightning.data.formats.yolo_files import CLASS_LIST, stem
from yolo_lightning.data.layouts.labelled_folder import SourceFolder
from yolo_lightning.data.layouts.source_dataset import Advance, SourceDataset
from yolo_lightning.errors import UserError

LABEL_FILES = "label files without a data.yaml (Darknet, YOLO exports)"
CLASS_LISTS = (CLASS_LIST, "_darknet.labels", "labels.txt", "predefined_classes.txt")


def label_files(folder: SourceFolder) -> list[str]:
    """Return the text files that have the name of an image."""
    names = {stem(os.path.basename(image)) for image in folder.images}
    return [file for file in folder.of(".txt") if stem(os.path.basename(file)) in names]


def read_label_files(folder: SourceFolder, _: list[str], advance: Advance) -> SourceDataset:
    files = folder.of(".names") + [file for file in folder.files if os.path.basename(file) in CLASS_LISTS]
    lists = {tuple(folder.lines(file)) for file in files}
    if len(lists) > 1:
        raise UserError(f"{folder.root}: the lists of class names must be equal, got {', '.join(files)}")
    names = next(iter(lists), tuple(f"class_{number}" for number in range(MOST_CLASSES)))
    description = DataDescription(folder.root / FILE_NAME, folder.root, {"train": (".",)}, names, None, 0, ())
    annotations = YoloSplit(description, "train").read()
    advance(len(folder.images))
    if lists:
        return SourceDataset(LABEL_FILES, annotations)
    names = names[: int(annotations.labels.max(initial=0)) + 1]
    facts = msgspec.structs.replace(annotations.facts, class_names=names)
    note = f"class names invented, because there is no {CLASS_LIST}: correct 'names' in data.yaml"
    return SourceDataset(LABEL_FILES, replace(annotations, facts=facts), notes={note: list(names)})
