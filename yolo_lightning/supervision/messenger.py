"""The supervisor's end of the pipe to the notifier: never waits, except a few seconds at the very end."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from yolo_lightning.supervision.notify import DRAIN_S, PING_LINE, News, NotifySettings
from yolo_lightning.utils.run_files import LOG_FILE

END_S = DRAIN_S + 1.0
KILL_WAIT_S = 0.5


class Messenger:
    """Starts a notifier where somebody is to be told, and hands it the news.

    Args:
        run: Run folder.
        settings: Whom to tell.
    """

    def __init__(self, run: Path, settings: NotifySettings) -> None:
        self.dropped = 0
        self._process: subprocess.Popen[bytes] | None = None
        if not settings.wanted:
            return
        kept, variables = settings.with_references()
        words = (str(run.absolute()), json.dumps(asdict(kept)))
        try:
            with (run / LOG_FILE).open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", f"{__package__}.notifier", *words],
                    env=os.environ | variables,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError:  # no process to be had, no log: training matters more
            return
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    def tell(self, news: News) -> None:
        """Hand it over; dropped where the notifier is far behind or gone."""
        self._write(news.to_line())

    def ping(self) -> None:
        """Say that training makes progress."""
        self._write(PING_LINE)

    def close(self) -> None:
        """Wait a few seconds until all is sent, and end the notifier."""
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):  # a thread of it may wait for the disk, in the kernel
                self._process.wait(KILL_WAIT_S)
        self._process = None

    def _write(self, line: bytes) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            os.write(self._process.stdin.fileno(), line)  # up to PIPE_BUF whole or not at all
        except OSError:  # full, or nobody reads it
            self.dropped += 1
