"""The command line of `monitor`."""

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.commands.monitor.known_states import STATUS
from yolo_lightning.cli import main
from yolo_lightning.commands.monitor.read_run import read_run
from yolo_lightning.supervision.heartbeat import HeartbeatWriter, Phase
from yolo_lightning.supervision.run_status import write_status
from yolo_lightning.utils.sensors import Capacity, MachineReader, SensorReadings


@pytest.fixture
def running(tmp_path: Path) -> Path:
    HeartbeatWriter(tmp_path / "heartbeat").beat(Phase.STEP, 2, 70, 10)
    return tmp_path


def test_state_is_printed_once_where_there_is_no_terminal(running: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["monitor", str(running)])
    assert "RUNNING" in capsys.readouterr().out


def test_state_is_printed_once_in_a_terminal_without_cursor_control(
    running: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    main(["monitor", str(running)])
    printed = capsys.readouterr().out
    assert "RUNNING" in printed
    assert "\x1b" not in printed


def test_json_has_all_that_is_known(running: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["monitor", str(running), "--json"])
    content = json.loads(capsys.readouterr().out)
    assert content["judgement"]["verdict"] == "running"
    assert (content["phase"], content["epoch"], content["step"], content["batch"]) == ("step", 2, 70, 10)
    assert content["machine"]["disk"]["total_bytes"] > 0
    assert content["buffer_s"] is None
    assert all("disk" in flag or "memory" in flag for flag in content["red_flags"])


def test_missing_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["monitor", str(tmp_path / "nowhere")])
    assert "nowhere does not exist" in capsys.readouterr().err


def test_runs_of_the_folder_are_listed_and_named_in_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        write_status(replace(STATUS, best_map_50=0.25), tmp_path / "runs" / name / "status.json")
    monkeypatch.chdir(tmp_path)
    main(["monitor"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(row[0], row[-1]) for row in rows if "runs/" in "".join(row)] == [
        ("runs/first", "0.2500"),
        ("runs/second", "0.2500"),
    ]
    with pytest.raises(SystemExit, match="2"):
        main(["monitor", "nope"])
    assert "nope does not exist. Existing runs: runs/first; runs/second." in capsys.readouterr().err


def test_looking_changes_nothing_in_the_folder(running: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in running.rglob("*")}
    read_run(running, MachineReader(running, 1.0).latest(5.0))
    assert {path: path.stat().st_mtime_ns for path in running.rglob("*")} == before


def test_driver_that_hangs_holds_up_nothing_and_is_reported(running: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yolo_lightning.utils.sensors.SILENT_AFTER_S", 0.1)
    asked = threading.Event()

    def read(folder: Path) -> SensorReadings:
        if asked.is_set():
            time.sleep(60)
        asked.set()
        return SensorReadings(disk=Capacity(1, 2))

    reader = MachineReader(running, 0.01, read)
    assert reader.latest(5.0).disk == Capacity(1, 2)
    wait_until(lambda: reader.latest().silent_s > 0)
    began_s = time.monotonic()
    state = read_run(running, reader.latest())
    assert time.monotonic() - began_s < 5
    assert state.machine.disk == Capacity(1, 2)  # the last reading


def wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)
