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


def steps_in(file: Path, name: str) -> list[int]:
    """Return the steps at which a CSVLogger has logged a value."""
    with file.open(newline="") as content:
        return [int(row["step"]) for row in csv.DictReader(content) if row[name]]


@pytest.mark.whole_run
def test_loggers_continue_their_runs_after_a_resume(run: Callable[..., None], tmp_path: Path) -> None:
    """Also where steps are trained again, and not for a new run."""
    paths = {"CSVLogger": "logs", "TensorBoardLogger": "logs/tb"}
    loggers = [
        {"class_path": f"lightning.pytorch.loggers.{name}", "init_args": {"save_dir": path}}
        for name, path in paths.items()
    ]
    config = tmp_path / "loggers.yaml"
    config.write_text(yaml.safe_dump({"trainer": {"logger": loggers}}))
    run("fit", *ONE_STEP, "--trainer.max_epochs", "2", config=config)
    for path in Path(RUN / "checkpoints").iterdir():
        if "000001" not in path.name:
            path.unlink()
    run("fit", *ONE_STEP, "--trainer.max_epochs", "3", "--resume", config=config)
    file = Path("logs/lightning_logs/version_0/metrics.csv")
    assert steps_in(file, "train/loss") == steps_in(file, "val/map") == [0, 1, 2]
    events = EventAccumulator("logs/tb/lightning_logs/version_0").Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [0, 1, 2]
    assert "version: null" in (RUN / "config.yaml").read_text()
    run("fit", *ONE_STEP, config=config)
    assert steps_in(Path("logs/lightning_logs/version_1/metrics.csv"), "train/loss") == [0]


@pytest.mark.whole_run
def test_mlflow_continues_its_run(run: Callable[..., None]) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    options = ["--trainer.logger", "MLFlowLogger", "--trainer.logger.tracking_uri", "sqlite:///mlflow.db"]
    run("fit", *ONE_STEP, *options)
    run("fit", *ONE_STEP, "--trainer.max_epochs", "2", "--resume", *options)
    client = tracking.MlflowClient("sqlite:///mlflow.db")
    experiment = client.get_experiment_by_name("lightning_logs")
    (logged,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(logged.info.run_id, "val/map/person")
    assert [metric.step for metric in history] == [0, 1]


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
    run("fit", *ONE_STEP, "--trainer.max_epochs", "2", "--resume", *options)
    wandb.finish()
    folders = Path("logs/wandb").glob("offline-run-*")
    assert len({folder.name.rpartition("-")[2] for folder in folders}) == 1


def test_mlflow_in_local_files_is_refused_before_training() -> None:
    logger = Mock(spec=MLFlowLogger, save_dir="mlruns")
    module = YOLOModule(class_names=["a"])
    module.trainer = Mock(spec=Trainer, loggers=[logger], max_epochs=1, world_size=1)
    with pytest.raises(ValueError, match="must not be an MLFlowLogger with local files, got save_dir mlruns"):
        module.on_fit_start()
