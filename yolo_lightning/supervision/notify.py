"""What is told to whom: settings, kinds of news, and which of them go out. Pure, except where it reads variables."""

import json
import os
import re
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from importlib.util import find_spec
from urllib.parse import urlsplit

HTTP_SCHEMES = ("http", "https")
REFERENCE = re.compile(r"\$(\w+)")
"""An address may be given as the name of an environment variable: `$NAME`."""

VARIABLE_PREFIX = "YOLO_LIGHTNING_NOTIFY_"
REPEAT_AFTER_S = 3600.0
DRAIN_S = 4.0
"""Seconds to send what waits when the supervisor has ended."""

PING_LINE = b"ping\n"
LONGEST_TEXT = 1000
LINE_BYTES = 4000
"""A pipe takes up to 4096 bytes whole or not at all."""


@dataclass(frozen=True)
class NotifySettings:
    """Whom the supervisor tells what happens.

    An address is as good as a password: whoever has it can write to your channel. Give it as `$NAME`, the name of an
    environment variable, and it appears neither in a command line nor in `config.yaml`.

    Attributes:
        webhook: URL that gets one JSON object per event, with `text` as Slack and Mattermost show it, and fields.
        apprise: Address in the form of the package apprise (`mailto://...`, `tgram://...`), or several with commas.
        ping: URL that is asked for (GET) while training makes progress, as healthchecks.io wants it: it raises the
            alarm when nothing comes.
        ping_interval_s: Seconds between two pings, at least.
        disk_free_share: Tells when less of the run folder's disk is free, 0 to 1; 0 for never.
    """

    webhook: str | None = field(default=None, repr=False)
    apprise: str | None = field(default=None, repr=False)
    ping: str | None = field(default=None, repr=False)
    ping_interval_s: float = 60.0
    disk_free_share: float = 0.1

    def __post_init__(self) -> None:
        for name in ("webhook", "ping"):
            address = getattr(self, name)
            if address is None or REFERENCE.fullmatch(address):
                continue
            check_http(name, address)
        if self.apprise is not None and not REFERENCE.fullmatch(self.apprise) and "://" not in self.apprise:
            raise ValueError("notify.apprise has no scheme, allowed are addresses such as mailto://... and $NAME")
        if not self.ping_interval_s >= 1:
            raise ValueError(f"notify.ping_interval_s is {self.ping_interval_s}, allowed are 1 and more")
        if not 0 <= self.disk_free_share < 1:
            raise ValueError(f"notify.disk_free_share is {self.disk_free_share}, allowed are 0 to below 1")

    @property
    def wanted(self) -> bool:
        """Whether there is anybody to tell."""
        return any(getattr(self, name) for name in ADDRESSES)

    def with_references(self) -> tuple["NotifySettings", dict[str, str]]:
        """The same without addresses, and the environment variables that hold them.

        Raises:
            ValueError: If `$NAME` names a variable that is not set or holds no address, or apprise is not installed.
        """
        self.resolved()
        variables = {
            f"{VARIABLE_PREFIX}{name.upper()}": address
            for name in ADDRESSES
            if (address := getattr(self, name)) and not REFERENCE.fullmatch(address)
        }
        names = {name: f"${VARIABLE_PREFIX}{name.upper()}" for name in ADDRESSES}
        kept = {name: names[name] for name in ADDRESSES if names[name][1:] in variables}
        return replace(self, **kept), variables  # type: ignore[arg-type]

    def resolved(self) -> "NotifySettings":
        """The same with the addresses that `$NAME` stands for.

        Raises:
            ValueError: If a variable is not set or holds no address, or apprise is asked for but not installed.
        """
        found: dict[str, str] = {}
        for name in ADDRESSES:
            match = REFERENCE.fullmatch(getattr(self, name) or "")
            if match is None:
                continue
            if not os.environ.get(match[1]):
                raise ValueError(f"notify.{name} is ${match[1]}, but there is no environment variable {match[1]}")
            found[name] = os.environ[match[1]]
        if self.apprise and find_spec("apprise") is None:
            raise ValueError("notify.apprise is set, but the package apprise is not installed: pip install apprise")
        return replace(self, **found)  # type: ignore[arg-type]


ADDRESSES = ("webhook", "apprise", "ping")
assert set(ADDRESSES) <= {one.name for one in fields(NotifySettings)}


def check_http(name: str, address: str) -> None:
    """Refuse what is no HTTP address; the message does not repeat it, as it may hold a password.

    Raises:
        ValueError: If it is none.
    """
    try:
        parts = urlsplit(address)
        scheme, host = parts.scheme, parts.hostname
    except ValueError:
        scheme, host = "", None
    if scheme not in HTTP_SCHEMES or not host:
        raise ValueError(
            f"notify.{name} has the scheme {scheme!r} and {'a' if host else 'no'} host, "
            "allowed are http://host/..., https://host/... and $NAME"
        )


class Event(StrEnum):
    """Kinds of news."""

    STARTED = "started"
    STALLED = "stalled"
    CRASHED = "crashed"
    RECOVERED = "recovered"
    DEGRADED = "degraded"
    DISK = "disk nearly full"
    DISK_FULL = "disk full"
    WAITS_FOR_STORAGE = "waits for storage"
    STORAGE_HANGS = "storage hangs"
    STORAGE_ANSWERS = "storage answers again"
    NAN = "loss is not finite"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    GAVE_UP = "gave up"
    NEEDS_REBOOT = "needs reboot"


@dataclass(frozen=True, slots=True)
class News:
    """One event.

    Attributes:
        event: Its kind.
        text: One line for a person, without the run's name.
        details: Numbers and names, for a program.
    """

    event: Event
    text: str
    details: dict[str, str | int | float] = field(default_factory=dict)

    def to_line(self) -> bytes:
        """As one line that a pipe takes whole."""
        text = self.text[:LONGEST_TEXT]
        line = json.dumps({"event": self.event, "text": text, "details": self.details}).encode() + b"\n"
        if len(line) > LINE_BYTES:  # a character takes up to 12 bytes
            line = json.dumps({"event": self.event, "text": text[: LONGEST_TEXT // 4], "details": {}}).encode() + b"\n"
        return line

    @classmethod
    def from_line(cls, line: bytes) -> "News":
        """The reverse of `to_line`."""
        content = json.loads(line)
        return cls(Event(content["event"]), content["text"], content["details"])

    def message(self, run: str, host: str) -> str:
        """For a person: which run, what."""
        return f"{run} on {host}: {self.event}" + (f": {self.text}" if self.text else "")


class Repetitions:
    """Lets each kind of news of one run through once an hour."""

    def __init__(self, repeat_after_s: float = REPEAT_AFTER_S) -> None:
        self.repeat_after_s = repeat_after_s
        self._told: dict[Event, tuple[float, int]] = {}

    def admit(self, event: Event, now_s: float) -> int | None:
        """How often it was held back since it was told last; None where it is to be held back again."""
        told_s, held_back = self._told.get(event, (None, 0))
        if told_s is not None and now_s < told_s + self.repeat_after_s:
            self._told[event] = (told_s, held_back + 1)
            return None
        self._told[event] = (now_s, 0)
        return held_back
