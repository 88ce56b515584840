"""The run folder as the supervisor uses it: through a helper process, with patience and with an alarm."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from yolo_lightning.supervision.helper_process import Helper
from yolo_lightning.utils import run_files

Result = TypeVar("Result")
POLL_S = 0.5
PROBE_S = 5.0
"""A disk that takes longer for a small file hangs, if a stall is to be explained."""

ALARM_S = 30.0
"""A disk that has not answered for so long is reported, whatever the trainer does."""

PATIENCE_S = 5.0
"""So long the supervisor waits for the disk when it was told to stop, and at its end."""


class DiskHangsError(Exception):
    """The disk of the run folder does not answer, and the supervisor was told to stop."""


class RunDisk:
    """All file access of the supervisor to the run folder.

    Args:
        run: Run folder.
        must_end: Whether the supervisor was told to stop.
        report: Called with True as the disk has not answered for long, and with False as it answers again; and with a
            sentence for a person.
    """

    def __init__(self, run: Path, must_end: Callable[[], bool], report: Callable[[bool, str], None]) -> None:
        self.run, self._must_end, self._report = run, must_end, report
        self.helper = Helper()
        self._alarm_s: float | None = None

    @property
    def silent_s(self) -> float:
        """Seconds for which the disk has not answered."""
        return self.helper.silent_s

    @property
    def hangs(self) -> bool:
        """Whether the disk has not answered for longer than a disk takes."""
        return self.silent_s >= PROBE_S

    def post(self, function: Callable[..., Any], *arguments: Any, replaces: str = "") -> None:
        """Make a call later, in order; errors are ignored."""
        self.helper.post(function, *arguments, replaces=replaces)

    def ask(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return what a call returns, however long the disk takes; only where no trainer has to be watched.

        Raises:
            DiskHangsError: If the supervisor is told to stop meanwhile.
            OSError: What the call raises.
        """
        call = self.helper.begin(function, *arguments)
        while not self.helper.wait(call, POLL_S):
            self.look()
            if self._must_end() and self.silent_s >= PATIENCE_S:
                raise DiskHangsError
        return call.result()

    def answers(self, wait_s: float) -> bool:
        """Write a small file to the run folder, and return whether that was done within `wait_s` seconds."""
        if self.silent_s >= wait_s:
            return False
        return self.helper.wait(self.helper.begin(run_files.probe, self.run), wait_s)

    def look(self) -> None:
        """Raise the alarm, or end it; returns at once, to be called again and again."""
        self.helper.serve()
        silent_s = self.silent_s
        if self._alarm_s is None and silent_s >= ALARM_S:
            self._alarm_s = time.monotonic() - silent_s
            self._report(True, f"the disk of {self.run} has not answered for {silent_s:.0f} s")
        elif self._alarm_s is not None and silent_s < ALARM_S:
            seconds, dropped = time.monotonic() - self._alarm_s, self.helper.dropped
            lost = f"; {dropped} entries of the log and of incident reports were dropped" if dropped else ""
            self._alarm_s, self.helper.dropped = None, 0
            self._report(False, f"the disk of {self.run} answers again after {seconds:.0f} s{lost}")

    def close(self) -> None:
        """Wait a few seconds until all is written, and leave what hangs behind."""
        self.helper.close(0.0 if self.hangs else PATIENCE_S)
