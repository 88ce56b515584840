"""Only regular files are read, and everything below a folder is listed."""

import os
import time
import tracemalloc
from collections.abc import Iterator
from glob import glob
from pathlib import Path

import pytest

from yolo_lightning.utils.regular_files import FolderContent, file_stamp, list_folder, matching_paths, read_regular


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


def test_file_is_listed_under_each_of_its_names(tmp_path: Path) -> None:
    images = tmp_path / "images"
    inner = images / "inner"
    inner.mkdir(parents=True)
    (inner / "0.jpg").touch()
    (tmp_path / "outside.jpg").touch()
    (images / "again").symlink_to(inner)
    (inner / "link.jpg").symlink_to("0.jpg")
    (inner / "link1.jpg").symlink_to(tmp_path / "outside.jpg")
    (inner / "broken.jpg").symlink_to(tmp_path / "nothing.jpg")
    os.link(inner / "0.jpg", inner / "hard.jpg")
    content = list_folder(images)
    names = ["0.jpg", "broken.jpg", "hard.jpg", "link.jpg", "link1.jpg"]
    assert sorted(content.files()) == [str(images / folder / name) for folder in ("again", "inner") for name in names]
    linked = {str(inner / name) for name in ("broken.jpg", "link.jpg", "link1.jpg")}
    assert content.linked == linked | {str(images / "again" / name) for name in names}


def test_everything_else_is_listed_by_what_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / ".hidden").mkdir(parents=True)
    (folder / ".hidden" / "a.jpg").touch()
    (folder / "._a.jpg").touch()
    (folder / "up").symlink_to(tmp_path)
    (folder / "circle.jpg").symlink_to("circle.jpg")
    (folder / "zero.jpg").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.jpg")
    content = list_folder(folder)
    assert list(content.files()) == [str(folder / "circle.jpg")]
    assert content.hidden_files == [str(folder / "._a.jpg")]
    assert content.hidden_folders == [str(folder / ".hidden")]
    assert content.special == [str(folder / "pipe.jpg"), str(folder / "zero.jpg")]
    assert content.unfollowed == [str(folder / "up")]


def test_links_among_folders_end(tmp_path: Path) -> None:
    folders = [tmp_path / f"{number:02d}" for number in range(12)]
    for folder in folders:
        folder.mkdir()
        (folder / "a.jpg").touch()
        for other in folders:
            (folder / f"to-{other.name}").symlink_to(other)
    assert len(set(list_folder(tmp_path).files())) < 3000


def test_folder_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scan(path: str) -> Iterator[os.DirEntry[str]]:
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    scandir = os.scandir
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "scandir", scan)
    assert list_folder(tmp_path).closed == [str(tmp_path / "closed")]


def test_stamp_changes_with_the_content(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("0")
    os.utime(file, ns=(1, 1))
    first = file_stamp(file)
    assert file_stamp(file) == first
    time.sleep(0.02)  # longer than the resolution of the clock of a file system
    file.write_text("1")
    os.utime(file, ns=(1, 1))
    assert file_stamp(file) != first


def test_limit_is_not_reserved_in_memory(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x" * 100)
    tracemalloc.start()
    try:
        read_regular(tmp_path / "small", 1 << 30)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "pattern",
    [
        "*",
        "**/*.jpg",
        "**",
        "a/**",
        "*/**/*.jpg",
        "**/b/**/*.*",
        "**/**/1.jpg",
        "a*/b/1.jpg",
        "none/**",
        "[a]/**/?.jpg",
    ],
)
@pytest.mark.parametrize("is_relative", [False, True])
def test_pattern_finds_the_files_that_glob_finds(
    pattern: str, is_relative: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("0.jpg", "a/1.jpg", "a/b/1.jpg", "a/b/c/2.png", "a2/b/1.jpg", ".hidden/3.jpg", "a/.4.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "linked").symlink_to("a")
    wanted = pattern if is_relative else str(tmp_path / pattern)
    matches = {Path(path) for path in matching_paths(wanted) if os.path.isfile(path)}
    assert matches == {Path(path) for path in glob(wanted, recursive=True) if os.path.isfile(path)}


def test_links_in_a_circle_end_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "0.jpg").touch()
    (tmp_path / "inner" / "up").symlink_to(tmp_path)
    content = FolderContent()
    assert matching_paths(tmp_path / "**" / "*.jpg", content) == [str(tmp_path / "inner" / "0.jpg")]
    assert content.unfollowed == [str(tmp_path / "inner" / "up")]
