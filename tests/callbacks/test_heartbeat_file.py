import json
import os
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException

from tests.callbacks.tiny_detection import frame_batch
from tests.callbacks.tiny_training import AccumulatingModule, Interrupt, StopAt, TinyModule, fit, loader, tiny_trainer
from yolo_lightning.callbacks import LastCheckpoint
from yolo_lightning.callbacks.heartbeat_callback import HeartbeatCheckpointIO
from yolo_lightning.callbacks.heartbeat_file import HeartbeatFile
from yolo_lightning.supervision import heartbeat
from yolo_lightning.supervision.failure_record import NO_FAILURE, FailureRecord, read_failure
from yolo_lightning.supervision.heartbeat import HEARTBEAT_VARIABLE, Heartbeat, HeartbeatWriter, Phase, read_heartbeat


class Beats(HeartbeatWriter):
    """Writer that also stores all beats."""

    def __init__(self, path: Path) -> None:
        self.seen: list[tuple[Phase, int, int, int]] = []
        super().__init__(path)

    def beat(self, phase: Phase, *numbers: Any, **named: Any) -> None:
        super().beat(phase, *numbers, **named)
        self.seen.append((self.phase, self.epoch, self.step, self.batch))

    def phases(self) -> list[str]:
        """Return the phases in order, without repetitions."""
        return [name for name, _ in groupby(phase.name.lower() for phase, *_ in self.seen)]


@pytest.fixture
def beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Beats]:
    """Heartbeat file chosen by a supervisor."""
    writer = Beats(tmp_path / "heartbeat")
    monkeypatch.setattr(heartbeat, "_writer", writer)
    yield writer
    writer.close()


def test_phases_of_a_whole_fit(beats: Beats, tmp_path: Path) -> None:
    fit(tmp_path, HeartbeatFile(), LastCheckpoint(interval_steps=2), epochs=2, batches=3, num_sanity_val_steps=1)
    epoch_end = ["fetch", "validate", "metrics", "epoch_end", "save", "epoch_end"]
    assert beats.phases() == [
        *("setup", "first_batch"),
        *("fetch", "step", "fetch", "save", "fetch", "step", *epoch_end),
        *("fetch", "step", "fetch", "step", "fetch", "save", "fetch", "step", *epoch_end),
        "exit",
    ]


def test_numbers_count_epochs_batches_and_steps(beats: Beats, tmp_path: Path) -> None:
    fit(tmp_path, HeartbeatFile(), epochs=2, batches=3, limit_val_batches=0)
    steps = [numbers for phase, *numbers in beats.seen if phase is Phase.STEP]
    assert steps == [[0, 1, 1], [0, 2, 2], [1, 3, 0], [1, 4, 1], [1, 5, 2]]
    ends = [numbers for phase, *numbers in beats.seen if phase is Phase.FETCH]
    assert ends == [[0, 1, 1], [0, 2, 2], [0, 3, 3], [1, 3, 0], [1, 4, 1], [1, 5, 2], [1, 6, 3]]
    fit(tmp_path, HeartbeatFile(), module=AccumulatingModule(), batches=4, limit_val_batches=0)
    assert beats.step == 4  # batches, also where an update takes several


def test_validation_within_an_epoch_leads_back_to_fetching(beats: Beats, tmp_path: Path) -> None:
    fit(tmp_path, HeartbeatFile(), batches=4, val_check_interval=2)
    phases = beats.phases()
    first = phases.index("metrics")
    assert phases[first + 1] == "fetch"
    assert phases[phases.index("metrics", first + 1) + 1] == "epoch_end"


def test_resumed_epoch_begins_with_its_first_batch(beats: Beats, tmp_path: Path) -> None:
    with pytest.raises(Interrupt):
        fit(tmp_path, HeartbeatFile(), LastCheckpoint(interval_steps=2), StopAt(0, 3))
    beats.seen.clear()
    fit(tmp_path, HeartbeatFile(), resume=tmp_path / "checkpoints" / "last.ckpt")
    awaited_and_trained = [numbers for phase, *numbers in beats.seen if phase is Phase.FIRST_BATCH]
    assert len(awaited_and_trained) == 2
    assert awaited_and_trained[-1] == [0, 2, 2]


