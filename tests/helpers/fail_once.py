"""The command line in one of several processes: torchrun ... fail_once.py fit --config ...

Each process writes the ids that it has trained on into RECORD/<attempt>-<rank>.txt, a line for each batch, and its
weights after the fit into weights-<rank>.pt. In the first attempt one process fails before batch FAIL_AT, as FAILURE
says: that of FAIL_RANK, else the one that is told to `kill agent`, else the last one. The attempt is 1 once the file
`failed` exists; then, with HANGS_ALONE, a process without others trains nothing.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from yolo_lightning.utils.activity import Activity, during

FAILED = Path("failed")
TIMEOUT_S = 25.0
"""After which a stall counts."""


class FailOnce(Callback):
    def __init__(self) -> None:
        self.attempt = int(FAILED.exists())
        self.failure, self.fail_at = os.environ.get("FAILURE", "none"), int(os.environ.get("FAIL_AT", "-1"))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self.attempt and trainer.world_size == 1 and "HANGS_ALONE" in os.environ:
            time.sleep(1000)  # until the agent restarts this process, because the other host has returned
        if self.fails(trainer, batch_idx):
            FAILED.touch()
            if self.failure == "requeue":
                os.kill(os.getpid(), signal.SIGUSR1)
            if self.failure == "kill":
                os._exit(137)
            if self.failure == "kill agent":
                os.kill(os.getppid(), signal.SIGKILL)
            if self.failure in ("hang", "kill agent"):
                time.sleep(1000)

    def fails(self, trainer: Trainer, batch: int) -> bool:
        step = trainer.current_epoch * int(trainer.num_training_batches) + batch
        last = trainer.global_rank if self.failure == "kill agent" else trainer.world_size - 1
        is_chosen = trainer.global_rank == int(os.environ.get("FAIL_RANK", last))
        return not self.attempt and step == self.fail_at and is_chosen

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.failure == "hang waiting" and self.fails(trainer, batch_idx):  # a batch is awaited from here on
            with during(Activity.LOAD):
                time.sleep(1000)
        record = Path(os.environ["RECORD"]) / f"{self.attempt}-{trainer.global_rank}.txt"
        with record.open("a") as file:
            print(trainer.current_epoch, ",".join(batch.image_ids), file=file)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        torch.save(pl_module.state_dict(), f"weights-{trainer.global_rank}.pt")


if __name__ == "__main__":
    from yolo_lightning import callbacks, cli

    combine = cli.with_default_callbacks
    added = [callbacks.StallMonitor(TIMEOUT_S), FailOnce(), callbacks.LastCheckpoint(interval_steps=1)]
    cli.with_default_callbacks = lambda configured, **options: combine([*configured, *added], **options)
    cli.main(sys.argv[1:])
