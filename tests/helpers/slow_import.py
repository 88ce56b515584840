"""A module whose import takes a configurable time, in the place of a worker's imports."""

import time


class SlowImport:
    """Its unpickling takes `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __getstate__(self) -> float:
        return self.seconds

    def __setstate__(self, seconds: float) -> None:
        time.sleep(seconds)


def wait(_: SlowImport) -> None:
    """What a worker does that waits for work."""
    time.sleep(100)
