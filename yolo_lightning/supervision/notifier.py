"""Sends notifications of the supervisor: `python -m yolo_lightning.supervision.notifier RUN SETTINGS`, its own process.

A name server or a web server that does not answer holds up a thread here, never the supervisor, which stays without
threads and may fork. News come in lines on the standard input; at its end, what waits is sent within a few seconds.
Failures go into the run's log, without the addresses.
"""

import json
import os
import queue
import shutil
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from yolo_lightning.supervision.helper_process import append_to_file
from yolo_lightning.supervision.notify import DRAIN_S, PING_LINE, Event, News, NotifySettings, Repetitions
from yolo_lightning.supervision.run_status import read_status
from yolo_lightning.utils.run_files import LOG_FILE, STATUS_FILE

SEND_TIMEOUT_S = 10.0
WAITING_AT_MOST = 32
LOOK_INTERVAL_S = 30.0
LOG_WAIT_S = 0.5


class Endpoint:
    """One address: a thread of its own, so that one that hangs does not hold up another.

    Args:
        name: For the log.
        send: Sends one thing; may take long, may fail.
        complain: Is told of failures.
    """

    def __init__(self, name: str, send: Callable[[News | None], None], complain: Callable[[str], None]) -> None:
        self.name, self._send, self._complain = name, send, complain
        self._waiting: queue.Queue[News | None] = queue.Queue(WAITING_AT_MOST)
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def put(self, news: News | None) -> None:
        """Send it when it is its turn; None for a ping. Where too much waits it is dropped."""
        try:
            self._waiting.put_nowait(news)
        except queue.Full:
            self._complain(f"{self.name}: dropped {news.event if news else 'a ping'}, as {WAITING_AT_MOST} wait before")

    @property
    def is_idle(self) -> bool:
        """Whether all is sent."""
        return self._waiting.unfinished_tasks == 0

    def _work(self) -> None:
        while True:
            news = self._waiting.get()
            try:
                self._send(news)
            except Exception as error:
                self._complain(f"{self.name}: {news.event if news else 'a ping'} not sent: {describe(error)}")
            finally:
                self._waiting.task_done()


