"""Content of the status file during and after a fit of the tiny network."""

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from tests.callbacks.tiny_training import Clock, Interrupt, StopAt, TinyModule, fit
from yolo_lightning.callbacks import LastCheckpoint, StatusFile, status_file
from yolo_lightning.callbacks.fit_timer import BLOCK_STEPS, BLOCKS, StepPace
from yolo_lightning.supervision.run_status import Status, read_status
from yolo_lightning.supervision.watches import Minute, RunWatches, WatchFinding
from yolo_lightning.utils.sensors import Capacity, GpuReading, SensorReadings


class Takes(Callback):
    """Advances the clock for waiting and working; placed before the status file in the callbacks."""

    def __init__(self, clock: Clock, fetch_s: float, step_s: float) -> None:
        self.clock, self.fetch_s, self.step_s = clock, fetch_s, step_s

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.clock.now_s += self.fetch_s

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.clock.now_s += self.step_s

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.clock.now_s += 30.0


class Seen(Callback):
    """Stores the content of the file after each batch."""

    def __init__(self) -> None:
        self.states: list[Status] = []

    def on_train_batch_end(self, trainer: Trainer, *arguments: Any) -> None:
        status = read_status(Path(trainer.default_root_dir) / "status.json")
        assert status is not None
        if not self.states or self.states[-1] != status:
            self.states.append(status)


def last(folder: Path) -> Status:
    status = read_status(folder / "status.json")
    assert status is not None
    return status


def test_callback_that_another_trainer_has_used_forgets_its_scores_and_measurements(tmp_path: Path) -> None:
    callback = StatusFile()
    fit(tmp_path / "first", callback, LastCheckpoint(), module=TinyModule(val_scores=[0.5, 0.75]), epochs=2)
    callback.watches.minutes.append(Minute(0, 1.0, 0.5, 3.0))
    fit(tmp_path / "second", callback, module=TinyModule(val_scores=[0.25]))
    status = last(tmp_path / "second")
    assert [(score.epoch, score.values) for score in status.scores] == [(0, {"val/map_50": 0.25})]
    assert status.best_map_50 == 0.25
    assert not callback.watches.minutes


