"""Situations of a training under Lightning in which a resumed training equals an uninterrupted one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor

from tests.helpers.lightning_runs import (
    BATCH,
    BATCHES,
    Numbers,
    Recorder,
    assert_resumes_exactly,
    fit_numbers,
    quiet_trainer,
    run,
)
from yolo_lightning import resumable_loader

KILLS = (BATCHES + 2, 2 * BATCHES)  # within the second epoch, and at its end


class OneCycle(Recorder):
    """Asks for the length of the training before Lightning has restored the loops."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def test_length_of_the_training_before_the_loops_are_restored(tmp_path: Path) -> None:
    assert_resumes_exactly(tmp_path, KILLS, module=OneCycle)


def test_another_batch_size_after_the_length_of_the_training_was_asked_for(tmp_path: Path) -> None:
    def fit(trainer: Trainer, module: Recorder, checkpoint: Path | None) -> None:
        loader = resumable_loader(Numbers(), BATCH if checkpoint is None else 3, trainer=trainer)
        trainer.fit(module, loader, ckpt_path=checkpoint)

    class Planned(Recorder):
        def configure_optimizers(self) -> Any:
            assert self.trainer.estimated_stepping_batches
            return super().configure_optimizers()

    run(tmp_path, BATCHES + 2, fit=fit, module=Planned)
    resumed = run(tmp_path, fit=fit, module=Planned)
    epochs = [
        [sample for epoch, _, [samples] in resumed.seen if epoch == number for sample in samples] for number in (1, 2)
    ]
    assert [len(set(epoch)) for epoch in epochs] == [len(Numbers()) - 2 * BATCH, len(Numbers())]
    assert [number for epoch, number, _ in resumed.seen if epoch == 2] == list(range(8))


class Peeks(Callback):
    """Iterates over the loader of the training in most hooks, and keeps one of the iterators."""

    def __init__(self) -> None:
        self.kept: Any = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        next(iter(trainer.train_dataloader))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert len(list(trainer.train_dataloader)) == BATCHES

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Tensor, batch_idx: int) -> None:
        self.kept = iter(trainer.train_dataloader)
        assert torch.equal(next(self.kept), next(iter(trainer.train_dataloader)))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        next(iter(trainer.train_dataloader))


