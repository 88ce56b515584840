"""MLflow in local files."""

import re
from collections.abc import Iterable, Mapping

from lightning.pytorch.loggers import Logger, MLFlowLogger

REFUSED_CHARACTERS = re.compile(r"[^\w.\- /:]", re.ASCII)
"""MLflow's metric names consist of letters, digits, and these characters."""


class FileStoreMLFlowLogger(MLFlowLogger):
    """MLflow logger that can store the scores of single classes in local files (`save_dir`).

    MLflow's file store uses metric names as paths, so that it refuses `val/map/person` beside `val/map`. This logger
    keeps the first slash and writes a dot for all others: `val/map.person`.
    """

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        super().log_metrics({mlflow_name(name): value for name, value in metrics.items()}, step)


def mlflow_name(name: str) -> str:
    """Return the name of a metric in MLflow's file store; characters that MLflow refuses become underscores."""
    stage, slash, rest = REFUSED_CHARACTERS.sub("_", name).partition("/")
    return stage + slash + rest.replace("/", ".")


def refuse_file_store(loggers: Iterable[Logger]) -> None:
    """Raise a ValueError if Lightning's own MLflow logger writes local files; it would fail in the first validation."""
    for logger in loggers:
        if isinstance(logger, MLFlowLogger) and not isinstance(logger, FileStoreMLFlowLogger) and logger.save_dir:
            own = f"{FileStoreMLFlowLogger.__module__}.{FileStoreMLFlowLogger.__name__}"
            raise ValueError(
                f"trainer.logger must be {own} for MLflow in local files ({logger.save_dir}), got MLFlowLogger: "
                "MLflow's file store cannot store the scores of single classes. Or set tracking_uri to a server."
            )
