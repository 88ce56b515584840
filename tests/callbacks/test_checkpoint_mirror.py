import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from lightning.pytorch import Callback, LightningModule, Trainer

from tests.callbacks.tiny_training import Interrupt, StopAt, fit
from yolo_lightning.callbacks import BestCheckpoint, CheckpointMirror, LastCheckpoint, checkpoint_mirror
from yolo_lightning.checkpoints.remote_folder import RemoteFolder, fetch_run

MEMORY = fsspec.filesystem("memory")
MIRROR = "memory://bucket"
LIMIT_S = 20.0


@pytest.fixture(autouse=True)
def quick_and_clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(checkpoint_mirror, "POLL_S", 0.01)
    yield
    MEMORY.store.clear()


def mirrored(folder: Path) -> list[str]:
    return RemoteFolder(f"{MIRROR}/{folder.name}").complete()


class WaitFor(Callback):
    """Waits after each epoch until the condition holds."""

    def __init__(self, condition: Any) -> None:
        self.condition = condition

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch:
            deadline_s = time.monotonic() + LIMIT_S
            while not self.condition():
                assert time.monotonic() < deadline_s
                time.sleep(0.01)


def test_newest_and_best_lie_below_the_name_of_the_run_when_a_fit_has_ended(tmp_path: Path) -> None:
    fit(tmp_path, BestCheckpoint(), LastCheckpoint(0, keep=1), CheckpointMirror(MIRROR), epochs=2)
    assert mirrored(tmp_path)[0] == "best.ckpt"
    assert mirrored(tmp_path)[-1] == "step-000000008.ckpt"


def test_copies_are_made_while_training_goes_on(tmp_path: Path) -> None:
    begun = WaitFor(lambda: mirrored(tmp_path) == ["step-000000004.ckpt"])
    fit(tmp_path, begun, LastCheckpoint(0), CheckpointMirror(MIRROR), epochs=2)


def test_checkpoint_before_an_error_is_copied(tmp_path: Path) -> None:
    with pytest.raises(Interrupt):
        fit(tmp_path, LastCheckpoint(2), StopAt(0, 3), CheckpointMirror(MIRROR))
    assert mirrored(tmp_path) == ["step-000000002.ckpt"]


def test_copies_of_checkpoints_that_were_set_aside_are_deleted(tmp_path: Path) -> None:
    """A new machine would resume the copy with the most steps."""
    fit(tmp_path, LastCheckpoint(1, keep=9), CheckpointMirror(MIRROR), batches=6)
    folder = tmp_path / "checkpoints"
    for path in [*folder.glob("step-*[4-6].ckpt"), folder / "last.ckpt"]:
        path.rename(path.with_name(path.name + ".suspect"))
    resume = folder / "step-000000003.ckpt"
    with pytest.raises(Interrupt):
        fit(tmp_path, LastCheckpoint(1), StopAt(0, 4), CheckpointMirror(MIRROR), batches=6, resume=resume)
    assert mirrored(tmp_path)[-1] == "step-000000004.ckpt"


def test_a_damaged_later_step_does_not_keep_what_replaces_it_from_the_mirror(tmp_path: Path) -> None:
    fit(tmp_path, LastCheckpoint(1, keep=9), batches=6)
    for steps in (5, 6):
        path = tmp_path / f"checkpoints/step-{steps:09d}.ckpt"
        path.write_bytes(b"torn")
        os.utime(path, (4e9, 4e9))
    resume = tmp_path / "checkpoints/step-000000003.ckpt"
    with pytest.raises(Interrupt):
        fit(tmp_path, LastCheckpoint(1), StopAt(0, 4), CheckpointMirror(MIRROR), batches=6, resume=resume)
    fetched, _ = fetch_run(RemoteFolder(f"{MIRROR}/{tmp_path.name}"), tmp_path / "other")
    assert fetched == tmp_path / "other/step-000000004.ckpt"


def test_store_that_is_away_is_said_once_and_tried_again_with_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    tries: list[str] = []
    upload = RemoteFolder.upload

    def away_at_first(remote: RemoteFolder, path: Path) -> None:
        tries.append(path.name)
        if len(tries) < 3:
            raise ConnectionError("memory://bucket: EndpointConnectionError: no route to host")
        upload(remote, path)

    monkeypatch.setattr(RemoteFolder, "upload", away_at_first)
    # One more try for each checkpoint, and no more: the third comes with the third epoch.
    tried = WaitFor(lambda: len(tries) == len(list((tmp_path / "checkpoints").glob("step-*.ckpt"))))
    module = fit(tmp_path, tried, LastCheckpoint(0, keep=9), CheckpointMirror(MIRROR), epochs=4)
    assert module.steps == 16
    assert tries == [f"step-{steps:09d}.ckpt" for steps in (4, 8, 12, 16)]
    assert mirrored(tmp_path) == ["step-000000012.ckpt", "step-000000016.ckpt"]
    said = [str(warning.message) for warning in recwarn if "could not copy" in str(warning.message)]
    assert said == [
        "could not copy step-000000004.ckpt to memory://bucket: EndpointConnectionError: no route to host; "
        "training continues"
    ]


def test_store_that_hangs_holds_up_neither_training_nor_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    released = threading.Event()
    monkeypatch.setattr(RemoteFolder, "upload", lambda remote, path: released.wait(LIMIT_S))
    monkeypatch.setattr(checkpoint_mirror, "END_TIMEOUT_S", 0.1)
    module = fit(tmp_path, LastCheckpoint(0), CheckpointMirror(MIRROR), epochs=2)
    released.set()
    assert module.steps == 8
    assert any("cancelled" in str(warning.message) for warning in recwarn)
