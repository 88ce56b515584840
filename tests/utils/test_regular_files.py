"""Only regular files are read, and each one once."""

import os
import tracemalloc
from pathlib import Path

import pytest

from yolo_lightning.utils.regular_files import read_regular, regular_files


def test_fifo_and_device_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    for path in (tmp_path / "pipe.jpg", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
            read_regular(path, 100)


def test_large_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match=r"1,099,511,627,776 bytes, more than 100"):
        read_regular(tmp_path / "sparse", 100)
    (tmp_path / "small").write_bytes(b"x" * 100)
    assert read_regular(tmp_path / "small", 100) == b"x" * 100


def test_each_real_file_is_listed_once(tmp_path: Path) -> None:
    inner = tmp_path / "images" / "inner"
    inner.mkdir(parents=True)
    for number in range(3):
        (inner / f"{number}.jpg").touch()
    (tmp_path / "outside.jpg").touch()
    (inner / "loop").symlink_to(tmp_path / "images")
    (tmp_path / "images" / "again").symlink_to(inner)
    (inner / "link.jpg").symlink_to(inner / "0.jpg")
    (inner / "link1.jpg").symlink_to(tmp_path / "outside.jpg")
    (inner / "link2.jpg").symlink_to(tmp_path / "outside.jpg")
    (inner / "broken.jpg").symlink_to(tmp_path / "nothing.jpg")
    (inner / "zero.jpg").symlink_to("/dev/zero")
    os.link(inner / "1.jpg", inner / "hard.jpg")
    os.mkfifo(inner / "pipe.jpg")
    (tmp_path / "images" / ".hidden").mkdir()
    (tmp_path / "images" / ".hidden" / "a.jpg").touch()
    found = sorted(Path(path).name for path in regular_files(tmp_path / "images"))
    assert found == ["0.jpg", "1.jpg", "2.jpg", "hard.jpg", "link1.jpg"]


def test_limit_is_not_reserved_in_memory(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x" * 100)
    tracemalloc.start()
    try:
        read_regular(tmp_path / "small", 1 << 30)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
