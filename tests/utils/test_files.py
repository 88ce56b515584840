"""Temporary files of killed processes."""

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY
from yolo_lightning.utils.files import remove_leftovers, replacing, temporary_prefix

WRITER = """
import os, sys
from pathlib import Path
from yolo_lightning.utils.files import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), 9) if sys.argv[2] == "killed" else None
"""


def write(path: Path, end: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, "-c", WRITER, str(path), end], env=environment, check=False)


def test_repeated_command_removes_the_temporary_files_of_a_killed_one(tmp_path: Path) -> None:
    write(tmp_path / "other.json", "killed")
    (leftover,) = tmp_path.iterdir()
    assert leftover.name.startswith(".writing-yolo-")
    write(tmp_path / "report.html", "complete")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


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


def test_folder_of_a_dead_process_is_removed(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    _, space, *_ = temporary_prefix().removeprefix(".writing-").split("-")
    (tmp_path / f".writing-yolo-{space}-{child.pid:x}-1-fetched").mkdir()
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []
