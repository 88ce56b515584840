"""Fault 39, and what a supervisor tells: real processes, real servers."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.supervision.endpoint import Endpoint
from tests.supervision.supervised import REPOSITORY, TRAINER, Supervised, floors
from yolo_lightning.supervision import ExitCode, Job, NotifySettings
from yolo_lightning.supervision.messenger import END_S, Messenger
from yolo_lightning.supervision.notifier import WAITING_AT_MOST, Notifier
from yolo_lightning.supervision.notifier import Endpoint as Sender
from yolo_lightning.supervision.notify import LINE_BYTES, Event, News
from yolo_lightning.supervision.processes import Process, all_processes, command_line_now

SHORT_S = 0.6
FETCH = floors(fetch_s=SHORT_S)


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1,name.invalid")


def refused() -> str:
    """An address at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/SECRET"


def notify(webhook: str | None = None, ping: str | None = None, **options: Any) -> NotifySettings:
    return NotifySettings(webhook=webhook, ping=ping, disk_free_share=0, **options)


def log_of(run: Path) -> str:
    return (run / "run.log").read_text()


def test_stalled_degraded_recovered_finished_are_told_in_this_order(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        supervised = Supervised(tmp_path / "run", "wait_for_worker", allowed=FETCH, notify=notify(endpoint.address))
        assert supervised.wait() == ExitCode.FINISHED, supervised.log()
        assert endpoint.events() == ["started", "stalled", "degraded", "recovered", "finished"]
        _, stalled, degraded, recovered, _ = endpoint.posts
    assert "__getitem__" in stalled["text"]
    assert stalled["text"].startswith(f"run on {socket.gethostname()}: stalled: loader stall: ")
    assert degraded["details"] == {"rung": "2 workers, not persistent"}
    assert recovered["details"] == {"steps_lost": 1, "rung": "2 workers, not persistent"}  # stalled at 5, saved at 4
    assert "SECRET" not in supervised.log()
    assert supervised.left() == []


@pytest.mark.parametrize(
    ("fault", "until", "code", "last"),
    [
        ("raise_value_error", 100, ExitCode.FAILED, ["started", "failed"]),
        ("kill", 1, ExitCode.FINISHED, ["started", "crashed", "recovered", "finished"]),
        ("kill", 100, ExitCode.GAVE_UP, ["started", "crashed", "gave up"]),
    ],
)
def test_ends_are_told(fault: str, until: int, code: int, last: list[str], tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        supervised = Supervised(tmp_path / "run", fault, until, attempts=2, notify=notify(endpoint.address))
        assert supervised.wait() == code
        told = [event for event in endpoint.events() if event != "recovered" or "recovered" in last]
    assert told == last


def test_ping_comes_with_progress_only(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        hung = Supervised(
            tmp_path / "hung",
            "hang_in_set_up",
            100,
            allowed=floors(setup_s=SHORT_S),
            notify=notify(ping=endpoint.address),
        )
        assert hung.wait() == ExitCode.GAVE_UP
        assert endpoint.gets == []
        healthy = Supervised(tmp_path / "run", "be_slow", notify=notify(ping=endpoint.address))
        assert healthy.wait() == ExitCode.FINISHED
        assert endpoint.gets == ["/hooks/SECRET?token=SECRET"]  # one, as the interval is a minute


BROKEN = ["hangs", "500", "refused", "no such name"]


@pytest.mark.parametrize("kind", BROKEN)
def test_fault_39_broken_endpoint_delays_nothing_and_is_only_logged(kind: str, tmp_path: Path) -> None:
    """The marks are the times of the supervisor's own lines, between which it tells something."""
    run = tmp_path / "run"
    with Endpoint(500 if kind == "500" else 0) as endpoint:
        local = endpoint.address if kind in ("hangs", "500") else refused()
        address = "http://name.invalid/SECRET" if kind == "no such name" else local
        supervised = Supervised(run, "kill", notify=notify(address, address))
        supervised.wait_for("finished.json")
        began_s = time.monotonic()
        assert supervised.wait() == ExitCode.FINISHED, supervised.log()
        ended_s = time.monotonic() - began_s
        came = endpoint.came
    assert came >= 1 or kind in ("refused", "no such name")
    assert ended_s < END_S + 5
    log = log_of(run)
    starts, finish = [line for line in log.splitlines() if "restart in" in line], log.index("supervisor: ")
    assert len(starts) == 1
    assert finish >= 0
    words = {
        "hangs": "ended before all was sent",
        "500": "the server answered 500",
        "refused": "Connection refused",
        "no such name": "not sent",
    }
    assert words[kind] in log
    assert "SECRET" not in log
    assert supervised.left() == []


def test_hanging_endpoint_does_not_hold_up_the_trainer(tmp_path: Path) -> None:
    """From the first start to the finished marker: with an endpoint that hangs as fast as without."""
    took_s = {}
    with Endpoint(0) as endpoint:
        for name, settings in (("without", notify()), ("with", notify(endpoint.address, endpoint.address))):
            supervised = Supervised(tmp_path / name, "kill", notify=settings)
            supervised.wait_for("starts.jsonl")
            began_s = time.monotonic()
            supervised.wait_for("finished.json")
            took_s[name] = time.monotonic() - began_s
            assert supervised.wait() == ExitCode.FINISHED
    assert took_s["with"] < took_s["without"] + 3.0  # a single wait would be ten seconds


def test_telling_never_waits_even_if_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "deaf"))
    (tmp_path / "deaf").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "deaf").chmod(0o755)
    messenger = Messenger(tmp_path, notify(refused()))
    began_s = time.monotonic()
    for _ in range(200):
        messenger.tell(News(Event.STALLED, "x" * 900))
        messenger.ping()
    assert time.monotonic() - began_s < 2
    assert messenger.dropped > 0
    monkeypatch.setattr("yolo_lightning.supervision.messenger.END_S", 0.2)
    began_s = time.monotonic()
    messenger.close()
    assert time.monotonic() - began_s < 5


