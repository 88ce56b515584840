"""Reader of images with label files `class x y width height` and without a data.yaml: Darknet, YOLO exports."""

import os
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgspec

from yolo_lightning.data.formats.yolo import READERS, YoloSplit, image_shape
from yolo_lightning.data.formats.yolo_description import FILE_NAME, MOST_CLASSES, DataDescription
from yolo_lightning.data.formats.yolo_files import CLASS_LIST, SplitFiles
from yolo_lightning.data.layouts.labelled_folder import SAME_NAME, SourceFolder, paired
from yolo_lightning.data.layouts.source_dataset import Advance, SourceDataset, note_of_unreadable
from yolo_lightning.data.left_out_files import by_suffix
from yolo_lightning.errors import UserError

LABEL_FILES = "label files without a data.yaml (Darknet, YOLO exports)"
CLASS_LISTS = (CLASS_LIST, "_darknet.labels", "labels.txt", "predefined_classes.txt")


def read_label_files(folder: SourceFolder, labels: list[str], advance: Advance) -> SourceDataset:
    class_lists = folder.of(".names") + [file for file in folder.files if os.path.basename(file) in CLASS_LISTS]
    lists = {_class_names(folder, file) for file in class_lists}
    if len(lists) > 1:
        raise UserError(f"{folder.root}: the lists of class names must be equal, got {', '.join(class_lists)}")
    names = next(iter(lists), tuple(f"class_{number}" for number in range(MOST_CLASSES)))
    description = DataDescription(folder.root / FILE_NAME, folder.root, {"train": (".",)}, dict(enumerate(names)))
    notes: dict[str, list[str]] = defaultdict(list)
    files = _paired_files(folder, labels, notes)
    if not files.images:
        left_out = "; ".join(f"{len(paths):,} {note}, such as {paths[0]}" for note, paths in notes.items())
        raise UserError(f"{folder.root}: no image can be used: {left_out}")
    annotations = YoloSplit(description, "train", files=files).read()
    advance(len(folder.images))
    if not len(annotations.boxes):
        raise UserError(f"{folder.root}: none of the {len(labels):,} label files, such as {labels[0]}, contains a box")
    lists_of_images = folder.lists(defaultdict(list))
    used = {*folder.images, *labels, *class_lists, *lists_of_images, *folder.of(".data")}
    other_files = [file for file in folder.files if file not in used]
    if other_files:
        kinds = ", ".join(by_suffix(other_files))
        notes[f"files left out that are neither images, label files nor lists of images ({kinds})"] = other_files
    if not lists:
        names = names[: int(annotations.labels.max(initial=0)) + 1]
        facts = msgspec.structs.replace(annotations.facts, class_names=names)
        annotations = replace(annotations, facts=facts)
        notes[f"class names invented, because there is no {CLASS_LIST}: correct 'names' in data.yaml"] = list(names)
    return SourceDataset(LABEL_FILES, annotations, notes=notes)


def _class_names(folder: SourceFolder, file: str) -> tuple[str, ...]:
    """Return the class names in a list; the number of a class is that of its line, also behind an empty line."""
    text = folder.read(file).decode("utf-8-sig", errors="replace").rstrip()
    return tuple(line.strip() or f"class_{number}" for number, line in enumerate(text.splitlines()))


def _paired_files(folder: SourceFolder, labels: Sequence[str], notes: dict[str, list[str]]) -> SplitFiles:
    """Return the images and the label file of each; their folders may have any name."""
    pairs, ambiguous = paired(labels, folder.images)
    label_of = {image: label for label, image in pairs.items()}
    images = []
    candidates = [image for image in folder.images if image not in ambiguous]
    with ThreadPoolExecutor(READERS) as pool:
        shapes = pool.map(image_shape, [folder.root / image for image in candidates])
        for image, shape in zip(candidates, shapes, strict=True):
            # Boxes are fractions of an unknown size: a repaired image would have none and be a background image.
            if shape is None:
                notes[note_of_unreadable(image)].append(image)
            else:
                images.append(image)
    unlabelled = [image for image in images if image not in label_of]
    if ambiguous:
        notes[SAME_NAME] = sorted(ambiguous)
    if unlabelled:
        notes["images without a label file (background)"] = unlabelled
    return SplitFiles(
        images=[str(folder.root / image) for image in images],
        names=images,
        labels=[str(folder.root / label_of[image]) if image in label_of else "" for image in images],
        originals={},
        notes=(),
        state="",
    )
