import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yolo_lightning.supervision import heartbeat
from yolo_lightning.supervision.heartbeat import (
    IDS_BYTES,
    PROGRESS_VARIABLE,
    RECORD_BYTES,
    Blind,
    Phase,
    Progress,
    ProgressReader,
    ProgressWriter,
    parse,
    stacks_path,
    started_ticks,
)
from yolo_lightning.supervision.phase_timeouts import Allowances, Floors

REPOSITORY = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(REPOSITORY)}


def read(path: Path) -> Progress:
    found = ProgressReader(path).read(os.getpid())
    assert isinstance(found, Progress), found
    return found


@given(
    phase=st.sampled_from(Phase),
    numbers=st.tuples(*[st.integers(0, 2**62)] * 3),
    ids=st.lists(st.text("0123456789abc-é", min_size=1, max_size=40), max_size=40),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, phase: Phase, numbers: tuple[int, int, int], ids: list[str]
) -> None:
    writer = ProgressWriter(tmp_path_factory.mktemp("record") / "progress")
    writer.samples(ids)
    writer.beat(phase, *numbers)
    found = read(writer.path)
    writer.close()
    assert (found.phase, found.epoch, found.step, found.batch) == (phase, *numbers)
    assert list(found.samples) == ids[: len(found.samples)]
    assert len(found.samples) == len(ids) or len(",".join(ids[: len(found.samples) + 1]).encode()) > IDS_BYTES


def test_record_names_the_process_beyond_doubt(tmp_path: Path) -> None:
    writer = ProgressWriter(tmp_path / "progress")
    found = read(writer.path)
    assert (found.process, found.process_started_ticks) == (os.getpid(), started_ticks(os.getpid()))
    assert ProgressReader(writer.path).read(os.getpid() + 1) is Blind.FOREIGN
    assert writer.path.stat().st_size == RECORD_BYTES
    writer.close()


def test_every_beat_changes_the_record(tmp_path: Path) -> None:
    writer = ProgressWriter(tmp_path / "progress")
    first = read(writer.path).sequence
    writer.beat(Phase.STEP)
    writer.beat(Phase.STEP)
    assert read(writer.path).sequence == first + 4
    writer.close()


def test_numbers_stay_until_they_are_given_anew(tmp_path: Path) -> None:
    writer = ProgressWriter(tmp_path / "progress")
    writer.beat(Phase.STEP, 3, 17, 5)
    writer.beat(Phase.SAVE)
    found = read(writer.path)
    assert (found.phase, found.epoch, found.step, found.batch) == (Phase.SAVE, 3, 17, 5)
    writer.close()


def test_longest_stay_in_a_phase_is_kept(tmp_path: Path) -> None:
    writer = ProgressWriter(tmp_path / "progress")
    writer.beat(Phase.STEP)
    time.sleep(0.05)
    writer.beat(Phase.FETCH)
    for _ in range(3):
        writer.beat(Phase.STEP)
    found = read(writer.path)
    assert 0.05 <= found.longest_s[Phase.STEP] < 5
    assert found.longest_s[Phase.STEP] == writer.longest_s(Phase.STEP)
    assert Phase.SAVE not in found.longest_s
    writer.close()


def whole_record(folder: Path) -> bytes:
    writer = ProgressWriter(folder / "whole")
    writer.beat(Phase.STEP, 1, 2, 3)
    content = writer.path.read_bytes()
    writer.close()
    assert isinstance(parse(content), Progress)
    return content


@pytest.mark.parametrize(
    ("change", "blind"),
    [
        (lambda content: content[:-1], Blind.TRUNCATED),
        (lambda content: b"", Blind.TRUNCATED),
        (lambda content: content + b"x", Blind.FOREIGN),
        (lambda content: b"X" + content[1:], Blind.FOREIGN),
        (lambda content: content[:8] + b"\2" + content[9:], Blind.FOREIGN),  # another version
        (lambda content: content[:64] + b"\x63" + content[65:], Blind.FOREIGN),  # phase 99
        (lambda content: content[:32] + bytes([content[32] + 1]) + content[33:], Blind.TORN),  # odd
        (lambda content: content[:32] + bytes([content[32] + 2]) + content[33:], Blind.TORN),  # not that of the tail
        (lambda content: bytes(RECORD_BYTES), Blind.FOREIGN),
        (lambda content: content[:32] + bytes(8) + content[40:728] + bytes(8) + content[736:], Blind.TORN),
    ],
    ids=["cut", "empty", "longer", "magic", "version", "phase", "odd", "tail", "zeros", "never written"],
)
def test_fault_30_damaged_record_is_blindness(change: object, blind: Blind, tmp_path: Path) -> None:
    assert callable(change)
    path = tmp_path / "progress"
    path.write_bytes(change(whole_record(tmp_path)))
    assert ProgressReader(path).read() is blind


def test_fault_30_missing_or_unreadable_record_is_blindness(tmp_path: Path) -> None:
    assert ProgressReader(tmp_path / "progress").read() is Blind.MISSING
    (tmp_path / "folder").mkdir()
    assert ProgressReader(tmp_path / "folder").read() is Blind.UNREADABLE


BEATS = """
import sys
import time
from pathlib import Path
from yolo_lightning.supervision.heartbeat import Phase, ProgressWriter
writer = ProgressWriter(Path(sys.argv[1]))
number = 0
while True:
    number += 1
    writer.beat(Phase.STEP, number, number, number)
    if number % 20 == 0:
        time.sleep(0.0002)  # without any pause, a machine with slow system calls would find every record torn
"""