def test_state_of_a_checkpoint_replaces_the_scores_of_the_callback() -> None:
    callback = StatusFile()
    callback.load_state_dict(callback.state_dict() | {"scores": [(0, {"val/map_50": 0.5})]})
    callback.load_state_dict(callback.state_dict())
    assert [scores.epoch for scores in callback._scores] == [0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_file_tells_where_the_fit_stands(clock: Clock, tmp_path: Path) -> None:
    module = TinyModule(val_scores=[0.5, 0.75])
    fit(tmp_path, Takes(clock, 1.0, 3.0), StatusFile(), module=module, epochs=2, check_val_every_n_epoch=1)
    status = last(tmp_path)
    assert (status.epoch, status.epochs, status.batch, status.batches_per_epoch, status.step) == (1, 2, 4, 4, 8)
    assert (status.step_s, status.fetch_share) == (4.0, 0.25)
    assert (status.trained_s, status.validation_s) == (8 * 4.0 + 2 * 30.0, 30.0)
    assert (status.validate_every_epochs, status.validations_per_epoch) == (1, 1)
    assert [(score.epoch, score.values) for score in status.scores] == [
        (0, {"val/map_50": 0.5}),
        (1, {"val/map_50": 0.75}),
    ]
    assert status.best_map_50 == 0.75
    assert list(status.losses) == ["train/loss"]
    assert (status.process, status.host, status.device) == (os.getpid(), os.uname().nodename, "cpu")


def test_file_is_there_before_the_first_batch_and_says_that_nothing_was_measured(tmp_path: Path) -> None:
    with pytest.raises(Interrupt):
        fit(tmp_path, StopAt(0, 0), StatusFile())
    state = last(tmp_path)
    assert (state.step, state.batch, state.step_s, state.fetch_share, state.validation_s) == (0, 0, None, None, None)


def test_file_is_never_written_more_often_than_asked_for(clock: Clock, tmp_path: Path) -> None:
    seen = Seen()
    fit(tmp_path, Takes(clock, 0.5, 0.5), StatusFile(interval_s=5.0), seen, batches=20, limit_val_batches=0)
    assert [state.step for state in seen.states] == [0, 5, 10, 15, 20]
    assert last(tmp_path).validate_every_epochs is None


def test_resumed_fit_knows_at_once_what_was_measured_before(clock: Clock, tmp_path: Path) -> None:
    module = TinyModule(val_scores=[0.5, 0.25, 0.1])
    takes, checkpoint = Takes(clock, 1.0, 3.0), tmp_path / "checkpoints" / "step-000000006.ckpt"
    with pytest.raises(Interrupt):
        fit(tmp_path, takes, StopAt(1, 3), StatusFile(), LastCheckpoint(2), module=module, epochs=3)
    with pytest.raises(Interrupt):
        fit(tmp_path, StopAt(1, 2), StatusFile(), module=TinyModule(), epochs=3, resume=checkpoint)
    status = last(tmp_path)
    assert (status.epoch, status.batch, status.step, status.step_s) == (1, 2, 6, None)
    assert (status.trained_s, status.validation_s, status.best_map_50) == (6 * 4.0 + 30.0, 30.0, 0.5)
    assert [score.values["val/map_50"] for score in status.scores] == [0.5]


class SlowsDown(Takes):
    """Steps of 35 s become steps of 70 s after 60 steps."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.fetch_s, self.step_s = (1.0, 34.0) if trainer.global_step < 60 else (1.0, 69.0)
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)


class FakeReader:
    """Instead of the sensors: a memory that grows by 2 % with each reading, and a GPU."""

    def __init__(self, *_: object) -> None:
        self.read = 0

    def latest(self) -> SensorReadings:
        self.read += 1
        gpu = GpuReading("GPU", temperature_c=90.0, memory_used_bytes=50 + self.read, memory_bytes=10_000)
        return SensorReadings((gpu, GpuReading("idle", temperature_c=40.0)), Capacity(self.read, 100), None)

    def close(self) -> None:
        pass


def test_watches_report_a_slow_fit_and_a_memory_that_grows(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_file, "MachineReader", FakeReader)
    fit(tmp_path, SlowsDown(clock, 0.0, 0.0), StatusFile(), batches=75)
    sentences = {finding.watch: finding.sentence for finding in last(tmp_path).findings}
    assert sentences.keys() == {"training slower", "memory grows"}
    assert "50% below" in sentences["training slower"]


def test_gpus_are_watched_if_the_fit_uses_one(clock: Clock) -> None:
    for device, watched in (("cuda:0", ["GPU too hot"]), ("cpu", [])):
        status = StatusFile(max_temperature_c=85.0)
        status._machine = FakeReader()  # type: ignore[assignment]
        trainer: Any = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(device)))
        for _ in range(31):
            clock.now_s += 20.0
            status._observe(trainer, 1.0)
        assert [finding.watch for finding in status.watches.findings] == watched
        assert status.watches.is_hot() is bool(watched)


@pytest.mark.parametrize(("asked", "is_hot", "pauses"), [(True, True, [3.0] * 4), (True, False, []), (False, True, [])])
def test_hot_gpu_pauses_the_fit_only_if_asked(
    asked: bool, is_hot: bool, pauses: list[float], clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(RunWatches, "is_hot", lambda _: is_hot)
    monkeypatch.setattr(status_file.time, "sleep", slept.append)
    fit(tmp_path, Takes(clock, 1.0, 3.0), StatusFile(pause_when_hot=asked))
    assert slept == pauses


def test_minutes_and_ended_findings_are_part_of_a_checkpoint() -> None:
    before, after = StatusFile(), StatusFile()
    before.watches.minutes.append(Minute(3, 1.5, 0.25, None))
    ended, lasting = WatchFinding("disk fills", "x", 1.0, 2.0), WatchFinding("GPU too hot", "x", 3.0)
    before.watches.findings = (ended, lasting)
    state = before.state_dict()
    after.load_state_dict(state)
    assert (list(after.watches.minutes), after.watches.findings) == ([Minute(3, 1.5, 0.25, None)], (ended,))


def test_full_disk_is_said_once_and_ends_nothing(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr("yolo_lightning.utils.optional_file.rank_warn", warned.append)

    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(status_file, "write_status", fail)
    fit(tmp_path, Takes(clock, 5.0, 5.0), StatusFile(), batches=8)
    (message,) = warned
    assert "No space left on device" in message


class Explodes(TinyModule):
    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("train/box_loss", loss * float("nan"))
        self.log("lr/weight", 0.01)
        return loss


def test_loss_that_is_not_finite_is_null_in_valid_json(tmp_path: Path) -> None:
    fit(tmp_path, StatusFile(), module=Explodes())

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    content = json.loads((tmp_path / "status.json").read_text(), parse_constant=refuse)
    assert content["losses"]["train/box_loss"] is None
    assert last(tmp_path).not_finite() == ["train/box_loss"]
    assert content["learning_rates"] == {"lr/weight": pytest.approx(0.01)}


def test_bursts_of_a_loader_are_averaged() -> None:
    """Four workers deliver four batches at once: only every fourth step waits."""
    pace = StepPace()
    assert pace.typical() is None
    for step in range(64):
        pace.add(4.0 if step % 4 == 3 else 0.0, 1.0)
    assert pace.typical() == (2.0, 0.5)  # a median over steps would be 1.0 and 0.0


def test_a_checkpoint_or_a_stall_does_not_count() -> None:
    pace = StepPace()
    for step in range(5 * BLOCK_STEPS):
        pace.add(900.0 if step == 20 else 1.0, 1.0)
    assert pace.typical() == (2.0, 0.5)


def test_pace_follows_what_changed() -> None:
    pace = StepPace()
    for _ in range(BLOCKS * BLOCK_STEPS):
        pace.add(1.0, 1.0)
    for _ in range((BLOCKS // 2 + 1) * BLOCK_STEPS):
        pace.add(1.0, 4.0)
    assert pace.typical() == (5.0, 0.2)
