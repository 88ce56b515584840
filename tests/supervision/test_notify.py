"""Notifications: addresses are never shown, and messages never delay the supervisor (real servers)."""

import socket
import time
from pathlib import Path

import pytest

from tests.supervision.endpoint import Endpoint
from tests.supervision.supervised import Supervised, floors
from yolo_lightning.supervision import notify
from yolo_lightning.supervision.job import JOB_VARIABLE, Job, SuperviseSettings, supervisor_command
from yolo_lightning.supervision.notify import CLOSE_S, Notifier, NotifySettings
from yolo_lightning.utils.exit_codes import ExitCode

pytestmark = pytest.mark.whole_run  # real processes, seconds each

URL = "https://hooks.example.org/services/SECRET"
SHORT_S = 0.6
FETCH = floors(fetch_s=SHORT_S)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1,name.invalid")


@pytest.mark.parametrize(
    ("name", "address", "named"),
    [
        ("webhook", "ftp://host/SECRET", "'ftp'"),
        ("webhook", "hooks.example.org/SECRET", "scheme ''"),
        ("webhook", "https:///SECRET", "no host"),
        ("webhook", "http://[::1/SECRET", "no host"),
        ("ping", "file:///SECRET", "'file'"),
        ("ping", "", "no host"),
    ],
)
def test_bad_address_is_refused_without_being_shown(name: str, address: str, named: str) -> None:
    with pytest.raises(ValueError, match=rf"^supervision\.notify\.{name} must ") as refused:
        NotifySettings(**{name: address})
    assert named in str(refused.value)
    assert "SECRET" not in str(refused.value)


def test_settings_do_not_show_addresses() -> None:
    assert "SECRET" not in repr(NotifySettings(URL, URL))


def test_references_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PING", "https://hc.example.org/SECRET")
    settings = NotifySettings(webhook=URL, ping="$MY_PING").resolved()
    assert (settings.webhook, settings.ping) == (URL, "https://hc.example.org/SECRET")