def test_notifier_that_died_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    messenger = Messenger(tmp_path, notify(refused()))
    assert messenger._process is not None
    messenger._process.wait(10)
    messenger.tell(News(Event.STALLED, "x"))
    assert messenger.dropped == 1
    messenger.close()


def test_queue_is_bounded(tmp_path: Path) -> None:
    complaints: list[str] = []
    sender = Sender("webhook", lambda news: time.sleep(60), complaints.append)
    for _ in range(WAITING_AT_MOST + 2):  # one is being sent
        sender.put(News(Event.STALLED, "x"))
        time.sleep(0.01)
    assert len(complaints) == 1
    assert not sender.is_idle


def test_hanging_webhook_does_not_hold_up_the_ping(tmp_path: Path) -> None:
    with Endpoint(0) as hanging, Endpoint() as endpoint:
        notifier = Notifier(tmp_path, notify(hanging.address, endpoint.address))
        notifier.tell(News(Event.STARTED, ""))
        notifier.ping()
        end_s = time.monotonic() + 10
        while not endpoint.gets and time.monotonic() < end_s:
            time.sleep(0.01)
        assert len(endpoint.gets) == 1


STATUS = {
    **dict.fromkeys(("interval_s", "step_s", "fetch_share", "trained_s", "validation_s", "best_map_50"), 1.0),
    **dict.fromkeys(("process", "process_started_ticks", "workers", "epochs", "batches_per_epoch"), 1),
    **{"epoch": 2, "batch": 7, "step": 99, "validate_every_epochs": 1, "validations_per_epoch": 1},
    **{"host": "h", "device": "cpu", "learning_rates": {}, "scores": []},
}


def watched_by_notifier(run: Path, settings: NotifySettings) -> None:
    """A notifier that nobody tells anything, for a moment."""
    command = [sys.executable, "-m", "yolo_lightning.supervision.notifier", str(run)]
    hidden, variables = settings.with_references()
    words = json.dumps({name: getattr(hidden, name) for name in NotifySettings.__dataclass_fields__})
    environment = os.environ | variables | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([*command, words], stdin=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        time.sleep(1.5)
        process.stdin.close()
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("loss", "ahead_s", "told"),
    [(None, 100.0, ["loss is not finite"]), (1.0, 100.0, []), (None, -100.0, [])],
    ids=["not finite", "finite", "of an earlier run"],
)
def test_loss_that_is_not_finite_is_told(loss: float | None, ahead_s: float, told: list[str], tmp_path: Path) -> None:
    content = STATUS | {"written_s": time.time() + ahead_s, "losses": {"train/box_loss": loss}}
    (tmp_path / "status.json").write_text(json.dumps(content))
    with Endpoint() as endpoint:
        watched_by_notifier(tmp_path, notify(endpoint.address))
        assert endpoint.events() == told
        if told:
            assert "train/box_loss in epoch 2, batch 7, step 99" in endpoint.posts[0]["text"]


@pytest.mark.parametrize(("share", "told"), [(0.999999, ["disk nearly full"]), (0.0, [])])
def test_disk_that_is_nearly_full_is_told(share: float, told: list[str], tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        watched_by_notifier(tmp_path, NotifySettings(webhook=endpoint.address, disk_free_share=share))
        assert endpoint.events() == told


def test_line_limit_is_that_of_a_pipe() -> None:
    assert os.pathconf("/", "PC_PIPE_BUF") >= LINE_BYTES


BECOMES = """
import sys
from dataclasses import replace
from pathlib import Path
from yolo_lightning.supervision import Job, NotifySettings, become_supervisor
job = Job.from_json(sys.argv[2])
notify = NotifySettings(webhook=sys.stdin.readline().strip(), disk_free_share=0)
become_supervisor(Path(sys.argv[1]), replace(job, settings=replace(job.settings, notify=notify)))
"""


def test_address_is_in_no_command_line_while_it_is_used(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        command = (sys.executable, str(TRAINER), str(tmp_path), "wait_for_sigterm", "1")
        process = subprocess.Popen(
            [sys.executable, "-c", BECOMES, str(tmp_path), Job(command, command).to_json()],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        assert process.stdin is not None
        process.stdin.write(endpoint.address.encode() + b"\n")
        process.stdin.close()
        end_s = time.monotonic() + 30
        while not ((tmp_path / "ready.json").exists() and endpoint.posts) and time.monotonic() < end_s:
            time.sleep(0.02)
        seen = [command_line_now(pid) for pid in (process.pid, *(one.pid for one in below(process.pid)))]
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
        assert endpoint.events() == ["started", "interrupted"]
    assert len(seen) == 5  # supervisor and its two helpers, notifier, trainer
    assert "$YOLO_LIGHTNING_NOTIFY_WEBHOOK" in seen[0]
    assert not any("SECRET" in words for words in seen)


def below(pid: int) -> list[Process]:
    return [one for one in all_processes() if one.parent == pid]
