import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tests.conftest import REPOSITORY
from yolo_lightning.supervision import heartbeat
from yolo_lightning.supervision.heartbeat import (
    HEARTBEAT_VARIABLE,
    IDS_BYTES,
    RECORD_BYTES,
    Heartbeat,
    HeartbeatWriter,
    NoHeartbeat,
    Phase,
    parse,
    read_heartbeat,
)
from yolo_lightning.supervision.phase_timeouts import LONGEST_S, AdaptiveTimeouts, PhaseTimeouts
from yolo_lightning.utils.activity import Activity, enter
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.json_record import read_record
from yolo_lightning.utils.process_identity import started_ticks
from yolo_lightning.utils.run_files import stacks_path


def read(path: Path) -> Heartbeat:
    record = read_heartbeat(path, os.getpid())
    assert isinstance(record, Heartbeat), record
    return record


@given(
    phase=st.sampled_from(Phase),
    numbers=st.tuples(*[st.integers(0, 2**62)] * 3),
    ids=st.lists(st.text("0123456789abc-é", min_size=1, max_size=40), max_size=40),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, phase: Phase, numbers: tuple[int, int, int], ids: list[str]
) -> None:
    writer = HeartbeatWriter(tmp_path_factory.mktemp("record") / "heartbeat")
    writer.samples(ids)
    writer.beat(phase, *numbers)
    record = read(writer.path)
    writer.close()
    assert (record.phase, record.epoch, record.step, record.batch) == (phase, *numbers)
    assert list(record.samples) == ids[: len(record.samples)]
    assert len(record.samples) == len(ids) or len(",".join(ids[: len(record.samples) + 1]).encode()) > IDS_BYTES


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[HeartbeatWriter]:
    heartbeat_writer = HeartbeatWriter(tmp_path / "heartbeat")
    yield heartbeat_writer
    heartbeat_writer.close()


def test_record_names_the_process_and_changes_with_every_beat(writer: HeartbeatWriter) -> None:
    record = read(writer.path)
    assert (record.process, record.process_started_ticks) == (os.getpid(), started_ticks(os.getpid()))
    assert read_heartbeat(writer.path, os.getpid() + 1) is NoHeartbeat.FOREIGN
    assert writer.path.stat().st_size == RECORD_BYTES
    writer.beat(Phase.STEP, 3, 17, 5)
    writer.beat(Phase.SAVE)  # the numbers stay
    later = read(writer.path)
    assert later.sequence == record.sequence + 4
    assert (later.phase, later.epoch, later.step, later.batch) == (Phase.SAVE, 3, 17, 5)


def test_longest_stay_in_a_phase_is_kept(writer: HeartbeatWriter) -> None:
    writer.beat(Phase.STEP)
    time.sleep(0.05)
    writer.beat(Phase.FETCH)
    for _ in range(3):
        writer.beat(Phase.STEP)
    record = read(writer.path)
    assert 0.05 <= record.longest_s[Phase.STEP] < 5
    assert Phase.SAVE not in record.longest_s


def test_wait_for_something_outside_is_no_part_of_the_stay_in_a_phase(
    writer: HeartbeatWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    writer.beat(Phase.FETCH)
    for _ in range(60):  # an outage of the data
        now_s += 10.0
        enter(Activity.WAIT)
    now_s += 0.5
    writer.beat(Phase.STEP)
    assert read(writer.path).longest_s[Phase.FETCH] == 0.5


def whole_record(folder: Path) -> bytes:
    writer = HeartbeatWriter(folder / "whole")
    writer.beat(Phase.STEP, 1, 2, 3)
    content = writer.path.read_bytes()
    writer.close()
    assert isinstance(parse(content), Heartbeat)
    return content


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content[:-1], NoHeartbeat.FOREIGN),
        (lambda content: b"", NoHeartbeat.FOREIGN),
        (lambda content: content + b"x", NoHeartbeat.FOREIGN),
        (lambda content: b"X" + content[1:], NoHeartbeat.FOREIGN),
        (lambda content: content[:8] + b"\1" + content[9:], NoHeartbeat.FOREIGN),  # another version
        (lambda content: content[:64] + b"\x63" + content[65:], NoHeartbeat.FOREIGN),  # phase 99
        (lambda content: content[:32] + bytes([content[32] + 1]) + content[33:], NoHeartbeat.TORN),  # odd
        (
            lambda content: content[:32] + bytes([content[32] + 2]) + content[33:],
            NoHeartbeat.TORN,
        ),  # other tail
        (lambda content: bytes(RECORD_BYTES), NoHeartbeat.FOREIGN),
        (lambda content: content[:32] + bytes(8) + content[40:728] + bytes(8) + content[736:], NoHeartbeat.TORN),
    ],
    ids=["cut", "empty", "longer", "magic", "version", "phase", "odd", "tail", "zeros", "never written"],
)
def test_fault_30_damaged_record_is_no_heartbeat(change: object, reason: NoHeartbeat, tmp_path: Path) -> None:
    assert callable(change)
    path = tmp_path / "heartbeat"
    path.write_bytes(change(whole_record(tmp_path)))
    assert read_heartbeat(path) is reason


