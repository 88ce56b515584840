"""Names of semaphores and folders of multiprocessing contain their process, and are deleted after its end."""

import multiprocessing.process
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from yolo_lightning.supervision import kill
from yolo_lightning.supervision.kill import _marked_files, mark_process, remove_files_of_dead_processes
from yolo_lightning.supervision.trainer import MARKER_VARIABLE
from yolo_lightning.utils import process_identity
from yolo_lightning.utils.process_identity import own_mark

TRAINER = """
import sys
from multiprocessing import get_context, util
from yolo_lightning.supervision.kill import mark_process
mark_process()
lock = get_context("spawn").Lock()
print(lock._semlock.name, util.get_temp_dir(), flush=True)
sys.stdin.readline()
"""


class Marked:
    """Process in its own group with a semaphore and a folder of sockets."""

    def __init__(self, temporary: Path) -> None:
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(temporary)}
        environment.pop(MARKER_VARIABLE, None)
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRAINER],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        name, folder = self.process.stdout.readline().split()
        self.semaphore, self.folder = Path("/dev/shm") / f"sem.{name.lstrip('/')}", Path(folder)

    def kill_group(self) -> None:
        """Kill the process and the resource tracker that would unlink the semaphore."""
        os.killpg(self.process.pid, 9)
        self.process.communicate()

    def end(self) -> None:
        """Let the process exit."""
        self.process.communicate("\n")


@pytest.fixture
def marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Marked]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    process = Marked(tmp_path)
    yield process
    if process.process.poll() is None:
        process.kill_group()
    process.semaphore.unlink(missing_ok=True)


def test_files_of_a_killed_group_are_removed_by_their_user(marked: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    assert marked.semaphore.exists()
    assert marked.folder.is_dir()
    marked.kill_group()
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: marked.semaphore.lstat().st_uid + 1)
        remove_files_of_dead_processes()
    assert marked.semaphore.exists()
    remove_files_of_dead_processes()
    assert not marked.semaphore.exists()
    assert not marked.folder.exists()


def test_a_command_that_is_refused_removes_files_of_killed_processes(marked: Marked, tmp_path: Path) -> None:
    marked.kill_group()
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "yolo_lightning", "fit", "--nonsense", "1"]
    assert subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 2
    assert not marked.semaphore.exists()
    assert not marked.folder.exists()


def test_files_of_a_living_process_stay_until_it_ends(marked: Marked) -> None:
    remove_files_of_dead_processes()
    assert marked.semaphore.exists()
    assert marked.folder.is_dir()
    marked.end()
    assert not marked.semaphore.exists()
    assert not marked.folder.exists()


def test_other_names_and_other_namespaces_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mark = own_mark()
    assert mark is not None
    _, space, pid, ticks = mark.split("-")
    other_start, other_space = f"yolo-{space}-{pid}-{int(ticks, 16) + 1:x}", f"yolo-{int(space, 16) ^ 1:08x}-{pid}-1"
    for name in (
        mark,
        other_start,
        other_space,
        "yolo-0123456789ab",
        "pymp-12345678",
        f"{other_start}.txt",
        f"{other_start}-12345678-record",
        "sem.mp-12345678",
    ):
        (tmp_path / name).mkdir()
    names = sorted(path.name for path in _marked_files() if path.parent == tmp_path)
    assert names == [other_start, f"{other_start}-12345678-record"]


def test_process_of_another_time_namespace_is_not_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spaces = []
    for clocks in ("time:[1]", "time:[2]", "time:[2]", None):
        proc = tmp_path / str(len(spaces))
        (proc / "sys/kernel/random").mkdir(parents=True)
        (proc / "sys/kernel/random/boot_id").write_text("one boot")
        (proc / "self/ns").mkdir(parents=True)
        (proc / "self/ns/pid").symlink_to("pid:[3]")
        if clocks is not None:
            (proc / "self/ns/time").symlink_to(clocks)
        monkeypatch.setattr(process_identity, "PROC", proc)
        spaces.append(process_identity._name_space.__wrapped__())
    first, second, again, without_namespaces = spaces
    assert second == again
    assert len({first, second, without_namespaces}) == 3
    assert None not in spaces


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings of multiprocessing in this process, without those of `mark_process`."""
    settings: dict[str, Any] = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    for name in ("tempdir", "semprefix"):
        monkeypatch.setitem(settings, name, None)
    return settings


def test_folder_of_sockets_is_one_in_which_sockets_can_be_made(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MARKER_VARIABLE, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("x" * 100)))
    mark = f"yolo-test-{os.getpid()}"  # the folder with the mark of this process may contain sockets of other tests
    monkeypatch.setattr(kill, "own_mark", lambda: mark)
    mark_process()
    assert config["tempdir"] == f"/tmp/{mark}"
    assert config["semprefix"] == f"/{mark}"
    Path(config["tempdir"]).rmdir()


def test_supervised_trainer_keeps_its_temporary_folder(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARKER_VARIABLE, "token")
    mark_process()
    assert config["tempdir"] is None
