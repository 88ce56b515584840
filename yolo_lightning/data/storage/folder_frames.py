"""Storage of image files in a folder."""

import os
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Self

from yolo_lightning.data.input_settings import Channels
from yolo_lightning.data.storage.frames import FrameError, unreadable
from yolo_lightning.data.storage.image_header import FrameLimits
from yolo_lightning.data.storage.storage import EncodedStorage
from yolo_lightning.data.storage.storage_settings import StorageSettings
from yolo_lightning.errors import UserError
from yolo_lightning.utils.paths import existing_form, real_path, unicode_forms
from yolo_lightning.utils.plain_text import one_line
from yolo_lightning.utils.regular_files import file_stamp, read_regular
from yolo_lightning.utils.suggestions import missing

FOLDER = "frames"


class ImageFiles(EncodedStorage):
    """Image files below the folder `base`.

    A name with `..` and an absolute name are read if the file is below `root`, the dataset folder (default: `base`).
    """

    kind = "folder"

    def __init__(
        self,
        base: Path,
        channels: Channels = 1,
        limits: FrameLimits = FrameLimits(),  # noqa: B008 - frozen
        root: Path | None = None,
    ) -> None:
        self.base = base
        self.channels = channels
        self.limits = limits
        self.root = base if root is None else root

    @classmethod
    def exists(cls, root: Path, settings: StorageSettings) -> bool:
        return (root / FOLDER).is_dir()

    @classmethod
    def open(cls, root: Path, settings: StorageSettings, limits: FrameLimits) -> Self:
        return cls(root, limits=limits)

    def __str__(self) -> str:
        return str(self.base)

    def origin(self) -> dict[str, str]:
        return _origin(self.base)

    def path(self, name: str) -> str:
        """Return the path of the image file of a name."""
        return os.path.join(self.base, existing_form(self.base, name))

    def content(self, name: str) -> bytes:
        path = self.path(name)
        if ".." in name or name.startswith("/"):
            problem = self.limits.problem_of_path(path, self.root)
            if problem is not None:
                raise FrameError(f"{name}: {problem}")
        try:
            return read_regular(path, self.limits.max_bytes)
        except OSError as error:
            raise unreadable(name, str(error.strerror), error) from error
        except ValueError as error:  # a null character
            raise FrameError(f"{name!r}: {error}") from error

    def missing(self, names: Iterable[str]) -> list[str]:
        """Return the names without a file; lists each folder once, which is faster than one query per file."""
        by_folder: dict[str, list[str]] = defaultdict(list)
        for name in names:  # up to half a million: os.path would take longer than listing the folders
            folder, slash, file = name.rpartition("/")
            by_folder[folder + slash].append(file)
        absent: list[str] = []
        for folder, files in by_folder.items():
            try:
                present = set(os.listdir(self.base / existing_form(self.base, folder)))
            except (OSError, ValueError):
                present = set()
            for file in files:
                if file not in present and present.isdisjoint(unicode_forms(file)):
                    absent.append(folder + file)
        return absent

    def state_of(self, names: Iterable[str]) -> str:
        digest = sha256()
        for name in names:
            try:
                stamp = file_stamp(self.path(name))
            except (OSError, ValueError):
                stamp = None
            digest.update(repr(stamp).encode())
        return digest.hexdigest()


class FilesInFolders(ImageFiles):
    """Image files, each in the first of several folders that contains the file."""

    def __init__(self, folders: Sequence[Path], channels: Channels, limits: FrameLimits, root: Path) -> None:
        super().__init__(folders[0], channels, limits, root)
        self.folders = tuple(folders)

    def path(self, name: str) -> str:
        paths = [os.path.join(folder, existing_form(folder, name)) for folder in self.folders]
        return next((path for path in paths if os.path.isfile(path)), paths[0])

    def missing(self, names: Iterable[str]) -> list[str]:
        absent = super().missing(names)
        for folder in self.folders[1:]:
            absent = ImageFiles(folder).missing(absent)
        return absent

    def describe_further_folders(self, names: Iterable[str], absent: Container[str]) -> str:
        """Return a line about the files that the first folder does not contain and another folder does, or "".

        `absent` are the names that no folder contains.
        """
        elsewhere = [name for name in super().missing(names) if name not in absent]
        if not elsewhere:
            return ""
        return (
            f"{len(elsewhere):,} images are not in {self.base} and are read from other folders, such as "
            f"{one_line(self.path(elsewhere[0]), 200)}"
        )


def _origin(folder: Path) -> dict[str, str]:
    """Return the path of a folder; bytes that are not UTF-8, which the JSON of a store cannot contain, are escaped."""
    return {"path": str(real_path(folder)).encode(errors="backslashreplace").decode()}


def check_root(root: Path, remedy: str = "") -> None:
    """Raise a UserError, which ends with the remedy, if the folder of a dataset does not exist."""
    if not root.is_dir():
        raise UserError(f"dataset root {root} {missing(root)} {remedy}".rstrip())


class FolderFrames(ImageFiles):
    """Gray frames in a folder, as `<root>/frames/<date>/<clip>/image_<n>.jpg`.

    `frames/frames/...`, the result of extracting `frames.zip` into a folder `frames`, is found too.
    """

    def __init__(self, root: Path, limits: FrameLimits = FrameLimits()) -> None:  # noqa: B008
        check_root(root)
        if not (root / FOLDER).is_dir():
            raise UserError(f"dataset root {root} has no folder '{FOLDER}': extract frames.zip there")
        base = root / FOLDER
        if not (base / FOLDER).is_dir():
            base = root
        super().__init__(base, limits=limits, root=root)

    def __str__(self) -> str:
        return str(self.base / FOLDER)

    def origin(self) -> dict[str, str]:
        return _origin(self.base / FOLDER)
