"""Calls that may wait for a disk, made one after the other in one child process: a hung disk stops only that child.

A thread could not be left behind: a process does not end as long as one of its threads waits in the kernel. The
supervisor queues calls here and never waits for them while it watches a trainer. There is one child for each `Helper`,
however long it waits: no second child is started while the first one has not answered.
"""

import contextlib
import fcntl
import os
import pickle
import select
import signal
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from yolo_lightning.supervision.bounded import close_inherited

Result = TypeVar("Result")
LENGTH = struct.Struct("<Q")
BLOCK_BYTES = 1 << 16
PIPE_BYTES = 1 << 20
MOST_WAITING_BYTES = 8 << 20
MOST_WAITING_CALLS = 1000
POLL_S = 0.01


class Call(Generic[Result]):
    """One queued call.

    Attributes:
        answered: Whether the call has returned or raised.
        replaces: A waiting call with the same non-empty text is replaced by this one.
        appended: Content that grows while the call waits; only of `Helper.append`.
    """

    def __init__(self, function: Callable[..., Result], arguments: tuple[Any, ...], replaces: str = "") -> None:
        self.function, self.arguments, self.replaces = function, arguments, replaces
        self.appended: bytearray | None = None
        self.answered = False
        self._succeeded, self._value = False, cast(Any, OSError("the helper process has ended"))

    def payload(self) -> bytes:
        """Return the call as bytes for the pipe."""
        grown = () if self.appended is None else (bytes(self.appended),)
        content = pickle.dumps((self.function, (*self.arguments, *grown)))
        return LENGTH.pack(len(content)) + content

    def answer(self, succeeded: bool, value: Any) -> None:
        """Store what the function returned or raised."""
        self.answered, self._succeeded, self._value = True, succeeded, value

    def result(self) -> Result:
        """Return what the function returned.

        Raises:
            OSError: What the function raised, or an error of this class if the helper process has died.
        """
        if self._succeeded:
            return cast(Result, self._value)
        raise self._value


