import errno
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.conftest import REPOSITORY
from yolo_lightning.checkpoints import checkpoint_file
from yolo_lightning.checkpoints.checkpoint_file import (
    checksum_path,
    find_damage,
    link_checkpoint,
    newest_checkpoint,
    read_checksum,
    remove_checkpoint,
    steps_trained,
    write_checkpoint,
)
from yolo_lightning.utils.files import remove_leftovers


def content(steps: int = 7, size: int = 1000) -> dict[str, Any]:
    weights = torch.arange(size, dtype=torch.float32)
    return {"state_dict": {"weight": weights}, "epoch": 2, "steps": steps, "loops": {"name": "fit", "done": [1, 2]}}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "one.ckpt"
    write_checkpoint(content(), path)
    return path


def temporaries(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".writing-")]


def flip_tensor_byte(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data/0"))
        stored = archive.read(name)
    whole = bytearray(path.read_bytes())
    whole[whole.index(stored) + 2000] ^= 1
    path.write_bytes(whole)


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "truncated": cut_in_half,
    "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "text": lambda path: path.write_text("these are no weights\n" * 300),
    "list": lambda path: torch.save([1, 2], path),
    "plain state_dict": lambda path: torch.save({"weight": torch.zeros(2)}, path),
    "missing": Path.unlink,
}


def test_what_is_written_is_read_back_without_executing_code(checkpoint: Path) -> None:
    loaded = torch.load(checkpoint, weights_only=True)
    assert torch.equal(loaded["state_dict"]["weight"], content()["state_dict"]["weight"])
    assert (loaded["epoch"], loaded["steps"], loaded["loops"]) == (2, 7, {"name": "fit", "done": [1, 2]})
    checksum = read_checksum(checkpoint)
    assert checksum is not None
    assert (checksum.bytes, checksum.epoch, checksum.steps) == (checkpoint.stat().st_size, 2, 7)


def test_folder_is_no_checkpoint(tmp_path: Path) -> None:
    assert find_damage(tmp_path) == "it is a folder, not a file"
    assert newest_checkpoint(tmp_path) == (None, {})


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_also_without_the_sidecar(checkpoint: Path, name: str) -> None:
    DAMAGES[name](checkpoint)
    assert find_damage(checkpoint) is not None
    checksum_path(checkpoint).unlink(missing_ok=True)
    assert find_damage(checkpoint) is not None


def test_one_flipped_byte_of_a_tensor_is_found_though_torch_loads_it(checkpoint: Path) -> None:
    flip_tensor_byte(checkpoint)
    loaded = torch.load(checkpoint, weights_only=True)
    assert not torch.equal(loaded["state_dict"]["weight"], content()["state_dict"]["weight"])
    assert find_damage(checkpoint) == "its content does not match its checksum"


@pytest.mark.parametrize("sidecar", ["", "{", "[]", '{"sha256": "0"}'])
def test_unreadable_sidecar_counts_as_none(checkpoint: Path, sidecar: str) -> None:
    checksum_path(checkpoint).write_text(sidecar)
    assert read_checksum(checkpoint) is None
    with pytest.warns(UserWarning, match=r"\.ckpt\.json is damaged: the checksums within the checkpoint are used"):
        assert find_damage(checkpoint) is None


