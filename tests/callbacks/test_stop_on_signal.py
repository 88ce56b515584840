"""A stop signal ends a fit between two steps, or immediately if there is nothing to save."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException

from tests.callbacks.tiny_training import TinyModule, assert_equal_weights, fit, loader, tiny_trainer, weights
from yolo_lightning.callbacks import LastCheckpoint, StopOnSignal, StoppableTrainer
from yolo_lightning.utils.stop_signals import STOP_SIGNALS, Stopped, StopRequest

both = pytest.mark.parametrize("number", STOP_SIGNALS)


@pytest.fixture
def request_(monkeypatch: pytest.MonkeyPatch) -> Iterator[StopRequest]:
    """Handlers in place, as `python -m yolo_lightning fit` installs them."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test in the background has SIGINT ignored
    stop_request = StopRequest()
    for module in ("yolo_lightning.callbacks.stop_on_signal", "yolo_lightning.callbacks.checkpoint"):
        monkeypatch.setattr(f"{module}.request", stop_request)
    stop_request.install()
    yield stop_request
    for number, handler in before.items():
        signal.signal(number, handler)


class Sends(Callback):
    """Sends this process a signal at a hook, once."""

    def __init__(self, number: int, hook: str, epoch: int = 0, batch: int = 0) -> None:
        self.number, self.hook, self.place = number, hook, (epoch, batch)
        self.validated = 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._send("train", trainer.current_epoch, batch_idx)

    def on_validation_batch_start(self, trainer: Trainer, pl_module: LightningModule, *arguments: Any) -> None:
        self.validated += 1
        self._send("validation", trainer.current_epoch, arguments[1])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._send("epoch end", trainer.current_epoch, 0)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._send("train end", 0, 0)

    def _send(self, hook: str, epoch: int, batch: int) -> None:
        if (hook, (epoch, batch)) == (self.hook, self.place):
            os.kill(os.getpid(), self.number)


def steps_kept(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("step-")) for path in (folder / "checkpoints").glob("step-*.ckpt"))


def stop(folder: Path, sends: Sends, **options: Any) -> None:
    trainer = tiny_trainer(folder, StopOnSignal(), sends, LastCheckpoint(0), kind=StoppableTrainer, epochs=2, **options)
    trainer.fit(TinyModule(), loader(4), loader(3))


@both
def test_fit_ends_after_the_step_at_hand_and_saves_it(request_: StopRequest, number: int, tmp_path: Path) -> None:
    with pytest.raises(SIGTERMException):
        stop(tmp_path, Sends(number, "train", 0, 1))
    assert steps_kept(tmp_path) == [2]
    assert request_.number == number


@both
def test_validation_is_finished_first_and_the_epoch_saved(request_: StopRequest, number: int, tmp_path: Path) -> None:
    sends = Sends(number, "validation", 0, 0)
    with pytest.raises(SIGTERMException):
        stop(tmp_path, sends)
    assert sends.validated == 3
    assert steps_kept(tmp_path) == [4]


@pytest.mark.parametrize(
    "place", [("train", 0, 2), ("train", 0, 3), ("validation", 0, 1), ("epoch end", 0, 0)], ids=str
)
@pytest.mark.parametrize("val_check_interval", [1.0, 0.5, 0.75])
def test_resumed_fit_equals_one_that_was_not_stopped(
    request_: StopRequest, place: tuple[str, int, int], val_check_interval: float, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"epochs": 2, "val_check_interval": val_check_interval}
    whole = fit(tmp_path / "whole", **options)
    sends = Sends(signal.SIGINT, *place)
    with pytest.raises(SIGTERMException):
        stop(tmp_path, sends, val_check_interval=val_check_interval)
    resumed = fit(tmp_path, resume=tmp_path / "checkpoints/last.ckpt", **options)
    assert resumed.steps == whole.steps
    assert_equal_weights(weights(whole), weights(resumed))


@both
def test_nothing_is_waited_for_before_the_first_step(request_: StopRequest, number: int, tmp_path: Path) -> None:
    with pytest.raises(Stopped) as stopped:
        stop(tmp_path, Sends(number, "train", 0, 0))
    assert stopped.value.code == 128 + number
    assert steps_kept(tmp_path) == []


@pytest.mark.parametrize("place", [("validation", 1, 0), ("epoch end", 1, 0), ("train end", 0, 0)], ids=str)
def test_fit_that_has_trained_everything_finishes(
    request_: StopRequest, place: tuple[str, int, int], tmp_path: Path
) -> None:
    stop(tmp_path, Sends(signal.SIGTERM, *place))
    assert request_.number == signal.SIGTERM
    assert steps_kept(tmp_path) == [4, 8]


def test_lightning_s_own_handler_is_replaced_during_training(request_: StopRequest, tmp_path: Path) -> None:
    class Sees(Callback):
        def on_train_batch_start(self, trainer: Trainer, *arguments: Any) -> None:
            self.handler = signal.getsignal(signal.SIGTERM)

    sees = Sees()
    fit(tmp_path, StopOnSignal(), sees, kind=StoppableTrainer)
    assert sees.handler == request_._handle


def test_save_after_a_signal_is_tried_again(
    request_: StopRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)

    def full_twice(content: dict[str, Any], path: Path) -> None:
        if len(pauses) < 2:
            raise OSError(28, "No space left on device")
        torch.save(content, path)

    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setattr("yolo_lightning.checkpoints.checkpoint_io.write_checkpoint", full_twice)
    with pytest.raises(SIGTERMException):
        stop(tmp_path, Sends(signal.SIGTERM, "train", 0, 1))
    assert pauses == [1.0, 2.0]
    assert steps_kept(tmp_path) == [2]


def test_trainer_without_the_handler_is_lightning_s(tmp_path: Path) -> None:
    with pytest.raises(SIGTERMException):
        fit(
            tmp_path,
            Sends(signal.SIGTERM, "train", 0, 1),
            LastCheckpoint(0),
            module=TinyModule(),
            kind=StoppableTrainer,
        )
    assert steps_kept(tmp_path) == [2]