class Frames(Callback):
    """Passes a detection batch to the hook instead of the tensor that the tiny network trains on."""

    def __init__(self, record: HeartbeatFile) -> None:
        self.record = record

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.record.on_train_batch_start(trainer, pl_module, frame_batch(3, 4), batch_idx)


def test_ids_of_the_samples_are_recorded(beats: Beats, tmp_path: Path) -> None:
    record = HeartbeatFile()
    fit(tmp_path, record, Frames(record), batches=1, limit_val_batches=0)
    beat = read_heartbeat(beats.path, os.getpid())
    assert isinstance(beat, Heartbeat)
    assert beat.samples == frame_batch(3, 4).image_ids != ()


class Looks(Callback):
    """Records before each step whether the finished marker exists."""

    def __init__(self) -> None:
        self.found: list[bool] = []

    def on_train_batch_start(self, trainer: Trainer, *arguments: Any) -> None:
        self.found.append((Path(trainer.default_root_dir) / "finished.json").exists())


@pytest.mark.usefixtures("beats")
def test_marker_is_written_when_all_is_trained_and_removed_when_more_is_to_come(tmp_path: Path) -> None:
    looks = Looks()
    (tmp_path / "finished.json").write_text("of an earlier fit")
    fit(tmp_path, HeartbeatFile(), looks, epochs=2, batches=3)
    assert looks.found == [False] * 6
    marker = json.loads((tmp_path / "finished.json").read_text())
    assert (marker["process"], marker["epochs"], marker["steps"]) == (os.getpid(), 2, 6)


@pytest.mark.usefixtures("beats")
def test_interrupted_fit_writes_no_marker(tmp_path: Path) -> None:
    with pytest.raises(Interrupt):
        fit(tmp_path, HeartbeatFile(), StopAt(0, 2))
    assert not (tmp_path / "finished.json").exists()


def test_other_stages_leave_record_and_marker_alone(beats: Beats, tmp_path: Path) -> None:
    (tmp_path / "finished.json").write_text("{}")
    count = len(beats.seen)
    tiny_trainer(tmp_path, HeartbeatFile()).test(TinyModule(), loader(), verbose=False)
    assert len(beats.seen) == count
    assert (tmp_path / "finished.json").read_text() == "{}"


def test_without_a_supervisor_the_run_folder_gets_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_writer", None)
    fit(tmp_path, HeartbeatFile(), epochs=1, batches=3)
    beat = read_heartbeat(tmp_path / "heartbeat", os.getpid())
    assert isinstance(beat, Heartbeat)
    assert (beat.phase, beat.step) == (Phase.EXIT, 3)
    HeartbeatWriter(tmp_path / "heartbeat").close()  # closed, so that the next fit can open the file


def test_full_disk_leaves_the_phase_as_it_was(beats: Beats) -> None:
    class Full:
        def save_checkpoint(self, *arguments: Any) -> None:
            assert beats.phase is Phase.SAVE
            raise OSError("disk full")

    record = HeartbeatFile()
    record.writer = beats
    record.beat(Phase.FETCH)
    with pytest.raises(OSError, match="disk full"):
        HeartbeatCheckpointIO(Full(), record, torch.device("cpu")).save_checkpoint({}, "x")  # type: ignore[arg-type]
    assert beats.phase is Phase.FETCH


def test_exception_is_recorded_before_any_callback_reacts(
    beats: Beats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(beats.path))
    seen: list[FailureRecord] = []

    class Mistake(Callback):
        def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
            if trainer.global_step == 2:
                dict(zip((1, 2), (3,), strict=True))

        def on_exception(self, *_: Any) -> None:
            seen.append(read_failure(beats.path))

    with pytest.raises(ValueError, match=r"zip\(\) argument"):
        fit(tmp_path, HeartbeatFile(), Mistake(), epochs=1, batches=4)
    record = seen[0]
    assert (record.error, record.is_user_error, record.has_trained) == ("builtins.ValueError", False, True)
    assert (record.phase, record.step) == ("step", 2)
    assert "zip((1, 2), (3,), strict=True)" in record.traceback


def test_stop_signal_is_no_failure(beats: Beats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(beats.path))
    HeartbeatFile().on_exception(Trainer(logger=False, accelerator="cpu"), TinyModule(), SIGTERMException())
    assert read_failure(beats.path) is NO_FAILURE