def test_fault_30_missing_or_unreadable_record_is_no_heartbeat(tmp_path: Path) -> None:
    assert read_heartbeat(tmp_path / "heartbeat") is NoHeartbeat.MISSING
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "FIFO")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("folder", "FIFO", "endless"):
        assert read_heartbeat(tmp_path / name) is NoHeartbeat.UNREADABLE


def test_child_that_inherits_the_writer_does_not_report_for_the_trainer(writer: HeartbeatWriter) -> None:
    writer.beat(Phase.STEP, 1, 2, 3)
    child = os.fork()
    if child == 0:
        writer.beat(Phase.SAVE, 4, 5, 6)
        enter(Activity.WRITE)
        os._exit(0)
    os.waitpid(child, 0)
    record = read(writer.path)
    assert (record.step, record.activity) == (2, Activity.NONE)


def test_each_report_of_an_activity_changes_the_sequence_and_survives_the_next_beat(writer: HeartbeatWriter) -> None:
    sequences = [read(writer.path).sequence]
    for activity in (Activity.LOAD, Activity.LOAD, Activity.FORWARD):
        enter(activity)
        record = read(writer.path)
        assert record.activity is activity
        sequences.append(record.sequence)
    writer.beat(Phase.SAVE)
    sequences.append(read(writer.path).sequence)
    assert sequences == sorted(set(sequences))
    assert read(writer.path).activity is Activity.WRITE


BEATS = """
import sys
import time
from pathlib import Path
from yolo_lightning.supervision.heartbeat import Phase, HeartbeatWriter
writer = HeartbeatWriter(Path(sys.argv[1]))
number = 0
while True:
    number += 1
    writer.beat(Phase.STEP, number, number, number)
    if number % 20 == 0:
        time.sleep(0.0002)  # without any pause, a machine with slow system calls would find every record incomplete
"""


def test_reader_never_sees_half_a_beat(tmp_path: Path) -> None:
    path = tmp_path / "heartbeat"
    writer = subprocess.Popen(
        [sys.executable, "-c", BEATS, str(path)], env=os.environ | {"PYTHONPATH": str(REPOSITORY)}
    )
    try:
        seen = set()
        end_s = time.monotonic() + 30
        while len(seen) < 300 and time.monotonic() < end_s:
            record = read_heartbeat(path, writer.pid)
            if isinstance(record, Heartbeat):
                assert record.epoch == record.step == record.batch
                seen.add(record.step)
        assert len(seen) >= 300
    finally:
        writer.kill()
        writer.wait()


def test_second_writer_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    writer = HeartbeatWriter(tmp_path / "heartbeat")
    writer.beat(Phase.STEP, 1, 2, 3)
    with pytest.raises(BlockingIOError):
        HeartbeatWriter(tmp_path / "heartbeat")
    assert read(writer.path).step == 2
    writer.close()
    HeartbeatWriter(tmp_path / "heartbeat").close()


def test_full_disk_is_noticed_when_the_record_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        HeartbeatWriter(tmp_path / "heartbeat")


