"""Images and boxes of a folder, as the reader of its layout returns them."""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unicodedata import normalize

from yolo_lightning.data.formats.yolo_files import stem
from yolo_lightning.data.left_out_files import suffix
from yolo_lightning.data.storage.frames import IMAGE_SUFFIXES
from yolo_lightning.errors import UserError
from yolo_lightning.utils.plain_text import one_line
from yolo_lightning.utils.regular_files import list_folder, read_regular

SPLITS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""Split by the name of a folder, a list of images or a subset."""
CONTENT_NAME = re.compile(r"[_-]?(jpegimages|images?|imgs?|labels?|annotations?|xmls?)[_-]?")
"""Part of the name of a folder or list that says whether it contains images or annotations."""
YEAR = re.compile(r"[_-]?(19|20)\d\d$")  # End of the name of a split, as in train2017
SAME_NAME = "images and annotations left out, because several have the same name"
UPLOAD_PREFIX = re.compile(r"^[0-9a-f]{8}-")  # of uploads to Label Studio

Box = list[float]
"""The four numbers of a box as they are written."""


@dataclass
class LabelledImage:
    """Objects of one image."""

    class_names: list[str] = field(default_factory=list)  # Of each box
    boxes: list[Box] = field(default_factory=list)
    size: Sequence[float] = ()  # Width and height of the image, pixels; empty if the annotation does not state them
    split: str = ""  # train, val or test; empty if the annotation does not state the split


@dataclass
class LabelledFolder:
    """Content of the annotation files of a folder."""

    layout: str
    box_format: str  # One of `BOX_FORMATS`
    images: dict[str, LabelledImage] = field(default_factory=lambda: defaultdict(LabelledImage))
    """Images by their written path, of which only the end need be right."""
    class_names: list[str] = field(default_factory=list)  # In the order of the class numbers; further names are sorted
    is_percent: bool = False  # Whether the numbers of boxes are in percent of the image, not in pixels
    notes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Examples by what was left out or changed."""


class SourceFolder:
    """Files below a folder, in at most `most_folders` folders; all paths are relative to the folder.

    `label_files` are the text files that have the name of an image.
    """

    def __init__(self, root: Path, most_folders: int | None = None) -> None:
        self.root = root
        self.files = sorted(os.path.relpath(file, root) for file in list_folder(root, most_folders).files())
        self.images = self.of(*IMAGE_SUFFIXES)
        names = {stem(os.path.basename(image)) for image in self.images}
        self.label_files = [file for file in self.of(".txt") if stem(os.path.basename(file)) in names]

    def of(self, *suffixes: str) -> list[str]:
        return [file for file in self.files if suffix(file) in suffixes]

    def read(self, file: str) -> bytes:
        try:
            return read_regular(self.root / file)
        except OSError as error:
            raise UserError(f"{self.root / file} cannot be read: {error}") from error

    def lines(self, file: str) -> list[str]:
        """Return the lines of a text file that are not empty."""
        text = self.read(file).decode("utf-8-sig", errors="replace")
        return [line.strip() for line in text.splitlines() if line.strip()]

    def numbers(self, texts: Iterable[object], place: str) -> Box:
        """Return numbers that an annotation file contains as texts."""
        texts = list(texts)
        try:
            return [float(str(text)) for text in texts]
        except ValueError as error:
            got = one_line(str(texts), 200)
            raise UserError(f"{self.root / place}: boxes, sizes and rotations must be numbers, got {got}") from error

    def listed_splits(self, notes: dict[str, list[str]]) -> dict[str, str]:
        """Return the split of each image that a list of images names; add lines without an image to the notes."""
        splits: dict[str, str] = {}
        image_names = {path_parts(image)[-1] for image in self.images}
        for file, split in self.lists(notes).items():
            # A path may contain spaces, and other columns may follow it, as in Pascal VOC's lists of a class.
            names = [line if path_parts(line)[-1] in image_names else line.split()[0] for line in self.lines(file)]
            pairs, ambiguous = paired(names, self.images)
            splits |= dict.fromkeys(pairs.values(), split)
            unpaired = [f"{file}: {name}" for name in names if name not in pairs and name not in ambiguous]
            if unpaired:
                notes.setdefault("lines of lists left out, because their image does not exist", []).extend(unpaired)
        unlisted = [image for image in self.images if image not in splits]
        if splits and unlisted:
            notes["images in no list, which are converted, too"] = unlisted
        return splits

    def lists(self, notes: dict[str, list[str]]) -> dict[str, str]:
        """Return the split of each list of images: of its name, as train.txt, or of a line of Darknet's .data file."""
        texts = sorted(set(self.of(".txt")).difference(self.label_files))
        lists = {file: split_of(f"{stem(os.path.basename(file))}/") for file in texts}
        for file in self.of(".data"):
            options = dict(line.replace(" ", "").partition("=")[::2] for line in self.lines(file))
            paths = {path: SPLITS[key] for key, path in options.items() if key in SPLITS}
            pairs, _ = paired(paths, texts)
            lists |= {pairs[path]: split for path, split in paths.items() if path in pairs}
            absent = [f"{file}: {path}" for path in paths if path not in pairs]
            if absent:
                notes.setdefault("lists left out, because they do not exist", []).extend(absent)
        return {file: split for file, split in lists.items() if split}


def split_of(path: str) -> str:
    """Return the split that a folder of a path names, also with a year behind it; empty if none does."""
    folders = [YEAR.sub("", CONTENT_NAME.sub("", folder.lower())) for folder in path.split("/")[:-1]]
    return next((SPLITS[folder] for folder in folders if folder in SPLITS), "")


def paired(names: Iterable[str], files: Iterable[str]) -> tuple[dict[str, str], set[str]]:
    """Return the file of each written name, and the names and files for which several partners are equally good.

    The file names without suffix are equal; the written name of a file without an equal one may have the prefix of an
    upload. Of several, those are taken that have the most equal folders before the file name, without the folders
    `CONTENT_NAME`.
    """
    waiting = ({name: path_parts(name) for name in names}, {file: path_parts(file) for file in files})
    pairs: dict[str, str] = {}
    ambiguous: set[str] = set()
    _pair_equal(waiting, pairs, ambiguous)
    for parts in waiting[0].values():
        parts[-1] = UPLOAD_PREFIX.sub("", parts[-1])
    _pair_equal(waiting, pairs, ambiguous)
    return pairs, ambiguous


def _pair_equal(
    waiting: tuple[dict[str, list[str]], dict[str, list[str]]], pairs: dict[str, str], ambiguous: set[str]
) -> None:
    """Move the names and files of equal last parts from `waiting`, the parts of both, to `pairs` or `ambiguous`."""
    deepest = max((len(parts) for side in waiting for parts in side.values()), default=0)
    for depth in range(deepest, 0, -1):
        groups: dict[tuple[str, ...], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
        for side, paths in enumerate(waiting):
            for path, parts in paths.items():
                groups[tuple(parts[-depth:])][side].append(path)
        for members in groups.values():
            if not all(members):
                continue
            if len(members[0]) == len(members[1]) == 1:
                pairs[members[0][0]] = members[1][0]
            else:
                ambiguous.update(*members)
            for paths, side_members in zip(waiting, members, strict=True):
                for path in side_members:
                    del paths[path]


def path_parts(path: str) -> list[str]:
    """Return the folders of a path without those of `CONTENT_NAME`, and the file name without suffix; in NFC."""
    *folders, name = normalize("NFC", path).replace("\\", "/").split("/")
    cleaned = (CONTENT_NAME.sub("", folder.lower()) for folder in folders)
    return [*filter(None, cleaned), stem(name)]
