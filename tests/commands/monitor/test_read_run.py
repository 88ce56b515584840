"""Run folders of running, ended and remote runs."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.commands.monitor.known_states import STANDING, STATUS, add_incident, make_run
from yolo_lightning.commands.monitor.read_run import TRACES, checkpoints, incidents, read_run
from yolo_lightning.commands.monitor.run_state import RunVerdict, red_flags
from yolo_lightning.supervision.heartbeat import SEQUENCE_AT, Phase
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts, PhaseTimeouts
from yolo_lightning.supervision.run_status import write_status
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.process_identity import started_ticks

WRITES_RECORD = """
import sys, time
from pathlib import Path
from yolo_lightning.supervision.heartbeat import Phase, HeartbeatWriter
HeartbeatWriter(Path(sys.argv[1])).beat(Phase.STEP, 1, 105, 30)
print(flush=True)
time.sleep(1000)
"""


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A running process that has written its heartbeat."""
    command = [sys.executable, "-c", WRITES_RECORD, str(tmp_path / "heartbeat")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_folder_without_a_run_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="contains no run") as refused:
        read_run(tmp_path)
    assert [name for name in TRACES if name not in str(refused.value)] == []


def test_living_run_is_read_from_record_and_status(tmp_path: Path) -> None:
    make_run(tmp_path)
    state = read_run(tmp_path)
    assert state.judgement.verdict is RunVerdict.RUNNING
    assert (state.phase, state.epoch, state.batch, state.step) == (Phase.STEP, 1, 30, 105)
    assert (state.phase_timeout_s, state.remaining.run_s) == (60.0, (45 + 3 * 75) * 0.5 + 3 * 10)
    assert state.trainer is not None
    assert state.trainer.pid == os.getpid()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"state": "unheard of"}', '{"epoch": -1}'])
def test_damaged_files_are_red_flags(content: str, tmp_path: Path) -> None:
    make_run(tmp_path)
    assert not read_run(tmp_path).damaged
    for name in ("status.json", "supervisor.json", "checkpoints/a.ckpt", "checkpoints/a.ckpt.json"):
        (tmp_path / name).write_text(content)
    state = read_run(tmp_path)
    assert red_flags(state)[:3] == [
        "status.json is damaged: speed, ETA and scores are unknown",
        "supervisor.json is damaged: restarts and level are unknown",
        "a.ckpt or its checksum file is damaged",
    ]


def test_stall_is_judged_by_the_timeouts_of_the_supervisor(tmp_path: Path) -> None:
    make_run(tmp_path)
    write_json(tmp_path / "phase_timeouts.json", asdict(AdaptiveTimeouts(PhaseTimeouts(step_s=0.05), {})))
    time.sleep(0.1)
    state = read_run(tmp_path)
    assert (state.judgement.verdict, state.phase_timeout_s) == (RunVerdict.STALLED, 0.05)


