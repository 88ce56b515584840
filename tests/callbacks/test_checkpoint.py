import errno
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging

from tests.callbacks.tiny_training import Interrupt, StopAt, TinyModule, fit
from yolo_lightning.callbacks import BestCheckpoint, HeartbeatFile, LastCheckpoint
from yolo_lightning.checkpoints.checkpoint_file import (
    NotSavedError,
    find_damage,
    newest_checkpoint,
    write_checkpoint,
)
from yolo_lightning.checkpoints.checkpoint_io import AtomicCheckpointIO
from yolo_lightning.supervision.heartbeat import HEARTBEAT_VARIABLE
from yolo_lightning.supervision.unsaved_checkpoint import read_unsaved
from yolo_lightning.utils.optional_file import FINAL_PAUSES_S
from yolo_lightning.utils.run_files import FINISHED_FILE


def steps_kept(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("step-")) for path in (folder / "checkpoints").glob("step-*.ckpt"))


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


class Diary(Callback):
    """Records after which batch or hook each checkpoint was written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = ""
        self.saved: list[tuple[str, str]] = []

        def write(checkpoint: dict[str, Any], path: Path) -> None:
            self.saved.append((self.now, path.name))
            write_checkpoint(checkpoint, path)

        monkeypatch.setattr("yolo_lightning.checkpoints.checkpoint_io.write_checkpoint", write)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        self.now = f"batch {args[-1]}"

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.now = "validated"


def fill_disk(monkeypatch: pytest.MonkeyPatch, is_full: Callable[[dict[str, Any], Path], bool]) -> None:
    """Let the saves fail for which `is_full` is true."""

    def write(checkpoint: dict[str, Any], path: Path) -> None:
        if is_full(checkpoint, path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_checkpoint(checkpoint, path)

    monkeypatch.setattr("yolo_lightning.checkpoints.checkpoint_io.write_checkpoint", write)


def is_best(checkpoint: dict[str, Any], path: Path) -> bool:
    return path.name == "best.ckpt"


def test_last_saves_every_interval_but_not_on_the_last_batch_and_after_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diary = Diary(monkeypatch)
    fit(tmp_path, diary, LastCheckpoint(2, keep=9), epochs=2, batches=4)
    assert diary.saved == [
        ("batch 1", "step-000000002.ckpt"),
        ("validated", "step-000000004.ckpt"),
        ("batch 1", "step-000000006.ckpt"),
        ("validated", "step-000000008.ckpt"),
    ]


def test_last_keeps_the_newest_few_each_with_its_checksum(tmp_path: Path) -> None:
    fit(tmp_path, LastCheckpoint(1, keep=2), epochs=2, batches=4)
    assert steps_kept(tmp_path) == [7, 8]
    names = {path.name for path in (tmp_path / "checkpoints").glob("*.json")}
    assert names == {"step-000000007.ckpt.json", "step-000000008.ckpt.json", "last.ckpt.json"}
    folder = tmp_path / "checkpoints"
    assert (folder / "last.ckpt").read_bytes() == (folder / "step-000000008.ckpt").read_bytes()
    assert find_damage(folder / "last.ckpt") is None


def test_nothing_is_saved_on_an_exception(tmp_path: Path) -> None:
    with pytest.raises(Interrupt):
        fit(tmp_path, LastCheckpoint(2), StopAt(0, 3), batches=6)
    assert steps_kept(tmp_path) == [2]


def warned(recwarn: pytest.WarningsRecorder) -> str:
    return "\n".join(str(warning.message) for warning in recwarn)


def test_fit_that_replaces_the_checkpoints_of_an_earlier_fit_warns(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    with pytest.raises(Interrupt):
        fit(tmp_path, LastCheckpoint(2), StopAt(0, 3), batches=6)
    fit(tmp_path, LastCheckpoint(2), batches=6, resume=tmp_path / "checkpoints/last.ckpt")
    assert "earlier fit" not in warned(recwarn)
    fit(tmp_path, LastCheckpoint(2), batches=6)
    expected = "step-000000006.ckpt of an earlier fit, but this fit begins at step 0 and replaces it. To resume, call"
    assert expected in warned(recwarn)


def test_swa_that_is_resumed_within_an_epoch_warns(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    averaging = StochasticWeightAveraging(swa_lrs=0.1)
    with pytest.raises(Interrupt):
        fit(tmp_path, averaging, LastCheckpoint(2), StopAt(0, 3), batches=6)
    assert "StochasticWeightAveraging" not in warned(recwarn)
    averaging = StochasticWeightAveraging(swa_lrs=0.1)
    fit(tmp_path, averaging, LastCheckpoint(2), batches=6, resume=tmp_path / "checkpoints/last.ckpt")
    assert "StochasticWeightAveraging sets the learning rate again" in warned(recwarn)


def test_failed_save_is_recorded_for_the_supervisor_until_a_save_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    heartbeat = tmp_path / "memory" / "heartbeat"
    heartbeat.parent.mkdir()
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(heartbeat))
    fill_disk(monkeypatch, lambda checkpoint, path: checkpoint["global_step"] > 2)
    with pytest.raises(NotSavedError):
        fit(tmp_path, LastCheckpoint(2), batches=6)
    unsaved = read_unsaved(heartbeat)
    assert unsaved is not None
    assert unsaved.sentence(unsaved.since_s) == (
        f"could not save {tmp_path}/checkpoints/step-000000004.ckpt (No space left on device); "
        "the newest checkpoint, step-000000002.ckpt, is 0 min old"
    )
    fill_disk(monkeypatch, lambda checkpoint, path: False)
    fit(tmp_path, LastCheckpoint(2), batches=6)
    assert read_unsaved(heartbeat) is None


def test_disk_full_warns_and_training_goes_on_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, pauses: list[float]
) -> None:
    fill_disk(monkeypatch, lambda checkpoint, path: checkpoint["epoch"] == 0)
    module = fit(tmp_path, LastCheckpoint(2), epochs=2, batches=4)
    assert module.steps == 8
    assert steps_kept(tmp_path) == [6, 8]
    assert pauses == []
    assert re.search(r"could not save .*No space left on device.*training continues", warned(recwarn))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts to save, which then take no time."""
    taken: list[float] = []
    monkeypatch.setattr("yolo_lightning.utils.optional_file.time", SimpleNamespace(sleep=taken.append))
    return taken


