"""Copies checkpoints to where they outlive the machine."""

import threading
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities import rank_zero_warn

from yolo_lightning.checkpoints.remote import RemoteFolder, below, copy, not_copied
from yolo_lightning.utils.run_files import CHECKPOINTS

POLL_S = 2.0
PATIENCE_S = 45.0
"""That the end of a fit waits for the last copy; below the phase timeout `exit_s`."""
HURRY_S = 15.0
"""The same after an error or a signal; below what a supervisor grants."""


class CheckpointMirror(Checkpoint):
    """Copies the newest `step-*.ckpt` and `best.ckpt` of the run folder to an address, as soon as they are whole.

    A thread of the first process does it while training goes on; what is saved faster than it can be copied is left
    out. Where the store is away, that is said once, and the next checkpoint is tried; the fit never ends by it. As a
    `Checkpoint` it hears of a signal after those that save.

    Args:
        address: Folder in any store that fsspec knows, such as `s3://bucket/runs`; checkpoints go into a folder of the
            run's name below it.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        RemoteFolder(address)
        self._thread: threading.Thread | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin to watch the run folder."""
        if stage != "fit" or not trainer.is_global_zero:
            return
        run = Path(trainer.default_root_dir).absolute()
        self._folder, self._remote = run / CHECKPOINTS, below(self.address, run.name)
        self._copied: dict[str, bytes] = {}
        self._failed: dict[Path, bytes] = {}
        self._is_away = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="checkpoint mirror", daemon=True)
        self._thread.start()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Copy what is there."""
        self._finish(HURRY_S)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Copy what is there."""
        self._finish(PATIENCE_S)

    def _watch(self) -> None:
        while not self._ending.wait(POLL_S):
            self._copy()
        self._failed = {}  # one more try
        self._copy()

    def _copy(self) -> None:
        new = not_copied(self._folder, self._copied)
        if not new or new == self._failed:
            return
        try:
            copy(new, self._remote)
        except OSError as error:
            self._failed = new
            if not self._is_away:
                rank_zero_warn(f"could not copy {', '.join(path.name for path in new)} to {error}; training goes on")
            self._is_away = True
            return
        self._copied |= {path.name: sidecar for path, sidecar in new.items()}
        self._is_away = False

    def _finish(self, wait_s: float) -> None:
        if self._thread is None:
            return
        self._ending.set()
        self._thread.join(wait_s)
        if self._thread.is_alive():
            rank_zero_warn(f"copying to {self._remote.address} takes more than {wait_s:g} s: left undone")
        self._thread = None
