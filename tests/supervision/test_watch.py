from pathlib import Path

import pytest

from yolo_lightning.supervision import watch
from yolo_lightning.supervision.heartbeat import Heartbeat, NoHeartbeat, Phase
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts, PhaseTimeouts
from yolo_lightning.supervision.watch import Health, Watch, excuse_for
from yolo_lightning.utils.process_identity import Process

POLL_S = 1.0


class World:
    """Clock, heartbeat and excuse, set by a test."""

    def __init__(self) -> None:
        self.now_s, self.excuse = 0.0, None
        self.found: Heartbeat | NoHeartbeat = NoHeartbeat.MISSING
        self.sequence = 0
        others = ("setup_s", "first_batch_s", "fetch_s", "validate_s", "epoch_end_s", "exit_s")
        short = dict.fromkeys(others, 1.0)
        timeouts = AdaptiveTimeouts(
            PhaseTimeouts(import_s=30, step_s=10, save_s=20, metrics_s=50, index_s=1, **short), {}
        )
        self.has_grown = False
        self.watch = Watch(
            lambda: self.found,
            lambda: self.excuse,
            timeouts,
            POLL_S,
            lambda: self.now_s,
            has_grown=lambda: self.has_grown,
        )

    def beat(self, phase: Phase) -> None:
        self.sequence += 2
        self.found = Heartbeat(1, 1, 0, self.sequence, 0, 0, 0, phase, 0.0, {}, ())

    def after(self, seconds: float) -> Health:
        """Look every second for `seconds`; return the last result."""
        health = Health.HEALTHY
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + POLL_S)
            health = self.watch.look().health
        return health


def test_phase_decides_how_long_nothing_may_happen() -> None:
    world = World()
    assert world.after(29) is Health.HEALTHY  # before the first heartbeat: import
    assert world.after(1) is Health.STALLED
    for _ in range(5):  # another beat in the same phase is progress
        world.beat(Phase.STEP)
        assert world.after(9) is Health.HEALTHY
    world.beat(Phase.STEP)
    assert world.after(10) is Health.HEALTHY  # seen after the first second
    assert world.after(1) is Health.STALLED
    world.now_s += 30
    world.watch.keep_looking()  # the time spent on evidence is no sleep
    assert world.watch.look().health is Health.STALLED
    world.beat(Phase.SAVE)
    assert world.after(20) is Health.HEALTHY
    assert world.after(1) is Health.STALLED


@pytest.mark.parametrize("reason", list(NoHeartbeat))
def test_fault_30_missing_heartbeat_is_never_healthy_and_in_the_end_a_stall(reason: NoHeartbeat) -> None:
    world = World()
    world.beat(Phase.STEP)
    world.after(1)
    world.found = reason
    assert world.after(49) is Health.NO_HEARTBEAT
    look = world.watch.look()
    assert look.reason == reason.value
    assert not look.is_readable
    assert look.heartbeat is not None  # the last one, for the incident
    assert world.after(1) is Health.STALLED


def test_fault_29_sleep_of_the_supervisor_restarts_the_wait() -> None:
    world = World()
    world.beat(Phase.STEP)
    assert world.after(9) is Health.HEALTHY
    world.now_s += 3600
    look = world.watch.look()
    assert look.health is Health.EXCUSED
    assert "suspended for 3600 s" in look.reason
    assert world.after(9) is Health.HEALTHY
    assert world.after(2) is Health.STALLED


def test_growth_counts_until_the_first_heartbeat() -> None:
    world = World()
    world.has_grown = True
    assert world.after(100) is Health.HEALTHY
    world.has_grown = False
    assert world.after(29) is Health.HEALTHY
    assert world.after(1) is Health.STALLED
    world.beat(Phase.STEP)
    world.has_grown = True
    assert world.after(10) is Health.HEALTHY
    assert world.after(1) is Health.STALLED


def test_excuse_restarts_the_wait() -> None:
    world = World()
    world.beat(Phase.STEP)
    world.excuse = "process 7 traces the trainer"
    assert world.after(100) is Health.EXCUSED
    world.excuse = None
    assert world.after(9) is Health.HEALTHY
    assert world.after(1) is Health.STALLED


def process(pid: int, state: str) -> Process:
    return Process(pid, "python", state, 1, 100, 5)


@pytest.mark.parametrize(
    ("states", "excused"),
    [("TTT", True), ("TtT", True), ("TST", False), ("T", False), ("STT", False)],
    ids=["all stopped", "one of them traced", "a worker runs", "trainer alone", "trainer runs"],
)
def test_only_a_whole_stopped_session_is_excused(states: str, excused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    table = [process(100 + number, state) for number, state in enumerate(states)]
    monkeypatch.setattr(watch, "tracer", lambda pid: 0)
    monkeypatch.setattr(watch, "read_process", lambda pid: table[0])
    monkeypatch.setattr(watch, "tree", lambda leader: table)
    assert (excuse_for(100) is not None) == excused


def test_debugger_is_an_excuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "tracer", lambda pid: 4711)
    assert excuse_for(1) == "process 4711 traces the trainer"


def test_tracer_is_read_from_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from yolo_lightning.supervision import processes

    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "status").write_text("Name:\tpython\nTracerPid:\t99\nUid:\t0\n")
    monkeypatch.setattr(processes, "PROC", tmp_path)
    assert (processes.tracer(12), processes.tracer(13)) == (99, 0)
