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
    assert all(one.name.startswith(".writing-yolo-") for one in leftovers)
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
