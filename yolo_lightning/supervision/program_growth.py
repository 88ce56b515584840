"""Signs of life of a program without a heartbeat: growth of its files, or of its output."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from yolo_lightning.supervision.helper_process import Call, Helper
from yolo_lightning.supervision.run_disk import PROBE_FILE
from yolo_lightning.utils import run_files
from yolo_lightning.utils.regular_files import matching_paths

FileMarks = frozenset[tuple[str, int, int]]

FILES_OF_SUPERVISOR = frozenset(
    {
        run_files.LOG_FILE,
        f"{run_files.LOG_FILE}.1",
        run_files.SUPERVISOR_FILE,
        run_files.STATE_FILE,
        run_files.PHASE_TIMEOUTS_FILE,
        run_files.HEARTBEAT_FILE,
        run_files.LOCK_FILE,
        run_files.INCIDENTS,
        PROBE_FILE,
    }
)
"""Files and folders in the run folder that the supervisor itself writes while a program hangs."""


class ProgramGrowth:
    """Notices that files of a program have changed, or without a pattern, that the program has written output.

    `pattern` is an absolute pattern of files, or empty. The files of the supervisor in the run folder `run` do not
    count. `last_output_s` returns the time of the last output. `disk` reads the files: a disk that hangs blocks nobody.
    """

    def __init__(self, pattern: str, run: Path, last_output_s: Callable[[], float], disk: Helper) -> None:
        self._pattern = pattern
        self._run = run.absolute()
        self._last_output_s = last_output_s
        self._disk = disk
        self._seen_output_s = last_output_s()
        self._marks: FileMarks | None = None
        self._call: Call[FileMarks] | None = None

    def has_grown(self) -> bool:
        """Return whether the program has shown a sign of life since the last call; returns at once."""
        if self._pattern:
            return self._have_files_changed()
        before_s = self._seen_output_s
        self._seen_output_s = self._last_output_s()
        return self._seen_output_s > before_s

    def _have_files_changed(self) -> bool:
        has_changed = False
        if self._call is not None and self._call.answered:
            if not isinstance(self._call.value, OSError):
                has_changed = self._marks not in (None, self._call.value)
                self._marks = self._call.value
            self._call = None
        if self._call is None:
            self._call = self._disk.begin(marks_of_files, self._pattern, self._run)
        return has_changed


def marks_of_files(pattern: str, run: Path) -> FileMarks:
    """Return name, size and time of the last change of the files that match a pattern."""
    marks = set()
    for name in matching_paths(pattern):
        if any(Path(name).is_relative_to(run / file) for file in FILES_OF_SUPERVISOR):
            continue
        with suppress(OSError):  # replaced meanwhile
            status = os.stat(name)
            marks.add((name, status.st_size, status.st_mtime_ns))
    return frozenset(marks)
