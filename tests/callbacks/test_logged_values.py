"""Values logged in an epoch, metrics of torchmetrics and ReduceLROnPlateau of resumed trainings."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torchmetrics import MaxMetric, MeanMetric, MetricCollection, MetricTracker, MinMaxMetric, SumMetric

from tests.helpers.lightning_runs import BATCHES, Recorder, run

ALL: list[tuple[float, ...]] = []
"""Values of metrics and learning rate at the end of each epoch of the newest training."""


class Logging(Recorder):
    """Logs its loss in three ways; the learning rate depends on the mean of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = MeanMetric()
        self.largest = MaxMetric()
        self.best = MaxMetric()  # not logged and never reset
        self.range = MinMaxMetric(MeanMetric())
        self.history = MetricTracker(MeanMetric(), maximize=False)
        self.own = MetricCollection({"mean": MeanMetric(), "other_mean": MeanMetric()})  # one state for both

    def on_train_start(self) -> None:
        self.best.reset()  # values of the sanity check

    def on_train_epoch_start(self) -> None:
        self.history.increment()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.mean.update(loss.detach())
        self.log("loss", loss, on_step=True, on_epoch=True, batch_size=len(batch))
        self.log("mean", self.mean, on_step=False, on_epoch=True)
        self.largest.update(loss.detach())
        self.log("largest", self.largest, on_step=False, on_epoch=True)
        self.best.update(-loss.detach())
        self.range.update(loss.detach())
        self.range.compute()
        self.history.update(loss.detach())
        self.own.update(loss.detach())
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=9.0, threshold_mode="abs")
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "loss_epoch"}}


class EpochValues(Callback):
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        ALL.clear()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Logging)
        values = [float(trainer.callback_metrics[name]) for name in ("loss_epoch", "mean", "largest")]
        values += [float(value) for value in (pl_module.best.compute(), *pl_module.own.compute().values())]
        values += [float(pl_module.range.min_val), float(pl_module.history.best_metric())]  # type: ignore[arg-type]
        pl_module.own.reset()
        ALL.append((*values, trainer.optimizers[0].param_groups[0]["lr"]))


@pytest.mark.parametrize("limit", [{"max_epochs": 3}, {"max_epochs": -1, "max_steps": 3 * BATCHES}], ids=str)
def test_epoch_values_and_plateau_schedulers_are_resumed(limit: dict[str, Any], tmp_path: Path) -> None:
    situation: dict[str, Any] = {"module": Logging, "callbacks": [EpochValues], **limit}
    whole = run(tmp_path / "whole", **situation)
    expected = list(ALL)
    assert len({rate for *_, rate in expected}) == 2
    for kill in (3, BATCHES, BATCHES + 1, 2 * BATCHES):
        run(tmp_path / str(kill), kill, **situation)
        resumed = run(tmp_path / str(kill), **situation)
        assert expected[-len(ALL) :] == ALL, kill
        assert torch.equal(resumed.layer.weight, whole.layer.weight), kill


class LoggedAtTheEnd(Recorder):
    """Logs metrics as the documentation of torchmetrics does: their values of a batch, and the object at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = MeanMetric()
        self.late = MetricCollection({"late_mean": MeanMetric(), "late_sum": SumMetric()})

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.mean(loss.detach())
        self.log("mean_step", self.mean)
        self.late.update(loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("mean", self.mean)
        self.log_dict(self.late)


class ValuesOfEpochs(Callback):
    """Appends the logged values, which are complete when the next epoch has begun, to a list."""

    def __init__(self, values: list[dict[str, float]]) -> None:
        self.values = values

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch and not batch_idx:
            self.on_train_end(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.values.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def test_metrics_logged_at_the_end_of_an_epoch_are_resumed(tmp_path: Path) -> None:
    def values(folder: Path, kill: int | None = None) -> list[dict[str, float]]:
        values: list[dict[str, float]] = []
        run(folder, kill, module=LoggedAtTheEnd, callbacks=[lambda: ValuesOfEpochs(values)])
        return values

    expected = values(tmp_path / "whole")
    assert len(expected) == 3
    assert all(value.keys() == {"mean_step", "mean", "late_mean", "late_sum"} for value in expected)
    for kill in (3, BATCHES, BATCHES + 3):
        values(tmp_path / str(kill), kill)
        resumed = values(tmp_path / str(kill))
        assert resumed
        assert resumed == expected[-len(resumed) :], kill
