"""`prepare convert`: a dataset with a data.yaml from images and annotations in the layout of another tool."""

import os
import shlex
from collections import Counter
from pathlib import Path

import numpy as np

from yolo_lightning.commands.console import counter
from yolo_lightning.data.formats.choose_format import ARCHIVES
from yolo_lightning.data.formats.yolo_description import FILE_NAME
from yolo_lightning.data.layouts.choose_layout import LAYOUTS, find_layout
from yolo_lightning.data.layouts.labelled_folder import SPLITS, SourceFolder, split_of
from yolo_lightning.data.layouts.source_dataset import SourceDataset
from yolo_lightning.data.layouts.table_annotations import CSV_HEADER
from yolo_lightning.data.layouts.write_dataset import held_out, write_dataset
from yolo_lightning.data.left_out_files import by_suffix, counted
from yolo_lightning.errors import UserError
from yolo_lightning.options.command_names import PROGRAM
from yolo_lightning.utils.choices import check_range
from yolo_lightning.utils.paths import real_path, user_path
from yolo_lightning.utils.suggestions import missing

DEFAULT_SHARE = 0.2


def convert(folder: str, out: str, valid_share: float | None = None) -> None:
    """Convert images and annotations of another tool into a dataset with a data.yaml, for `fit --data.format`.

    The layout is recognized: Pascal VOC XML, CVAT for images, CSV, Label Studio JSON, Darknet, or label files without a
    data.yaml. FOLDER is not changed; OUT contains hard links to its images, or copies on another file system.

    Args:
        folder: Folder with the images and the annotation files.
        out: New or empty folder to write.
        valid_share: Share of the images for validation, > 0 and < 1; null keeps the splits of FOLDER, or else is 0.2.
            Consecutive images (a folder and names that differ in their last number) are kept together.

    Raises:
        UserError: If the layout is unknown, annotations cannot be used, or OUT has content.
    """
    if valid_share is not None:
        check_range("valid_share", valid_share, "> 0", "< 1")
    root = user_path(folder)
    target = user_path(out)
    _check_folders(root, target)
    source = SourceFolder(real_path(root))
    match = find_layout(source)
    if match is None:
        contained = ", ".join(by_suffix(source.files)) or "no file"
        raise UserError(
            f"FOLDER must contain images and annotations ({', '.join(layout.title for layout in LAYOUTS)}), got {root} "
            f"with {contained}. The first row of a CSV file must name the columns, as {CSV_HEADER}. COCO's JSON files "
            "need no conversion: --data.format coco, see docs/datasets.md. JSON files of labelme are not read: convert "
            "them to COCO, for example with labelme2coco"
        )
    layout, files = match
    with counter("read", len(source.images)) as advance:
        dataset = layout.read(source, files, advance)
    facts = dataset.annotations.facts
    if facts.impossible:
        raise UserError(f"{root}: {facts.impossible} Correct the annotations.")
    splits = _splits(source, dataset, valid_share)
    with counter("written", len(splits)) as advance:
        copies = write_dataset(target, source.root, dataset.annotations, splits, advance)
    print(f"{root}: {dataset.layout}, {len(source.images):,} images; {facts.describe_boxes()}\n")
    absent = _print_counts(dataset, splits)
    if absent:
        dataset.notes["classes without an object in one split: select other images with --valid_share"] = absent
    notes = [counted(len(examples), note, examples[0]) for note, examples in dataset.notes.items()]
    print("\n".join(filter(None, ["", *notes, *facts.notes, facts.unlikely])))
    print(f"{target}: {len(splits) - copies:,} images are hard links to those of {root}, {copies:,} are copies")
    print(f"next: {_fit(target / FILE_NAME)}")


def _check_folders(root: Path, target: Path) -> None:
    """Raise a UserError for a FOLDER that cannot be converted, or an OUT that cannot be written."""
    if (root / FILE_NAME).is_file():
        raise UserError(f"{root} has a {FILE_NAME} and needs no conversion. Type: {_fit(root / FILE_NAME)}")
    if real_path(target).is_relative_to(real_path(root)):
        raise UserError(f"OUT must be outside of FOLDER {root}, got {target}")
    if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
        order = "" if root.exists() else f", and FOLDER {root} does not exist: the order is prepare convert FOLDER OUT"
        raise UserError(f"OUT must be a new or empty folder, because nothing is overwritten, got {target}{order}")
    if not root.is_dir():
        problem = "is a file" if root.exists() else missing(root)
        if root.suffix.lower() in ARCHIVES:
            problem += ": unpack the archive"
        raise UserError(f"FOLDER must be a folder, got {root}, which {problem}")


def _splits(source: SourceFolder, dataset: SourceDataset, valid_share: float | None) -> dict[str, str]:
    """Return the split of each image: that of the source, or of a selection of validation images."""
    listed = source.listed_splits(dataset.notes)
    splits: dict[str, str] = {}
    for name in dataset.annotations.file_names.tolist():
        file = name.decode()
        splits[file] = listed.get(file) or dataset.splits.get(file) or split_of(file) or "train"
    if valid_share is None and {"train", "val"} <= set(splits.values()):
        return splits
    files = [file for file, split in splits.items() if split != "test"]
    if not files:
        raise UserError(
            f"a training and a validation image are needed, and a folder or list puts all {len(splits):,} images into "
            f"the split test, such as {next(iter(splits))}: rename or remove it, or convert the folder test alone"
        )
    splits |= dict.fromkeys(files, "train")
    splits |= dict.fromkeys(held_out(files, valid_share or DEFAULT_SHARE), "val")
    return splits


def _print_counts(dataset: SourceDataset, splits: dict[str, str]) -> list[str]:
    """Print the images of each split and the objects of each class; return the classes that a split lacks."""
    annotations = dataset.annotations
    owner = np.repeat(list(splits.values()), np.diff(annotations.box_offsets))
    objects = Counter(zip(annotations.labels.tolist(), owner.tolist(), strict=True))
    images = Counter(splits.values())
    names = [split for split in dict.fromkeys(SPLITS.values()) if split in images]
    rows = {"": names, "images": [f"{images[split]:,}" for split in names]}
    absent = []
    for number, name in enumerate(annotations.facts.class_names):
        counts = [objects[number, split] for split in names]
        rows[name] = [f"{count:,}" for count in counts]
        if any(counts) and not all(counts):
            absent.append(f"{name}: 0 in {names[counts.index(0)]}")
    width = max(map(len, rows))
    for name, cells in rows.items():
        print(f"{name:<{width}}" + "".join(f"{cell:>10}" for cell in cells))
    return absent


def _fit(description: Path) -> str:
    return f"{PROGRAM} fit --config yolo --data.format {shlex.quote(str(description))}"
