"""The failure record contains what an exception says, is written once, and is read with limits."""

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch._utils import ExceptionWrapper

from yolo_lightning.commands.user_errors import fail, user_errors
from yolo_lightning.errors import UserError
from yolo_lightning.supervision.failure_record import (
    MOST_TRACEBACK_CHARACTERS,
    NO_FAILURE,
    FailureRecord,
    failure_path,
    read_failure,
    record_of,
    record_own_failure,
    samples_of,
)
from yolo_lightning.supervision.heartbeat import HEARTBEAT_VARIABLE, Phase, open_from_environment
from yolo_lightning.utils.activity import Activity, enter


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """Return an exception with a traceback."""
    with pytest.raises(type(error)) as caught:
        raise error from cause
    return caught.value


@pytest.fixture
def heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the heartbeat file of a process that a supervisor has started."""
    path = tmp_path / "heartbeat"
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(path))
    monkeypatch.setattr("yolo_lightning.supervision.heartbeat._writer", None)
    yield path
    writer = open_from_environment()
    if writer is not None:
        writer.close()


def recorded(heartbeat: Path, error: BaseException) -> FailureRecord:
    failure_path(heartbeat).unlink(missing_ok=True)
    record_own_failure(error, rank=0)
    return read_failure(heartbeat)


def test_a_record_contains_class_place_and_position(heartbeat: Path) -> None:
    writer = open_from_environment()
    assert writer is not None
    writer.beat(Phase.STEP, epoch=2, step=41, batch=7)
    enter(Activity.LOAD)
    error = raised(FileNotFoundError(errno.ENOENT, "No such file or directory", "/data/a.png"))
    error.add_note("while reading image id=a")
    record = recorded(heartbeat, error)
    assert record.names == {"FileNotFoundError", "OSError", "Exception", "BaseException"}
    assert (record.errno, record.is_user_error) == (errno.ENOENT, False)
    assert (record.phase, record.activity, record.step) == ("step", "load", 41)
    assert (record.samples, record.has_trained) == (("id=a",), True)
    assert "in raised\n" in record.traceback
    assert record.sentence == "FileNotFoundError: [Errno 2] No such file or directory: '/data/a.png'"


def test_the_system_error_is_found_behind_other_exceptions(heartbeat: Path) -> None:
    lost = OSError(errno.EIO, "Input/output error", "/data/b.png")
    assert recorded(heartbeat, raised(UserError("data.root cannot be read"), lost)).errno == errno.EIO
    assert recorded(heartbeat, raised(UserError("data.root cannot be read"), lost)).is_user_error
    assert recorded(heartbeat, ExceptionGroup("two", [ValueError("a"), lost])).errno == errno.EIO
    wrapper = ExceptionWrapper((OSError, lost, None), "in DataLoader worker process 0")
    with pytest.raises(OSError, match="Errno 5") as of_worker:
        wrapper.reraise()
    assert recorded(heartbeat, of_worker.value).errno == errno.EIO


def test_the_first_record_remains_and_the_earliest_rank_counts(heartbeat: Path) -> None:
    record_own_failure(ValueError("cause"), rank=1)
    record_own_failure(RuntimeError("lost connection"))
    record_own_failure(RuntimeError("teardown"), rank=1)
    record = read_failure(heartbeat)
    assert (record.message, record.rank) == ("cause", 1)
    failure_path(heartbeat, rank=1).unlink()
    record = read_failure(heartbeat)
    assert record.message == "lost connection"


def test_the_fingerprint_ignores_values(heartbeat: Path) -> None:
    first, second = (recorded(heartbeat, raised(ValueError(f"step {number}"))) for number in (1, 2))
    assert first.fingerprint == second.fingerprint
    assert first.fingerprint != recorded(heartbeat, raised(KeyError("step 1"))).fingerprint


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def test_writing_never_raises(
    heartbeat: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record_own_failure(Unprintable())
    with monkeypatch.context() as patch:
        patch.setenv(HEARTBEAT_VARIABLE, str(heartbeat.parent / "missing" / "heartbeat"))
        record_own_failure(ValueError("a"))
    assert capsys.readouterr().err.count("was not written") == 2
    record = recorded(heartbeat, ValueError("x" * 10 * MOST_TRACEBACK_CHARACTERS))
    assert len(record.traceback) <= MOST_TRACEBACK_CHARACTERS
    assert len(record.message) <= 2000


def test_a_damaged_record_is_none(tmp_path: Path, heartbeat: Path) -> None:
    path = failure_path(heartbeat)
    record_own_failure(ValueError("a"))
    content = json.loads(path.read_text())
    damaged = [
        b"",
        path.read_bytes()[:100],
        b"[]",
        b"\xff\xfe",
        json.dumps(content | {"step": "many"}).encode(),
        json.dumps(content | {"traceback": None, "bases": 3}).encode(),
        b" " * (2 << 20),
    ]
    for text in damaged:
        path.write_bytes(text)
        assert read_failure(heartbeat) is NO_FAILURE
    assert read_failure(tmp_path / "other") is NO_FAILURE


def test_samples_are_those_that_the_exception_names() -> None:
    error = ValueError("cannot unpack")
    error.add_note("while reading image id=20200514_7")
    assert samples_of(raised(error)) == ["id=20200514_7"]
    assert samples_of(raised(RuntimeError("a batch"), error)) == ["id=20200514_7"]
    try:
        raise error
    except ValueError:
        wrapper = ExceptionWrapper(where="in DataLoader worker process 1")
    with pytest.raises(ValueError, match="cannot unpack") as again:
        wrapper.reraise()
    assert samples_of(again.value) == ["id=20200514_7"]
    assert samples_of(raised(OSError("no sample"))) == []


def test_trainer_records_its_failure_beside_the_heartbeat_of_its_supervisor(
    heartbeat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "2")
    with monkeypatch.context() as patch:
        patch.delenv(HEARTBEAT_VARIABLE)
        record_own_failure(ValueError("nobody supervises"))
    with pytest.raises(SystemExit), user_errors():
        raise UserError("data.root must exist") from FileNotFoundError(errno.ENOENT, "No such file", "/data")
    with pytest.raises(SystemExit):  # follows from the first exception
        fail("something else")
    record = read_failure(heartbeat)
    assert (record.message, record.errno, record.rank) == ("data.root must exist", errno.ENOENT, 2)
    assert record.is_user_error


def test_an_exception_of_a_signal_handler_does_not_prevent_the_record(
    heartbeat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_worker = RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed.")
    answers = iter([dead_worker, dead_worker])

    def interrupted(*arguments: Any) -> FailureRecord:
        answer = next(answers, None)
        if answer is not None:
            raise answer
        return record_of(*arguments)

    monkeypatch.setattr("yolo_lightning.supervision.failure_record.record_of", interrupted)
    assert recorded(heartbeat, ConnectionResetError()).names >= {"ConnectionResetError"}
