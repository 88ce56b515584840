"""Measure the time per step in which a training reports its activities to the heartbeat file.

    python scripts/activity_price.py --steps 400

A small network trains on a small dataset. Reports to the file and to an empty function alternate from step to step.
Both are timed where they are called, in the caches that the step has left. The price is the difference of the medians.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from synthetic import draw_dataset

from yolo_lightning import DetectionDataModule, YOLOModule
from yolo_lightning.callbacks import HeartbeatFile
from yolo_lightning.data.loader_settings import LoaderSettings
from yolo_lightning.utils import activity
from yolo_lightning.utils.activity import Activity

FRAMES = 64
BATCH = 4
WARM_UP_STEPS = 16


class TimedReports(Callback):
    """Times the reports of each step; must follow `HeartbeatFile`, whose writer it uses."""

    def __init__(self, heartbeat: HeartbeatFile) -> None:
        self.heartbeat = heartbeat
        self.is_reported = True
        self.steps = 0
        self.step_ns = 0
        self.step_reports = 0
        self.prices_us: dict[bool, list[float]] = {True: [], False: []}
        self.counts: list[int] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin_step()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.steps += 1
        if self.steps > WARM_UP_STEPS:
            self.prices_us[self.is_reported].append(self.step_ns / 1000)
            self.counts.append(self.step_reports)
        self.is_reported = not self.is_reported
        self._begin_step()

    def _begin_step(self) -> None:
        assert self.heartbeat.writer is not None
        self.step_ns = 0
        self.step_reports = 0
        activity.report_to(self._timed(self.heartbeat.writer.show if self.is_reported else _ignore))

    def _timed(self, report: Callable[[Activity], None]) -> Callable[[Activity], None]:
        def timed(current: Activity) -> None:
            begin_ns = time.perf_counter_ns()
            report(current)
            self.step_ns += time.perf_counter_ns() - begin_ns
            self.step_reports += 1

        return timed


def _ignore(current: Activity) -> None:
    pass


def main() -> None:
    """Train, and print the price of the reports per step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="number of steps (default: %(default)s)")
    steps = parser.parse_args().steps
    heartbeat = HeartbeatFile()
    timed = TimedReports(heartbeat)
    with tempfile.TemporaryDirectory() as folder:
        draw_dataset(Path(folder, "data"), train_frames=FRAMES, valid_frames=4, test_frames=4, width=96, height=64)
        data = DetectionDataModule(
            f"{folder}/data", image_size=64, batch_size=BATCH, loader=LoaderSettings(num_workers=0)
        )
        trainer = Trainer(
            max_epochs=-(-steps * BATCH // FRAMES),
            accelerator="cpu",
            default_root_dir=f"{folder}/run",
            callbacks=[heartbeat, timed],
            limit_val_batches=0,
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            use_distributed_sampler=False,
        )
        trainer.fit(YOLOModule("yolov8n", class_names=data.class_names), data)
    reported_us = statistics.median(timed.prices_us[True])
    ignored_us = statistics.median(timed.prices_us[False])
    print(
        f"{statistics.median(timed.counts):.0f} reports per step take {reported_us - ignored_us:.1f} us "
        f"({reported_us:.1f} us with the timer, which takes {ignored_us:.1f} us; medians of "
        f"{len(timed.prices_us[True])} and {len(timed.prices_us[False])} steps)"
    )


if __name__ == "__main__":
    main()