without_pauses = pytest.mark.usefixtures("pauses")


def test_last_checkpoint_of_a_fit_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    fill_disk(monkeypatch, lambda *_: len(pauses) < 3)
    fit(tmp_path, LastCheckpoint(0), epochs=1, batches=4)
    assert pauses == [1.0, 2.0, 4.0]
    assert steps_kept(tmp_path) == [4]


@pytest.mark.parametrize("options", [{"epochs": 1}, {"epochs": 9, "max_steps": 3}], ids=["epochs", "steps"])
def test_fit_whose_last_checkpoint_cannot_be_saved_fails(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    fill_disk(monkeypatch, lambda *_: True)
    record = HeartbeatFile()
    with pytest.raises(NotSavedError, match="No space left on device"):
        fit(tmp_path, record, LastCheckpoint(0), batches=4, **options)
    assert pauses == [*FINAL_PAUSES_S]
    assert sum(pauses) <= 60
    assert not (tmp_path / FINISHED_FILE).exists()


def into_the_future(folder: Path) -> None:
    """As if the clock had been set back by a day after these files were written."""
    future_s = time.time() + 86_400
    for path in (folder / "checkpoints").iterdir():
        os.utime(path, (future_s, future_s))


def test_a_clock_that_is_set_back_costs_no_new_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(Interrupt):
        fit(tmp_path, LastCheckpoint(1, keep=2), StopAt(0, 3), batches=6)
    into_the_future(tmp_path)
    fit(tmp_path, LastCheckpoint(1, keep=2), batches=6, resume=tmp_path / "checkpoints/last.ckpt")
    assert steps_kept(tmp_path) == [5, 6]
    assert newest_checkpoint(tmp_path / "checkpoints")[0] == tmp_path / "checkpoints/step-000000006.ckpt"


def test_damaged_checkpoints_of_later_steps_go_with_the_first_save_after_them(tmp_path: Path) -> None:
    fit(tmp_path, LastCheckpoint(1, keep=9), batches=6)
    for steps in (4, 5, 6):
        (tmp_path / f"checkpoints/step-{steps:09d}.ckpt").write_bytes(b"torn")
    into_the_future(tmp_path)
    resume = tmp_path / "checkpoints/step-000000003.ckpt"
    with pytest.raises(Interrupt):
        fit(tmp_path, LastCheckpoint(1, keep=3), StopAt(0, 4), batches=6, resume=resume)
    assert steps_kept(tmp_path) == [2, 3, 4]
    assert newest_checkpoint(tmp_path / "checkpoints") == (tmp_path / "checkpoints/step-000000004.ckpt", {})


@pytest.mark.parametrize(
    ("options", "scores", "epoch"),
    [
        ({"mode": "max"}, [0.1, 0.5, 0.3, 0.5], 1),
        ({"mode": "min"}, [0.4, 0.2, 0.3, 0.2], 1),
        ({"window": 2}, [0.3, 0.6, 0.3, 0.5, 0.5], 4),
        ({"window": 3}, [0.3, 0.6, 0.3, 0.5, 0.5], 3),
    ],
)
def test_best_is_the_first_best_or_ends_the_best_window(
    options: dict[str, Any], scores: list[float], epoch: int, tmp_path: Path
) -> None:
    fit(tmp_path, BestCheckpoint(**options), module=TinyModule(val_scores=scores), epochs=len(scores))
    assert [path.name for path in (tmp_path / "checkpoints").glob("*.ckpt")] == ["best.ckpt"]
    assert read(tmp_path / "checkpoints/best.ckpt")["epoch"] == epoch


@pytest.mark.parametrize("scores", [[0.8, 0.9], [0.3]], ids=["lower", "in the same step"])
def test_callback_that_another_trainer_has_used_saves_the_best_of_this_one(scores: list[float], tmp_path: Path) -> None:
    best = BestCheckpoint(window=2)
    fit(tmp_path / "first", best, module=TinyModule(val_scores=scores), epochs=len(scores))
    fit(tmp_path / "second", best, module=TinyModule(val_scores=[0.1, 0.2]), epochs=2)
    assert read(tmp_path / "second/checkpoints/best.ckpt")["epoch"] == 1
    assert read(tmp_path / "first/checkpoints/best.ckpt")["epoch"] == len(scores) - 1
    assert best.best_model_score == pytest.approx(0.15)


def test_resumed_run_remembers_the_window(tmp_path: Path) -> None:
    scores = [0.9, 0.1, 0.6, 0.5]
    best = BestCheckpoint(window=2)
    with pytest.raises(Interrupt):
        fit(tmp_path, best, LastCheckpoint(0), StopAt(2, 0), module=TinyModule(val_scores=scores), epochs=4)
    resumed, last = BestCheckpoint(window=2), tmp_path / "checkpoints/last.ckpt"
    fit(tmp_path, resumed, LastCheckpoint(0), module=TinyModule(val_scores=scores), epochs=4, resume=last)
    assert resumed.recent == pytest.approx([0.6, 0.5])
    assert read(tmp_path / "checkpoints/best.ckpt")["epoch"] == 0


@without_pauses
def test_disk_full_at_the_best_checkpoint_does_not_end_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    fill_disk(monkeypatch, is_best)
    module = TinyModule(val_scores=[0.5, 0.6])
    with pytest.raises(NotSavedError):
        fit(tmp_path, BestCheckpoint(), module=module, epochs=2)
    assert module.steps == 8
    assert "could not save" in warned(recwarn)


@without_pauses
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("scores", [[0.1, 0.9, 0.5], [0.9], [0.1, 0.9]])
def test_best_is_written_as_soon_as_there_is_space(
    scores: list[float], times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(tmp_path / "usual", BestCheckpoint(), module=TinyModule(val_scores=scores), epochs=len(scores))
    failures = iter(range(times))
    fill_disk(monkeypatch, lambda checkpoint, path: path.name == "best.ckpt" and next(failures, None) is not None)
    best = BestCheckpoint()
    fit(tmp_path / "full", best, LastCheckpoint(0), module=TinyModule(val_scores=scores), epochs=len(scores))
    usual, full = (read(tmp_path / name / "checkpoints/best.ckpt") for name in ("usual", "full"))
    assert full["epoch"] == usual["epoch"] == scores.index(max(scores))
    assert all(torch.equal(full["state_dict"][name], tensor) for name, tensor in usual["state_dict"].items())
    assert best.best_model_score == pytest.approx(max(scores))


def test_score_of_a_best_checkpoint_that_was_never_written_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, scores = tmp_path / "checkpoints", [0.1, 0.9, 0.5]
    fit(tmp_path, BestCheckpoint(), LastCheckpoint(0), module=TinyModule(val_scores=scores), epochs=1)
    last = folder / "last.ckpt"
    callbacks = (BestCheckpoint(), LastCheckpoint(0), StopAt(2, 0))
    with monkeypatch.context() as patch:
        fill_disk(patch, is_best)
        with pytest.raises(Interrupt):
            fit(tmp_path, *callbacks, module=TinyModule(val_scores=scores), epochs=3, resume=last)
    assert read(folder / "best.ckpt")["epoch"] == 0
    best = BestCheckpoint()
    fit(tmp_path, best, LastCheckpoint(0), module=TinyModule(val_scores=scores), epochs=3, resume=last)
    assert read(folder / "best.ckpt")["epoch"] == 2
    assert best.best_model_score == pytest.approx(0.5)


def test_score_of_a_best_checkpoint_that_was_set_aside_is_not_compared(tmp_path: Path) -> None:
    """The file of the best score may contain wrong weights; without a new one the run would end without `best.ckpt`."""
    scores = [0.9, 0.5]
    fit(tmp_path, BestCheckpoint(), LastCheckpoint(0), module=TinyModule(val_scores=scores), epochs=1)
    best = tmp_path / "checkpoints/best.ckpt"
    best.rename(best.with_name("best.ckpt.suspect"))
    last = tmp_path / "checkpoints/last.ckpt"
    fit(tmp_path, BestCheckpoint(), LastCheckpoint(0), module=TinyModule(val_scores=scores), epochs=2, resume=last)
    assert read(best)["epoch"] == 1


def test_checkpoint_older_than_the_last_round_of_self_checks_is_kept(tmp_path: Path) -> None:
    """A round takes 6 steps here, and two checkpoints of the last two steps are kept besides."""

    class Round(Callback):
        def on_train_batch_start(self, trainer: Trainer, *arguments: Any) -> None:
            passed = max(0, trainer.fit_loop.total_batch_idx - 5)
            (tmp_path / "self_check.json").write_text(f'{{"passed": {{"slow": {passed}, "fast": 99}}}}')

    kept = []

    class Kept(Callback):
        def on_train_batch_end(self, trainer: Trainer, *arguments: Any) -> None:
            kept.append((trainer.fit_loop.total_batch_idx - 5, steps_kept(tmp_path)))

    fit(tmp_path, Round(), LastCheckpoint(1, keep=2), Kept(), epochs=1, batches=30)
    for passed, steps in kept[6:]:
        assert any(passed - 12 <= step <= passed for step in steps)
        assert len(steps) <= 4


def test_run_folder_resumed_under_another_name_remembers_the_best_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scores = [0.5, 0.1]
    module = TinyModule(val_scores=scores)
    with pytest.raises(Interrupt):
        fit(Path("run"), BestCheckpoint(), LastCheckpoint(0), StopAt(1, 0), module=module, epochs=2)
    folder = tmp_path / "run"  # the same, as an absolute path
    last = folder / "checkpoints/last.ckpt"
    fit(folder, BestCheckpoint(), LastCheckpoint(0), module=TinyModule(val_scores=scores), epochs=2, resume=last)
    assert read(folder / "checkpoints/best.ckpt")["epoch"] == 0


def test_storage_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="storage_options"):
        AtomicCheckpointIO().save_checkpoint({}, tmp_path / "one.ckpt", storage_options={"key": 1})


class TerminatedModule(TinyModule):
    """Gets SIGTERM when all callbacks are done with its second batch."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_after_the_last_callback_of_a_step_saves_it_too(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        fit(tmp_path, LastCheckpoint(interval_steps=100), module=TerminatedModule(), batches=4)
    assert steps_kept(tmp_path) == [2]
