"""A module whose import takes a configurable time, in the place of a worker's imports."""

import time
from pathlib import Path


class SlowImport:
    """Notes in a folder when its unpickling began and ended, seconds of the system's clock.

    Args:
        notes: The folder.
        seconds: How long it takes.
        fails: Whether it ends the process instead.
    """

    def __init__(self, notes: Path, seconds: float = 0.0, *, fails: bool = False) -> None:
        self.state = (notes, seconds, fails)

    def __getstate__(self) -> tuple[Path, float, bool]:
        return self.state

    def __setstate__(self, state: tuple[Path, float, bool]) -> None:
        self.state = notes, seconds, fails = state
        began_s = time.monotonic()
        if fails:
            raise SystemExit(3)
        time.sleep(seconds)
        (notes / str(began_s)).write_text(f"{began_s} {time.monotonic()}")


def work(_: SlowImport) -> None:
    """What the worker does once it has everything: nothing."""


def wait(_: SlowImport) -> None:
    """What a worker does that waits for work."""
    time.sleep(100)
