import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from ultralytics.utils.metrics import DetMetrics
from ultralytics.utils.plotting import plot_results

from tests.callbacks.tiny_training import Interrupt, StopAt, TinyModule, fit
from yolo_lightning.callbacks import BestCheckpoint, LastCheckpoint, ResultsFile

HEADER = (
    "epoch,time,train/box_loss,train/cls_loss,train/dfl_loss,metrics/precision(B),metrics/recall(B),metrics/mAP50(B),"
    "metrics/mAP50-95(B),val/box_loss,val/cls_loss,val/dfl_loss,lr/pg0,lr/pg1,lr/pg2"
)
"""The first line of a file that Ultralytics 8.4.190 has written."""


class Logging(TinyModule):
    """Logs what YOLOModule and MeanAP log; the box loss is the number of the step, or as given."""

    def __init__(self, box_losses: Sequence[float] = (), map_50: float = 0.5) -> None:
        super().__init__(val_scores=[0.1, 0.2, 0.3, 0.4])
        self.box_losses, self.map_50 = box_losses, map_50

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        step = self.trainer.fit_loop.total_batch_idx + 1
        box_loss = self.box_losses[step - 1] if self.box_losses else float(step)
        self.log_dict({"train/box_loss": torch.tensor(box_loss), "train/cls_loss": 2.0, "train/dfl_loss": 3.0})
        self.log_dict({"lr/weight": step / 1000, "lr/normalisation": 0.02, "lr/bias": 0.03})
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.log_dict({"val/box_loss": 4.0, "val/cls_loss": 5.0, "val/dfl_loss": 6.0})
        scores = {"precision": 0.6, "recall": 0.7, "ultralytics_map_50": self.map_50, "ultralytics_map": 0.25}
        self.log_dict({f"val/{name}": value for name, value in scores.items()})


def train(folder: Path, *callbacks: Callback, module: TinyModule | None = None, **options: Any) -> None:
    fit(folder, ResultsFile(), *callbacks, module=module or Logging(), **options)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def column(folder: Path, name: str) -> list[str]:
    return [row[name] for row in rows(folder)]


class WithoutDistribution(Logging):
    """Logs the third loss as yolo26 does."""

    def log_dict(self, dictionary: Any, *arguments: Any, **options: Any) -> None:
        renamed = {name.replace("dfl_loss", "l1_loss"): value for name, value in dictionary.items()}
        super().log_dict(renamed, *arguments, **options)


def test_third_loss_of_a_network_without_distribution_is_named_as_in_ultralytics(tmp_path: Path) -> None:
    train(tmp_path, module=WithoutDistribution())
    assert (tmp_path / "results.csv").read_text().splitlines()[0] == HEADER.replace("dfl_loss", "l1_loss")
    assert (column(tmp_path, "train/l1_loss")[0], column(tmp_path, "val/l1_loss")[0]) == ("3", "6")


def test_columns_are_those_of_ultralytics(tmp_path: Path) -> None:
    train(tmp_path)
    assert (tmp_path / "results.csv").read_text().splitlines()[0] == HEADER
    assert ",".join(DetMetrics({}).keys) in HEADER


def test_a_row_per_epoch(tmp_path: Path) -> None:
    train(tmp_path, epochs=2)
    first, second = rows(tmp_path)
    del first["time"]
    assert ",".join(first.values()) == "1,2.5,2,3,0.6,0.7,0.5,0.25,4,5,6,0.004,0.02,0.03"
    assert (second["epoch"], second["train/box_loss"], second["lr/pg0"]) == ("2", "6.5", "0.008")


def test_epoch_without_validation_has_empty_cells(tmp_path: Path) -> None:
    train(tmp_path, epochs=3, check_val_every_n_epoch=2)
    assert column(tmp_path, "epoch") == ["1", "2", "3"]
    assert column(tmp_path, "metrics/mAP50(B)") == ["", "0.5", ""]
    assert column(tmp_path, "val/box_loss") == ["", "4", ""]
    assert column(tmp_path, "train/box_loss") == ["2.5", "6.5", "10.5"]


def test_sanity_check_writes_nothing(tmp_path: Path) -> None:
    train(tmp_path, epochs=1, num_sanity_val_steps=1, limit_val_batches=1, check_val_every_n_epoch=2)
    assert column(tmp_path, "val/box_loss") == [""]


def test_losses_that_are_not_finite_are_left_out_of_the_mean(tmp_path: Path) -> None:
    train(tmp_path, module=Logging([1.0, float("nan"), 3.0, float("inf")]))
    assert column(tmp_path, "train/box_loss") == ["2"]


def test_nothing_annotated_is_zero_as_in_ultralytics(tmp_path: Path) -> None:
    train(tmp_path, module=Logging(map_50=-1.0))
    assert column(tmp_path, "metrics/mAP50(B)") == ["0"]


def interrupted(folder: Path, epoch: int, batch: int, *others: Callback) -> None:
    with pytest.raises(Interrupt):
        train(folder, LastCheckpoint(2, keep=9), *others, StopAt(epoch, batch), epochs=4)


@pytest.mark.parametrize("step", [2, 4, 6, 8, 10])
def test_resumed_run_has_the_rows_of_one_that_was_not_interrupted(tmp_path: Path, step: int) -> None:
    """Checkpoints within epochs, and at their ends before the validation."""
    train(tmp_path / "whole", epochs=4)
    interrupted(tmp_path / "run", 2, 3)
    train(tmp_path / "run", epochs=4, resume=tmp_path / f"run/checkpoints/step-{step:09d}.ckpt")
    whole, resumed = rows(tmp_path / "whole"), rows(tmp_path / "run")
    for row in [*whole, *resumed]:
        del row["time"]
    assert resumed == whole


def test_run_resumed_from_a_checkpoint_of_a_validation_has_every_row_once(tmp_path: Path) -> None:
    interrupted(tmp_path, 2, 3, BestCheckpoint())
    train(tmp_path, epochs=4, resume=tmp_path / "checkpoints/best.ckpt")
    assert column(tmp_path, "epoch") == ["1", "2", "3", "4"]
    assert column(tmp_path, "train/box_loss") == ["2.5", "6.5", "10.5", "14.5"]
    assert column(tmp_path, "metrics/mAP50(B)") == ["0.5"] * 4


def test_rows_of_another_run_do_not_stay(tmp_path: Path) -> None:
    train(tmp_path, epochs=2)
    with pytest.raises(Interrupt):
        train(tmp_path, StopAt(0, 2))
    assert not (tmp_path / "results.csv").exists()


class Blocked(Callback):
    """In the first epoch there is a folder where the file should be."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        path = Path(trainer.default_root_dir) / "results.csv"
        path.mkdir() if trainer.current_epoch == 0 else path.rmdir()


def test_rows_that_could_not_be_written_follow_later(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"could not write .*results.csv"):
        train(tmp_path, Blocked(), epochs=2, batches=2)
    assert column(tmp_path, "epoch") == ["1", "2"]


@pytest.mark.whole_run
@pytest.mark.parametrize("every", [1, 2])
def test_ultralytics_can_plot_it(tmp_path: Path, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plotter logs what goes wrong, and goes on."""
    errors: list[str] = []
    monkeypatch.setattr("ultralytics.utils.plotting.LOGGER.error", errors.append)
    train(tmp_path, epochs=4, check_val_every_n_epoch=every)
    plot_results(file=tmp_path / "results.csv")
    assert errors == []
    assert (tmp_path / "results.png").stat().st_size > 10_000
