"""Plain COCO JSON (`instances_*.json`): any categories and image ids, boxes x, y, width, height in pixels."""

import os
from pathlib import Path
from urllib.parse import unquote

import numpy as np

from yolo_lightning.data.formats.annotations import Annotations
from yolo_lightning.data.formats.coco_json import COCO_FILE, decode, to_annotations
from yolo_lightning.data.formats.dataset_format import JsonFormat
from yolo_lightning.data.formats.frame_checks import PERCENT_ENCODED
from yolo_lightning.data.index.sampled_names import sampled_positions
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.index.splits import Split
from yolo_lightning.data.input_settings import Channels
from yolo_lightning.data.storage.folder_frames import FilesInFolders
from yolo_lightning.data.storage.storage import Storage
from yolo_lightning.errors import UserError
from yolo_lightning.utils.paths import existing_form
from yolo_lightning.utils.plain_text import one_line

PLACES_OF_FILES = ("*.json", "*/*.json")  # Annotation files below the dataset folder, for messages
NAMED_FILES = 5
PROBED_IMAGES = 16  # Number of images that are searched for in each candidate folder
NAME_PARTS = ("instances_", "image_info_", "_annotations.coco")
"""Parts of the name of an annotation file that do not belong to the name of its split."""


def read_coco(path: Path) -> Annotations:
    """Read and check a COCO annotation file; the classes are its categories in the order of their ids.

    Crowd regions (`iscrowd`) and records with a true `ignore` are left out.
    """
    content = decode(path, COCO_FILE)
    if not content.categories:
        raise UserError(f"{path}: the list of categories is empty")
    classes = dict(sorted((int(category.id), category.name) for category in content.categories))
    return to_annotations(path, content, classes, np.float64)


def image_folders(annotation_file: Path, root: Path, folders: tuple[str, ...], file_names: list[str]) -> list[Path]:
    """Return the folders in which the images of a split are searched, that with most of a few sampled images first.

    The candidates are `folders` relative to `root` or, if empty, those of COCO's own layout and of common exporters.
    """
    split = annotation_file.stem
    for part in NAME_PARTS:
        split = split.replace(part, "")
    candidates = [root / folder for folder in folders]
    if not folders:
        if split:
            candidates = [root / split, root / "images" / split, root / "images", root, root / split / "images"]
        else:
            candidates = [root / "images", root]
        candidates += [annotation_file.parent, annotation_file.parent / "images"]
    probed = [file_names[position] for position in sampled_positions(file_names, PROBED_IMAGES)]
    counts = {
        folder: sum(os.path.isfile(folder / existing_form(folder, name)) for name in probed) for folder in candidates
    }
    existing = [folder for folder in counts if counts[folder] or folder.is_dir()]
    existing.sort(key=lambda folder: -counts[folder])  # keeps the order of candidates with equal counts
    if not any(counts.values()):
        remedy = "set data.files.image_folders to their folder"
        decoded = unquote(probed[0])
        if decoded != probed[0] and any(os.path.isfile(folder / decoded) for folder in candidates):
            remedy = f"{one_line(decoded, 200)!r} exists: {PERCENT_ENCODED}"
        raise UserError(
            f"{annotation_file}: found none of its images, such as {one_line(probed[0], 200)!r}, in "
            f"{', '.join(map(str, dict.fromkeys(candidates)))}; {remedy}"
        )
    return existing


class CocoFormat(JsonFormat):
    """Plain COCO JSON files, and images in `data.files.image_folders` (if empty, in the usual folders).

    The classes are those of the training file or, if it does not exist, of the validation file. All files must have the
    same classes.
    """

    accepted = "coco"
    has_image_folders = True

    read = staticmethod(read_coco)

    @property
    def class_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._reference().facts.class_names

    @property
    def category_ids(self) -> tuple[int, ...]:  # type: ignore[override]
        return self._reference().facts.category_ids

    def open_index(self, split: Split) -> SplitIndex:
        index = super().open_index(split)
        categories = _categories(index)
        expected = _categories(self._reference())
        for number in sorted(categories.keys() | expected.keys()):
            if categories.get(number) != expected.get(number):
                raise UserError(
                    f"{self.root / self.name(split)}: category {number} must be {expected.get(number, 'absent')!r} "
                    f"as in {self.name('train')}, got {categories.get(number, 'absent')!r}"
                )
        return index

    def open_storage(self, split: Split, channels: Channels) -> Storage:
        names = self.open_file(self.name(split)).file_names()
        folders = image_folders(self.root / self.name(split), self.root, self.files.image_folders, names)
        return FilesInFolders(folders, channels, self.settings.frame_limits, self.root)

    def remedy(self) -> str:
        files = [path.relative_to(self.root) for place in PLACES_OF_FILES for path in self.root.glob(place)]
        contained = ", ".join(sorted(map(str, files))[:NAMED_FILES]) or "no .json file"
        return (
            "Set data.files.train and data.files.valid to JSON files of COCO, relative to data.root, which contains "
            f"{contained}."
        )

    def _reference(self) -> SplitIndex:
        has_train_file = (self.root / self.name("train")).is_file()
        return self.open_file(self.name("train" if has_train_file else "valid"))


def _categories(index: SplitIndex) -> dict[int, str]:
    """Return the names of the classes of an index by their ids in its file."""
    return dict(zip(index.facts.category_ids, index.facts.class_names, strict=True))