def test_reader_never_sees_half_a_beat(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    writer = subprocess.Popen([sys.executable, "-c", BEATS, str(path)], env=ENVIRONMENT)
    try:
        seen = set()
        end_s = time.monotonic() + 30
        while len(seen) < 300 and time.monotonic() < end_s:
            found = ProgressReader(path).read(writer.pid)
            if isinstance(found, Progress):
                assert found.epoch == found.step == found.batch
                seen.add(found.step)
        assert len(seen) >= 300
    finally:
        writer.kill()
        writer.wait()


def test_second_writer_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    writer = ProgressWriter(tmp_path / "progress")
    writer.beat(Phase.STEP, 1, 2, 3)
    with pytest.raises(BlockingIOError):
        ProgressWriter(tmp_path / "progress")
    assert read(writer.path).step == 2
    writer.close()
    ProgressWriter(tmp_path / "progress").close()


def test_full_disk_is_noticed_when_the_record_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        ProgressWriter(tmp_path / "progress")


def test_stacks_are_written_on_the_signal(tmp_path: Path) -> None:
    writer = ProgressWriter(tmp_path / "progress")
    assert read(writer.path).stacks_signal == 0
    writer.arm_stacks()
    assert read(writer.path).stacks_signal == heartbeat.STACKS_SIGNAL == signal.SIGUSR2
    os.kill(os.getpid(), heartbeat.STACKS_SIGNAL)
    writer.close()
    assert "test_stacks_are_written_on_the_signal" in stacks_path(writer.path).read_text()


@pytest.fixture
def no_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_writer", None)
    monkeypatch.delenv(PROGRESS_VARIABLE, raising=False)


@pytest.mark.usefixtures("no_writer")
def test_without_a_supervisor_there_is_no_record() -> None:
    assert heartbeat.open_from_environment() is None
    heartbeat.enter(Phase.SETUP)
    assert heartbeat.current() is None


@pytest.mark.usefixtures("no_writer")
def test_supervisor_names_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "progress"))
    writer = heartbeat.open_from_environment()
    assert writer is not None
    assert heartbeat.open_from_environment() is heartbeat.current() is writer
    assert read(writer.path).phase is Phase.IMPORT
    heartbeat.enter(Phase.INDEX)
    assert read(writer.path).phase is Phase.INDEX
    writer.close()


@pytest.mark.usefixtures("no_writer")
def test_process_below_the_trainer_leaves_its_record_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = ProgressWriter(tmp_path / "progress")
    monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "progress"))
    assert heartbeat.open_from_environment() is None
    trainer.close()


@pytest.mark.parametrize("module", ["yolo_lightning.supervision.heartbeat", "yolo_lightning.supervision.__main__"])
def test_neither_torch_nor_lightning_is_loaded(module: str) -> None:
    code = f"import sys, {module}; print([n for n in ('torch', 'lightning', 'numpy') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_phase_has_a_floor_and_fits_into_the_record() -> None:
    assert {phase: Floors().of(phase) for phase in Phase}[Phase.METRICS] == 900.0
    assert max(Phase) < heartbeat.PHASES


def test_floor_of_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="step_s is 0, allowed are values above 0"):
        Floors(step_s=0)


@pytest.mark.parametrize(("longest_s", "allowed_s"), [(0.0, 60.0), (11.0, 60.0), (12.1, 60.5), (40.0, 200.0)])
def test_allowance_is_the_floor_or_five_times_the_longest(longest_s: float, allowed_s: float) -> None:
    assert Allowances(Floors(), {Phase.STEP: longest_s}).seconds(Phase.STEP) == pytest.approx(allowed_s)


def test_largest_allowance() -> None:
    assert Allowances(Floors(), {}).largest_s() == 900.0
    assert Allowances(Floors(), {Phase.STEP: 500.0}).largest_s() == 2500.0


def test_only_longer_stays_are_learned_and_excused_ones_are_not() -> None:
    before = Allowances(Floors(), {Phase.STEP: 10.0})
    assert before.learn({Phase.STEP: 9.0}, 20.0) is before
    assert before.learn({Phase.STEP: 79.0, Phase.SAVE: 3.0}, 20.0).longest_s == {Phase.STEP: 79.0, Phase.SAVE: 3.0}
    assert before.learn({Phase.STEP: 81.0}, 20.0) is before  # under a debugger


@given(
    floor_s=st.floats(0.001, 1e6),
    longest=st.dictionaries(st.sampled_from(Phase), st.floats(0, 1e6)),
    factor=st.floats(1, 9),
)
def test_allowances_survive_their_file(
    tmp_path_factory: pytest.TempPathFactory, floor_s: float, longest: dict[Phase, float], factor: float
) -> None:
    path = tmp_path_factory.mktemp("kept") / "allowances.json"
    allowances = Allowances(Floors(step_s=floor_s), longest, factor)
    path.write_text(allowances.to_json())
    assert Allowances.read(path) == allowances


@pytest.mark.parametrize("text", [None, "", "[]", "{}", json.dumps({"floors": {}, "factor": 5, "longest_s": {"x": 1}})])
def test_damaged_allowances_count_as_none(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "allowances.json"
    if text is not None:
        path.write_text(text)
    assert Allowances.read(path) is None
