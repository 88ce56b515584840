"""Signs of life of a program without a heartbeat."""

import os
from pathlib import Path

import pytest

from yolo_lightning.supervision.helper_process import Helper
from yolo_lightning.supervision.program_growth import FILES_OF_SUPERVISOR, ProgramGrowth, marks_of_files


def grows(growth: ProgramGrowth, disk: Helper) -> bool:
    """Return whether a growth is noticed after the disk has been read once more."""
    has_grown = growth.has_grown()
    assert disk.wait(disk.begin(os.getpid), 60.0)
    return growth.has_grown() or has_grown


def test_growth_of_files(tmp_path: Path) -> None:
    disk = Helper()
    try:
        (tmp_path / "old.txt").write_text("of an earlier attempt")
        growth = ProgramGrowth(str(tmp_path / "**/*.txt"), tmp_path / "run", lambda: 0.0, disk)
        assert not grows(growth, disk)
        assert not grows(growth, disk)
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "new.txt").write_text("a")
        assert grows(growth, disk)
        assert not grows(growth, disk)
        with (tmp_path / "logs" / "new.txt").open("a") as file:
            file.write("b")
        assert grows(growth, disk)
        (tmp_path / "logs" / "new.txt").write_text("")  # begins anew
        assert grows(growth, disk)
        (tmp_path / "other.log").write_text("does not match")
        assert not grows(growth, disk)
    finally:
        disk.close(0.0)


def test_output_counts_without_a_pattern(tmp_path: Path) -> None:
    disk = Helper()
    try:
        last_s = [5.0]
        growth = ProgramGrowth("", tmp_path, lambda: last_s[0], disk)
        assert not growth.has_grown()
        last_s.append(last_s.pop() + 1)
        assert growth.has_grown()
        assert not growth.has_grown()
    finally:
        disk.close(0.0)


@pytest.mark.parametrize("name", [*sorted(FILES_OF_SUPERVISOR), "incidents/a/log.txt"])
def test_files_of_the_supervisor_are_no_signs_of_life(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("written by the supervisor")
    (tmp_path / "train.log").write_text("written by the program")
    assert [
        Path(mark[0]).name for mark in marks_of_files(str(tmp_path / "**/*"), tmp_path) if mark[0] == str(path)
    ] == []
    assert [Path(mark[0]).name for mark in marks_of_files(str(tmp_path / "*"), tmp_path)] == ["train.log"]


def test_files_below_links_in_a_circle_count_once(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("written by the program")
    (tmp_path / "newest").symlink_to(".")
    marks = marks_of_files(str(tmp_path / "**" / "*.log"), tmp_path / "run")
    assert [mark[0] for mark in marks] == [str(tmp_path / "train.log")]
