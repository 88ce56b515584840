"""Lightning plugin that writes checkpoints atomically."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from lightning.fabric.plugins import TorchCheckpointIO

from yolo_lightning.checkpoints.checkpoint_file import checksum_path, remove_checkpoint, require_whole, write_checkpoint
from yolo_lightning.checkpoints.remote_folder import RemoteFolder, is_remote, local_checkpoint, local_path
from yolo_lightning.checkpoints.torch_archive import unsafe_globals
from yolo_lightning.errors import UserError
from yolo_lightning.utils.addresses import WEB
from yolo_lightning.utils.choices import checked_arguments
from yolo_lightning.utils.rank_zero import rank_zero_warn


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes each checkpoint to a temporary file in its own folder, flushes and renames the file, and adds a checksum.

    Lightning writes to the system's temporary folder first. If that folder is on another file system, a kill during the
    copy destroys the checkpoint that the new one replaces. A damaged checkpoint is not loaded. A checkpoint at an
    address, such as `s3://bucket/runs/last.ckpt`, is written by fsspec, and its checksum file last.

    A warning says that Lightning will load a checkpoint only with `weights_only=False`, because it contains objects of
    other classes, such as numbers of NumPy among the hyperparameters.
    """

    _has_checked_classes = False

    @checked_arguments()
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        if storage_options is not None:
            raise UserError(f"storage_options must be None, got {storage_options!r}")
        if is_remote(path):
            folder, _, name = str(path).rpartition("/")
            RemoteFolder(folder).write(name, checkpoint)
            return
        file = local_path(path)
        write_checkpoint(checkpoint, file)
        if not self._has_checked_classes:
            self._has_checked_classes = True
            classes = unsafe_globals(file)
            if classes:
                rank_zero_warn(_needs_pickle(file, classes))

    @checked_arguments()
    def load_checkpoint(self, path: str | Path, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Load a checkpoint, possibly from an address; raise a UserError if the file is damaged or no checkpoint."""
        if not str(path).startswith(WEB):  # Lightning downloads these
            path = local_checkpoint(str(path))
            if checksum_path(path).is_file() or path.is_symlink():
                require_whole(path)
            elif path.exists() and not is_zipfile(path):
                raise UserError(f"checkpoint {path} cannot be loaded: it is not a file of torch.save")
        try:
            content: dict[str, Any] = super().load_checkpoint(path, *arguments, **options)
        except pickle.UnpicklingError as error:
            classes = unsafe_globals(Path(path))
            if not classes:
                raise
            raise UserError(_needs_pickle(Path(path), classes)) from error
        return content

    @checked_arguments()
    def remove_checkpoint(self, path: str | Path) -> None:
        if is_remote(path):
            folder, _, name = str(path).rpartition("/")
            RemoteFolder(folder).remove(name)
        else:
            remove_checkpoint(local_path(path))


def _needs_pickle(path: Path, classes: Sequence[str]) -> str:
    """Return why Lightning does not load a checkpoint with such classes by default, and what to do, in one line."""
    return (
        f"checkpoint {path} contains objects of {', '.join(classes[:3])}, such as hyperparameters or the state of a "
        "callback. To resume, call Trainer.fit(..., ckpt_path=..., weights_only=False) if you trust the file, or "
        "convert them to plain Python values before they are saved"
    )
