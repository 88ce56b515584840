"""Calls that may block forever, in a forked child process: `Helper` makes calls in order, `bounded` makes one call.

A thread would not do: a process cannot exit while one of its threads waits in the kernel for a disk. Each `Helper` has
one child process; no second one is started while the first one has not answered.
"""

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar, cast

from yolo_lightning.errors import places
from yolo_lightning.utils.stop_signals import STOP_SIGNALS

Result = TypeVar("Result")
MOST_WAITING_BYTES = 8 << 20
MOST_WAITING_CALLS = 10_000
POLL_S = 0.01
MOST_LEFT = 8  # abandoned children that have not ended; at this number, `bounded` starts no further one
_left: set[int] = set()


@dataclass(eq=False)
class Call(Generic[Result]):
    """One queued call."""

    function: Callable[..., Result]
    arguments: tuple[Any, ...]
    replaces: str = ""  # a queued call with the same non-empty text is replaced by this one
    answered: bool = False  # whether the call has returned or raised
    value: Any = None  # what the function returned, or an OSError

    @property
    def content_bytes(self) -> int:
        """Size of the arguments that are bytes."""
        return sum(len(argument) for argument in self.arguments if isinstance(argument, bytes))

    def result(self) -> Result:
        """Return what the function returned, or raise its error as an OSError, also if the helper process died."""
        if isinstance(self.value, OSError):
            raise self.value
        return cast(Result, self.value)


class Helper:
    """Makes calls in a child process, in order. Only `wait` and `close` wait for calls.

    Functions and arguments must be picklable, so functions must be defined at module level.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._waiting: deque[Call[Any]] = deque()
        self._current: Call[Any] | None = None
        self._sent_s = 0.0
        self._start()

    @property
    def silent_s(self) -> float:
        """Seconds for which the current call has not been answered; 0 if there is none."""
        return 0.0 if self._current is None else time.monotonic() - self._sent_s

    def post(self, function: Callable[..., Any], *arguments: Any, replaces: str = "") -> None:
        """Queue a call whose result is not needed. If the queue is full, the call is dropped and counted."""
        if replaces:
            self._waiting = deque(waiting for waiting in self._waiting if waiting.replaces != replaces)
        call = Call(function, arguments, replaces)
        waiting_bytes = sum(waiting.content_bytes for waiting in self._waiting)
        if len(self._waiting) >= MOST_WAITING_CALLS or waiting_bytes + call.content_bytes > MOST_WAITING_BYTES:
            self.dropped += 1
        else:
            self._waiting.append(call)
        self.serve()

    def begin(self, function: Callable[..., Result], *arguments: Any) -> Call[Result]:
        """Queue a call for `wait`; it is never dropped."""
        call = Call(function, arguments)
        self._waiting.append(call)
        self.serve()
        return call

    def wait(self, call: Call[Any], wait_s: float) -> bool:
        """Wait at most `wait_s` seconds for the answer to a call of `begin`; return whether it was answered."""
        self._serve_until(lambda: call.answered, wait_s)
        return call.answered

    def serve(self) -> None:
        """Take answers and send the next call; returns at once."""
        while True:
            if self._current is None and self._waiting:
                self._send()
            try:
                if not self._connection.poll():
                    return
                answer = self._connection.recv()
            except (EOFError, ConnectionError):
                self._restart()
                continue
            self._take(answer)

    def cancel(self, reason: str) -> None:
        """Kill the child process and start another one; the current call fails with `reason`."""
        self._restart(reason)
        self.serve()

    def close(self, wait_s: float) -> None:
        """Wait at most `wait_s` seconds until all calls are made, then end the child process without waiting for it."""
        end_s = time.monotonic() + wait_s
        self._serve_until(lambda: not (self._current or self._waiting), wait_s)
        self._connection.close()
        while os.waitpid(self._child, os.WNOHANG)[0] == 0:
            if time.monotonic() >= end_s:
                os.kill(self._child, signal.SIGKILL)  # takes effect when the disk responds
                break
            time.sleep(POLL_S)

    def _serve_until(self, is_done: Callable[[], bool], wait_s: float) -> None:
        end_s = time.monotonic() + wait_s
        while not is_done() and time.monotonic() < end_s:
            self._connection.poll(max(0.0, end_s - time.monotonic()))
            self.serve()

    def _start(self) -> None:
        self._connection, other = Pipe()
        # Ctrl-C reaches the whole group, and the supervisor still writes.
        self._child = fork(lambda: _make_calls(other), other.fileno(), signal.SIG_IGN)
        other.close()

    def _send(self) -> None:
        """Send the next call. The child has answered all others, so that it reads at once, also if it was stopped."""
        call = self._current = self._waiting.popleft()
        self._sent_s = time.monotonic()
        with contextlib.suppress(ConnectionError):  # the child process has died; `serve` handles that
            self._connection.send((call.function, call.arguments))
        os.kill(self._child, signal.SIGCONT)

    def _restart(self, reason: str = "the helper process has died") -> None:
        """Start another child process in place of a dead or cancelled one; the call that it was making fails."""
        self._connection.close()
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, os.WNOHANG)
        self._take(OSError(reason))
        self._start()

    def _take(self, answer: Any) -> None:
        """Store the answer to the current call, if there is one."""
        if self._current is not None:
            self._current.answered = True
            self._current.value = answer
        self._current = None


def _make_calls(connection: Connection) -> None:
    """Make the calls that arrive through a connection until it is closed."""
    while True:
        function, arguments = connection.recv()
        try:
            answer = function(*arguments)
        except OSError as error:
            answer = error
        except Exception as error:  # a mistake of this package must not end the process that makes the calls
            answer = OSError(f"{error!r} in {places(error)}")
        connection.send(answer)


def fork(work: Callable[[], None], descriptor: int, handler: signal.Handlers) -> int:
    """Return the id of a child process that calls `work` and exits; `handler` is its reaction to stop signals.

    Of the open files the child keeps `descriptor` and the standard ones. A child that may hang forever must hold
    neither the lock of a run folder nor a pipe whose end another process waits for.
    """
    child = os.fork()
    if child:
        return child
    try:
        for number in STOP_SIGNALS:
            signal.signal(number, handler)
        os.closerange(3, descriptor)
        os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))
        _left.clear()
        work()
    finally:
        os._exit(0)


def bounded(function: Callable[[], Result], timeout_s: float) -> Result | None:
    """Return what `function` returns, or None if it fails or takes longer, or too many earlier children still hang.

    Even reading /proc or a file system can block forever in the kernel, where no signal arrives, and a thread cannot
    be abandoned. This process must have no threads and no GPU context, so that it can fork. The result of `function`
    must be picklable.
    """
    _left.difference_update([child for child in _left if os.waitpid(child, os.WNOHANG)[0]])
    if len(_left) >= MOST_LEFT:
        return None
    end, start = Pipe(duplex=False)
    child = fork(lambda: start.send(function()), start.fileno(), signal.SIG_DFL)
    start.close()
    try:
        return cast(Result, end.recv()) if end.poll(timeout_s) else None
    except (EOFError, OSError):  # the function failed
        return None
    finally:
        end.close()
        _kill_without_waiting(child)


def _kill_without_waiting(child: int) -> None:
    """Kill a child; if it does not end within 0.1 s, a later call of `bounded` reads its exit code."""
    os.kill(child, signal.SIGKILL)
    for _ in range(50):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.002)
    _left.add(child)
