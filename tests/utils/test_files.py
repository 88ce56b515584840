"""Temporary files of killed processes, and the cache folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from yolo_lightning.errors import UserError
from yolo_lightning.utils import files
from yolo_lightning.utils.activity import Activity, current
from yolo_lightning.utils.files import cache_folder, remove_leftovers, replacing, temporary_prefix

WRITER = """
import os, sys
from pathlib import Path
from yolo_lightning.utils.files import replacing, temporary_prefix
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    if sys.argv[2] == "killed":
        temporary.with_name(temporary_prefix() + "folder").mkdir()
        os.kill(os.getpid(), 9)
"""


def write(path: Path, end: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, "-c", WRITER, str(path), end], env=environment, check=False)


def test_repeated_command_removes_temporary_files_and_folders_of_a_killed_one(tmp_path: Path) -> None:
    write(tmp_path / "other.json", "killed")
    leftovers = list(tmp_path.iterdir())
    assert len(leftovers) == 2
    assert all(path.name.startswith(".writing-yolo-") for path in leftovers)
    write(tmp_path / "report.html", "complete")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_disk_that_hangs_in_any_part_of_a_write_hangs_in_the_activity_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    activities: list[Activity] = []
    unlink = Path.unlink

    def recorded(path: Path, missing_ok: bool = False) -> None:
        activities.append(current())
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", recorded)
    with replacing(tmp_path / "file") as temporary:
        temporary.touch()
    assert set(activities) == {Activity.WRITE}


def test_files_of_living_processes_and_new_files_of_other_machines_stay(tmp_path: Path) -> None:
    with replacing(tmp_path / "file") as temporary:
        temporary.write_text("")
        other = tmp_path / ".writing-yolo-00000000-1-1-file.part"
        folder = tmp_path / f"{temporary_prefix()}folder"
        other.touch()
        folder.mkdir()
        remove_leftovers(tmp_path)
        assert temporary.exists()
        assert other.exists()
        assert folder.exists()
        os.utime(other, (0, 0))
        remove_leftovers(tmp_path)
        assert not other.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"file", folder.name}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files of this process."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(folder))
    monkeypatch.setattr(files, "_temporary_cache", files._temporary_cache.__wrapped__)
    return folder


def test_cache_is_in_the_cache_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not" / "yet"))
    assert cache_folder() == tmp_path / "not" / "yet" / "yolo_lightning"
    assert not (tmp_path / "not").exists()


def test_cache_is_temporary_where_no_other_folder_can_be_written(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"file/yolo_lightning cannot be written: .* is used as cache; XDG_CACHE_HOME"):
        folder = cache_folder()
    assert folder == temporary / f"yolo_lightning-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)  # others could replace what the folder contains
    with pytest.raises(UserError, match=r"is not a folder that only this user can write; set .* XDG_CACHE_HOME"):
        cache_folder()


def test_cache_is_temporary_without_permission(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.warns(UserWarning, match="cannot be written"):
        assert cache_folder().parent == temporary
