"""Fits with a deadline, with an injected clock: simulated loops of thousands of steps, and small fits of Lightning."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch import Callback, LightningModule, Trainer

from tests.callbacks.tiny_training import Interrupt, StopAt, TinyModule, assert_equal_weights, fit, weights
from yolo_lightning.callbacks import FinishBy, LastCheckpoint, finish_by, fit_timer
from yolo_lightning.callbacks.finish_by import saved_schedule
from yolo_lightning.errors import UserError
from yolo_lightning.training.deadline import DeadlineSchedule
from yolo_lightning.utils.wall_clock import WallClock

HOUR_S = 3600.0
HOURS = 36.0
BEGAN_S = 1.8e9
PER_EPOCH = 700
STEP_S = 15.0
VALIDATION_S = 600.0
SAVE_S = 5.0
RESTART_S = 120.0


class Clock:
    """Replaces the module `time` in the callbacks."""

    def __init__(self) -> None:
        self.now_s = BEGAN_S

    def time(self) -> float:
        return self.now_s

    monotonic = time


def use(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake_clock = Clock()
    for module in (finish_by, fit_timer):
        monkeypatch.setattr(module, "time", fake_clock)
    monkeypatch.setattr(finish_by, "started_s", lambda _: BEGAN_S)
    monkeypatch.setattr(finish_by, "WallClock", lambda: WallClock(fake_clock.time, fake_clock.time))
    return fake_clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return use(monkeypatch)


class Loop:
    """The part of Lightning's Trainer that the callback uses; `saved` is the last checkpoint."""

    def __init__(self, clock: Clock, events: "Events", max_epochs: int) -> None:
        self.clock, self.events = clock, events
        self.saved: tuple[int, int, list[dict[str, Any]]] | None = None
        self.max_epochs = max_epochs
        self.module: Any = SimpleNamespace()
        self.callback = FinishBy(max_hours=HOURS)
        self.trained: list[float] = []
        """Progress of the schedule in each step."""
        self.warnings: list[str] = []

    def run(self) -> None:
        """Train with restarts until the end."""
        while not self._attempt():
            self.clock.now_s += RESTART_S

    def _attempt(self) -> bool:
        epoch, batch, states = self.saved or (0, 0, [])
        callback = self.callback = FinishBy(max_hours=HOURS)
        fetcher = SimpleNamespace(length=PER_EPOCH)
        progress = SimpleNamespace(current=SimpleNamespace(ready=epoch + (batch > 0), processed=epoch))
        batches = SimpleNamespace(batch_progress=SimpleNamespace(current=SimpleNamespace(ready=batch)))
        loop = SimpleNamespace(
            max_epochs=self.max_epochs,
            epoch_progress=progress,
            epoch_loop=batches,
            restarted_on_epoch_end=False,
            total_batch_idx=-1,
            _data_fetcher=fetcher,
            _load_combined_loader_states=lambda: None,
        )
        trainer: Any = SimpleNamespace(
            fit_loop=loop,
            num_training_batches=PER_EPOCH,
            max_steps=-1,
            val_check_batch=PER_EPOCH,
            check_val_every_n_epoch=1,
            enable_validation=True,
            num_val_batches=[60],
            sanity_checking=False,
            lightning_module=self.module,
            state=SimpleNamespace(fn="fit"),
            strategy=SimpleNamespace(broadcast=lambda value: value),
            callbacks=[callback],
        )
        callback.setup(trainer, self.module, "fit")
        for part, state in zip(trainer.callbacks, states, strict=False):
            part.load_state_dict(state)

        def call(hook: str, *arguments: Any) -> None:
            for each in trainer.callbacks:
                getattr(each, hook)(trainer, self.module, *arguments)

        def update() -> None:
            trainer.max_epochs, trainer.current_epoch = loop.max_epochs, epoch

        update()
        call("on_fit_start")
        update()
        call("on_train_start")
        is_resumed = batch > 0
        while epoch < loop.max_epochs:
            update()
            if not is_resumed:
                call("on_train_epoch_start")
                fetcher.length = PER_EPOCH
            is_resumed, is_last = False, False
            while not is_last:
                is_last = trainer.is_last_batch = batch + 1 >= fetcher.length
                update()
                call("on_train_batch_start", None, batch)
                assert callback.schedule is not None
                self.trained.append(callback.schedule.progress(epoch * PER_EPOCH + batch))
                self.clock.now_s += STEP_S * self.events.factor(self.clock.now_s)
                call("on_train_batch_end", None, None, batch)
                batch += 1
                if batch % 50 == 0 and not is_last:
                    self.clock.now_s += SAVE_S
                    self.saved = (epoch, batch, [part.state_dict() for part in trainer.callbacks])
                if self.events.kills and self.clock.now_s >= self.events.kills[0]:
                    self.events.kills.pop(0)
                    return False
            update()
            call("on_validation_start")
            self.clock.now_s += VALIDATION_S * self.events.factor(self.clock.now_s)
            call("on_validation_end")
            call("on_train_epoch_end")
            self.clock.now_s += SAVE_S
            epoch, batch = epoch + 1, 0
            self.saved = (epoch, batch, [part.state_dict() for part in trainer.callbacks])
        call("on_train_end")
        self.clock.now_s += VALIDATION_S * self.events.factor(self.clock.now_s)  # the reserved test
        return True


