"""Readings of GPU, memory and disk from a daemon thread, because a read can block while a driver hangs."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from yolo_lightning.commands.monitor.run_state import SensorReadings
from yolo_lightning.utils import sensors

SILENT_AFTER_S = 3.0
"""The sensors count as silent if a reading is so many seconds late."""


def read_machine(folder: Path, trainer: int | None) -> SensorReadings:
    """Read all sensors once.

    Args:
        folder: Run folder, whose file system is read.
        trainer: Process id of the trainer, or None.
    """
    return SensorReadings(
        gpus=tuple(sensors.amd_gpus() + sensors.nvidia_gpus()),
        memory=sensors.memory(),
        disk=sensors.disk(folder),
        evicted_ms=sensors.evicted_ms(trainer) if trainer else None,
    )


class MachineReader:
    """Thread that reads the sensors every `interval_s` seconds by `read`; set `trainer` to its process id."""

    def __init__(
        self, folder: Path, interval_s: float, read: Callable[[Path, int | None], SensorReadings] = read_machine
    ) -> None:
        self.folder, self.interval_s, self._read = folder, interval_s, read
        self.trainer: int | None = None
        self._latest = SensorReadings()
        self._at_s = time.monotonic()
        self._has_any = threading.Event()
        threading.Thread(target=self._work, name="sensors", daemon=True).start()

    def latest(self, wait_s: float = 0.0) -> SensorReadings:
        """Return the latest readings; wait at most `wait_s` seconds for the first ones."""
        self._has_any.wait(wait_s)
        late_s = time.monotonic() - self._at_s - self.interval_s
        return replace(self._latest, silent_s=late_s if late_s > SILENT_AFTER_S else 0.0)

    def _work(self) -> None:
        while True:
            self._latest = self._read(self.folder, self.trainer)
            self._at_s = time.monotonic()
            self._has_any.set()
            time.sleep(self.interval_s)
