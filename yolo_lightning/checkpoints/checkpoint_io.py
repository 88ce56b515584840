"""Lightning plugin that writes checkpoints atomically."""

from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from lightning.fabric.plugins import TorchCheckpointIO

from yolo_lightning.checkpoints.checkpoint_file import checksum_path, remove_checkpoint, require_whole, write_checkpoint
from yolo_lightning.errors import UserError
from yolo_lightning.utils.choices import checked_arguments


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes each checkpoint to a temporary file in its own folder, flushes and renames the file, and adds a checksum.

    Lightning writes to the system's temporary folder first. If that folder is on another file system, a kill during the
    copy destroys the checkpoint that the new one replaces. A damaged checkpoint is not loaded.
    """

    @checked_arguments()
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        if storage_options is not None:
            raise UserError(f"storage_options must be None for local checkpoints, got {storage_options!r}")
        write_checkpoint(checkpoint, Path(path))

    @checked_arguments()
    def load_checkpoint(self, path: str | Path, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Load a checkpoint; raise a ValueError if the file is damaged or does not agree with its checksum file."""
        if checksum_path(Path(path)).is_file():
            require_whole(Path(path))
        elif Path(path).exists() and not is_zipfile(path):
            raise UserError(f"checkpoint {path} cannot be loaded: it is not a file of torch.save")
        content: dict[str, Any] = super().load_checkpoint(path, *arguments, **options)
        return content

    @checked_arguments()
    def remove_checkpoint(self, path: str | Path) -> None:
        remove_checkpoint(Path(path))
