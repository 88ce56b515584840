"""Loggers of Lightning by class path, one or several; TensorBoard is the default."""

import csv
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import MLFlowLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from yolo_lightning import YOLOModule

RUN = Path("runs/yolo")
ONE_STEP = [
    *("--model.recipe.nominal_batch", "16", "--trainer.max_epochs", "1", "--trainer.log_every_n_steps", "1"),
    *("--trainer.limit_train_batches", "1", "--trainer.limit_val_batches", "1"),
]


def logged_names(path: Path) -> list[str]:
    with path.open(newline="") as file:
        return next(csv.reader(file))


def event_files(folder: Path) -> list[Path]:
    return list(folder.rglob("events.out.tfevents.*"))


@pytest.mark.whole_run
def test_two_loggers(run: Callable[..., None], tmp_path: Path) -> None:
    """TensorBoard is the default, and one of two here."""
    loggers = [
        {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "logs", "name": "csv"}},
        {"class_path": "lightning.pytorch.loggers.TensorBoardLogger", "init_args": {"save_dir": "logs", "name": "tb"}},
    ]
    config = tmp_path / "loggers.yaml"
    config.write_text(yaml.safe_dump({"trainer": {"logger": loggers}}))
    run("fit", *ONE_STEP, config=config)
    assert "val/ultralytics_map" in logged_names(Path("logs/csv/version_0/metrics.csv"))
    assert len(event_files(Path("logs/tb/version_0"))) == 1
    assert event_files(RUN) == []


@pytest.mark.whole_run
def test_tensorboard_is_the_default(run: Callable[..., None]) -> None:
    run("fit", *ONE_STEP)
    (file,) = event_files(RUN / "tensorboard")
    events = EventAccumulator(str(file)).Reload()
    assert "val/map_50" in events.Tags()["scalars"]


@pytest.mark.whole_run
def test_wandb_offline_gets_scores(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    options = [
        "--trainer.logger",
        "WandbLogger",
        "--trainer.logger.save_dir",
        "logs",
        "--trainer.logger.offline",
        "true",
    ]
    run("fit", *ONE_STEP, *options)
    summary = dict(wandb.run.summary)
    wandb.finish()
    assert {"train/box_loss", "val/map_50"} < summary.keys()


def test_mlflow_in_local_files_is_refused_before_training() -> None:
    logger = Mock(spec=MLFlowLogger, save_dir="mlruns")
    module = YOLOModule(class_names=["a"])
    module.trainer = Mock(spec=Trainer, loggers=[logger], max_epochs=1, world_size=1)
    with pytest.raises(ValueError, match="must not be an MLFlowLogger with local files, got save_dir mlruns"):
        module.on_fit_start()
