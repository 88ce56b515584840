"""What a trainer is started with."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from yolo_lightning.supervise.trainer import temporary_folder

LISTEN = "from multiprocessing.connection import Listener; Listener(family='AF_UNIX').close()"


@pytest.mark.parametrize("base", ["/tmp", f"/tmp/{'x' * 40}", f"/tmp/{'x' * 90}"])
def test_workers_can_make_their_sockets_in_the_temporary_folder(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", base)
    folder = temporary_folder("0123456789abcdef0123456789abcdef")
    made = [one for one in (Path(base), folder) if not one.exists()]
    folder.mkdir(parents=True)
    try:
        done = subprocess.run(
            [sys.executable, "-c", LISTEN], env=os.environ | {"TMPDIR": str(folder)}, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
    finally:
        for one in reversed(made):
            if one.is_dir():
                one.rmdir()


def test_temporary_folder_is_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
    assert temporary_folder("0" * 32).parent == Path("/var/tmp")
    assert temporary_folder("0" * 32) != temporary_folder("1" * 32)
