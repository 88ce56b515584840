"""After a full disk has ended the trainer, the next attempt waits for space and is not counted."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.supervision.endpoint import Endpoint
from tests.supervision.supervised import Supervised
from yolo_lightning.supervision.outcome import Space, ended_by_full_disk, space_of
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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", folder]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs root: a file system of its own")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_restart_follows_when_the_disk_has_space_again(small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - (512 << 10)))
    supervised = Supervised(small_disk / "run", "fail_for_want_of_space", attempts=1, until=100)
    try:
        while "for space on the disk" not in supervised.log():
            assert supervised.process.poll() is None, supervised.log()
            time.sleep(0.02)
        time.sleep(0.5)
        assert len(supervised.starts()) == 1
        filler.unlink()
        assert supervised.wait() == ExitCode.FINISHED, supervised.log()
    finally:
        supervised.end()
    (incident,) = supervised.incidents()
    assert (incident["class"], len(supervised.starts())) == ("disk full", 2)