@pytest.mark.parametrize(
    ("stored", "damage"),
    [
        ({}, "it is not a checkpoint: it has no key 'state_dict'"),
        ([1], "it must contain a dictionary, got list"),
        (b"", "it cannot be loaded: it is not an archive of torch.save: it is empty"),
        (b"\n<!DOCTYPE html>", "it is a web page, not the file to download"),
        (b"version https://git-lfs.github.com/spec/v1", "it is a pointer of Git LFS; run git lfs pull"),
        (b"PK\3\4", "it is a zip archive, or the first part of one"),
    ],
)
def test_other_files_are_named_in_one_line(stored: object, damage: str, tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    path.write_bytes(stored) if isinstance(stored, bytes) else torch.save(stored, path)
    problem = find_damage(path)
    assert problem is not None
    assert re.search(damage, problem)
    assert "\n" not in problem


def test_one_flipped_byte_of_a_tensor_is_found_without_the_sidecar(checkpoint: Path) -> None:
    checksum_path(checkpoint).unlink()
    flip_tensor_byte(checkpoint)
    damage = find_damage(checkpoint)
    assert damage is not None
    assert "Bad CRC-32" in damage


@pytest.mark.parametrize("value", [Path("here"), Namespace(rate=0.1), Fraction(1, 2), nn.ReLU()], ids=str)
def test_objects_of_other_classes_are_no_damage(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "epoch=1.ckpt"
    torch.save({"state_dict": nn.Linear(1, 1).state_dict(), "global_step": 7, "hyper_parameters": value}, path)
    assert find_damage(path) is None
    assert steps_trained(path) == 7


def test_sidecar_of_another_file_is_no_damage(checkpoint: Path) -> None:
    last = checkpoint.with_name("last.ckpt")
    write_checkpoint(content(9), last)
    older = checkpoint.read_bytes()
    last.write_bytes(older)  # as `cp one.ckpt last.ckpt`
    with pytest.warns(UserWarning, match=r"last\.ckpt\.json belongs to another file"):
        assert find_damage(last) is None
    write_checkpoint(content(8), checkpoint)
    with pytest.warns(UserWarning, match="belongs to another file"):
        assert newest_checkpoint(checkpoint.parent) == (checkpoint, {})


def test_link_has_the_checksum_of_its_file(checkpoint: Path, recwarn: pytest.WarningsRecorder) -> None:
    last = checkpoint.with_name("last.ckpt")
    write_checkpoint(content(9), last)
    last.unlink()
    last.symlink_to(checkpoint.name)
    assert find_damage(last) is None
    assert not recwarn.list
    flip_tensor_byte(checkpoint)
    assert find_damage(last) == "its content does not match its checksum"


@pytest.mark.parametrize(
    "files",
    [[("a.ckpt", 30, 100), ("b.ckpt", 10, 300), ("c.ckpt", 20, 200)], [("step-20.ckpt", 20, 1), ("best.ckpt", 20, 2)]],
    ids=["most steps", "best is older"],
)
def test_newest_has_the_most_steps_whatever_the_clock_said(files: list[tuple[str, int, int]], tmp_path: Path) -> None:
    for name, steps, written in files:
        write_checkpoint(content(steps), tmp_path / name)
        os.utime(tmp_path / name, (written, written))
    assert newest_checkpoint(tmp_path) == (tmp_path / files[0][0], {})


def test_damaged_newest_is_passed_over_with_its_reason(tmp_path: Path) -> None:
    for steps in (10, 20, 30):
        write_checkpoint(content(steps), tmp_path / f"{steps}.ckpt")
    flip_tensor_byte(tmp_path / "20.ckpt")
    cut_in_half(tmp_path / "30.ckpt")
    path, damaged = newest_checkpoint(tmp_path)
    assert path == tmp_path / "10.ckpt"
    assert list(damaged) == [tmp_path / "30.ckpt", tmp_path / "20.ckpt"]
    assert "bytes instead of" in damaged[tmp_path / "30.ckpt"]
    assert "checksum" in damaged[tmp_path / "20.ckpt"]


@pytest.mark.parametrize("names", [("step-000000020.ckpt", "step-000000003.ckpt"), ("a.ckpt", "b.ckpt")])
def test_files_without_sidecar_are_ordered_by_the_steps_in_name_or_content(
    names: tuple[str, str], tmp_path: Path
) -> None:
    for name, steps, written in zip(names, (20, 3), (100, 200), strict=True):
        torch.save(content(steps), tmp_path / name)
        os.utime(tmp_path / name, (written, written))
    (tmp_path / "torn.ckpt").write_bytes(b"torn")
    assert newest_checkpoint(tmp_path)[0] == tmp_path / names[0]


WRITER = """
import os, resource, signal, sys
from pathlib import Path
import torch
from torch import nn
from yolo_lightning.checkpoints.checkpoint_file import write_checkpoint

{kill}
write_checkpoint({{"steps": 8, "weight": torch.zeros(100_000)}}, Path(sys.argv[1]))
"""

KILLS = {
    # The kernel kills a process that writes beyond the limit, unless Python's handler is taken away.
    "within the file": """
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
""",
    "before the flush": "os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)",
    "before the rename": "os.replace = lambda source, target: os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("moment", KILLS)
def test_killed_writer_leaves_the_old_file_and_a_temporary_one(checkpoint: Path, moment: str) -> None:
    before = checkpoint.read_bytes()
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", WRITER.format(kill=KILLS[moment]), str(checkpoint)]
    killed = subprocess.run(command, env=environment, check=False, timeout=60)
    assert -killed.returncode in (signal.SIGKILL, signal.SIGXFSZ)
    assert checkpoint.read_bytes() == before
    assert find_damage(checkpoint) is None
    assert len(temporaries(checkpoint.parent)) == 1
    assert newest_checkpoint(checkpoint.parent) == (checkpoint, {})
    remove_leftovers(checkpoint.parent)
    assert temporaries(checkpoint.parent) == []


class Killed(BaseException):
    """Stands for a kill between two steps of the writer."""


def test_kill_between_file_and_sidecar_leaves_a_usable_file(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def kill_before_the_sidecar(source: Path, target: Path) -> None:
        if target.suffix == ".json":
            raise Killed
        replace(source, target)

    monkeypatch.setattr(os, "replace", kill_before_the_sidecar)
    with pytest.raises(Killed):
        write_checkpoint(content(8), checkpoint)
    assert torch.load(checkpoint, weights_only=True)["steps"] == 8
    assert find_damage(checkpoint) is None


def test_file_is_on_the_disk_before_it_is_renamed(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (events.append("fsync"), fsync(descriptor))[1])
    monkeypatch.setattr(os, "replace", lambda *names: (events.append("rename"), replace(*names))[1])
    write_checkpoint(content(8), checkpoint)
    assert [name for name, _ in groupby(events)] == ["fsync", "rename", "fsync", "rename", "fsync"]


def test_nothing_is_written_to_the_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    monkeypatch.setattr("tempfile.tempdir", None)
    write_checkpoint(content(), tmp_path / "run/one.ckpt")
    assert find_damage(tmp_path / "run/one.ckpt") is None
    assert not (tmp_path / "missing").exists()


@pytest.fixture
def limited_disk() -> Iterator[None]:
    """No file may grow beyond 50,000 bytes: a write then fails half-way with EFBIG, elsewhere with ENOSPC."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("limited_disk")
def test_disk_that_fills_up_keeps_the_old_file_and_leaves_no_temporary(checkpoint: Path) -> None:
    with pytest.raises(OSError, match="File too large"):
        write_checkpoint(content(8, size=200_000), checkpoint)
    checksum = read_checksum(checkpoint)
    assert checksum is not None
    assert checksum.steps == 7
    assert find_damage(checkpoint) is None
    assert temporaries(checkpoint.parent) == []


def test_failing_flush_keeps_the_old_file_with_its_checksum(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(content(8), checkpoint)
    assert read_checksum(checkpoint) is not None


@pytest.mark.parametrize("number", [errno.EBADF, errno.EINVAL, errno.ENOTSUP])
def test_file_system_that_cannot_flush_folders(number: int, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse_folders)
    write_checkpoint(content(8), checkpoint)
    assert find_damage(checkpoint) is None
    checksum = read_checksum(checkpoint)
    assert checksum is not None
    assert checksum.steps == 8


def test_link_is_the_same_checkpoint_and_stays_when_the_original_changes(checkpoint: Path) -> None:
    target = checkpoint.with_name("last.ckpt")
    write_checkpoint(content(1), target)
    link_checkpoint(checkpoint, target)
    assert target.samefile(checkpoint)
    assert read_checksum(target) == read_checksum(checkpoint)
    write_checkpoint(content(8), checkpoint)
    remove_checkpoint(checkpoint)
    assert torch.load(target, weights_only=True)["steps"] == 7
    assert find_damage(target) is None


def test_link_is_a_copy_where_there_are_no_hard_links(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*names: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(checkpoint_file.os, "link", fail)
    target = checkpoint.with_name("last.ckpt")
    link_checkpoint(checkpoint, target)
    assert not target.samefile(checkpoint)
    assert find_damage(target) is None
    assert temporaries(checkpoint.parent) == []


def test_remove_deletes_file_and_sidecar_and_does_not_mind_a_missing_one(checkpoint: Path) -> None:
    remove_checkpoint(checkpoint)
    remove_checkpoint(checkpoint)
    assert list(checkpoint.parent.iterdir()) == []


class FailsOnce:
    """Raises while it is pickled for the first time, as torch's SIGCHLD handler may at any moment."""

    failed = False

    def __reduce__(self) -> tuple[type, tuple[()]]:
        if not FailsOnce.failed:
            FailsOnce.failed = True
            raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Terminated.")
        return dict, ()


def test_error_within_the_writing_leaves_the_file_before_also_under_ultralytics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ultralytics.utils.patches import torch_save

    monkeypatch.setattr(torch, "save", torch_save)
    monkeypatch.setattr(FailsOnce, "failed", False)
    path = tmp_path / "one.ckpt"
    write_checkpoint({"state_dict": {"weight": torch.ones(1000)}, "steps": 1}, path)
    with pytest.raises(RuntimeError, match="killed by signal"):
        write_checkpoint({"state_dict": {"weight": torch.zeros(1000)}, "steps": 2, "late": FailsOnce()}, path)
    assert torch.load(path, weights_only=True)["steps"] == 1
    assert find_damage(path) is None
