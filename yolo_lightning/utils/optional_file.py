"""Files that a run does not need."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from yolo_lightning.utils.activity import Activity, during
from yolo_lightning.utils.rank_zero import rank_warn

FINAL_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds before each further attempt to write a file at the end of a fit, after which nothing writes it again."""


def attempts(pauses_s: Sequence[float]) -> Iterator[float | None]:
    """Yield the seconds until the next attempt, and wait for them after each attempt; yield None for the last one."""
    for pause_s in pauses_s:
        yield pause_s
        time.sleep(pause_s)
    yield None


class OptionalFile:
    """Continues a run if a file cannot be written, with one warning until the file is written again."""

    def __init__(self) -> None:
        self.failed = False  # whether the last attempt failed

    @contextmanager
    def attempt(self, what: Path | str, then: str = "training continues") -> Iterator[None]:
        """Write the file `what` in the block; a warning ends with `then`, the consequence of a failure."""
        if isinstance(what, Path):
            with suppress(OSError):  # the block fails, too
                what.parent.mkdir(parents=True, exist_ok=True)
        try:
            with during(Activity.WRITE):
                yield
        except OSError as error:
            if not self.failed:
                rank_warn(f"could not write {what} ({error.strerror or error}); {then}")
            self.failed = True
        else:
            self.failed = False
