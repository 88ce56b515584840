"""After a full disk has ended the trainer, the next attempt waits for space and is not counted."""

import errno
import shutil
import signal
from pathlib import Path

import pytest

from tests.supervision.endpoint import Endpoint
from tests.supervision.supervised import Supervised
from yolo_lightning.supervision.failure_record import NO_FAILURE, FailureRecord
from yolo_lightning.supervision.outcome import Space, is_full, space_of
from yolo_lightning.utils.exit_codes import ExitCode

GB = 1 << 30
ROOMY, FULL = Space(50 * GB, 100 * GB, GB // 10), Space(1 << 20, 100 * GB, GB // 10)
NO_SPACE = FailureRecord("OSError", "[Errno 28] No space left on device: 'events.out'", errno=errno.ENOSPC)
NO_QUOTA = FailureRecord("OSError", "[Errno 122] Disk quota exceeded", errno=errno.EDQUOT)


@pytest.mark.parametrize(
    ("code", "record", "space", "expected"),
    [
        (ExitCode.DISK_FULL, NO_FAILURE, ROOMY, True),
        (1, NO_FAILURE, FULL, True),
        (1, NO_FAILURE, ROOMY, False),
        (1, NO_SPACE, ROOMY, False),  # another disk, or /dev/shm
        (1, NO_SPACE, Space(GB // 8, 100 * GB, GB // 10), True),  # the writer has deleted its half a checkpoint
        (None, NO_SPACE, FULL, True),  # the supervisor could not start a trainer
        (1, NO_FAILURE, Space(GB // 8, 100 * GB, GB // 10), False),
        (1, NO_QUOTA, ROOMY, True),
        (1, FailureRecord("KeyError", "'x'"), FULL, False),
        (ExitCode.USAGE, NO_FAILURE, FULL, False),
        (0, NO_FAILURE, FULL, False),
        (-signal.SIGKILL, NO_FAILURE, FULL, False),
        (-signal.SIGBUS, NO_FAILURE, FULL, True),
    ],
)
def test_full_disk_is_told_from_other_causes(
    code: int | None, record: FailureRecord, space: Space, expected: bool
) -> None:
    assert is_full(code, record, space) is expected


def test_next_attempt_needs_room_for_a_checkpoint() -> None:
    assert not Space(GB // 10, 100 * GB, GB // 10).suffices
    assert Space(GB // 10 + (16 << 20), 100 * GB, GB // 10).suffices
    assert Space(1 << 20, 8 << 20).suffices  # a small disk


def test_space_of_a_run_folder(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").write_bytes(bytes(1000))
    space = space_of(tmp_path)
    assert space.checkpoint_bytes == 1000
    assert space.total_bytes == shutil.disk_usage(tmp_path).total
    assert space.suffices


def test_attempts_that_a_full_disk_has_ended_do_not_count(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        notify = {"webhook": endpoint.address}
        supervised = Supervised(tmp_path / "run", "exit_74", until=5, attempts=2, notify=notify, patience_h=1)
        assert supervised.wait() == ExitCode.FINISHED, supervised.log()
        assert endpoint.events() == ["started", "waiting", "recovered", "finished"]
    assert [incident["class"] for incident in supervised.incidents()] == ["disk full"] * 5
    assert (supervised.state()["attempts"], supervised.state()["restarts"]) == (0, 5)
    assert len(supervised.starts()) == 6