@dataclass
class Events:
    """Slow-downs, pauses and kills; moments in seconds since 1970."""

    slow: list[tuple[float, float]] = field(default_factory=list)  # moment and factor from then on
    pauses: list[tuple[float, float]] = field(default_factory=list)  # moment and seconds
    kills: list[float] = field(default_factory=list)

    def factor(self, now_s: float) -> float:
        """Return the duration of the present work in units of the usual one."""
        factor = next((slowdown for moment_s, slowdown in reversed(self.slow) if now_s >= moment_s), 1.0)
        for pause in self.pauses:
            if now_s >= pause[0]:
                self.pauses.remove(pause)
                return factor + pause[1] / STEP_S
        return factor


def at(share: float) -> float:
    return BEGAN_S + share * HOURS * HOUR_S


FACTORS = (0.5, 0.8, 1.5, 2.0, 3.0)
MOMENTS = (0.1, 0.5, 0.85)
SLOW = {f"x{factor:g} from {share:.0%}": Events([(at(share), factor)]) for factor in FACTORS for share in MOMENTS}
PAUSED = {
    f"pause {hours:g} h at {share:.0%}": Events(pauses=[(at(share), hours * HOUR_S)])
    for hours in (0.2, 1.0, 4.0)
    for share in MOMENTS
}
KILLED = {
    f"{count} kills from {share:.0%}": Events(
        kills=[at(share + 0.6 * (0.97 - share) * number / count) for number in range(count)]
    )
    for count in (1, 3, 12)
    for share in MOMENTS
}
MIXED = {
    f"x{factor:g}, pause and kill, {share:.0%}": Events(
        [(at(share), factor), (at(share + 0.1), 1.0)], [(at(share / 2), HOUR_S)], [at(share + 0.05)]
    )
    for factor in (0.5, 1.5, 2.0, 3.0)
    for share in MOMENTS
}
ALL = SLOW | PAUSED | KILLED | MIXED


@pytest.mark.parametrize("name", ALL)
def test_training_ends_shortly_before_the_deadline_with_the_last_learning_rate(clock: Clock, name: str) -> None:
    """The first plan, of 15 epochs, is wrong by a factor of about 1.3 without any event."""
    loop = Loop(clock, ALL[name], max_epochs=15)
    loop.run()
    share = (clock.now_s - BEGAN_S) / (HOURS * HOUR_S)
    assert 0.98 <= share <= 1.0
    assert loop.trained[-1] == 1.0
    assert loop.callback.schedule is not None
    assert loop.callback.schedule.problem == ""


def test_a_deadline_that_cannot_be_met_is_reported_at_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """After a pause of 40 hours the training ends as early as possible, with the last learning rate."""
    loop = Loop(clock, Events(pauses=[(at(0.5), 40 * HOUR_S)]), max_epochs=15)
    with pytest.warns(UserWarning, match="deadline cannot be met: training ends as early as possible, about"):
        loop.run()
    assert clock.now_s - at(0.5) < 40 * HOUR_S + 20 * STEP_S + 3 * VALIDATION_S
    assert loop.trained[-1] == 1.0
    assert loop.callback.schedule is not None
    assert "starts, repeated steps, pauses and stalls took 14" in loop.callback.schedule.problem


