"""`stop`: finds the process of a run by the lock of the run folder, and waits for its checkpoint."""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.helpers.empty_checkpoints import empty_checkpoint
from tests.supervision.supervised import Supervised
from yolo_lightning.commands.stop import stop
from yolo_lightning.supervision.run_lock import Holder, current_holder, run_lock
from yolo_lightning.utils.process_identity import started_ticks

HOLDS = """
import signal, sys, time
from pathlib import Path
from yolo_lightning.supervision.run_lock import run_lock
signal.signal(signal.SIGTERM, {handler})
with run_lock(Path(sys.argv[1])):
    print("ready", flush=True)
    time.sleep(60)
"""


def holding(run: Path, handler: str = "signal.SIG_DFL") -> subprocess.Popen[str]:
    """Start a process that holds the lock of a run folder."""
    script = HOLDS.format(handler=handler)
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(run)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_supervised_run_saves_and_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    supervised = Supervised(run, "wait_for_sigterm", until=100, grace_s=30.0)
    supervised.wait_for("ready.json")
    saved = empty_checkpoint(run, 12)
    stop(run)
    assert supervised.wait() == 128 + signal.SIGTERM
    assert (run / "saved.json").is_file()
    assert supervised.left() == []
    assert f"{run}: stopped after step 12, saved in {saved}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["run", "run-2"])
def test_run_without_a_supervisor_is_found_by_its_name_and_ends(tmp_path: Path, name: str) -> None:
    for folder in {"run", name}:
        empty_checkpoint(tmp_path / folder, 1)
    process = holding(tmp_path / name)
    stop(tmp_path / "run")
    assert process.wait(10) == -signal.SIGTERM


def test_process_that_does_not_end_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = holding(tmp_path / "run", "signal.SIG_IGN")
    try:
        with pytest.raises(SystemExit) as stopped:
            stop(tmp_path / "run", wait_s=0.1)
        assert stopped.value.code == 1
        assert f"process {process.pid} has not ended within 0.1 s" in capsys.readouterr().out
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("finished", "expected"), [(True, "finished; newest"), (False, "stopped after step 3")])
def test_run_that_has_ended_is_one_line(
    finished: bool, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty_checkpoint(tmp_path, 3)
    if finished:
        (tmp_path / "finished.json").write_text("{}")
    stop(tmp_path)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{tmp_path}: no process trains here; {expected}")


@pytest.mark.parametrize(
    ("holder", "expected"),
    [
        (Holder(os.getpid(), "elsewhere"), "on elsewhere: run this command there"),
        (Holder(os.getpid(), socket.gethostname(), "", 1), "cannot be seen from here"),
    ],
)
def test_process_of_another_machine_or_container_gets_no_signal(holder: Holder, expected: str, tmp_path: Path) -> None:
    with run_lock(tmp_path):
        (tmp_path / "run.lock").write_text(json.dumps(asdict(holder)))  # the same file stays locked
        with pytest.raises(ValueError, match=expected):
            stop(tmp_path)


def test_lock_names_its_holder_while_it_is_held(tmp_path: Path) -> None:
    assert current_holder(tmp_path) is None
    with run_lock(tmp_path):
        holder = current_holder(tmp_path)
        assert holder is not None
        assert (holder.process, holder.started_ticks) == (os.getpid(), started_ticks(os.getpid()))
    assert current_holder(tmp_path) is None
