"""Command, environment and limits with which the trainer is started."""

import os
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from yolo_lightning.supervision import trainer
from yolo_lightning.supervision.trainer import MARKER_VARIABLE, end_with_launcher, temporary_folder

LISTEN = "from multiprocessing.connection import Listener; Listener(family='AF_UNIX').close()"


@pytest.mark.parametrize("base", ["/tmp", f"/tmp/{'x' * 40}", f"/tmp/{'x' * 90}"])
def test_workers_can_make_their_sockets_in_the_temporary_folder(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", base)
    folder = temporary_folder(uuid.uuid4().hex)  # two cases in two processes use /tmp
    new_folders = [path for path in (Path(base), folder) if not path.exists()]
    folder.mkdir(parents=True)
    try:
        done = subprocess.run(
            [sys.executable, "-c", LISTEN], env=os.environ | {"TMPDIR": str(folder)}, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
    finally:
        for new_folder in reversed(new_folders):
            if new_folder.is_dir():
                new_folder.rmdir()


def test_temporary_folder_is_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
    assert temporary_folder("0" * 32).parent == Path("/var/tmp")
    assert temporary_folder("0" * 32) != temporary_folder("1" * 32)


PARTNER = """
from yolo_lightning.supervision.trainer import end_with_launcher
import time
end_with_launcher(False)
print("ready", flush=True)
time.sleep(30)
print("outlived it")
"""
TRAINER = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def test_further_processes_of_a_trainer_that_was_killed_do_not_outlive_it() -> None:
    environment = {MARKER_VARIABLE: "0" * 32, "LOCAL_RANK": "1", "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        [sys.executable, "-c", TRAINER, PARTNER], env=os.environ | environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
        assert process.stdout.read() == ""  # at the end of the last process that could write


def test_first_process_of_a_fit_that_nobody_supervises_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "end_with_parent", lambda parent: pytest.fail("armed"))
    for variables in ({"LOCAL_RANK": "1"}, {MARKER_VARIABLE: "0"}, {MARKER_VARIABLE: "0", "LOCAL_RANK": "0"}):
        with monkeypatch.context() as patched:
            for name in ("LOCAL_RANK", MARKER_VARIABLE):
                patched.delenv(name, raising=False)
            for name, value in variables.items():
                patched.setenv(name, value)
            end_with_launcher(False)


def test_other_systems_than_linux_have_no_such_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer.sys, "platform", "darwin")
    monkeypatch.setattr(trainer.ctypes, "CDLL", lambda *_, **__: pytest.fail("asked the kernel"))
    trainer.end_with_parent(os.getppid())()
