"""Files of one split of a YOLO dataset: images, their label files, and the files that are left out.

One pass lists each folder once and decides for every file what becomes of it. The notes count each group of files that
is left out, repeated, or used although it is not at its usual place.
"""

import errno
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from yolo_lightning.data.formats.yolo_description import DataDescription, Key, remedy
from yolo_lightning.data.left_out_files import by_suffix, counted, files_left_out, other_files, suffix, unusable_files
from yolo_lightning.data.storage.frames import IMAGE_SUFFIXES
from yolo_lightning.errors import UserError
from yolo_lightning.utils.paths import existing_form, has_drive, plain_path, real_path, unicode_forms
from yolo_lightning.utils.plain_text import one_line, undecodable
from yolo_lightning.utils.regular_files import FolderContent, file_stamp, list_folder, read_regular
from yolo_lightning.utils.suggestions import did_you_mean

IMAGES = f"{os.sep}images{os.sep}"
LABELS = f"{os.sep}labels{os.sep}"
LABEL_SUFFIX = ".txt"
CLASS_LIST = "classes.txt"  # Names of the classes, which labelling tools write beside the labels
LARGEST_LIST = 1 << 30  # Bytes of a list of images
READ = ", ".join(sorted(IMAGE_SUFFIXES))
NO_FOLDER = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})


def stem(name: str) -> str:
    """Return a file name without its suffix."""
    return name.rpartition(".")[0] or name


def label_file(image: str) -> str:
    """Return the label file of an image: the last folder `images` becomes `labels`, the suffix `.txt`."""
    return os.path.splitext(LABELS.join(image.rsplit(IMAGES, 1)))[0] + LABEL_SUFFIX


def label_folder(folder: str) -> str:
    """Return the folder of the label files of the images in a folder."""
    return os.path.dirname(label_file(os.path.join(folder, "image.jpg")))


@dataclass(frozen=True)
class SplitFiles:
    """Images of a split in the order of the index, and what became of the other files."""

    images: list[str]  # Absolute paths, unique
    names: list[str]  # Names in the index: relative to the dataset folder, absolute outside of it
    labels: list[str]  # Label file of each image; empty for a background image
    originals: Mapping[int, int]  # Position of the first image that is the same file, for images that are repeated
    notes: tuple[str, ...]
    state: str  # Hash of path, size, times and inode of all used files


def find_split_files(description: DataDescription, key: Key, *, outside_root: bool = False) -> SplitFiles:
    """Find the files of a split of a `data.yaml`.

    Args:
        description: The `data.yaml`.
        key: Split.
        outside_root: Whether lists may name images outside of the dataset folder.

    Raises:
        UserError: If there is no image, or a list contains a line that is not an image in the dataset folder.
    """
    images = SplitImages(description, key)
    if not images.paths:
        left_out = files_left_out(images.contents, IMAGE_SUFFIXES)
        contained = f"; they contain {'; '.join(left_out)}" if left_out else ""
        folders = [IMAGES.join(f"{place}{os.sep}".rsplit(LABELS, 1)).rstrip(os.sep) for place in images.places]
        meant = [folder for folder, place in zip(folders, images.places, strict=True) if folder != str(place)]
        raise UserError(
            f"{description.file}: no images for '{key}' in {', '.join(map(str, images.places))} (formats: {READ})"
            f"{contained}{did_you_mean([folder for folder in meant if os.path.isdir(folder)])}"
        )
    if not outside_root:
        images.refuse_outside()
    return SplitLabels(images).split_files()


