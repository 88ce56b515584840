"""Pictures for the loggers of a run."""

from pathlib import Path

import matplotlib.image
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger

MLFLOW_FOLDER = "pictures"


def log_picture(trainer: Trainer, path: Path) -> None:
    """Give a PNG file to the TensorBoard, W&B and MLflow loggers of the Trainer; other loggers store no pictures.

    The name of the picture is that of the file without its suffix, in MLflow the file `pictures/<name>.png`.
    """
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            pixels = matplotlib.image.imread(path)[..., :3]
            logger.experiment.add_image(path.stem, pixels, trainer.global_step, dataformats="HWC")
        elif isinstance(logger, WandbLogger):
            logger.log_image(path.stem, [str(path)])
        elif isinstance(logger, MLFlowLogger):
            logger.experiment.log_artifact(logger.run_id, str(path), MLFLOW_FOLDER)
