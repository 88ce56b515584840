"""Calls in a helper process and bounded calls. A FIFO without a writer simulates a disk that hangs."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from yolo_lightning.supervision import helper_process as module, live_heartbeat, run_disk
from yolo_lightning.supervision.helper_process import Helper, bounded
from yolo_lightning.supervision.run_disk import DiskHangsError, RunDisk, append_to_log
from yolo_lightning.utils.process_identity import read_process


@pytest.fixture
def helper() -> Iterator[Helper]:
    helper_process = Helper()
    yield helper_process
    helper_process.close(0.0)


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def divide(dividend: float, divisor: float) -> float:
    return dividend / divisor


def fail() -> None:
    raise PermissionError(13, "not allowed")


def length(content: bytes) -> int:
    return len(content)


def test_results_and_errors_come_back(helper: Helper) -> None:
    call = helper.begin(divide, 6, 3)
    assert helper.wait(call, 20)
    assert call.result() == 2
    large = helper.begin(length, bytes(5_000_000))  # more than a pipe takes
    assert helper.wait(large, 20)
    assert large.result() == 5_000_000
    for function, arguments, words in ((fail, (), "not allowed"), (divide, (1, 0), "ZeroDivisionError")):
        call = helper.begin(function, *arguments)
        assert helper.wait(call, 20)
        with pytest.raises(OSError, match=words):
            call.result()


def test_calls_are_made_in_order(tmp_path: Path) -> None:
    helper, path = Helper(), tmp_path / "log"
    for number in range(500):
        helper.post(append_to_log, path, f"{number}\n".encode())
    helper.post(append_to_log, path, b"end\n")
    helper.close(20)
    assert path.read_text() == "".join(f"{number}\n" for number in range(500)) + "end\n"


def test_a_call_that_hangs_delays_nobody_and_starts_no_further_process(
    helper: Helper, fifo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper.post(Path.read_text, fifo)
    before, began_s = os.listdir("/proc/self/fd"), time.monotonic()
    for number in range(1000):
        helper.post(append_to_log, tmp_path / "other", bytes(10_000))
        helper.post(append_to_log, tmp_path / "state", f"{number};".encode(), replaces="state")
    assert not helper.wait(helper.begin(divide, 1, 1), 0.2)
    assert time.monotonic() - began_s < 10
    assert len(os.listdir("/proc/self/fd")) <= len(before)  # fewer: files of earlier tests are closed
    assert helper.silent_s > 0.2
    assert sum(call.content_bytes for call in helper._waiting) <= module.MOST_WAITING_BYTES
    assert helper.dropped > 100
    dropped = helper.dropped
    with monkeypatch.context() as limited:
        limited.setattr(module, "MOST_WAITING_CALLS", len(helper._waiting))
        helper.post(append_to_log, tmp_path / "log", b"x")
        assert (helper.dropped, len(helper._waiting)) == (dropped + 1, module.MOST_WAITING_CALLS)
    fifo.write_text("it answers")
    assert helper.wait(helper.begin(divide, 1, 1), 20)
    assert (tmp_path / "state").read_text() == "999;"  # a newer state replaces one that waits


def test_helper_that_died_is_replaced_and_its_call_fails(helper: Helper, fifo: Path) -> None:
    call = helper.begin(Path.read_text, fifo)
    os.kill(helper._child, signal.SIGKILL)
    assert helper.wait(call, 20)
    with pytest.raises(OSError, match="has died"):
        call.result()
    call = helper.begin(divide, 1, 1)  # type: ignore[assignment]
    assert helper.wait(call, 20)


def test_helper_that_was_stopped_continues_with_the_next_call(helper: Helper) -> None:
    os.kill(helper._child, signal.SIGSTOP)
    call = helper.begin(divide, 1.0, 2.0)
    assert helper.wait(call, 20.0)
    assert call.result() == 0.5


def test_helper_that_hangs_is_left_at_the_end(fifo: Path) -> None:
    hanging_helper = Helper()
    hanging_helper.post(Path.read_text, fifo)
    began_s = time.monotonic()
    hanging_helper.close(0.2)
    assert 0.2 <= time.monotonic() - began_s < 10
    end_s = time.monotonic() + 20
    while (process := read_process(hanging_helper._child)) and not process.is_gone and time.monotonic() < end_s:
        time.sleep(0.01)
    assert os.waitpid(hanging_helper._child, 0)[0] == hanging_helper._child


def test_helper_ends_with_its_supervisor() -> None:
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.write(writer, str(Helper()._child).encode())
        os._exit(0)
    os.waitpid(parent, 0)
    child = int(os.read(reader, 20))
    end_s = time.monotonic() + 20
    while (process := read_process(child)) and not process.is_gone:
        assert time.monotonic() < end_s
        time.sleep(0.01)
    for descriptor in (reader, writer):
        os.close(descriptor)


class Reports(list[tuple[str, str]]):
    def __call__(self, event: str, sentence: str) -> None:
        self.append((event, sentence))


def test_alarm_is_raised_once_and_ended_once(fifo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_disk, "ALARM_S", 0.2)
    reports = Reports()
    disk = RunDisk(fifo.parent, lambda: False, reports)
    try:
        disk.check_alarm()
        assert disk.answers(20)
        disk.post(Path.read_text, fifo)
        end_s = time.monotonic() + 0.5
        while time.monotonic() < end_s:
            disk.check_alarm()
            time.sleep(0.01)
        assert not disk.answers(0.1)
        assert [event for event, _ in reports] == ["storage hangs"]
        fifo.write_text("it answers")
        assert disk.ask(divide, 4, 2) == 2
        disk.check_alarm()
        assert [event for event, _ in reports] == ["storage hangs", "storage answers again"]
        assert "has not responded for 0 s" in reports[0][1]
    finally:
        disk.close(0.2)


def test_wait_for_a_disk_that_hangs_ends_when_the_supervisor_must(fifo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_disk, "STOP_WAIT_S", 0.2)
    disk = RunDisk(fifo.parent, lambda: True, Reports())
    with pytest.raises(DiskHangsError):
        disk.ask(Path.read_text, fifo)
    disk.close(0.2)


TOKEN = "0123456789abcdef"


def test_live_record_lies_in_memory_and_is_found_by_the_lock_file(tmp_path: Path) -> None:
    try:
        path = live_heartbeat.make(TOKEN)
        assert path.is_relative_to("/dev/shm")
        assert not path.exists()
        path.write_bytes(b"")
        assert live_heartbeat.heartbeat_of(tmp_path) == tmp_path / "heartbeat"
        (tmp_path / "run.lock").write_text(f'{{"process": 1, "host": "here", "marker": "{TOKEN}"}}')
        assert live_heartbeat.heartbeat_of(tmp_path) == path
    finally:
        live_heartbeat.remove(TOKEN)
    assert not path.parent.exists()
    assert live_heartbeat.heartbeat_of(tmp_path) == tmp_path / "heartbeat"


def test_live_record_lies_on_a_disk_where_memory_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_heartbeat, "SHARED_MEMORY", tmp_path / "no such folder")
    monkeypatch.setattr(live_heartbeat.tempfile, "tempdir", str(tmp_path))
    path = live_heartbeat.make(TOKEN)
    assert path.is_relative_to(tmp_path)
    assert path.parent.is_dir()
    live_heartbeat.write_copy(b"copy", tmp_path)
    assert (tmp_path / "heartbeat").read_bytes() == b"copy"
    live_heartbeat.remove(TOKEN)
    assert [entry.name for entry in tmp_path.iterdir()] == ["heartbeat"]


def test_result_comes_back_however_long() -> None:
    assert bounded(lambda: "x" * 1_000_000, 20) == "x" * 1_000_000
    assert bounded(lambda: 0, 20) == 0


def test_failure_is_nothing() -> None:
    assert bounded(lambda: 1 / 0, 20) is None
    assert bounded(lambda: os._exit(3), 20) is None
    assert bounded(lambda: os.kill(os.getpid(), signal.SIGKILL), 20) is None


def children() -> set[str]:
    """Processes that this one has started; other tests may have left a fork server or a tracker."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_work_that_never_returns_is_left_and_ended() -> None:
    before, began_s = children(), time.monotonic()
    assert bounded(lambda: time.sleep(1000), 0.2) is None
    assert 0.2 <= time.monotonic() - began_s < 10
    while children() != before and time.monotonic() - began_s < 30:
        bounded(lambda: 0, 1)  # reads the exit code of the killed child, which ends later on a busy machine
    assert children() == before


def test_children_that_hang_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL that does nothing stands for children that wait in the kernel."""
    kill, hung = os.kill, []
    monkeypatch.setattr(module.os, "kill", lambda child, number: hung.append(child))
    try:
        for _ in range(3 * module.MOST_LEFT):
            assert bounded(lambda: time.sleep(1000), 0.01) is None
        assert len(hung) == module.MOST_LEFT
        assert bounded(lambda: 1, 20) is None
    finally:
        for child in hung:
            kill(child, signal.SIGKILL)
    monkeypatch.undo()
    end_s = time.monotonic() + 20
    while bounded(lambda: 1, 20) != 1:
        assert time.monotonic() < end_s
    assert {child for child in hung if Path(f"/proc/{child}").exists()} <= module._left


def test_child_holds_no_file_of_its_parent(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as file:
        number = file.fileno()
        assert bounded(lambda: Path(f"/proc/self/fd/{number}").exists(), 20) is False
        assert bounded(lambda: Path("/proc/self/fd/2").exists(), 20) is True


def test_supervisors_handlers_are_not_the_childs() -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        assert bounded(lambda: (os.kill(os.getpid(), signal.SIGTERM), 1)[1], 20) is None
    finally:
        signal.signal(signal.SIGTERM, before)
