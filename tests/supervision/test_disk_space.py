"""After a full disk has ended the trainer, the next attempt waits for space and is not counted."""

import shutil
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.supervision.endpoint import Endpoint
from tests.supervision.supervised import Supervised
from yolo_lightning.supervision import Job
from yolo_lightning.supervision.classify import Diagnosis, StallClass
from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.supervision.incident import Incident
from yolo_lightning.supervision.outcome import Space, ended_by_full_disk, space_of
from yolo_lightning.supervision.supervisor import Supervisor
from yolo_lightning.utils.exit_codes import ExitCode

GB = 1 << 30
ROOMY, FULL = Space(50 * GB, 100 * GB, GB // 10), Space(1 << 20, 100 * GB, GB // 10)
NO_SPACE = ("OSError: [Errno 28] No space left on device: 'events.out'",)


@pytest.mark.parametrize(
    ("code", "lines", "space", "expected"),
    [
        (ExitCode.DISK_FULL, (), ROOMY, True),
        (1, (), FULL, True),
        (1, (), ROOMY, False),
        (1, NO_SPACE, ROOMY, False),  # another disk, or /dev/shm
        (1, NO_SPACE, Space(GB // 8, 100 * GB, GB // 10), True),  # the writer has deleted its half a checkpoint
        (1, (), Space(GB // 8, 100 * GB, GB // 10), False),
        (1, ("OSError: [Errno 122] Disk quota exceeded",), ROOMY, True),
        (ExitCode.USAGE, (), FULL, False),
        (0, (), FULL, False),
        (-signal.SIGKILL, (), FULL, False),
        (-signal.SIGBUS, (), FULL, True),
        (ExitCode.DISK_FULL, ("RuntimeError: ... insufficient shared memory (shm)",), FULL, False),
    ],
)
def test_full_disk_is_told_from_other_causes(code: int, lines: tuple[str, ...], space: Space, expected: bool) -> None:
    assert ended_by_full_disk(code, lines, space) is expected


def test_next_attempt_needs_room_for_a_checkpoint() -> None:
    assert not Space(GB // 10, 100 * GB, GB // 10).suffices
    assert Space(GB // 10 + (16 << 20), 100 * GB, GB // 10).suffices
    assert Space(1 << 20, 8 << 20).suffices  # a small disk


def test_space_of_a_run_folder(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").write_bytes(bytes(1000))
    found = space_of(tmp_path)
    assert found.checkpoint_bytes == 1000
    assert found.total_bytes == shutil.disk_usage(tmp_path).total
    assert found.suffices


def test_attempts_that_a_full_disk_has_ended_do_not_count(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        notify = {"webhook": endpoint.address}
        supervised = Supervised(tmp_path / "run", "exit_74", until=5, attempts=2, notify=notify)
        assert supervised.wait() == ExitCode.FINISHED, supervised.log()
        assert endpoint.events() == ["started", "disk full", "recovered", "finished"]
    assert [incident["class"] for incident in supervised.incidents()] == ["disk full"] * 5
    assert (supervised.state()["attempts"], supervised.state()["restarts"]) == (0, 5)
    assert len(supervised.starts()) == 6


def test_restart_waits_until_the_disk_has_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Supervisor(tmp_path, Job(("program",), ("program",)))
    spaces, pauses = [FULL, FULL, ROOMY], list[float]()
    made.disk, made.recorder, made.announcer = Mock(), Mock(), Mock()
    made.disk.ask.side_effect = lambda function, *_: spaces.pop(0) if function is space_of else None
    monkeypatch.setattr(made, "_pause", pauses.append)
    incident = Incident(tmp_path, Phase.SAVE, None, Diagnosis(StallClass.UNKNOWN, "the trainer ended"))
    assert made._wait_for_space(incident, FULL, saved=False, lost=None) is None
    assert (pauses, made.state.attempts, made.state.restarts) == ([10.0, 20.0, 40.0], 0, 1)