def test_stopped_trainer_still_lives(trainer: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    trainer.send_signal(signal.SIGSTOP)
    assert read_run(tmp_path).judgement.verdict is RunVerdict.RUNNING


def test_killed_trainer_is_gone_also_while_nobody_has_asked_for_its_code(
    trainer: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    os.utime(tmp_path / "heartbeat", (1e9, 1e9))
    trainer.kill()
    os.waitid(os.P_PID, trainer.pid, os.WEXITED | os.WNOWAIT)
    judgement = read_run(tmp_path).judgement
    assert (judgement.verdict, judgement.since_s) == (RunVerdict.GONE, 1e9)


def test_process_of_the_same_id_that_began_later_is_another_one(tmp_path: Path) -> None:
    make_run(tmp_path, status=None)
    content = bytearray((tmp_path / "heartbeat").read_bytes())
    content[24] ^= 1  # clock ticks of the start
    (tmp_path / "heartbeat").write_bytes(content)
    assert read_run(tmp_path).judgement.verdict is RunVerdict.GONE


@pytest.mark.parametrize(
    ("process", "verdict"),
    [(os.getpid(), RunVerdict.BLIND), (2**22 + 1, RunVerdict.GONE)],
    ids=["living", "dead"],  # the workers of pytest-xdist have different process numbers
)
def test_torn_record_of_a_living_and_of_a_dead_trainer(process: int, verdict: RunVerdict, tmp_path: Path) -> None:
    make_run(tmp_path, status=replace(STATUS, process=process))
    content = bytearray((tmp_path / "heartbeat").read_bytes())
    content[SEQUENCE_AT] ^= 254
    (tmp_path / "heartbeat").write_bytes(content)
    state = read_run(tmp_path)
    assert state.judgement.verdict is verdict
    assert "incomplete" in state.judgement.sentence
    assert (state.epoch, state.batch, state.step, state.phase) == (1, 30, 105, None)


@pytest.mark.parametrize("has_supervisor", [True, False])
def test_trainer_in_the_report_of_a_supervisor_lives_as_long_as_the_supervisor(
    has_supervisor: bool, tmp_path: Path
) -> None:
    """After a power cut, the heartbeat is lost, and the id of the trainer can belong to any process."""
    report = replace(STANDING, host=os.uname().nodename, trainer=os.getppid(), process=2**22 + 1)
    if has_supervisor:
        report = replace(report, process=os.getpid(), process_started_ticks=started_ticks(os.getpid()))
    write_json(tmp_path / "supervisor.json", asdict(report))
    state = read_run(tmp_path)
    assert state.judgement.verdict is (RunVerdict.BLIND if has_supervisor else RunVerdict.GONE)
    assert (state.trainer is not None) is has_supervisor


@pytest.mark.parametrize("content", ["", "{", "[]", '{"epoch": 1}', "\x00\xff"])
def test_torn_status_leaves_the_record(content: str, tmp_path: Path) -> None:
    make_run(tmp_path)
    (tmp_path / "status.json").write_text(content)
    (tmp_path / "supervisor.json").write_text(content)
    state = read_run(tmp_path)
    assert (state.judgement.verdict, state.status, state.step) == (RunVerdict.RUNNING, None, 105)


def test_finished_run_is_known_after_its_end(tmp_path: Path) -> None:
    write_status(replace(STATUS, process=2**22 + 1), tmp_path / "status.json")
    (tmp_path / "finished.json").write_text("{}")
    os.utime(tmp_path / "finished.json", (1e9, 1e9))
    state = read_run(tmp_path)
    assert (state.judgement.verdict, state.judgement.since_s) == (RunVerdict.FINISHED, 1e9)
    assert state.step == 105


def test_run_of_another_machine_lives_as_long_as_its_status_is_fresh(tmp_path: Path) -> None:
    far = replace(STATUS, host="elsewhere", written_s=time.time())
    make_run(tmp_path, status=far)
    state = read_run(tmp_path)
    assert (state.judgement.verdict, state.trainer, state.workers) == (RunVerdict.RUNNING, None, ())
    write_status(replace(far, written_s=time.time() - 16), tmp_path / "status.json")
    assert read_run(tmp_path).judgement.verdict is RunVerdict.GONE


def test_batches_of_a_validation_are_no_batches_of_the_epoch(tmp_path: Path) -> None:
    make_run(tmp_path, Phase.VALIDATE).beat(Phase.VALIDATE, batch=3)
    assert read_run(tmp_path).batch == 75


def test_last_checkpoint_is_not_counted_twice(tmp_path: Path) -> None:
    for age_s, name in ((100, "best.ckpt"), (10, "step-000000100.ckpt")):
        (tmp_path / name).write_bytes(bytes(age_s))
        os.utime(tmp_path / name, (1e9 - age_s, 1e9 - age_s))
    os.link(tmp_path / "step-000000100.ckpt", tmp_path / "last.ckpt")
    sidecar = {"sha256": "0", "bytes": 10, "epoch": 0, "steps": 100}
    (tmp_path / "step-000000100.ckpt.json").write_text(json.dumps(sidecar))
    rows = [
        (checkpoint.name, checkpoint.age_s, checkpoint.size_bytes, checkpoint.steps)
        for checkpoint in checkpoints(tmp_path, 1e9)
    ]
    assert rows == [("step-000000100.ckpt", 10.0, 10, 100), ("best.ckpt", 100.0, 100, None)]


def test_incidents_of_supervisor_and_stall_monitor_are_both_read(tmp_path: Path) -> None:
    for number in range(5):
        add_incident(
            tmp_path,
            f"2026112{number}-000000",
            **{"time": f"2026-11-2{number}T00:00:00+0000", "class": "loader stall", "sentence": "s", "outcome": "o"},
        )
    further = {"sentence": "no progress for 900 s", "outcome": "the process ended itself", "launch": "a", "attempt": 0}
    add_incident(tmp_path, "20261126-000000", **{"class": "unknown"}, **further)
    (tmp_path / "incidents" / "20261127-000000").mkdir()
    reports = incidents(tmp_path / "incidents")
    assert [report.kind for report in reports] == ["loader stall"] * 3 + ["unknown"]
    assert (reports[0].time_s, reports[0].outcome) == (1795305600.0, "o")
    assert (reports[3].sentence, reports[3].outcome) == ("no progress for 900 s", "the process ended itself")


@pytest.mark.parametrize("content", ["", "{", "[]", "\x00"])
def test_damaged_incident_report_is_named(content: str, tmp_path: Path) -> None:
    add_incident(tmp_path, "20261120-000000", **{"class": "loader stall", "sentence": "s", "step": 7})
    damaged = tmp_path / "incidents" / "20261121-000000" / "incident.json"
    damaged.parent.mkdir()
    damaged.write_text(content)
    incident, unread = incidents(tmp_path / "incidents")
    assert (incident.step, incident.folder, incident.outcome) == (7.0, "20261120-000000", "")
    assert f"{damaged} cannot be read: " in unread.sentence
    report = tmp_path / "incidents" / "20261120-000000" / "incident.json"
    assert incident.time_s == report.stat().st_mtime