class Notifier:
    """Hands news to all endpoints, looks after disk and losses by itself.

    Args:
        run: Run folder.
        settings: With addresses, not references.
    """

    def __init__(self, run: Path, settings: NotifySettings) -> None:
        self.run, self.settings = run, settings
        self.name, self.host = run.absolute().name, socket.gethostname()
        self._began_s = time.time()
        self._repetitions = Repetitions()
        self._lock = threading.Lock()
        self._complaints: queue.Queue[bytes] = queue.Queue(WAITING_AT_MOST)
        threading.Thread(target=self._write_complaints, name="log", daemon=True).start()
        self._endpoints: list[Endpoint] = []
        self._ping: Endpoint | None = None
        if settings.webhook:
            self._endpoints.append(Endpoint("webhook", self._post, self.complain))
        if settings.apprise:
            self._endpoints.append(Endpoint("apprise", self._by_apprise, self.complain))
        if settings.ping:
            self._ping = Endpoint("ping", self._get, self.complain)
        threading.Thread(target=self._look_after, name="look", daemon=True).start()

    def tell(self, news: News) -> None:
        """Hand it to all endpoints, unless the same was told within the hour."""
        with self._lock:
            held_back = self._repetitions.admit(news.event, time.monotonic())
        if held_back is None:
            return
        if held_back:
            news = News(news.event, f"{news.text} (and {held_back} times before)", news.details)
        for endpoint in self._endpoints:
            endpoint.put(news)

    def ping(self) -> None:
        """Say that training makes progress."""
        if self._ping is not None and self._ping.is_idle:  # one that waits says the same
            self._ping.put(None)

    def complain(self, text: str) -> None:
        """Write a line into the log, in a thread of its own: a disk that hangs must not delay what is to be sent."""
        line = f"notifier: {time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n"
        with suppress(queue.Full):
            self._complaints.put_nowait(line.encode())

    def drain(self, wait_s: float) -> None:
        """Wait until all is sent, at most `wait_s` seconds."""
        end_s = time.monotonic() + wait_s
        while time.monotonic() < end_s and not all(endpoint.is_idle for endpoint in self._endpoints):
            time.sleep(0.02)
        for endpoint in self._endpoints:
            if not endpoint.is_idle:
                self.complain(f"{endpoint.name}: ended before all was sent")
        end_s = time.monotonic() + LOG_WAIT_S
        while self._complaints.unfinished_tasks and time.monotonic() < end_s:
            time.sleep(0.02)

    def _post(self, news: News | None) -> None:
        assert news is not None
        assert self.settings.webhook is not None
        content = {
            "text": news.message(self.name, self.host),
            "event": news.event,
            "run": self.name,
            "host": self.host,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "details": news.details,
        }
        headers = {"Content-Type": "application/json", "User-Agent": "yolo_lightning"}
        ask(urllib.request.Request(self.settings.webhook, json.dumps(content).encode(), headers))

    def _get(self, news: News | None) -> None:
        assert self.settings.ping is not None
        ask(urllib.request.Request(self.settings.ping, headers={"User-Agent": "yolo_lightning"}))

    def _by_apprise(self, news: News | None) -> None:
        assert news is not None
        service: Any = import_module("apprise").Apprise()  # optional
        if not service.add(self.settings.apprise) or not service.notify(
            title=f"{self.name}: {news.event}", body=news.message(self.name, self.host)
        ):
            raise RuntimeError("apprise did not accept it")

    def _write_complaints(self) -> None:
        while True:
            line = self._complaints.get()
            with suppress(OSError):
                append_to_file(self.run / LOG_FILE, line)
            self._complaints.task_done()

    def _look_after(self) -> None:
        while True:
            for look in (self._look_at_disk, self._look_at_losses):
                try:
                    look()
                except OSError as error:
                    self.complain(f"cannot look at {self.run} ({error.strerror})")
            time.sleep(LOOK_INTERVAL_S)

    def _look_at_disk(self) -> None:
        usage = shutil.disk_usage(self.run)
        share = usage.free / usage.total
        if share < self.settings.disk_free_share:
            text = f"{usage.free / 1e9:.1f} GB free, {share:.1%} of the disk of {self.run}"
            self.tell(News(Event.DISK, text, {"free_bytes": usage.free}))

    def _look_at_losses(self) -> None:
        status = read_status(self.run / STATUS_FILE)
        if status is None or status.written_s < self._began_s:  # an earlier run's
            return
        if names := status.not_finite():
            text = f"{', '.join(names)} in epoch {status.epoch}, batch {status.batch}, step {status.step}"
            self.tell(News(Event.NAN, text, {"step": status.step}))


def ask(request: urllib.request.Request) -> None:
    """Send a request, and wait a limited time for the answer.

    Raises:
        OSError: If there is none, or a bad one.
    """
    with urllib.request.urlopen(request, timeout=SEND_TIMEOUT_S) as answer:
        answer.read(1 << 16)


def describe(error: Exception) -> str:
    """What went wrong; never the address, which may hold a password."""
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code}"
    if isinstance(error, TimeoutError):
        return f"no answer within {SEND_TIMEOUT_S:g} s"
    if isinstance(error, urllib.error.URLError):
        reason = error.reason
        return describe(reason) if isinstance(reason, Exception) else str(reason)
    return f"{error.strerror}" if isinstance(error, OSError) and error.strerror else type(error).__name__


def main() -> None:
    """Until the supervisor has ended."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # what the supervisor says last is to be sent
    run, settings = sys.argv[1:]
    notifier = Notifier(Path(run), NotifySettings(**json.loads(settings)).resolved())
    for line in sys.stdin.buffer:
        if line == PING_LINE:
            notifier.ping()
            continue
        notifier.tell(News.from_line(line))
    notifier.drain(DRAIN_S)
    os._exit(0)  # threads may still wait for an answer


if __name__ == "__main__":
    main()
