"""Settings of the storage of frames."""

from pathlib import Path
from typing import Literal

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
        """Return the folder of the packed store of the dataset in `root`; absolute unless `root` is relative."""
        if self.store is None:
            return root / STORE
        return user_path(self.store).absolute()

    @property
    def index_folder(self) -> Path:
        """Folder of the packed indexes, absolute."""
        if self.index_root is None:
            return cache_folder().absolute() / "index"
        return user_path(self.index_root).absolute()