def test_stacks_are_written_on_the_signal(tmp_path: Path) -> None:
    writer = HeartbeatWriter(tmp_path / "heartbeat")
    assert read(writer.path).stacks_signal == 0
    writer.arm_stacks()
    assert read(writer.path).stacks_signal == heartbeat.STACKS_SIGNAL == signal.SIGUSR2
    os.kill(os.getpid(), heartbeat.STACKS_SIGNAL)
    writer.close()
    assert "test_stacks_are_written_on_the_signal" in stacks_path(writer.path).read_text()


@pytest.fixture
def no_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_writer", None)
    monkeypatch.delenv(HEARTBEAT_VARIABLE, raising=False)


@pytest.mark.usefixtures("no_writer")
def test_without_a_supervisor_there_is_no_record() -> None:
    assert heartbeat.open_from_environment() is None
    heartbeat.enter(Phase.SETUP)
    assert heartbeat._writer is None


@pytest.mark.usefixtures("no_writer")
def test_supervisor_names_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(tmp_path / "heartbeat"))
    writer = heartbeat.open_from_environment()
    assert writer is not None
    assert heartbeat.open_from_environment() is writer
    assert read(writer.path).phase is Phase.IMPORT
    heartbeat.enter(Phase.INDEX)
    assert read(writer.path).phase is Phase.INDEX
    writer.close()


@pytest.mark.usefixtures("no_writer")
def test_process_below_the_trainer_leaves_its_record_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = HeartbeatWriter(tmp_path / "heartbeat")
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(tmp_path / "heartbeat"))
    assert heartbeat.open_from_environment() is None
    trainer.close()


def test_every_phase_has_a_timeout_and_fits_into_the_record() -> None:
    assert min(map(PhaseTimeouts().of, Phase)) > 0
    assert max(Phase) < heartbeat.PHASES


def test_timeout_of_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match=r"supervision.phase_timeouts.step_s must be > 0, got 0"):
        PhaseTimeouts(step_s=0)


@pytest.mark.parametrize(("longest_s", "timeout_s"), [(0.0, 60.0), (11.0, 60.0), (12.1, 60.5), (40.0, 200.0)])
def test_timeout_is_the_minimum_or_five_times_the_longest(longest_s: float, timeout_s: float) -> None:
    assert AdaptiveTimeouts(PhaseTimeouts(), {"step": longest_s}).seconds(Phase.STEP) == pytest.approx(timeout_s)


def test_only_longer_stays_are_learned_and_excused_ones_are_not() -> None:
    before = AdaptiveTimeouts(PhaseTimeouts(), {"step": 10.0})
    assert before.learn({Phase.STEP: 9.0}, 20.0) == before
    assert before.learn({Phase.STEP: 79.0, Phase.SAVE: 3.0}, 20.0).longest_s == {"step": 79.0, "save": 3.0}
    assert before.learn({Phase.STEP: 81.0}, 20.0) == before  # under a debugger


@given(
    minimum_s=st.floats(0.001, 1e6),
    longest=st.dictionaries(st.sampled_from([phase.key for phase in Phase]), st.floats(0, LONGEST_S)),
    factor=st.floats(1, 9),
)
def test_timeouts_survive_their_file(
    tmp_path_factory: pytest.TempPathFactory, minimum_s: float, longest: dict[str, float], factor: float
) -> None:
    path = tmp_path_factory.mktemp("kept") / "phase_timeouts.json"
    timeouts = AdaptiveTimeouts(PhaseTimeouts(step_s=minimum_s), longest, factor)
    write_json(path, asdict(timeouts))
    assert read_record(path, AdaptiveTimeouts) == timeouts


def test_duration_that_would_disable_the_detection_neither_counts_nor_is_learned() -> None:
    damaged = AdaptiveTimeouts(PhaseTimeouts(), {"step": 1e9, "another": 1e9})
    assert damaged.seconds(Phase.STEP) == damaged.factor * LONGEST_S
    patient = AdaptiveTimeouts(PhaseTimeouts(step_s=1e9), {})
    assert patient.learn({Phase.STEP: 1e8}, 20.0) == patient


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"minimum": {"step_s": 0}, "longest_s": {}}'])
def test_damaged_timeouts_count_as_none(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "phase_timeouts.json"
    if text is not None:
        path.write_text(text)
    assert read_record(path, AdaptiveTimeouts) is None
