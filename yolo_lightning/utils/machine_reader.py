"""Readings of all sensors of the machine, by a thread, because a read blocks while a driver or a disk hangs."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from yolo_lightning.utils import sensors
from yolo_lightning.utils.sensors import Capacity, GpuReading

SILENT_AFTER_S = 3.0  # the sensors count as silent if a reading is so many seconds late


@dataclass(frozen=True, slots=True)
class SensorReadings:
    """Readings of GPUs, main memory and the disk of the run folder."""

    gpus: tuple[GpuReading, ...] = ()
    memory: Capacity | None = None
    disk: Capacity | None = None
    silent_s: float = 0.0  # seconds without an answer of the sensors; 0 if they answer


def _read_machine(folder: Path) -> SensorReadings:
    """Read all sensors once, and the file system of `folder`."""
    gpus = tuple(sensors.amd_gpus() + sensors.nvidia_gpus())
    return SensorReadings(gpus, sensors.memory(), sensors.disk(folder))


class MachineReader:
    """Daemon thread that reads the sensors every `interval_s` seconds until `close`."""

    def __init__(self, folder: Path, interval_s: float, read: Callable[[Path], SensorReadings] = _read_machine) -> None:
        self.folder, self.interval_s, self._read = folder, interval_s, read
        self._latest = SensorReadings()
        self._at_s = time.monotonic()
        self._has_any, self._closed = threading.Event(), threading.Event()
        threading.Thread(target=self._work, name="sensors", daemon=True).start()

    def latest(self, wait_s: float = 0.0) -> SensorReadings:
        """Return the latest readings; wait at most `wait_s` seconds for the first ones."""
        self._has_any.wait(wait_s)
        late_s = time.monotonic() - self._at_s - self.interval_s
        return replace(self._latest, silent_s=late_s if late_s > SILENT_AFTER_S else 0.0)

    def close(self) -> None:
        """Let the thread end after its current read, without waiting for the thread."""
        self._closed.set()

    def _work(self) -> None:
        while True:
            self._latest = self._read(self.folder)
            self._at_s = time.monotonic()
            self._has_any.set()
            if self._closed.wait(self.interval_s):
                return
