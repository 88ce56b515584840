from dataclasses import replace
from pathlib import Path

import pytest

from yolo_lightning.supervision import watch
from yolo_lightning.supervision.heartbeat import Heartbeat, NoHeartbeat, Phase
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts, PhaseTimeouts
from yolo_lightning.supervision.watch import Watch, excuse_for
from yolo_lightning.utils.activity import Activity
from yolo_lightning.utils.process_identity import Process

POLL_S = 1.0


class World:
    """Clock, heartbeat and excuse, set by a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.excuse = 0.0, None
        self.found: Heartbeat | NoHeartbeat = NoHeartbeat.MISSING
        self.sequence = 0
        names = ("setup_s", "first_batch_s", "fetch_s", "validate_s", "epoch_end_s", "exit_s")
        short = dict.fromkeys(names, 1.0)
        timeouts = AdaptiveTimeouts(
            PhaseTimeouts(import_s=30, step_s=10, save_s=20, metrics_s=50, index_s=1, **short), {}
        )
        self.has_grown = False
        monkeypatch.setattr(watch, "since_boot_s", lambda: self.now_s)
        monkeypatch.setattr(watch, "read_heartbeat", lambda path, process: self.found)
        monkeypatch.setattr(watch, "written_bytes", lambda process: 0)
        self.watch = Watch(Path("heartbeat"), 1, lambda process: self.excuse, timeouts, POLL_S)
        self.watch.has_grown = lambda: self.has_grown

    def beat(self, phase: Phase) -> None:
        self.sequence += 2
        self.found = Heartbeat(1, 1, 0, self.sequence, 0, 0, 0, phase, 0.0, {}, ())

    def after(self, seconds: float) -> str:
        """Look every second for `seconds`; return the last result."""
        result = ""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + POLL_S)
            result = self.look()
        return result

    def look(self) -> str:
        look = self.watch.look()
        if look.is_stalled:
            return "stalled"
        return look.reason


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_phase_decides_how_long_nothing_may_happen(world: World) -> None:
    assert world.after(29) == ""  # before the first heartbeat: import
    assert world.after(1) == "stalled"
    for _ in range(5):  # another beat in the same phase is progress
        world.beat(Phase.STEP)
        assert world.after(9) == ""
    world.beat(Phase.STEP)
    assert world.after(10) == ""  # seen after the first second
    assert world.after(1) == "stalled"
    world.now_s += 30
    world.watch.keep_looking()  # the time spent on evidence is no sleep
    assert world.look() == "stalled"
    world.beat(Phase.SAVE)
    assert world.after(20) == ""
    assert world.after(1) == "stalled"


@pytest.mark.parametrize("reason", list(NoHeartbeat))
def test_fault_30_missing_heartbeat_is_never_healthy_and_in_the_end_a_stall(reason: NoHeartbeat, world: World) -> None:
    world.beat(Phase.STEP)
    assert isinstance(world.found, Heartbeat)
    world.found = replace(world.found, activity=Activity.WRITE)
    world.after(1)
    world.found = reason
    assert world.after(49) == f"no heartbeat: {reason}"
    look = world.watch.look()
    assert not look.is_readable
    assert look.heartbeat.phase is Phase.STEP  # the last one, for the incident
    assert look.heartbeat.activity is Activity.UNKNOWN  # the trainer has continued since then
    assert world.after(1) == "stalled"


def test_fault_29_sleep_of_the_supervisor_restarts_the_wait(world: World) -> None:
    world.beat(Phase.STEP)
    assert world.after(9) == ""
    world.now_s += 3600
    assert world.look() == "excused: the watching process was suspended for 3600 s"
    assert world.after(9) == ""
    assert world.after(2) == "stalled"


def test_growth_counts_until_the_first_heartbeat(world: World) -> None:
    world.has_grown = True
    assert world.after(100) == ""
    world.has_grown = False
    assert world.after(29) == ""
    assert world.after(1) == "stalled"
    world.beat(Phase.STEP)
    world.has_grown = True
    assert world.after(10) == ""
    assert world.after(1) == "stalled"


def test_excuse_restarts_the_wait(world: World) -> None:
    world.beat(Phase.STEP)
    world.excuse = "process 7 traces the trainer"
    assert world.after(100) == "excused: process 7 traces the trainer"
    world.excuse = None
    assert world.after(9) == ""
    assert world.after(1) == "stalled"


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
