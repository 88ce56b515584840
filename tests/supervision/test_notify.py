"""What goes out to whom, and that no address is shown."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from yolo_lightning.supervision import Job, NotifySettings, SuperviseSettings
from yolo_lightning.supervision.notify import LINE_BYTES, Event, News, Repetitions

URL = "https://hooks.example.org/services/SECRET"


@pytest.mark.parametrize(
    ("name", "address", "named"),
    [
        ("webhook", "ftp://host/SECRET", "'ftp'"),
        ("webhook", "hooks.example.org/SECRET", "scheme ''"),
        ("webhook", "https:///SECRET", "no host"),
        ("webhook", "http://[::1/SECRET", "no host"),
        ("ping", "file:///SECRET", "'file'"),
        ("ping", "", "no host"),
        ("apprise", "SECRET", "no scheme"),
    ],
)
def test_bad_address_is_refused_without_being_shown(name: str, address: str, named: str) -> None:
    with pytest.raises(ValueError, match=name) as refused:
        NotifySettings(**{name: address})
    assert named in str(refused.value)
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("ping_interval_s", 0.5), ("ping_interval_s", float("nan")), ("disk_free_share", 1.0), ("disk_free_share", -0.1)],
)
def test_bad_number_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}, allowed are"):
        NotifySettings(**{name: value})


def test_settings_do_not_show_addresses() -> None:
    assert "SECRET" not in repr(NotifySettings(URL, "json://SECRET", URL))


def test_command_line_of_the_supervisor_holds_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, variables = NotifySettings(webhook=URL, ping="https://hc.example.org/SECRET").with_references()
    job = Job(("a",), ("b",), settings=SuperviseSettings(notify=settings))
    assert "SECRET" not in job.to_json()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = Job.from_json(job.to_json()).settings.notify.resolved()
    assert (found.webhook, found.apprise, found.ping) == (URL, None, "https://hc.example.org/SECRET")


def test_reference_of_the_user_is_kept_and_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_HOOK", URL)
    settings, variables = NotifySettings(webhook="$MY_HOOK").with_references()
    assert (settings.webhook, variables) == ("$MY_HOOK", {})
    assert settings.resolved().webhook == URL


def test_reference_to_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_HOOK", raising=False)
    with pytest.raises(ValueError, match=r"webhook is \$MY_HOOK, but there is no environment variable"):
        NotifySettings(webhook="$MY_HOOK").with_references()


def test_reference_to_a_bad_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_HOOK", "ftp://SECRET")
    with pytest.raises(ValueError, match="'ftp'") as refused:
        NotifySettings(webhook="$MY_HOOK").with_references()
    assert "SECRET" not in str(refused.value)


def test_nobody_to_tell_needs_no_notifier() -> None:
    assert not NotifySettings().wanted
    assert NotifySettings(ping=URL).wanted


@example("\U0001f600" * 5000, {})
@given(st.text(max_size=5000), st.dictionaries(st.text(max_size=30), st.text(max_size=300), max_size=30))
def test_news_fit_into_a_pipe_at_once_and_come_back(text: str, details: dict[str, str]) -> None:
    line = News(Event.STALLED, text, dict(details)).to_line()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert len(line) <= LINE_BYTES
    found = News.from_line(line)
    assert found.event is Event.STALLED
    assert text.startswith(found.text)
    assert found.text or not text


def test_each_kind_goes_out_once_an_hour() -> None:
    told = Repetitions()
    assert told.admit(Event.STALLED, 0.0) == 0
    assert told.admit(Event.STALLED, 10.0) is None
    assert told.admit(Event.NAN, 10.0) == 0
    assert told.admit(Event.STALLED, 3599.0) is None
    assert told.admit(Event.STALLED, 3600.0) == 2
    assert told.admit(Event.STALLED, 3601.0) is None
    assert told.admit(Event.STALLED, 7200.0) == 1


def test_message_names_run_machine_and_event() -> None:
    assert News(Event.STALLED, "worker 7 sleeps").message("ltdv2", "box") == "ltdv2 on box: stalled: worker 7 sleeps"
    assert News(Event.FINISHED, "").message("ltdv2", "box") == "ltdv2 on box: finished"


def test_line_is_json() -> None:
    assert json.loads(News(Event.DISK, "x", {"free_bytes": 7}).to_line())["details"] == {"free_bytes": 7}
