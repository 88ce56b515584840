"""Callback that ends a stalled fit without a supervisor."""

import os
import subprocess
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from yolo_lightning.callbacks.heartbeat_file import HeartbeatFile
from yolo_lightning.checkpoints.run_folder import read_launch
from yolo_lightning.supervision.heartbeat import HeartbeatWriter
from yolo_lightning.supervision.stall_process import StallJob, start_stall_process
from yolo_lightning.supervision.trainer import is_supervised
from yolo_lightning.utils.choices import checked_arguments
from yolo_lightning.utils.distributed import launch_id
from yolo_lightning.utils.rank_zero import rank_warn
from yolo_lightning.utils.trainer_callbacks import callback_before


class StallMonitor(Callback):
    """Ends a fit without progress, after writing all stacks to `incidents/` in the run folder.

    A small process beside the fit detects the stall as a supervisor does, and kills the fit and its loader workers;
    `fit --resume` continues from the newest checkpoint. Each process of a distributed fit has a monitor: if one process
    stalls, the other processes wait for it and end at about the same time. Under a supervisor, which detects stalls
    itself, the callback does nothing. Time in which the fit is suspended does not count.

    Args:
        timeout_s: Seconds without a heartbeat that count as a stall. One batch, one validation batch, the metrics of a
            validation or a checkpoint must each take less.
    """

    @checked_arguments(timeout_s="> 0")
    def __init__(self, timeout_s: float = 900.0) -> None:
        self.timeout_s = timeout_s
        self._writer: HeartbeatWriter | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit" or is_supervised():
            return
        self._writer = callback_before(trainer, self, HeartbeatFile).writer
        if self._writer is None:  # HeartbeatFile has warned
            return
        try:
            self._writer.arm_stacks()
        except OSError as error:
            rank_warn(f"no stacks after a stall inside a C call: {error}")
        folder = Path(trainer.default_root_dir)
        launch = read_launch(folder) if launch_id() is not None else None
        job = StallJob(
            os.getpid(),
            str(folder.absolute()),
            str(self._writer.path.absolute()),
            self.timeout_s,
            trainer.global_rank,
            trainer.world_size,
            {} if launch is None else {"launch": launch.id, "attempt": launch.attempt},
        )
        self._process = start_stall_process(job)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._process is not None and self._writer is not None:
            self._process.kill()
            self._process.wait()
            self._writer.disarm_stacks()
            self._process = None
