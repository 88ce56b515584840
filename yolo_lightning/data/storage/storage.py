"""Interface of the storages of frames, and the settings that select a storage."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Literal, Self

from yolo_lightning.data.storage.frames import Channels, Frame, decode_frame
from yolo_lightning.data.storage.image_header import FrameLimits
from yolo_lightning.utils.choices import settings_group
from yolo_lightning.utils.files import cache_folder
from yolo_lightning.utils.paths import user_path

STORE = "packed"
StorageKind = Literal["auto", "packed", "folder", "zip"]


@settings_group("data.storage", image_cache_mib=">= 0")
class StorageSettings:
    """Where the frames of a dataset are stored, and what is cached.

    Attributes:
        kind: Storage of LTDv2's frames: `packed`, `folder` (`frames`), `zip` (`frames.zip`), or `auto` for the first of
            these that exists.
        store: Folder of the packed store; null uses `packed` under `data.root`.
        index_root: Folder of the packed index; null uses `yolo_lightning` in the user's cache folder.
        image_cache_mib: Largest memory per loader process for decoded training frames, MiB; see docs/loader.md. It
            changes the speed only.
    """

    kind: StorageKind = "auto"
    store: str | None = None
    index_root: str | None = None
    image_cache_mib: int = 256

    def store_in(self, root: Path) -> Path:
        """Return the folder of the packed store of the dataset in `root`."""
        if self.store is None:
            return root / STORE
        return user_path(self.store)

    @property
    def index_folder(self) -> Path:
        """Folder of the packed indexes."""
        if self.index_root is None:
            return cache_folder() / "index"
        return user_path(self.index_root)


class Storage(ABC):
    """Reader of frames by their name in the annotation file."""

    kind: ClassVar[StorageKind]
    is_encoded: ClassVar[bool] = False
    """Whether reading a frame decodes an image file, so that an image cache saves time."""

    @classmethod
    @abstractmethod
    def exists(cls, root: Path, settings: StorageSettings) -> bool:
        """Return whether the dataset in `root` has this storage."""

    @classmethod
    @abstractmethod
    def open(cls, root: Path, settings: StorageSettings, limits: FrameLimits) -> Self:
        """Open the storage of the dataset in `root`; raise `ValueError` if it cannot be used."""

    @abstractmethod
    def read(self, name: str) -> Frame:
        """Return a frame, `(H, W)` if the storage returns gray frames, else `(H, W, 3)` RGB.

        The pixels are uint8, or uint16 if the storage returns gray frames with 16 bits.

        Raises:
            FrameError: If the frame is missing or damaged.
        """

    @abstractmethod
    def missing(self, names: Iterable[str]) -> list[str]:
        """Return the names that are not in the storage, without decoding frames."""

    @abstractmethod
    def state_of(self, names: Iterable[str]) -> str:
        """Return a text that changes if the content of one of these frames changes, without reading the frames."""


class EncodedStorage(Storage):
    """Storage of image files: `content` returns the bytes of a file, which `read` decodes."""

    is_encoded = True
    channels: Channels = 1
    limits: FrameLimits

    @abstractmethod
    def content(self, name: str) -> bytes:
        """Return the content of an image file; raise `FrameError` if it cannot be read or is too large."""

    @abstractmethod
    def origin(self) -> dict[str, str]:
        """Return an identification of the content, which a packed store records."""

    def read(self, name: str) -> Frame:
        return decode_frame(self.content(name), name, self.channels, self.limits)