def test_other_iterations_over_the_loader_change_nothing(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain")
    assert assert_resumes_exactly(tmp_path, KILLS, callbacks=[Peeks]).seen == plain.seen


@pytest.mark.parametrize("given", [True, False], ids=["with the Trainer", "without"])
def test_a_batch_before_the_fit_changes_nothing(given: bool, tmp_path: Path) -> None:
    def fit(trainer: Trainer, module: Recorder, checkpoint: Path | None) -> None:
        loader = resumable_loader(Numbers(), BATCH, trainer=trainer if given else None)
        next(iter(loader))
        trainer.validate(module, loader, verbose=False)
        trainer.fit(module, loader, ckpt_path=checkpoint)
        list(loader)

    plain = run(tmp_path / "plain")
    assert assert_resumes_exactly(tmp_path, KILLS, fit=fit, limit_val_batches=2).seen == plain.seen


def test_the_loader_also_validates(tmp_path: Path) -> None:
    def fit(trainer: Trainer, module: Recorder, checkpoint: Path | None) -> None:
        loader = resumable_loader(Numbers(), BATCH, trainer=trainer)
        trainer.fit(module, loader, loader, ckpt_path=checkpoint)

    options: dict[str, Any] = {"limit_val_batches": 2, "val_check_interval": 2, "num_sanity_val_steps": 1}
    assert assert_resumes_exactly(tmp_path, KILLS, fit=fit, module=OneCycle, **options).seen


@pytest.mark.parametrize("mode", ["max_size_cycle", "max_size", "min_size"])
@pytest.mark.parametrize("given", [(0, 1), (1,)], ids=["both know the Trainer", "the second knows the Trainer"])
def test_several_loaders(mode: Any, given: tuple[int, ...], tmp_path: Path) -> None:
    def fit(trainer: Trainer, module: Recorder, checkpoint: Path | None) -> None:
        loaders = [
            resumable_loader(Numbers(count), 2, trainer=trainer if number in given else None, seed=number)
            for number, count in enumerate((8, 20))
        ]
        trainer.fit(module, CombinedLoader(loaders, mode), ckpt_path=checkpoint)

    length = 4 if mode == "min_size" else 10
    whole = assert_resumes_exactly(tmp_path, sorted({length - 1, length + 3, 2 * length - 1}), fit=fit, max_epochs=2)
    assert len(whole.seen) == 2 * length


def test_another_batch_size_within_an_epoch_of_several_loaders_is_refused(tmp_path: Path) -> None:
    def fit(trainer: Trainer, module: Recorder, checkpoint: Path | None) -> None:
        sizes = (2, 2) if checkpoint is None else (2, 3)
        loaders = [resumable_loader(Numbers(20), size, trainer=trainer) for size in sizes]
        trainer.fit(module, loaders, ckpt_path=checkpoint)

    run(tmp_path, 5, fit=fit)
    with pytest.raises(
        ValueError, match=r"^batch_size times the number of processes must be 2, got 3: .* several loaders"
    ):
        run(tmp_path, fit=fit)


class Summing(Recorder):
    """Trains on what it has validated."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(()))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * (1 + self.total / 100)

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.total += batch


class Data(LightningDataModule):
    def train_dataloader(self) -> Any:
        return resumable_loader(Numbers(), BATCH, trainer=self.trainer)

    def val_dataloader(self) -> Any:
        return resumable_loader(Numbers(), BATCH, trainer=self.trainer, shuffle=False)


def fit_data(trainer: Trainer, module: Recorder, checkpoint: Path | None) -> None:
    trainer.fit(module, datamodule=Data(), ckpt_path=checkpoint)


@pytest.mark.parametrize(
    "options",
    [
        {"reload_dataloaders_every_n_epochs": 1},
        {"reload_dataloaders_every_n_epochs": 2},
        {"limit_train_batches": 4},
        {"limit_train_batches": 0.5, "check_val_every_n_epoch": 2},
        {"val_check_interval": 2, "limit_val_batches": 2},
        {"val_check_interval": 4, "check_val_every_n_epoch": None, "limit_val_batches": 2},
        {"max_epochs": -1, "max_steps": 15},
        {"max_epochs": 4, "max_steps": 21, "limit_val_batches": 2},
        {"max_epochs": 3, "max_steps": 15, "limit_val_batches": 2, "check_val_every_n_epoch": 2},
    ],
    ids=str,
)
def test_options_of_the_trainer(options: dict[str, Any], tmp_path: Path) -> None:
    per_epoch = {4: 4, 0.5: 3}.get(options.get("limit_train_batches", 1), BATCHES)
    assert_resumes_exactly(tmp_path, [per_epoch + 2, 2 * per_epoch], fit=fit_data, module=OneCycle, **options)


@pytest.mark.parametrize(("interval", "max_steps"), [(0, -1), (1, 100), (2, -1), (3, -1)])
def test_dataset_that_grows_with_each_reload(tmp_path: Path, interval: int, max_steps: int) -> None:
    class Growing(LightningDataModule):
        def train_dataloader(self) -> Any:
            return resumable_loader(Numbers(8 + 4 * self.trainer.current_epoch), BATCH, trainer=self.trainer)

        def val_dataloader(self) -> Any:
            return [Numbers()[self.trainer.current_epoch]]

    def fit(trainer: Trainer, module: Recorder, checkpoint: Path | None) -> None:
        trainer.fit(module, datamodule=Growing(), ckpt_path=checkpoint)

    kills = {0: (3,), 1: (3, 5, 8), 2: (3, 4, 9), 3: (3, 4, 6, 9)}[interval]  # within and at the end of epochs
    options: dict[str, Any] = {"max_epochs": interval + 2, "max_steps": max_steps, "limit_val_batches": 1}
    whole = assert_resumes_exactly(
        tmp_path, kills, fit=fit, module=Summing, reload_dataloaders_every_n_epochs=interval, **options
    )
    assert max(number for _, number, _ in whole.seen) >= interval


def test_a_second_fit_continues_with_the_next_epoch(tmp_path: Path) -> None:
    def fit(trainer: Trainer, module: Recorder, checkpoint: Path | None) -> None:
        loader = resumable_loader(Numbers(), BATCH, trainer=trainer)
        trainer.fit_loop.max_epochs = 2
        trainer.fit(module, loader, ckpt_path=checkpoint)
        trainer.fit_loop.max_epochs = 3
        trainer.fit(module, loader)

    plain = run(tmp_path / "plain")
    assert assert_resumes_exactly(tmp_path, KILLS, fit=fit).seen == plain.seen


@pytest.mark.parametrize("mode", [None, "max_size", "max_size_cycle"])
def test_batch_in_which_an_exception_ends_the_fit_is_trained_after_the_resume(tmp_path: Path, mode: Any) -> None:
    def fit(trainer: Trainer, module: Recorder, checkpoint: Path | None) -> None:
        saved = Path(trainer.default_root_dir, "exception", "on_exception.ckpt")
        trainer.callbacks.append(OnExceptionCheckpoint(saved.parent))
        loader: Any = resumable_loader(Numbers(), BATCH, trainer=trainer)
        if mode is not None:
            loader = CombinedLoader([resumable_loader(Numbers(9), BATCH, trainer=trainer), loader], mode)
        trainer.fit(module, loader, ckpt_path=saved if saved.exists() else None)

    kills = (4, BATCHES, 2 * BATCHES - 1)  # within, at the beginning and at the end of epochs
    assert_resumes_exactly(tmp_path, kills, fit=fit, interval=100)


def test_a_fit_that_starts_the_epoch_again_trains_the_whole_epoch(tmp_path: Path) -> None:
    run(tmp_path, BATCHES + 2)
    module = Recorder()
    trainer = quiet_trainer(tmp_path, max_epochs=2)

    class Fails(Recorder):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            raise RuntimeError("once")

    loader = resumable_loader(Numbers(), BATCH, trainer=trainer)
    with pytest.raises(RuntimeError, match="once"):
        trainer.fit(Fails(), loader, ckpt_path=tmp_path / "checkpoints/last.ckpt")
    trainer.fit(module, loader)
    assert module.seen == run(tmp_path / "whole", max_epochs=2).seen[BATCHES:]


def test_overfit_batches_are_equal_in_every_epoch(tmp_path: Path) -> None:
    whole = assert_resumes_exactly(tmp_path, [3, 4], fit=fit_numbers, overfit_batches=2)
    assert [samples for *_, [samples] in whole.seen] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 3


def test_loader_of_another_trainer(tmp_path: Path) -> None:
    other = quiet_trainer(tmp_path)

    def fit(trainer: Trainer, module: Recorder, checkpoint: Path | None) -> None:
        trainer.fit(module, resumable_loader(Numbers(), BATCH, trainer=other), ckpt_path=checkpoint)

    assert assert_resumes_exactly(tmp_path, KILLS, fit=fit).seen == run(tmp_path / "plain").seen