class Helper:
    """Makes calls in a child process, in order. No method waits for a call, except `wait` and `close`.

    Functions and arguments must pickle, so a function must be defined at the top of a module.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._waiting: deque[Call[Any]] = deque()
        self._current: Call[Any] | None = None
        self._sent_s = 0.0
        self._unsent = memoryview(b"")
        self._received = bytearray()
        self._start()

    @property
    def silent_s(self) -> float:
        """Seconds for which the current call has not been answered; 0 if there is none."""
        return 0.0 if self._current is None else time.monotonic() - self._sent_s

    @property
    def files(self) -> tuple[list[int], list[int]]:
        """Descriptors to wait for before `serve`: for reading, and for writing."""
        return [self._answers], [self._calls] if self._unsent else []

    def post(self, function: Callable[..., Any], *arguments: Any, replaces: str = "") -> None:
        """Queue a call whose result is not needed. Where too many calls wait, it is dropped and counted."""
        self._queue(Call(function, arguments, replaces))

    def append(self, function: Callable[..., Any], *arguments: Any, content: bytes) -> None:
        """Queue a call of `function` with `content` as the last argument, joined with the last waiting such call."""
        last = self._waiting[-1] if self._waiting else None
        if sum(len(call.appended or b"") for call in self._waiting) + len(content) > MOST_WAITING_BYTES:
            self.dropped += 1
            self.serve()
        elif last and last.appended is not None and (last.function, last.arguments) == (function, arguments):
            last.appended += content
            self.serve()
        else:
            call = Call(function, arguments)
            call.appended = bytearray(content)
            self._queue(call)

    def begin(self, function: Callable[..., Result], *arguments: Any) -> Call[Result]:
        """Queue a call for `wait`; never dropped."""
        call = Call(function, arguments)
        self._waiting.append(call)
        self.serve()
        return call

    def wait(self, call: Call[Any], wait_s: float) -> bool:
        """Wait at most `wait_s` seconds for the answer to a call of `begin`; return whether there is one."""
        end_s = time.monotonic() + wait_s
        while not call.answered and (left_s := end_s - time.monotonic()) > 0:
            reads, writes = self.files
            select.select(reads, writes, [], left_s)
            self.serve()
        return call.answered

    def serve(self) -> None:
        """Take an answer, and send the next call; returns at once."""
        while True:
            self._send()
            if not self._receive():
                return

    def close(self, wait_s: float) -> None:
        """Wait at most `wait_s` seconds until all calls are made, then end the child without waiting for it."""
        end_s = time.monotonic() + wait_s
        while (self._current or self._waiting) and (left_s := end_s - time.monotonic()) > 0:
            reads, writes = self.files
            select.select(reads, writes, [], left_s)
            self.serve()
        os.close(self._calls)
        while os.waitpid(self._child, os.WNOHANG)[0] == 0:
            if time.monotonic() >= end_s:
                os.kill(self._child, signal.SIGKILL)  # takes effect when the disk answers
                break
            time.sleep(POLL_S)
        os.close(self._answers)

    def _queue(self, call: Call[Any]) -> None:
        if call.replaces:
            self._waiting = deque(one for one in self._waiting if one.replaces != call.replaces)
        if len(self._waiting) >= MOST_WAITING_CALLS:
            self.dropped += 1
        else:
            self._waiting.append(call)
        self.serve()

    def _start(self) -> None:
        calls, self._calls = os.pipe()
        self._answers, answers = os.pipe()
        child = os.fork()
        if child == 0:
            make_calls(calls, answers)
        self._child = child
        os.close(calls)
        os.close(answers)
        os.set_blocking(self._calls, False)
        os.set_blocking(self._answers, False)
        with contextlib.suppress(OSError, AttributeError):  # Linux only, and limited for ordinary users
            fcntl.fcntl(self._calls, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def _send(self) -> None:
        if self._current is None and self._waiting:
            self._current = self._waiting.popleft()
            self._unsent, self._sent_s = memoryview(self._current.payload()), time.monotonic()
        while self._unsent:
            try:
                self._unsent = self._unsent[os.write(self._calls, self._unsent) :]
            except BlockingIOError:
                return
            except OSError:  # the child has died; `_receive` finds that too
                self._unsent = memoryview(b"")

    def _receive(self) -> bool:
        """Read what has come; return whether a call was answered."""
        try:
            content = os.read(self._answers, BLOCK_BYTES)
        except BlockingIOError:
            return False
        if not content:
            self._restart()
            return True
        self._received += content
        if len(self._received) < LENGTH.size:
            return False
        end = LENGTH.size + LENGTH.unpack_from(self._received)[0]
        if len(self._received) < end:
            return self._receive()
        assert self._current is not None
        self._current.answer(*pickle.loads(self._received[LENGTH.size : end]))
        self._current, self._received = None, bytearray()
        return True

    def _restart(self) -> None:
        """Start another child after the last one has died; the call that it was making fails."""
        os.close(self._calls)
        os.close(self._answers)
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, os.WNOHANG)
        if self._current is not None:
            self._current.answer(False, OSError("the helper process has died"))
        self._current, self._unsent, self._received = None, memoryview(b""), bytearray()
        self._start()


def make_calls(calls: int, answers: int) -> None:
    """Make the calls that come through a pipe until it is closed; never returns."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor still has to write
        close_inherited({calls, answers})
        with os.fdopen(calls, "rb") as source, os.fdopen(answers, "wb", buffering=0) as target:
            while len(head := source.read(LENGTH.size)) == LENGTH.size:
                function, arguments = pickle.loads(source.read(LENGTH.unpack(head)[0]))
                content = called(function, arguments)
                write_all(target.fileno(), [LENGTH.pack(len(content)), content])
    finally:
        os._exit(0)


def called(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """Return the pickled result of a call, or the error that it raised."""
    try:
        return pickle.dumps((True, function(*arguments)))
    except OSError as error:
        return pickle.dumps((False, error))
    except Exception as error:
        return pickle.dumps((False, OSError(repr(error))))


def write_all(descriptor: int, parts: Iterable[bytes]) -> None:
    """Write every byte of `parts`.

    Raises:
        OSError: If that fails.
    """
    for part in parts:
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def append_to_file(path: Path, content: bytes) -> None:
    """Append `content` to a file.

    Raises:
        OSError: If the file cannot be written.
    """
    with path.open("ab") as file:
        file.write(content)


def write_to_descriptor(descriptor: int, content: bytes) -> None:
    """Write `content` to an open file that the helper has inherited, such as the standard output.

    Raises:
        OSError: If that fails.
    """
    write_all(descriptor, [content])
