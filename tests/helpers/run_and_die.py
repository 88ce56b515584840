"""The command line in a process that kills itself: python run_and_die.py WHERE fit --config ...

WHERE is `batch:N` (before the N-th batch since training began, from 0), `validation:E` (within the validation of
epoch E) or `never`.
"""

import os
import sys
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

EXIT_KILLED = 137


class Die(Callback):
    def __init__(self, where: str) -> None:
        self.kind, _, number = where.partition(":")
        self.number = int(number or -1)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        step = trainer.current_epoch * int(trainer.num_training_batches) + batch_idx
        if self.kind == "batch" and step == self.number:
            os._exit(EXIT_KILLED)

    def on_validation_batch_start(self, trainer: Trainer, *arguments: Any) -> None:
        if self.kind == "validation" and trainer.current_epoch == self.number:
            os._exit(EXIT_KILLED)


def with_callbacks(where: str, interval_steps: int) -> None:
    """Make the command line use a short checkpoint interval, and die."""
    from yolo_lightning import callbacks, cli

    combine = cli.with_default_callbacks
    added = [callbacks.LastCheckpoint(interval_steps=interval_steps), Die(where)]
    cli.with_default_callbacks = lambda configured, **options: combine([*configured, *added], **options)


if __name__ == "__main__":
    from yolo_lightning.cli import main

    with_callbacks(sys.argv[1], int(sys.argv[2]))
    sys.argv = sys.argv[:1] + sys.argv[3:]
    main()
