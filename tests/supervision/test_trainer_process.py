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
from yolo_lightning.supervision.trainer import (
    MARKER_VARIABLE,
    RunningTrainer,
    end_with_launcher,
    make_temporary_folder,
    remove_temporary_folder,
    temporary_folder,
)
from yolo_lightning.utils.files import TEMPORARY_VARIABLE

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


PRINT_CACHE = "from yolo_lightning.utils.files import cache_folder; print(cache_folder())"


def test_temporary_cache_of_a_trainer_outlives_the_attempt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # cannot be written
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.delenv(TEMPORARY_VARIABLE, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    token = uuid.uuid4().hex
    make_temporary_folder(token)
    command = (sys.executable, "-W", "ignore", "-c", PRINT_CACHE)
    running = RunningTrainer(command, tmp_path / "heartbeat", token, lambda text: None, 0.0, any_command=False)
    running.process.wait(timeout=60)
    running.output.pump(0.0)
    remove_temporary_folder(token)
    running.close()
    assert running.output.lines() == (str(tmp_path / f"yolo_lightning-{os.getuid()}"),)
    assert (tmp_path / f"yolo_lightning-{os.getuid()}").is_dir()


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
