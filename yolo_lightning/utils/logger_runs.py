"""Runs of loggers, such as those of W&B and MLflow, that continue when a training resumes."""

import csv
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger, Logger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.utilities import rank_zero_only

from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.json_record import read_record
from yolo_lightning.utils.optional_file import OptionalFile
from yolo_lightning.utils.rank_zero import rank_zero_info
from yolo_lightning.utils.run_files import LOGGERS

ID_ARGUMENTS = ("run_id", "experiment_key", "version")
"""Arguments of MLFlowLogger, of CometLogger, and of other loggers that name an existing run."""


@dataclass(slots=True)
class LoggerRun:
    """Run of one logger."""

    id: str | int | None = None  # None until the logger has begun the run
    last_steps: dict[str, int] = field(default_factory=dict)  # step of the last logged value of each name


@dataclass(frozen=True, slots=True)
class LoggerRecord:
    """Content of `loggers.json`: runs by class and options of their loggers."""

    runs: dict[str, LoggerRun] = field(default_factory=dict)


class LoggerRuns:
    """Creates the loggers of a fit, so that they continue the runs which an earlier process of the fit has begun.

    `loggers.json` in the run folder contains the identifiers of the runs. A logger with other options begins another
    run. Steps that are trained again after a resume are not logged again, because most loggers can only append values.

    Args:
        folder: Run folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOGGERS
        self._file = OptionalFile()
        self._record = read_record(self._path, LoggerRecord) or LoggerRecord()

    def create(self, logger_class: type[Logger], **options: Any) -> Logger:
        """Return a new logger; `options` are the arguments of its class, all by name."""
        digest = sha256(repr(sorted(options.items())).encode()).hexdigest()[:8]  # options can contain credentials
        run = self._record.runs.setdefault(f"{logger_class.__name__}-{digest}", LoggerRun())
        argument = next((name for name in ID_ARGUMENTS if name in options), None)
        begins = options.get("mode") == "create"  # of CometLogger
        if run.id is not None and not begins and argument is not None and options[argument] is None:
            options[argument] = run.id
            rank_zero_info(f"{logger_class.__name__} continues the run {run.id}; {self._path}")
        if logger_class is CSVLogger:
            logger_class = AppendingCSVLogger
        logger = logger_class(**options)
        self._follow(logger, run)
        return logger

    @rank_zero_only
    def _follow(self, logger: Logger, run: LoggerRun) -> None:
        """Replace methods of the object: a subclass would change the class, whose name the user has configured."""
        logger.log_metrics = partial(_log_new, logger.log_metrics, run)  # type: ignore[method-assign]
        logger.save = partial(self._save, logger, logger.save, run)  # type: ignore[method-assign]

    def _save(self, logger: Logger, save: Any, run: LoggerRun) -> None:
        """Save the values of a logger, then record its run; Lightning saves after each call of `log_metrics`."""
        save()
        run.id = logger.version
        with self._file.attempt(self._path, "a restart begins new runs of the loggers"):
            write_json(self._path, asdict(self._record), durable=False)


def _log_new(log_metrics: Any, run: LoggerRun, metrics: Mapping[str, float], step: int | None = None) -> None:
    """Log the values of the names that have no value for this or a later step."""
    if step is None:
        log_metrics(metrics)
        return
    new = {name: value for name, value in metrics.items() if step > run.last_steps.get(name, -1)}
    if new:
        log_metrics(new, step)
        run.last_steps.update(dict.fromkeys(new, step))


class AppendingCSVLogger(CSVLogger):
    """CSVLogger that appends to the file of an earlier process with the same `version`; Lightning deletes the file."""

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        if self._experiment is None:
            self._experiment = AppendingWriter(self.log_dir)
        return self._experiment


class AppendingWriter(ExperimentWriter):
    """Writer that keeps the complete rows of an existing file."""

    def __init__(self, log_dir: str) -> None:
        super().__init__(log_dir)
        if not self._fs.isfile(self.metrics_file_path):
            return
        content = self._fs.cat_file(self.metrics_file_path)
        rows = content[: content.rfind(b"\n") + 1]  # the last row of a killed process can be incomplete
        self._fs.pipe_file(self.metrics_file_path, rows)
        if rows:
            self.metrics_keys = next(csv.reader(rows.decode().splitlines()))
        else:
            self._fs.rm_file(self.metrics_file_path)

    def _check_log_dir_exists(self) -> None:
        """Keep the file; Lightning's method deletes it."""
