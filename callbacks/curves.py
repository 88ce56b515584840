"""TensorBoard files that a full disk leaves gaps in, instead of ending the run."""

import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_warn

RETRY_AFTER_S = 60.0
"""Each try begins another file."""


class Curves(TensorBoardLogger):
    """A writer of TensorBoard raises the first error that its thread meets for ever; this gives it up for another one.

    `metrics.csv` is the record of a run, without gaps; these files are for the eye.
    """

    _failed_s: float | None = None

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add points to the curves."""
        self._try(lambda: TensorBoardLogger.log_metrics(self, metrics, step))

    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, metrics: dict[str, Any] | None = None, step: int | None = None
    ) -> None:
        """Note the model's arguments."""
        self._try(lambda: TensorBoardLogger.log_hyperparams(self, params, metrics, step))

    def save(self) -> None:
        """Flush."""
        self._try(lambda: TensorBoardLogger.save(self))

    def finalize(self, status: str) -> None:
        """Flush and close."""
        self._try(lambda: TensorBoardLogger.finalize(self, status))

    def _try(self, write: Callable[[], None]) -> None:
        if self._failed_s is not None and time.monotonic() < self._failed_s + RETRY_AFTER_S:
            return
        try:
            write()
        except (OSError, ValueError) as error:
            cause = (
                error.__cause__ if isinstance(error, ValueError) else error
            )  # Lightning wraps what add_scalar raises
            if not isinstance(cause, OSError):
                raise
            rank_zero_warn(f"could not write curves to {self.log_dir} ({cause.strerror}); training goes on")
            self._experiment, self._failed_s = None, time.monotonic()
        else:
            self._failed_s = None
