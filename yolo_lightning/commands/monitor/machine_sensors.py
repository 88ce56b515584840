"""GPU, memory and disk, read in a thread that may be left behind: a driver that hangs holds up even a look."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from yolo_lightning.commands.monitor.run_state import SensorReadings
from yolo_lightning.utils import sensors

SILENT_AFTER_S = 3.0


class MachineReader:
    """Reads again and again.

    Args:
        folder: Run folder, whose file system is looked at.
        interval_s: Seconds between two readings.
        read: Reads once, given the trainer's process id, or None.
    """

    def __init__(
        self, folder: Path, interval_s: float, read: Callable[[Path, int | None], SensorReadings] | None = None
    ) -> None:
        self.folder, self.interval_s, self._read = folder, interval_s, read or read_machine
        self.trainer: int | None = None
        self._latest = SensorReadings()
        self._at_s = time.monotonic()
        self._any = threading.Event()
        threading.Thread(target=self._work, name="sensors", daemon=True).start()

    def latest(self, wait_s: float = 0.0) -> SensorReadings:
        """The last reading; waits at most `wait_s` seconds for the first."""
        self._any.wait(wait_s)
        silent_s = time.monotonic() - self._at_s - self.interval_s
        return replace(self._latest, silent_s=silent_s if silent_s > SILENT_AFTER_S else 0.0)

    def _work(self) -> None:
        while True:
            self._latest = self._read(self.folder, self.trainer)
            self._at_s = time.monotonic()
            self._any.set()
            time.sleep(self.interval_s)


def read_machine(folder: Path, trainer: int | None) -> SensorReadings:
    """One reading of everything."""
    return SensorReadings(
        gpus=tuple(sensors.amd_gpus() + sensors.nvidia_gpus()),
        memory=sensors.memory(),
        disk=sensors.disk(folder),
        evicted_ms=sensors.evicted_ms(trainer) if trainer else None,
    )