@pytest.mark.parametrize(
    ("value", "message"), [("", r"webhook: .*variable MY_HOOK is not set"), ("ftp://SECRET", "'ftp'")]
)
def test_reference_to_nothing_or_a_bad_address_is_refused(
    value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_HOOK", value)
    with pytest.raises(ValueError, match=message) as refused:
        NotifySettings(webhook="$MY_HOOK").resolved()
    assert "SECRET" not in str(refused.value)


def refused() -> str:
    """An address at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/SECRET"


def test_each_event_is_sent_once_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, sent = [0.0], []
    notifier = Notifier(tmp_path / "ltdv2", NotifySettings(), print)
    monkeypatch.setattr(notify.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(notifier, "_begin", lambda name, what, content: sent.append(content["text"]))
    for at_s, event in (
        (0, "stalled"),
        (10, "stalled"),
        (10, "loss is not finite"),
        (3599, "stalled"),
        (3600, "stalled"),
    ):
        now_s[0] = at_s
        notifier.send(event, "worker 7 sleeps")
    place = f"ltdv2 on {socket.gethostname()}"
    assert sent == [f"{place}: {event}: worker 7 sleeps" for event in ("stalled", "loss is not finite", "stalled")]


@pytest.mark.parametrize(
    ("fault", "until", "code", "last"),
    [
        ("raise_value_error", 2, ExitCode.FINISHED, ["started", "crashed", "recovered", "degraded", "finished"]),
        ("exit_2", 100, ExitCode.GAVE_UP, ["started", "waiting", "gave up"]),
        ("kill", 1, ExitCode.FINISHED, ["started", "crashed", "recovered", "finished"]),
        ("kill", 3, ExitCode.FINISHED, ["started", "crashed", "recovered", "degraded", "finished"]),
        ("wait_for_worker", 1, ExitCode.FINISHED, ["started", "stalled", "degraded", "recovered", "finished"]),
    ],
)
def test_ends_are_told(fault: str, until: int, code: int, last: list[str], tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        notify = {"webhook": endpoint.address}
        supervised = Supervised(tmp_path / "run", fault, until, attempts=2, allowed=FETCH, notify=notify)
        assert supervised.wait() == code
        assert "SECRET" not in supervised.log()
        told = [event for event in endpoint.events() if event != "recovered" or "recovered" in last]
    assert told == last


@pytest.mark.parametrize(
    ("address", "reason"),
    [("", "HTTP status 500"), (refused(), "Connection refused"), ("http://name.invalid/SECRET", "")],
    ids=["error", "refused", "unknown host"],
)
def test_failure_is_logged_without_the_address(address: str, reason: str, tmp_path: Path) -> None:
    log: list[str] = []
    with Endpoint(500) as endpoint:
        notifier = Notifier(tmp_path, NotifySettings(*[address or endpoint.address] * 2), log.append)
        notifier.send("started")
        notifier.ping()
        notifier.close()
    assert len(log) == 2
    for line, what in zip(sorted(log), ("ping: ping", "webhook: message 'started'"), strict=True):
        assert line.startswith(f"supervision.notify.{what} not sent: {reason}")
        assert "SECRET" not in line


def test_fault_39_endpoint_that_hangs_delays_neither_the_restart_nor_the_end(tmp_path: Path) -> None:
    with Endpoint(0) as endpoint:
        notify = {"webhook": endpoint.address, "ping": endpoint.address}
        supervised = Supervised(tmp_path / "run", "kill", notify=notify)
        supervised.wait_for("finished.json")
        began_s = time.monotonic()
        assert supervised.wait() == ExitCode.FINISHED, supervised.log()
        assert time.monotonic() - began_s < CLOSE_S + 5
        assert endpoint.came >= 1
    assert "supervision.notify.webhook: message 'started' not sent: no answer before the" in supervised.log()
    assert "SECRET" not in supervised.log()
    assert supervised.left() == []


def test_sending_never_waits(tmp_path: Path) -> None:
    log: list[str] = []
    with Endpoint(0) as endpoint:
        notifier = Notifier(tmp_path, NotifySettings(endpoint.address, endpoint.address), log.append)
        began_s = time.monotonic()
        for _ in range(200):
            for event in ("stalled", "recovered", "crashed"):
                notifier.send(event, "x" * 900)
            notifier.ping()
            notifier.serve()
        assert time.monotonic() - began_s < 2
        notifier.close()
        assert CLOSE_S <= time.monotonic() - began_s < CLOSE_S + 5
    assert len(log) == 3 + 1
    assert all(line.startswith("supervision.notify.") for line in log)


def test_hanging_webhook_does_not_hold_up_the_ping(tmp_path: Path) -> None:
    with Endpoint(0) as hanging, Endpoint() as endpoint:
        notifier = Notifier(tmp_path, NotifySettings(hanging.address, endpoint.address), print)
        notifier.send("started")
        notifier.ping()
        end_s = time.monotonic() + 10
        while not endpoint.gets and time.monotonic() < end_s:
            time.sleep(0.01)
        assert len(endpoint.gets) == 1


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirect_is_reported_and_not_followed(code: int, tmp_path: Path) -> None:
    log: list[str] = []
    with Endpoint() as target, Endpoint(code, location=target.address) as endpoint:
        notifier = Notifier(tmp_path, NotifySettings(endpoint.address), log.append)
        notifier.send("stalled")
        notifier.close()
        assert (len(endpoint.posts), target.came) == (1, 0)
    assert log == [
        f"supervision.notify.webhook: message 'stalled' not sent: HTTP status {code}, a redirect, which is not "
        "followed: correct the address"
    ]


def test_dripping_endpoint_stops_neither_messages_nor_pings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "CALL_TIMEOUT_S", 0.4)
    log: list[str] = []
    with Endpoint(drips=True) as endpoint:
        notifier = Notifier(tmp_path, NotifySettings(endpoint.address, endpoint.address), log.append)
        notifier.send("stalled")
        notifier.send("recovered")
        end_s = time.monotonic() + 10
        while (len(endpoint.gets) < 2 or len(endpoint.posts) < 2) and time.monotonic() < end_s:
            notifier.ping()
            notifier.serve()
            time.sleep(0.02)
        notifier.close()
        assert endpoint.events()[:2] == ["stalled", "recovered"]
        assert len(endpoint.gets) >= 2
    assert "supervision.notify.webhook: message 'stalled' not sent: no complete answer within 0.4 s" in log
    assert "supervision.notify.ping: ping not sent: no complete answer within 0.4 s" in log
    assert not any("SECRET" in line for line in log)


def test_user_and_query_of_a_webhook_are_sent(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        address = endpoint.address.replace("http://", "http://user:p%40ss@")
        notifier = Notifier(tmp_path, NotifySettings(address), print)
        notifier.send("started", "text")
        notifier.close()
        assert endpoint.posted == [("/hooks/SECRET?token=SECRET", "Basic dXNlcjpwQHNz")]
        place = f"{tmp_path.name} on {socket.gethostname()}: started"
        assert endpoint.posts == [{"title": place, "text": f"{place}: text"}]


def test_address_is_in_the_environment_of_the_supervisor_and_not_in_its_command_line(tmp_path: Path) -> None:
    settings = SuperviseSettings(notify=NotifySettings(webhook=URL))
    words, environment = supervisor_command(tmp_path, Job(("program",), ("program",), settings=settings))
    assert "SECRET" not in " ".join(words)
    assert Job.from_json(environment[JOB_VARIABLE]).settings == settings