class Pass(Callback):
    """Lets the clock go on by 10 s per step and 30 s per validation; records validations."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.validated = clock, list[int]()

    def on_train_batch_start(self, *_: Any) -> None:
        self.clock.now_s += 10

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.clock.now_s += 30
        self.validated.append(trainer.fit_loop.total_batch_idx + 1)


def planned_fit(
    folder: Path, clock: Clock, *further: Callback, resume: Path | None = None
) -> tuple[TinyModule, Pass, DeadlineSchedule]:
    """At most 100 epochs of 20 steps, with a deadline after one hour and a checkpoint every 5 steps."""
    passing, finishing = Pass(clock), FinishBy(max_hours=1)
    callbacks = (*further, passing, finishing, LastCheckpoint(interval_steps=5))
    module = fit(folder, *callbacks, batches=20, epochs=100, resume=resume)
    assert finishing.schedule is not None
    return module, passing, finishing.schedule


def test_callback_that_another_trainer_has_used_plans_anew(clock: Clock, tmp_path: Path) -> None:
    deadline = FinishBy(max_hours=1.0)
    plans = []
    for folder in ("first", "second"):
        clock.now_s = BEGAN_S
        fit(tmp_path / folder, deadline, Pass(clock), batches=20, epochs=4)
        plans.append(deadline.schedule)
    assert plans[0] == plans[1]


def test_last_epoch_of_a_fit_is_partial_validated_and_saved(clock: Clock, tmp_path: Path) -> None:
    _, passing, plan = planned_fit(tmp_path, clock)
    assert 0 < plan.last_epoch_steps < 20
    assert passing.validated == [*range(20, plan.steps, 20), plan.steps]
    assert 0.97 < (clock.now_s - BEGAN_S) / HOUR_S <= 1.0
    assert (tmp_path / "checkpoints" / f"step-{plan.steps:09d}.ckpt").is_file()


@pytest.mark.parametrize("interval", [0.3, "00:10:00:00"])
def test_a_validation_follows_the_last_step_whatever_the_interval(
    clock: Clock, tmp_path: Path, interval: float | str
) -> None:
    passing, finishing = Pass(clock), FinishBy(max_hours=1)
    fit(tmp_path, passing, finishing, batches=20, epochs=100, val_check_interval=interval)
    assert finishing.schedule is not None
    assert passing.validated[-1] == finishing.schedule.steps


@pytest.mark.parametrize(("minutes", "every", "per_epoch"), [(1, 1, 3), (8, 2, 1)])
def test_interval_in_time_is_counted_in_steps_of_the_typical_duration(
    clock: Clock, tmp_path: Path, minutes: int, every: int, per_epoch: int
) -> None:
    """A step takes 10 s and an epoch 200 s; validations are due after a minute, or after 8 minutes."""
    lengths = []

    class Lengths(Callback):
        def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            lengths.append(finish_by.fit_length(trainer))

    finishing = FinishBy(max_hours=1)
    interval = f"00:00:{minutes:02d}:00"
    fit(tmp_path, Pass(clock), finishing, Lengths(), batches=20, epochs=100, val_check_interval=interval)
    assert {(length.validate_every_epochs, length.validations_per_epoch) for length in lengths} == {(every, per_epoch)}


def test_rest_of_a_step_that_takes_much_longer_than_the_steps_before_is_lost_time(clock: Clock, tmp_path: Path) -> None:
    """The third step takes 610 s instead of 10 s; 100 s of them are progress."""

    class Stall(Callback):
        def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
            if trainer.fit_loop.total_batch_idx == 2:
                clock.now_s += 600

    finishing = FinishBy(max_hours=1)
    fit(tmp_path, Stall(), Pass(clock), finishing, LastCheckpoint(), batches=20, epochs=100)
    assert clock.now_s - BEGAN_S - finishing.state_dict()["progress_s"] == 510


@pytest.mark.parametrize(("epoch", "batch"), [(3, 7), (7, 0), (14, 12)])
def test_resumed_fit_equals_the_uninterrupted_fit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, epoch: int, batch: int
) -> None:
    """The clock of the resumed fit is that of the checkpoint, so that the plan is the same."""

    whole, _, plan_of_whole = planned_fit(tmp_path / "whole", use(monkeypatch))
    clock = use(monkeypatch)
    moments: dict[int, float] = {}

    class Moments(Callback):
        def on_save_checkpoint(self, trainer: Trainer, *_: Any) -> None:
            moments[trainer.fit_loop.total_batch_idx + 1] = clock.now_s

    with pytest.raises(Interrupt):
        planned_fit(tmp_path / "cut", clock, Moments(), StopAt(epoch, batch))
    clock.now_s = moments[max(moments)]
    resumed, _, plan = planned_fit(tmp_path / "cut", clock, resume=tmp_path / "cut" / "checkpoints" / "last.ckpt")
    assert plan == plan_of_whole
    assert_equal_weights(weights(whole), weights(resumed))


@pytest.mark.parametrize(
    "changes",
    [{"steps": "many"}, {"steps": 0}, {"deadline_s": 1e12}, {"since_progress": 2.0}, {"steps_per_epoch": None}],
)
def test_plan_that_someone_has_changed_is_refused(changes: dict[str, Any]) -> None:
    plan = asdict(DeadlineSchedule(steps=70, steps_per_epoch=7, began_s=BEGAN_S, deadline_s=BEGAN_S + HOUR_S))
    assert saved_schedule(plan).steps == 70
    with pytest.raises(UserError, match=r"the plan of FinishBy in the checkpoint .*; use another checkpoint"):
        saved_schedule(plan | changes)
