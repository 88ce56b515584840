"""TensorBoard files that a full disk leaves gaps in, instead of ending the run."""

import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import _DummyExperiment, rank_zero_experiment
from lightning.pytorch.loggers import TensorBoardLogger

from yolo_lightning.utils.files import replacing
from yolo_lightning.utils.optional_file import OptionalFile

RETRY_AFTER_S = 60.0
"""Each try begins another file."""

PROBE, PROBE_BYTES = ".probe", 1 << 16


class Curves(TensorBoardLogger):
    """A writer of TensorBoard raises the first error that its thread meets for ever; this gives it up for another one.

    `metrics.csv` is the record of a run, without gaps; these files are for the eye. Points that are logged while no
    file can be made are lost.
    """

    _failed_s: float | None = None

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._file = OptionalFile()

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """Return TensorBoard's writer, or one that drops everything while none can be made."""
        if self._experiment is None:
            self._try(self._make_writer)
        return self._experiment or _DummyExperiment()

    def _make_writer(self) -> None:
        """Try the disk first: the thread of a writer that meets a full one prints a traceback."""
        folder = Path(self.log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / PROBE) as temporary:
            temporary.write_bytes(bytes(PROBE_BYTES))
        (folder / PROBE).unlink()
        TensorBoardLogger.experiment.fget(self)  # type: ignore[attr-defined]

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add points to the curves."""
        self._write(lambda: TensorBoardLogger.log_metrics(self, metrics, step))

    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, metrics: dict[str, Any] | None = None, step: int | None = None
    ) -> None:
        """Note the model's arguments."""
        self._write(lambda: TensorBoardLogger.log_hyperparams(self, params, metrics, step))

    def save(self) -> None:
        """Flush."""
        self._write(lambda: TensorBoardLogger.save(self))

    def finalize(self, status: str) -> None:
        """Flush and close."""
        if self._experiment is not None:
            self._try(lambda: TensorBoardLogger.finalize(self, status))

    def _write(self, write: Callable[[], None]) -> None:
        """Write, if there is a writer."""
        if self.experiment is self._experiment:
            self._try(write)

    def _try(self, write: Callable[[], None]) -> None:
        if self._failed_s is not None and time.monotonic() < self._failed_s + RETRY_AFTER_S:
            return
        with self._file.attempt(f"curves to {self.log_dir}"):
            try:
                write()
            except ValueError as error:  # Lightning wraps what add_scalar raises
                if not isinstance(error.__cause__, OSError):
                    raise
                raise error.__cause__ from None
        self._failed_s = time.monotonic() if self._file.failed else None
        if self._file.failed:
            self._experiment = None
