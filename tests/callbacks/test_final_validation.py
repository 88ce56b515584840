from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Timer

from tests.callbacks.tiny_training import Interrupt, StopAt, TinyModule, fit, loader, tiny_trainer
from yolo_lightning.callbacks import FinalValidation, LastCheckpoint


class Validations(Callback):
    """Records the epoch and the number of optimizer steps of each validation."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.steps: list[int] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.epochs.append(trainer.current_epoch)
        self.steps.append(trainer.global_step)


@pytest.mark.parametrize(
    ("every", "epochs", "validated"),
    [(3, 5, [2, 4]), (3, 6, [2, 5]), (10, 2, [1]), (1, 2, [0, 1]), (10, 1, [0])],
)
def test_last_epoch_is_validated_once_whatever_the_interval(
    tmp_path: Path, every: int, epochs: int, validated: list[int]
) -> None:
    seen = Validations()
    fit(tmp_path, FinalValidation(), seen, epochs=epochs, batches=2, check_val_every_n_epoch=every)
    assert seen.epochs == validated


def test_setting_is_given_back(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, FinalValidation(), epochs=2, check_val_every_n_epoch=3)
    trainer.fit(TinyModule(), loader(2), loader(1))
    assert trainer.check_val_every_n_epoch == 3


@pytest.mark.parametrize(("batch", "name"), [(3, "step-000000006.ckpt"), (0, "step-000000004.ckpt")])
def test_run_resumed_in_its_last_epoch_is_validated(tmp_path: Path, batch: int, name: str) -> None:
    options: dict[str, Any] = {"epochs": 2, "batches": 4, "check_val_every_n_epoch": 5}
    with pytest.raises(Interrupt):
        fit(tmp_path, FinalValidation(), LastCheckpoint(2), StopAt(1, batch), **options)
    seen = Validations()
    fit(tmp_path, FinalValidation(), seen, resume=tmp_path / "checkpoints" / name, **options)
    assert seen.epochs == [1]


class TimeLimit(Timer):
    """Reaches the limit in a batch, as `trainer.max_time`, which Lightning puts behind the other callbacks."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.batches = batches

    def on_train_batch_end(self, trainer: Trainer, *arguments: Any, **options: Any) -> None:
        trainer.should_stop = trainer.fit_loop.total_batch_idx + 1 == self.batches


@pytest.mark.parametrize("batches", [6, 8], ids=["within an epoch", "at its end"])
def test_epoch_that_a_time_limit_ends_is_validated(batches: int, tmp_path: Path) -> None:
    seen = Validations()
    callbacks = (FinalValidation(), seen, LastCheckpoint(), TimeLimit(batches))
    fit(tmp_path, *callbacks, epochs=20, batches=4, check_val_every_n_epoch=5)
    assert seen.epochs == [1]


def test_epoch_that_the_number_of_steps_ends_is_validated(tmp_path: Path) -> None:
    seen = Validations()
    fit(tmp_path, FinalValidation(), seen, epochs=20, batches=4, max_steps=8, check_val_every_n_epoch=5)
    assert seen.epochs == [1]


@pytest.mark.parametrize(
    ("options", "validated"),
    [
        ({"val_check_interval": 3}, [3, 7, 8]),
        ({"val_check_interval": 0.8}, [3, 7, 8]),
        ({"val_check_interval": 3, "check_val_every_n_epoch": None}, [3, 6, 8]),
        ({"val_check_interval": 2}, [2, 4, 6, 8]),
        ({"val_check_interval": "00:10:00:00"}, [8]),
        ({"val_check_interval": 3, "max_steps": 8, "epochs": 20}, [3, 7, 8]),
        ({"val_check_interval": "00:10:00:00", "max_steps": 8, "epochs": 20}, [8]),
    ],
)
def test_a_validation_follows_the_last_batch_whatever_the_interval(
    options: dict[str, Any], validated: list[int], tmp_path: Path
) -> None:
    seen = Validations()
    fit(tmp_path, FinalValidation(), seen, **{"epochs": 2, "batches": 4} | options)
    assert seen.steps == validated


def test_interval_within_epochs_is_given_back(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, FinalValidation(), epochs=2, val_check_interval=3)
    trainer.fit(TinyModule(), loader(4), loader(1))
    assert trainer.val_check_batch == 3
