"""Copies of the checkpoints in remote storage."""

import threading
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities import rank_zero_warn

from yolo_lightning.checkpoints.remote_folder import RemoteFolder, mirror, remove_suspects, to_mirror
from yolo_lightning.utils import run_files

POLL_S = 2.0
END_TIMEOUT_S = 45.0
"""Time limit of the last copy at the end of a fit; below the phase timeout for ending a process."""
ERROR_TIMEOUT_S = 15.0
"""Time limit of the last copy after an error or a signal; below the grace period of a supervisor."""


class CheckpointMirror(Checkpoint):
    """Copies the newest `step-*.ckpt` and `best.ckpt` of the run folder to a remote folder when they are complete.

    A thread of the first rank copies during training; checkpoints that are saved faster than they can be copied are
    skipped. An unavailable storage is logged once and tried again with the next checkpoint; it never ends the fit.
    Copies of checkpoints that were set aside after a wrong result are deleted when a fit starts. As a `Checkpoint` the
    callback runs after the callbacks that save on a signal.

    Args:
        address: Folder in any storage that fsspec supports, such as `s3://bucket/runs`. Checkpoints are copied into a
            folder in it that has the name of the run.
    """

    def __init__(self, address: str) -> None:
        self._root = RemoteFolder(address)
        self._copier: Copier | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit" or not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        run = Path(trainer.default_root_dir).absolute()
        self._copier = Copier(run / run_files.CHECKPOINTS, self._root.folder(run.name))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._finish(ERROR_TIMEOUT_S)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._finish(END_TIMEOUT_S)

    def _finish(self, timeout_s: float) -> None:
        if self._copier is not None:
            self._copier.finish(timeout_s)
            self._copier = None


class Copier:
    """Thread that copies the checkpoints in `folder` to the folder of the run in a remote storage."""

    def __init__(self, folder: Path, remote: RemoteFolder) -> None:
        self._folder = folder
        self._remote = remote
        self._ending = threading.Event()
        self._tried: dict[Path, bytes] = {}
        self._may_hold_suspects = True
        self._failed = False
        self._thread = threading.Thread(target=self._watch, name="checkpoint mirror", daemon=True)
        self._thread.start()

    def finish(self, timeout_s: float) -> None:
        """Copy the newest checkpoints within the time limit, and end the thread."""
        self._ending.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            rank_zero_warn(f"copying to {self._remote.address} takes longer than {timeout_s:g} s: cancelled")

    def _watch(self) -> None:
        while not self._ending.wait(POLL_S):
            self._copy()
        if self._failed:
            self._tried = {}
        self._copy()

    def _copy(self) -> None:
        checkpoints = to_mirror(self._folder)
        if checkpoints.items() <= self._tried.items():  # fewer while a checkpoint is being written
            return
        self._tried = checkpoints
        try:
            if self._may_hold_suspects:
                remove_suspects(self._folder, self._remote)
                self._may_hold_suspects = False
            mirror(checkpoints, self._remote)
        except OSError as error:
            if not self._failed:
                names = ", ".join(path.name for path in checkpoints)
                rank_zero_warn(f"could not copy {names} to {error}; training continues")
            self._failed = True
        else:
            self._failed = False
