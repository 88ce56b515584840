import csv
import errno
import os
import re
import resource
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch import Callback, LightningModule, Trainer

from tests.callbacks.tiny_training import (
    AccumulatingModule,
    Clock,
    Interrupt,
    StopAt,
    TinyModule,
    fit,
    loader,
    tiny_trainer,
)
from yolo_lightning.callbacks import LastCheckpoint, MetricsFile
from yolo_lightning.utils.optional_file import FINAL_PAUSES_S


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts to write after the last step, which then take no time."""
    taken: list[float] = []
    monkeypatch.setattr("yolo_lightning.utils.optional_file.time", SimpleNamespace(sleep=taken.append))
    return taken


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def steps(folder: Path, column: str = "train/loss") -> list[int]:
    return [int(row["step"]) for row in rows(folder) if row[column]]


def interrupted(folder: Path, epoch: int, batch: int, **options: Any) -> None:
    with pytest.raises(Interrupt):
        fit(folder, MetricsFile(), LastCheckpoint(2, keep=9), StopAt(epoch, batch), **options)


def warned(recwarn: pytest.WarningsRecorder) -> str:
    return "\n".join(str(warning.message) for warning in recwarn)


class NewMetric(Callback):
    """Logs something that was not there from the start."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if trainer.current_epoch == 1:
            pl_module.log("train/late", 5.0)


