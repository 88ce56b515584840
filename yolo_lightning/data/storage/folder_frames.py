"""Storage of image files in a folder."""

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from yolo_lightning.data.storage.frames import Channels, FrameError, unreadable
from yolo_lightning.data.storage.image_header import FrameLimits
from yolo_lightning.data.storage.storage import EncodedStorage, StorageSettings
from yolo_lightning.errors import UserError
from yolo_lightning.utils.paths import real_path
from yolo_lightning.utils.regular_files import read_regular
from yolo_lightning.utils.suggestions import missing

FOLDER = "frames"


class ImageFiles(EncodedStorage):
    """Image files below the folder `base`."""

    kind = "folder"

    def __init__(self, base: Path, channels: Channels = 1, limits: FrameLimits = FrameLimits()) -> None:  # noqa: B008
        self.base = base
        self.channels = channels
        self.limits = limits

    @classmethod
    def exists(cls, root: Path, settings: StorageSettings) -> bool:
        return (root / FOLDER).is_dir()

    @classmethod
    def open(cls, root: Path, settings: StorageSettings, limits: FrameLimits) -> Self:
        return cls(root, limits=limits)

    def __str__(self) -> str:
        return str(self.base)

    def origin(self) -> dict[str, str]:
        return {"path": str(real_path(self.base))}

    def content(self, name: str) -> bytes:
        problem = self.limits.problem_of_name(name)
        if problem:
            raise FrameError(f"{name}: {problem}")
        try:
            return read_regular(self.base / name, self.limits.max_bytes)
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
                present = set(os.listdir(self.base / folder))
            except (OSError, ValueError):
                present = set()
            absent += [folder + file for file in files if file not in present]
        return absent


class FolderFrames(ImageFiles):
    """Gray frames in a folder, as `<root>/frames/<date>/<clip>/image_<n>.jpg`.

    `frames/frames/...`, the result of extracting `frames.zip` into a folder `frames`, is found too.
    """

    def __init__(self, root: Path, limits: FrameLimits = FrameLimits()) -> None:  # noqa: B008
        if not root.is_dir():
            raise UserError(f"dataset root {root} {missing(root)}")
        if not (root / FOLDER).is_dir():
            raise UserError(f"dataset root {root} has no folder '{FOLDER}': extract frames.zip there")
        base = root / FOLDER
        if not (base / FOLDER).is_dir():
            base = root
        super().__init__(base, limits=limits)

    def __str__(self) -> str:
        return str(self.base / FOLDER)

    def origin(self) -> dict[str, str]:
        return {"path": str(real_path(self.base / FOLDER))}
