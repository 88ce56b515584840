"""Interface of the storages of frames."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Self

from yolo_lightning.data.input_settings import Channels
from yolo_lightning.data.storage.frames import Frame, decode_frame
from yolo_lightning.data.storage.image_header import FrameLimits
from yolo_lightning.data.storage.storage_settings import StorageKind, StorageSettings


class Storage(ABC):
    """Reader of frames by their name in the annotation file."""

    kind: ClassVar[StorageKind]

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
