"""Notifications about a run: settings, and a sender that never blocks the supervisor."""

import base64
import json
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from yolo_lightning.errors import UserError, places
from yolo_lightning.supervision.helper_process import Call, Helper
from yolo_lightning.utils.addresses import REFERENCE, resolved
from yolo_lightning.utils.choices import settings_group

WEB_SCHEMES = ("http", "https")
REPEAT_AFTER_S = 3600.0
PING_INTERVAL_S = 60.0
SOCKET_TIMEOUT_S = 10.0
CALL_TIMEOUT_S = 30.0
"""Total time limit of a message or ping: a byte per second resets the time limit of a socket forever."""
USER_AGENT = "yolo_lightning"
CLOSE_S = 5.0
"""Seconds to wait for the last messages when the supervisor ends."""


@settings_group("supervision.notify")
class NotifySettings:
    """Recipients of notifications.

    Treat an address like a password: whoever has it can write to your channel. `$NAME` stands for the environment
    variable `NAME` and keeps the address out of `config.yaml`.

    Attributes:
        webhook: Address that receives one JSON object per event by POST, with `title` and `text`.
        ping: Address that receives a GET request while training makes progress (dead man's switch, as of
            healthchecks.io): the service raises the alarm when the requests stop.
    """

    webhook: str | None = field(default=None, repr=False)
    ping: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, address in self.addresses.items():
            if not REFERENCE.fullmatch(address):
                _check_address(name, address)

    @property
    def addresses(self) -> dict[str, str]:
        """The given addresses by name."""
        return {name: address for name, address in asdict(self).items() if address is not None}

    def resolved(self) -> "NotifySettings":
        """Return a copy in which environment variables are replaced by their values."""
        addresses = {}
        for name, address in self.addresses.items():
            try:
                addresses[name] = resolved(address)
            except UserError as error:
                raise UserError(f"supervision.notify.{name}: {error}") from None
        return NotifySettings(**addresses)


def _check_address(name: str, address: str) -> None:
    """Check an address; the `ValueError` does not contain it, because it may contain a password."""
    try:
        parts = urlsplit(address)
        host = parts.hostname
    except ValueError:
        parts = urlsplit("")
        host = None
    if parts.scheme not in WEB_SCHEMES or not host:
        raise UserError(
            f"supervision.notify.{name} must be http://HOST/..., https://HOST/... or $NAME, "
            f"got the scheme {parts.scheme!r} and {'a' if host else 'no'} host"
        )


class Notifier:
    """Sends messages and pings from child processes, one for each address. Only `close` waits.

    The limit of one message per event and hour also bounds the queue of an address that does not respond. `log` is
    called with a line for each message that could not be sent.
    """

    def __init__(self, run: Path, settings: NotifySettings, log: Callable[[str], None]) -> None:
        self._place = f"{run.absolute().name} on {socket.gethostname()}"
        self._log = log
        self._addresses = settings.addresses
        self._helpers = {name: Helper() for name in self._addresses}
        self._calls: list[tuple[str, str, Call[None]]] = []
        self._sent: dict[str, float] = {}  # time of the last message of each event
        self._furthest = (-1, 0, 0)
        self._next_ping_s = 0.0

    def send(self, event: str, text: str = "") -> None:
        """Queue a message, unless the same event was sent within the last hour."""
        now_s = time.monotonic()
        if now_s < self._sent.get(event, float("-inf")) + REPEAT_AFTER_S:
            return
        self._sent[event] = now_s
        title = f"{self._place}: {event}"
        body = f"{title}: {text}" if text else title
        self._begin("webhook", f"message '{event}'", {"title": title, "text": body})

    def progress(self, place: tuple[int, int, int]) -> None:
        """Ping if training is further than at the last ping, at most once a minute.

        `place` is (step, 1 while it validates, batch of the validation); a repetition of steps is no progress.
        """
        if place > self._furthest and time.monotonic() >= self._next_ping_s:
            self._furthest = place
            self._next_ping_s = time.monotonic() + PING_INTERVAL_S
            self.ping()

    def ping(self) -> None:
        """Queue a ping, unless the previous one has not been answered."""
        if not any(name == "ping" for name, _, _ in self._calls):
            self._begin("ping", "ping")

    def serve(self) -> None:
        """Take answers, send what is queued, and log failures; returns at once."""
        for helper in self._helpers.values():
            helper.serve()
            if helper.silent_s > CALL_TIMEOUT_S:
                helper.cancel(f"no complete answer within {CALL_TIMEOUT_S:g} s")
        waiting = []
        for name, subject, call in self._calls:
            if not call.answered:
                waiting.append((name, subject, call))
            elif isinstance(call.value, OSError):
                self._log(f"supervision.notify.{name}: {subject} not sent: {call.value}")
        self._calls = waiting

    def close(self) -> None:
        """Wait at most `CLOSE_S` seconds for the answers, and end the child processes."""
        end_s = time.monotonic() + CLOSE_S
        self.serve()
        while self._calls and time.monotonic() < end_s:
            time.sleep(0.02)
            self.serve()
        for name, subject, _ in self._calls:
            self._log(f"supervision.notify.{name}: {subject} not sent: no answer before the supervisor ended")
        for helper in self._helpers.values():
            helper.close(0.0)

    def _begin(self, name: str, subject: str, content: dict[str, str] | None = None) -> None:
        if name in self._helpers:
            call = self._helpers[name].begin(_send_without_address, self._addresses[name], content)
            self._calls.append((name, subject, call))


def _send_without_address(address: str, content: dict[str, str] | None) -> None:
    """Call `_send`; the `OSError` that it raises does not contain the address."""
    from http.client import HTTPException

    try:
        _send(address, content)
    except Exception as error:
        if not isinstance(error, OSError | HTTPException | ValueError):
            raise OSError(f"{type(error).__name__} in {places(error)}") from None
        status = getattr(error, "code", None)  # of urllib's HTTPError
        if status in range(300, 400):
            raise OSError(f"HTTP status {status}, a redirect, which is not followed: correct the address") from None
        if isinstance(status, int):
            raise OSError(f"HTTP status {status}") from None
        reason = getattr(error, "reason", error)
        raise OSError(getattr(reason, "strerror", None) or type(reason).__name__) from None


def _send(address: str, content: dict[str, str] | None) -> None:
    """Send a JSON object by POST, or a GET request without content; raise an OSError unless the answer is a success."""
    from urllib.request import HTTPRedirectHandler, Request, build_opener  # needs 5 MB, only in the child process

    class Refused(HTTPRedirectHandler):
        """A redirect is an error: urllib and requests would repeat a POST as a GET without the message."""

        def redirect_request(self, *_: Any, **__: Any) -> None:
            return None

    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    headers = {"User-Agent": USER_AGENT, "Content-Type": "application/json"}
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    data = None if content is None else json.dumps(content).encode()
    request = Request(urlunsplit(parts._replace(netloc=host)), data, headers)
    with build_opener(Refused).open(request, timeout=SOCKET_TIMEOUT_S) as answer:
        answer.read(1)
