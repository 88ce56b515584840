"""Callbacks, schedulers and hooks of the user in a resumed training."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    EarlyStopping,
    GradientAccumulationScheduler,
    LambdaCallback,
    ModelCheckpoint,
    ModelPruning,
    OnExceptionCheckpoint,
)
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch import Tensor, nn

from tests.helpers.lightning_runs import (
    BATCH,
    BATCHES,
    Kill,
    KillAt,
    Numbers,
    Recorder,
    assert_resumes_exactly,
    fit_numbers,
    quiet_trainer,
    run,
)
from yolo_lightning import AtomicCheckpointIO, LastCheckpoint, latest_checkpoint, resumable_loader
from yolo_lightning.errors import UserError


class Scored(Recorder):
    """Logs a mean of the epoch that is lowest in the second epoch."""

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("score", (self.current_epoch - 1) ** 2 + batch_idx / 100, on_step=False, on_epoch=True)
        return loss


def kept_files(folder: Path, kill: int | None = None) -> tuple[str, list[str]]:
    """Train, or resume, with a `ModelCheckpoint` after `LastCheckpoint`; return its best file and all its files."""
    best = ModelCheckpoint(folder / "best", "{epoch}-{score:.4f}", monitor="score", save_top_k=1)
    trainer = quiet_trainer(folder, LastCheckpoint(interval_steps=2), best, KillAt(kill))
    try:
        fit_numbers(trainer, Scored(), latest_checkpoint(folder))
    except Kill:
        assert kill is not None
    return Path(best.best_model_path).name, sorted(path.name for path in (folder / "best").glob("*.ckpt"))


@pytest.mark.parametrize("kill", [2 * BATCHES, BATCHES + 3])
def test_best_checkpoint_of_an_epoch_is_in_the_checkpoint_of_this_epoch(kill: int, tmp_path: Path) -> None:
    best, files = kept_files(tmp_path / "whole")
    assert files == [best]
    kept_files(tmp_path / "killed", kill)
    assert kept_files(tmp_path / "killed") == (best, files)


class StepPlateau(Recorder):
    """Lowers the learning rate after batches in which a logged value has not decreased."""

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.9, patience=0)
        return [optimizer], [{"scheduler": scheduler, "monitor": "loss", "interval": "step"}]


def test_reduction_on_a_plateau_after_each_batch(tmp_path: Path) -> None:
    assert_resumes_exactly(tmp_path, (BATCHES + 4,), module=StepPlateau)


class Finetuned(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
        self.head = self.layer

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.seen.append((self.current_epoch, batch_idx, batch[:, 0].tolist()))
        return self.layer(self.backbone(batch)).sub(batch).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.head.parameters(), 0.01)


def finetuning() -> BackboneFinetuning:
    return BackboneFinetuning(unfreeze_backbone_at_epoch=1, lambda_func=lambda epoch: 1.1)


def test_parts_that_a_callback_has_unfrozen_stay_unfrozen(tmp_path: Path) -> None:
    assert_resumes_exactly(tmp_path, (2 * BATCHES + 2,), module=Finetuned, callbacks=[finetuning])


def test_batches_accumulated_in_a_resumed_epoch_are_those_of_the_scheduler(tmp_path: Path) -> None:
    callbacks = [lambda: GradientAccumulationScheduler({1: 2, 2: 3})]
    assert_resumes_exactly(tmp_path, (2 * BATCHES + 1,), callbacks=callbacks)


class Validated(Recorder):
    """Changes its state in validations."""

    validations: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("validations", torch.zeros(()))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * (1 + self.validations)

    def on_validation_epoch_end(self) -> None:
        self.validations += 1


def test_checkpoint_of_a_batch_contains_the_validation_after_this_batch(tmp_path: Path) -> None:
    def fit(trainer: Trainer, module: Recorder, checkpoint: Path | None) -> None:
        trainer.fit(module, resumable_loader(Numbers(), BATCH, trainer=trainer), [Numbers()[0]], ckpt_path=checkpoint)

    options: dict[str, Any] = {"limit_val_batches": 1, "val_check_interval": 2, "interval": 2}
    options["num_sanity_val_steps"] = 1  # of a resume at the end of an epoch: would be another validation
    # Saved before the validation of the same batch, and not resumed from
    options["callbacks"] = [lambda: ModelCheckpoint(filename="weights-{step}", every_n_train_steps=2)]
    assert_resumes_exactly(tmp_path, (3, BATCHES), fit=fit, module=Validated, **options)


def test_callbacks_that_do_not_resume_exactly_are_named(tmp_path: Path) -> None:
    def prune() -> ModelPruning:
        return ModelPruning("l1_unstructured", amount=1, parameters_to_prune=None)

    run(tmp_path, BATCHES, callbacks=[prune])
    with pytest.warns(UserWarning, match="ModelPruning of Lightning search again .* or do not restore"):
        run(tmp_path, callbacks=[prune])


class Hooked(Recorder):
    def on_train_epoch_start(self) -> None:
        pass

    def on_train_batch_end(self, *_: Any) -> None:
        pass


class HookedCallback(Callback):
    def on_train_epoch_start(self, *_: Any) -> None:
        pass


def set_nothing(*_: Any) -> None:
    pass


@pytest.mark.parametrize("kill", [BATCHES, BATCHES + 2])
def test_hooks_that_are_not_called_again_are_named(kill: int, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    callbacks = [
        HookedCallback,
        lambda: LambdaCallback(on_train_epoch_start=set_nothing),
        lambda: LambdaCallback(on_train_epoch_start=partial(set_nothing)),
    ]
    run(tmp_path, kill, module=Hooked, callbacks=callbacks)
    run(tmp_path, module=Hooked, callbacks=callbacks)
    of_module = ("Hooked.on_train_epoch_start", "Hooked.on_train_batch_end")
    hooks = (*of_module, "HookedCallback.on_train_epoch_start", "set_nothing")
    messages = [str(warning.message) for warning in recwarn if "for the epoch and the batch" in str(warning.message)]
    if kill == BATCHES:
        assert not messages
    else:
        (message,) = messages
        assert all(hook in message for hook in hooks)


def test_names_of_checkpoints_count_a_failed_batch_once(tmp_path: Path) -> None:
    def names(folder: Path) -> list[str]:
        return sorted(path.name for path in (folder / "checkpoints").glob("step-*.ckpt"))

    run(tmp_path / "whole")
    failing = quiet_trainer(tmp_path / "failed", OnExceptionCheckpoint(tmp_path), KillAt(BATCHES + 3))
    with pytest.raises(Kill):
        fit_numbers(failing, Recorder(), None)
    trainer = quiet_trainer(tmp_path / "failed", LastCheckpoint(interval_steps=1))
    fit_numbers(trainer, Recorder(), tmp_path / "on_exception.ckpt")
    assert names(tmp_path / "failed") == names(tmp_path / "whole")


class Worsening(Recorder):
    """Logs a value that increases with each validation."""

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("value", float(self.global_step))


class Improving(Recorder):
    """Logs a value that rises for two epochs and falls then."""

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("value", torch.tensor([1.0, 2.0, 0.5, 0.4, 0.3, 0.2][self.current_epoch]))


def test_decision_to_stop_that_min_epochs_defers_is_resumed(tmp_path: Path) -> None:
    def fit(trainer: Trainer, module: Recorder, checkpoint: Path | None) -> None:
        trainer.fit(module, resumable_loader(Numbers(), BATCH, trainer=trainer), [Numbers()[0]], ckpt_path=checkpoint)

    options: dict[str, Any] = {"max_epochs": 6, "min_epochs": 4, "limit_val_batches": 1}
    callbacks = [lambda: EarlyStopping("value", patience=1)]
    whole = assert_resumes_exactly(
        tmp_path, (3 * BATCHES + 2,), fit=fit, module=Improving, callbacks=callbacks, **options
    )
    assert len(whole.seen) == 4 * BATCHES


def test_decision_to_stop_within_an_epoch_is_resumed(tmp_path: Path) -> None:
    def fit(trainer: Trainer, module: Recorder, checkpoint: Path | None) -> None:
        trainer.fit(module, resumable_loader(Numbers(), BATCH, trainer=trainer), [Numbers()[0]], ckpt_path=checkpoint)

    situation: dict[str, Any] = {"fit": fit, "module": Worsening, "val_check_interval": 2, "limit_val_batches": 1}
    stopped = run(tmp_path, callbacks=[lambda: EarlyStopping("value", patience=1)], interval=0, **situation)
    assert len(stopped.seen) == 4
    assert not run(tmp_path, callbacks=[lambda: EarlyStopping("value", patience=1)], interval=0, **situation).seen
    continued = run(tmp_path, interval=0, **situation)
    assert continued.seen[0][:2] == (0, 4), "the rest of the epoch"


def test_checkpoints_in_the_background_are_refused(tmp_path: Path) -> None:
    plugin = AsyncCheckpointIO(AtomicCheckpointIO())
    trainer = Trainer(accelerator="cpu", default_root_dir=tmp_path, callbacks=[LastCheckpoint()], plugins=[plugin])
    with pytest.raises(UserError, match=r"must not contain AsyncCheckpointIO.*use AtomicCheckpointIO\(\) itself"):
        fit_numbers(trainer, Recorder(), None)