class Losses(Callback):
    """Records the loss of each batch."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        self.seen.append(f"{float(args[0]['loss']):.6g}")


@pytest.mark.usefixtures("any_uptime")
def test_a_row_per_batch_and_one_per_validation(tmp_path: Path) -> None:
    module, losses = TinyModule(val_scores=[0.25, 0.5]), Losses()
    fit(tmp_path, losses, MetricsFile(), module=module, epochs=2, batches=3, num_sanity_val_steps=1)
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6]
    assert [row["train/loss"] for row in rows(tmp_path) if row["train/loss"]] == losses.seen
    validated = [(row["epoch"], row["step"], row["val/map_50"]) for row in rows(tmp_path) if row["val/map_50"]]
    assert validated == [("0", "3", "0.25"), ("1", "6", "0.5")]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"epochs": 3, "log_every_n_steps": 4}, [4, 5, 8, 10, 12, 15]),
        ({"epochs": 2, "log_every_n_steps": 50, "max_steps": 7}, [5, 7]),
        ({"epochs": 1, "log_every_n_steps": 0}, []),
    ],
    ids=["interval over all epochs", "max_steps", "no rows of training"],
)
def test_steps_with_a_row_of_training(options: dict[str, int], expected: list[int], tmp_path: Path) -> None:
    fit(tmp_path, MetricsFile(), batches=5, **options)
    assert [int(row["step"]) for row in rows(tmp_path) if row.get("train/loss")] == expected


class Accumulating(AccumulatingModule):
    """Logs the loss and the learning rate of every batch, updates every second one."""

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        super().training_step(batch, batch_idx)
        self.log("train/loss", float(batch_idx))
        self.log("lr/weight", 0.1)


@pytest.mark.parametrize("accumulates", [False, True])
def test_every_epoch_has_a_row_of_training_however_short_it_is(tmp_path: Path, accumulates: bool) -> None:
    module = Accumulating() if accumulates else TinyModule()
    fit(tmp_path, MetricsFile(), module=module, epochs=3, batches=3, log_every_n_steps=50)
    trained = [row for row in rows(tmp_path) if row["train/loss"]]
    assert [(row["epoch"], row["step"]) for row in trained] == [("0", "3"), ("1", "6"), ("2", "9")]
    assert [row["lr/weight"] for row in trained if accumulates] == ["0.1"] * 3 * accumulates
    assert len(rows(tmp_path)) == 6  # and a row per validation


def test_every_short_epoch_of_a_resumed_run_has_one_row(tmp_path: Path) -> None:
    interrupted(tmp_path, 2, 2, epochs=4, batches=3, log_every_n_steps=50)
    fit(
        tmp_path,
        MetricsFile(),
        epochs=4,
        batches=3,
        log_every_n_steps=50,
        resume=tmp_path / "checkpoints" / "step-000000008.ckpt",
    )
    assert steps(tmp_path) == [3, 6, 9, 12]
    assert steps(tmp_path, "val/map_50") == [3, 6, 9, 12]


def test_new_column_keeps_the_rows_before(tmp_path: Path) -> None:
    fit(tmp_path, NewMetric(), MetricsFile(), epochs=2, batches=2)
    assert steps(tmp_path) == [1, 2, 3, 4]
    assert [row["train/late"] for row in rows(tmp_path) if row["train/loss"]] == ["", "", "5", "5"]


@pytest.mark.usefixtures("any_uptime")
def test_seconds_count_from_a_clock_that_shows_zero_and_over_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)

    class TakesTwoSeconds(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            clock.now_s += 2

    fit(tmp_path, TakesTwoSeconds(), MetricsFile(), LastCheckpoint(0), batches=2)
    assert [row["time_s"] for row in rows(tmp_path)] == ["2.0", "4.0", "4.0"]
    clock.now_s = 900.0
    last = tmp_path / "checkpoints" / "last.ckpt"
    fit(tmp_path, TakesTwoSeconds(), MetricsFile(), batches=2, epochs=2, resume=last)
    assert [row["time_s"] for row in rows(tmp_path)][3:] == ["6.0", "8.0", "8.0"]


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_seconds_count_over_the_fits_of_a_trainer_without_the_time_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    clock = Clock(monkeypatch)

    class TakesTwoSeconds(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            clock.now_s += 2

    trainer = tiny_trainer(tmp_path, TakesTwoSeconds(), StopAt(1, 0), MetricsFile(), epochs=1 + is_interrupted)
    module = TinyModule()
    with pytest.raises(Interrupt) if is_interrupted else nullcontext():
        trainer.fit(module, loader(2), loader(1))
    clock.now_s += 900
    trainer.fit_loop.max_epochs = 2
    trainer.callbacks = [callback for callback in trainer.callbacks if not isinstance(callback, StopAt)]
    trainer.fit(module, loader(2), loader(1))
    assert [row["time_s"] for row in rows(tmp_path)] == ["2.0", "4.0", "4.0", "6.0", "8.0", "8.0"]


@pytest.mark.parametrize("name", ["step-000000002.ckpt", "step-000000004.ckpt", "step-000000006.ckpt"])
def test_resumed_run_leaves_no_gap_and_no_double_row(tmp_path: Path, name: str) -> None:
    interrupted(tmp_path, 1, 3, epochs=3)
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6, 7]
    fit(tmp_path, MetricsFile(), epochs=3, resume=tmp_path / "checkpoints" / name)
    assert steps(tmp_path) == list(range(1, 13))
    assert steps(tmp_path, "val/map_50") == [4, 8, 12]


def test_new_run_in_a_folder_without_checkpoint_starts_a_new_file(tmp_path: Path) -> None:
    fit(tmp_path, MetricsFile(), batches=5)
    fit(tmp_path, MetricsFile(), batches=2)
    assert steps(tmp_path) == [1, 2]


def test_callback_that_another_trainer_has_used_starts_a_new_file(tmp_path: Path) -> None:
    callback = MetricsFile()
    fit(tmp_path, callback, batches=5)
    fit(tmp_path, callback, batches=2)
    assert steps(tmp_path) == [1, 2]
    assert steps(tmp_path, "val/map_50") == [2]


TORN = "1,6,0.9,0."
"""The beginning of a row; a kill left it without the rest and the end of line."""


def tear(folder: Path) -> None:
    with (folder / "metrics.csv").open("a") as file:
        file.write(TORN)


def test_torn_last_line_after_the_resumed_step_is_cut_away(tmp_path: Path) -> None:
    interrupted(tmp_path, 1, 1, epochs=2)
    tear(tmp_path)
    fit(tmp_path, MetricsFile(), epochs=2, resume=tmp_path / "checkpoints/step-000000004.ckpt")
    assert steps(tmp_path) == list(range(1, 9))


def test_row_after_a_torn_one_is_a_row_of_its_own(tmp_path: Path) -> None:
    interrupted(tmp_path, 1, 0, epochs=2)
    tear(tmp_path)  # nothing else is after step 4
    fit(tmp_path, MetricsFile(), epochs=2, resume=tmp_path / "checkpoints/step-000000004.ckpt")
    assert [int(row["step"]) for row in rows(tmp_path)] == [1, 2, 3, 4, 4, 5, 6, 7, 8, 8]
    assert {row["epoch"] for row in rows(tmp_path)} == {"0", "1"}
    assert all(None not in row for row in rows(tmp_path))


def test_file_that_cannot_be_written_warns_and_training_goes_on(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, pauses: list[float]
) -> None:
    (tmp_path / "metrics.csv").mkdir()
    assert fit(tmp_path, MetricsFile()).steps == 4
    assert pauses == [*FINAL_PAUSES_S]
    assert re.search(r"could not write .*metrics.csv.*training continues", warned(recwarn))


class FullDisk(Callback):
    """From batch `begin` to batch `end` no file of this process may grow."""

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx in (self.begin, self.end):
            limit = self.before[0] if batch_idx == self.end else (trainer_path(trainer).stat().st_size + 3)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, self.before[1]))


def trainer_path(trainer: Trainer) -> Path:
    return Path(trainer.default_root_dir) / "metrics.csv"


def test_rows_that_a_full_disk_refused_follow_when_it_has_space_again(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="could not write .*metrics.csv"):
        fit(tmp_path, FullDisk(2, 4), MetricsFile(), batches=6)
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("refusals", [99, 5], ids=["process ends", "disk recovers"])
def test_rows_that_were_not_written_before_a_checkpoint_follow_after_the_resume(tmp_path: Path, refusals: int) -> None:
    from yolo_lightning.callbacks import metrics_file

    calls = []

    def refusing(path: Path, kept: list[dict[str, Any]]) -> None:
        calls.append(path)
        if len(calls) <= refusals:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        write_rows(path, kept)

    write_rows = metrics_file.write_rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics_file, "write_rows", refusing)
        with pytest.warns(UserWarning, match=r"could not write .*metrics.csv"):
            interrupted(tmp_path, 1, 3, epochs=2)
    fit(tmp_path, MetricsFile(), epochs=2, resume=tmp_path / "checkpoints/step-000000006.ckpt")
    assert steps(tmp_path) == list(range(1, 9))


def test_rows_of_the_last_epoch_follow_when_the_disk_recovers_after_the_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    from yolo_lightning.callbacks import metrics_file

    def refusing(path: Path, kept: list[dict[str, Any]]) -> None:
        if len(pauses) < 3:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        write_rows(path, kept)

    write_rows = metrics_file.write_rows
    monkeypatch.setattr(metrics_file, "write_rows", refusing)
    with pytest.warns(UserWarning, match=r"could not write .*metrics.csv"):
        fit(tmp_path, MetricsFile())
    assert steps(tmp_path) == [1, 2, 3, 4]
    assert pauses == [1.0, 2.0, 4.0]


@pytest.mark.usefixtures("pauses")
def test_rows_of_a_complete_training_are_written_by_its_resume(tmp_path: Path) -> None:
    from yolo_lightning.callbacks import metrics_file

    def refusing(path: Path, kept: list[dict[str, Any]]) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics_file, "write_rows", refusing)
        with pytest.warns(UserWarning, match=r"could not write .*metrics.csv"):
            fit(tmp_path, MetricsFile(), LastCheckpoint(2, keep=9))
    fit(tmp_path, MetricsFile(), resume=tmp_path / "checkpoints/step-000000004.ckpt")
    assert steps(tmp_path) == [1, 2, 3, 4]


def test_file_that_could_not_be_cut_back_is_cut_back_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from yolo_lightning.callbacks import metrics_file

    interrupted(tmp_path, 1, 2, epochs=2)
    write_rows, calls = metrics_file.write_rows, []

    def full_at_first(path: Path, kept: list[dict[str, Any]]) -> None:
        calls.append(path)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")
        write_rows(path, kept)

    monkeypatch.setattr(metrics_file, "write_rows", full_at_first)
    fit(tmp_path, MetricsFile(), epochs=2, resume=tmp_path / "checkpoints/step-000000004.ckpt")
    assert steps(tmp_path) == list(range(1, 9))