class FolderNames:
    """Names of the files in folders; each folder is listed once."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}
        self._labels: dict[str, dict[str, str]] = {}
        self.ambiguous_labels: list[str] = []  # Label files whose name differs from another one in the case of `.txt`
        self._closed: set[str] = set()  # Folders that this user may enter but not list

    def add(self, content: FolderContent) -> None:
        """Add the files below a folder that has been listed, also pipes: a label file that is one is an error."""
        self._names |= {folder: set(names) for folder, names in content.names.items()}
        for path in content.special:
            folder, name = os.path.split(path)
            self._names[folder].add(name)

    def of(self, folder: str) -> set[str]:
        """Return the names in a folder; none if the folder does not exist or must not be listed."""
        names = self._names.get(folder)
        if names is None:
            names = self._listed(folder)
            self._names[folder] = names
        return names

    def _listed(self, folder: str) -> set[str]:
        try:
            return set(os.listdir(folder))
        except PermissionError:
            self._closed.add(folder)
        except ValueError:  # a null character in a list of images
            pass
        except OSError as error:
            if error.errno not in NO_FOLDER:
                raise
        return set()

    def has(self, folder: str, name: str) -> bool:
        return name in self.of(folder) or (folder in self._closed and os.path.exists(os.path.join(folder, name)))

    def is_closed(self, folder: str) -> bool:
        """Return whether a folder that has been asked for exists, but must not be listed."""
        return folder in self._closed and os.path.isdir(folder)

    def labels(self, folder: str) -> dict[str, str]:
        """Return the names of the label files in a folder by stem, in all Unicode forms; `.txt` precedes `.TXT`."""
        labels = self._labels.get(folder)
        if labels is None:
            names = [name for name in self.of(folder) if name[-len(LABEL_SUFFIX) :].lower() == LABEL_SUFFIX]
            labels = {name[: -len(LABEL_SUFFIX)]: name for name in names if name.endswith(LABEL_SUFFIX)}
            for name in sorted(name for name in names if not name.endswith(LABEL_SUFFIX)):
                if labels.setdefault(stem(name), name) != name:
                    self.ambiguous_labels.append(os.path.join(folder, name))
            for name in list(labels):
                for form in unicode_forms(name):
                    labels.setdefault(form, labels[name])
            self._labels[folder] = labels
        return labels


class SplitImages:
    """Images of the folders and lists of a split: `paths` are absolute, unique and sorted by their names."""

    def __init__(self, description: DataDescription, key: Key) -> None:
        self.description = description
        self.root = str(description.root)
        self.folder_names = FolderNames()
        self.contents: list[FolderContent] = []  # Of the folders of images
        self.possible_links: set[str] = set()  # Images of lists, links, and images below linked folders
        self.places: list[Path] = []  # Folders and lists of the split without links
        self.linked_places: dict[str, str] = {}  # Path in the data.yaml of a folder that is a link, by its real path
        entries: list[str] = []
        for written_place in description.places(key):
            entries += self._images_at(written_place)
        name_of = {path: self._name(path) for path in entries}
        path_of = {name: path for path, name in name_of.items()}
        # The order must not depend on the location of the dataset.
        self.names = sorted(name for name in path_of if not name.startswith(os.sep))
        self.names += sorted(name for name in path_of if name.startswith(os.sep))
        self.paths = [path_of[name] for name in self.names]
        self.repeated_entries = [path for path, count in Counter(entries).items() if count > 1]
        self.repetitions = len(entries) - len(self.paths)

    def _name(self, path: str) -> str:
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{self.description.file}: the name of the image {path!r} is not UTF-8") from error
        return path.removeprefix(f"{self.root}{os.sep}")

    def _images_at(self, written_place: Path) -> list[str]:
        """Return the images below a folder, or the images in a list of images."""
        place = real_path(written_place)
        self.places.append(place)
        if not place.is_dir():
            if suffix(str(place)) in IMAGE_SUFFIXES:
                return [str(place)]
            return self._images_of_list(written_place, place)
        if plain_path(written_place) != str(place):
            self.linked_places[str(place)] = plain_path(written_place)
        content = list_folder(place)
        self.contents.append(content)
        self.folder_names.add(content)
        self.possible_links |= content.linked
        images = []
        for folder, names in content.names.items():
            images += [f"{folder}{os.sep}{name}" for name in names if suffix(name) in IMAGE_SUFFIXES]
        return images

    def _images_of_list(self, written_list: Path, image_list: Path) -> list[str]:
        """Return the images of a list.

        A relative line is relative to the folder of the list, the dataset folder or the working folder: the first of
        them that contains the image. An image that none of them contains is expected where most other images are.
        """
        folders = (str(image_list.parent), str(written_list.parent), self.root, os.getcwd())
        bases = list(dict.fromkeys(folders))
        lines = _lines(image_list)
        searched_folders: dict[str, list[str]] = {}
        base_numbers: list[int | None] = []
        for position, line in enumerate(lines):
            base_number = None
            for form in unicode_forms(line):
                folder, name = _folder_and_name(form)
                if folder not in searched_folders:
                    searched_folders[folder] = [self._folder(os.path.join(base, folder)) for base in bases]
                candidates = enumerate(searched_folders[folder])
                matches = (number for number, candidate in candidates if self.folder_names.has(candidate, name))
                base_number = next(matches, None)
                if base_number is not None:
                    lines[position] = form
                    break
            base_numbers.append(base_number)
        relative = (number for line, number in zip(lines, base_numbers, strict=True) if not line.startswith("/"))
        frequencies = Counter(number for number in relative if number is not None)
        usual_number = max(range(len(bases)), key=lambda number: frequencies[number])
        images = []
        for line, base_number in zip(lines, base_numbers, strict=True):
            folder, name = _folder_and_name(line)
            number = usual_number if base_number is None else base_number
            images.append(f"{searched_folders[folder][number]}{os.sep}{name}")
        self.possible_links |= set(images)
        return images

    def _folder(self, path: str) -> str:
        """Return the path of a folder without `..`; a link to the dataset folder is replaced by the dataset folder."""
        folder = os.path.dirname(plain_path(os.path.join(path, "image.jpg")))
        if f"{folder}{os.sep}".startswith(f"{self.root}{os.sep}"):
            return folder
        for parent in (Path(folder), *Path(folder).parents):
            if str(real_path(parent)) == self.root:
                return os.path.join(self.root, os.path.relpath(folder, parent))
        return folder

    def refuse_outside(self) -> None:
        """Refuse images of a list outside of the dataset folder, the folder of the list and the folders of `places`."""
        allowed_folders = {self.description.root, self.description.file.parent}
        allowed_folders |= {place if place.is_dir() else place.parent for place in self.places}
        allowed = tuple(f"{folder}{os.sep}" for folder in allowed_folders)
        for path in self.paths:
            if not path.startswith(allowed):
                remedy = "set data.limits.allow_outside_root true to read it"
                if not os.path.lexists(path):
                    remedy = "the file does not exist: replace the folder in the list by that of the images"
                raise UserError(
                    f"{self.description.file}: image {one_line(path, 300)!r} is outside of the dataset folder "
                    f"{self.description.root}; {remedy}"
                )

    def other_files(self) -> list[str]:
        """Return the files below the folders of images that are not images."""
        return [file for content in self.contents for file in content.files() if suffix(file) not in IMAGE_SUFFIXES]


def _folder_and_name(line: str) -> tuple[str, str]:
    """Return the folder of a path, with its last `/`, and the file name."""
    start = line.rfind("/") + 1
    return line[:start], line[start:]


def _lines(image_list: Path) -> list[str]:
    """Return the lines of a list of images, with `/` between folders."""
    try:
        lines = read_regular(image_list, LARGEST_LIST).decode("utf-8-sig").split("\n")
    except OSError as error:
        raise UserError(f"image list {image_list} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"image list {image_list} cannot be read: {undecodable(error)}") from error
    names = [line.strip().replace("\\", "/") for line in lines if line.strip()]
    for name in names:
        if suffix(name) not in IMAGE_SUFFIXES:
            raise UserError(
                f"image list {image_list}: a line must be the path of an image, got {one_line(name, 200)!r}"
            )
        if has_drive(name) and not os.path.lexists(name):
            raise UserError(f"image list {image_list}: {one_line(name, 200)!r} does not exist. {remedy(name)}")
    return names


class SplitLabels:
    """Label files of the images of a split, and the label files that are not used."""

    def __init__(self, images: SplitImages) -> None:
        self.images = images
        self.folder_names = images.folder_names
        image_folders = {path.rpartition(os.sep)[0] for path in images.paths}
        self.usual_folder = {folder: label_folder(folder) for folder in image_folders}
        linked_folders = {path.rpartition(os.sep)[0] for path in images.possible_links}
        self.image_folders_of: dict[str, list[str]] = defaultdict(list)  # By the usual folder of their labels
        for folder in sorted(image_folders):
            self.image_folders_of[self.usual_folder[folder]].append(folder)
        self.contents: list[FolderContent] = []  # Of the usual folders of the labels
        for place in images.places:
            self._list_labels_of(str(place))
        self.candidates = {folder: self._label_folders(folder, linked_folders) for folder in image_folders}
        self.elsewhere: list[str] = []  # Used label files that Ultralytics would not find
        self.unused: list[str] = []  # Label files of images that have another one
        self.paths = [self._label_of(path) for path in images.paths]

    def _list_labels_of(self, place: str) -> None:
        """List the folder of the labels of a folder of images, so that labels without an image are known."""
        folder = label_folder(place)
        if folder == place or not os.path.isdir(place) or not os.path.isdir(folder):
            return
        content = list_folder(folder)
        self.contents.append(content)
        self.folder_names.add(content)
        for labels in content.names:
            self.image_folders_of.setdefault(labels, [])

    def _label_folders(self, folder: str, linked_folders: set[str]) -> list[str]:
        """Return the folders with labels of the images in a folder, the usual one first."""
        folders = [self.usual_folder[folder]]
        for place, written_place in self.images.linked_places.items():
            if f"{folder}{os.sep}".startswith(f"{place}{os.sep}"):
                folders.append(label_folder(written_place + folder.removeprefix(place)))
        if folder in linked_folders:
            folders.append(label_folder(str(real_path(Path(folder)))))
        folders.append(folder)
        filled = [candidate for candidate in dict.fromkeys(folders) if self.folder_names.labels(candidate)]
        if not filled and self.folder_names.is_closed(self.usual_folder[folder]):
            raise UserError(f"folder of labels {self.usual_folder[folder]} cannot be listed: allow it with chmod u+r")
        if len(filled) < 2:
            return filled
        by_real_path: dict[str, str] = {}
        for candidate in filled:
            by_real_path.setdefault(str(real_path(Path(candidate))), candidate)
        return list(by_real_path.values())

    def _label_of(self, image: str) -> str:
        """Return the label file of an image, empty for a background image."""
        folder, _, name = image.rpartition(os.sep)
        image_stem = stem(name)
        matches = []
        for candidate in self.candidates[folder]:
            label_name = self.folder_names.labels(candidate).get(image_stem)
            if label_name is not None:
                matches.append(f"{candidate}{os.sep}{label_name}")
        self.unused += matches[1:]
        if not matches and image in self.images.possible_links and os.path.islink(image):
            matches = _labels_of_target(image)
        if not matches:
            return ""
        label = matches[0]
        if not label.endswith(LABEL_SUFFIX) or label.rpartition(os.sep)[0] != self.usual_folder[folder]:
            self.elsewhere.append(label)
        return label

    def split_files(self) -> SplitFiles:
        """Return the files of the split; the status of each used file is read here, once."""
        images = self.images
        digest = sha256()
        first_positions: dict[object, int] = {}
        originals: dict[int, int] = {}
        for position, (image, label) in enumerate(zip(images.paths, self.paths, strict=True)):
            stamp = _stamp(image)
            label_stamp = _stamp(label) if label else None
            digest.update(f"{image}\0{stamp}\0{label}\0{label_stamp}\n".encode())
            if images.possible_links and stamp is not None:
                first_position = first_positions.setdefault(stamp, position)
                if first_position != position:
                    originals[position] = first_position
        notes = tuple(self._notes(originals))
        digest.update("\n".join(notes).encode())
        return SplitFiles(images.paths, images.names, self.paths, originals, notes, digest.hexdigest())

    def _notes(self, originals: Mapping[int, int]) -> list[str]:
        images = self.images
        pairs = list(zip(images.paths, self.paths, strict=True))
        unlabelled = [label_file(image) for image, label in pairs if not label]
        unused = [*self.unused, *self.folder_names.ambiguous_labels]
        groups = {
            "images without a label file (background)": unlabelled,
            "used label files that are not in the usual folder or have another suffix": self.elsewhere,
            "label files left out, because another label file of the same image is used": unused,
            "label files without an image": self._labels_without_image(),
            "images that are links to another image of the split, each used again": [
                images.paths[position] for position in originals
            ],
        }
        notes = [counted(len(paths), what, paths[0]) for what, paths in groups.items() if paths]
        suffixes = by_suffix(images.paths)
        if len(suffixes) > 1:
            notes.append(f"images by suffix: {', '.join(suffixes)}")
        if images.repeated_entries:
            what = "duplicate entries of images, each used once"
            notes.append(counted(images.repetitions, what, images.repeated_entries[0]))
        return [*notes, *(f"left out {line}" for line in self._left_out(unused))]

    def _left_out(self, unused_labels: list[str]) -> list[str]:
        """Return a line about each group of files that are neither images nor label files."""
        label_folders = {labels for labels, folders in self.image_folders_of.items() if labels not in folders}
        judged = {*self.paths, *unused_labels}
        unexpected_files = []
        for file in (*self.images.other_files(), *self._files_of_label_folders()):
            folder, _, name = file.rpartition(os.sep)
            is_label = suffix(name) == LABEL_SUFFIX and folder in label_folders
            if not is_label and name != CLASS_LIST and file not in judged:
                unexpected_files.append(file)
        lines = [f"{line}; read are {READ}" for line in other_files(list(dict.fromkeys(unexpected_files)))]
        return [*lines, *unusable_files([*self.images.contents, *self.contents], IMAGE_SUFFIXES)]

    def _files_of_label_folders(self) -> Iterator[str]:
        """Yield the files in the listed folders of labels that are not label files."""
        for content in self.contents:
            for folder, names in content.names.items():
                for name in names:
                    if not name.endswith(LABEL_SUFFIX):
                        yield os.path.join(folder, name)

    def _labels_without_image(self) -> list[str]:
        """Return the label files for which no file in the folder of the images has the same name without suffix."""
        labels_without_image = []
        for folder, image_folders in sorted(self.image_folders_of.items()):
            if folder in image_folders:  # without a folder `images`, other text files may be beside the images
                continue
            stems = {stem(CLASS_LIST)}
            for image_folder in image_folders:
                stems.update(form for name in self.folder_names.of(image_folder) for form in unicode_forms(stem(name)))
            labels = self.folder_names.labels(folder)
            unused_names = dict.fromkeys(labels[name] for name in sorted(labels.keys() - stems))
            labels_without_image += [os.path.join(folder, name) for name in unused_names]
        return labels_without_image


def _stamp(file: str) -> tuple[int, int, int, int] | None:
    """Return the stamp of a file, None if it does not exist."""
    try:
        return file_stamp(file)
    except OSError:
        return None


def _labels_of_target(image: str) -> list[str]:
    """Return the label files of the target of a link."""
    target = os.path.realpath(image)
    labels = []
    for label in (label_file(target), stem(target) + LABEL_SUFFIX):
        folder, name = os.path.split(label)
        labels.append(os.path.join(folder, existing_form(folder, name)))
    return [label for label in labels if os.path.isfile(label)]
