"""Files that a run can do without."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_warn


class OptionalFile:
    """Lets a run go on where a file cannot be written; warns once until the file is written again.

    Attributes:
        failed: Whether the last attempt failed.
    """

    def __init__(self) -> None:
        self.failed = False

    @contextmanager
    def attempt(self, what: Path | str, then: str = "training goes on") -> Iterator[None]:
        """Write in the block.

        Args:
            what: Named in the warning.
            then: Consequence, for the warning.
        """
        try:
            yield
        except OSError as error:
            if not self.failed:
                rank_zero_warn(f"could not write {what} ({error.strerror or error}); {then}")
            self.failed = True
        else:
            self.failed = False
