"""Files that are not essential for a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_warn


class OptionalFile:
    """Logs a file that cannot be written, once until it is written again, instead of ending the run.

    Attributes:
        failed: Whether the last attempt failed.
    """

    def __init__(self) -> None:
        self.failed = False

    @contextmanager
    def attempt(self, what: Path | str, then: str = "training continues") -> Iterator[None]:
        """Catch an OSError of the block; the warning contains the file `what` and the consequence `then`."""
        try:
            yield
        except OSError as error:
            if not self.failed:
                rank_zero_warn(f"could not write {what} ({error.strerror or error}); {then}")
            self.failed = True
        else:
            self.failed = False
