"""CSV logger that continues the file of an earlier process."""

import csv
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter


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
