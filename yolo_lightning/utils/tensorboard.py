"""TensorBoard logger that survives a full disk."""

import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import _DummyExperiment, rank_zero_experiment
from lightning.pytorch.loggers import TensorBoardLogger

from yolo_lightning.utils.files import replacing
from yolo_lightning.utils.optional_file import OptionalFile

RETRY_AFTER_S = 60.0  # each attempt creates another file

PROBE = ".probe"
PROBE_BYTES = 1 << 16


class Curves(TensorBoardLogger):
    """TensorBoard logger that drops points while they cannot be written, and then creates another file.

    The first step that a process logs begins a session: TensorBoard ignores the points of this and later steps that an
    earlier process has logged, so that curves do not fold back when steps are trained again after a kill.

    After an error in its thread, TensorBoard's writer raises this error forever; the writer is replaced.
    `metrics.csv` contains all points.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **{"default_hp_metric": False} | keywords)  # else a chart of -1
        self._file = OptionalFile()
        self._failed_s = float("-inf")  # time of the last failure
        self._has_begun = False

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """TensorBoard's writer, or one that drops everything while none can be created."""
        if self._experiment is None:
            self._try(self._create_writer)
        return self._experiment or _DummyExperiment()

    def _create_writer(self) -> None:
        """Create the writer after a test write, because the thread of a writer prints a traceback on a full disk."""
        folder = Path(self.log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / PROBE) as temporary:
            temporary.write_bytes(bytes(PROBE_BYTES))
        (folder / PROBE).unlink()
        TensorBoardLogger.experiment.fget(self)  # type: ignore[attr-defined]

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        if step is not None and not self._has_begun:
            self._write(lambda: self._begin_session(step))
        self._write(lambda: TensorBoardLogger.log_metrics(self, metrics, step))

    def _begin_session(self, step: int) -> None:
        """Write what `SummaryWriter(purge_step=step)` does; the writer exists before the first step is known."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        start = Event(step=step, session_log=SessionLog(status=SessionLog.START))
        # The attribute `file_writer` is None after Lightning has closed the writer at the end of a fit.
        self.experiment._get_file_writer().add_event(start)
        self._has_begun = True

    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, metrics: dict[str, Any] | None = None, step: int | None = None
    ) -> None:
        self._write(lambda: TensorBoardLogger.log_hyperparams(self, params, metrics, step))

    def save(self) -> None:
        self._write(lambda: TensorBoardLogger.save(self))

    def finalize(self, status: str) -> None:
        if self._experiment is not None:
            self._try(lambda: TensorBoardLogger.finalize(self, status))

    def _write(self, write: Callable[[], None]) -> None:
        if self.experiment is self._experiment:  # not the writer that drops everything
            self._try(write)

    def _try(self, write: Callable[[], None]) -> None:
        if time.monotonic() < self._failed_s + RETRY_AFTER_S:
            return
        with self._file.attempt(f"curves to {self.log_dir}"):
            try:
                write()
            except ValueError as error:  # Lightning wraps the error of add_scalar
                if not isinstance(error.__cause__, OSError):
                    raise
                raise error.__cause__ from None
        if self._file.failed:
            self._failed_s = time.monotonic()
            self._experiment = None
