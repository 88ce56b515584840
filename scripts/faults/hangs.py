"""Ways to hang and ways to die; the name of each is the kind of fault."""

import atexit
import ctypes
import faulthandler
import os
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

LIBRARY_VARIABLE = "FAULTS_LIBRARY"
"""Path of the compiled `hang.c`."""

SLOW_S = 5.0
MEMORY_LEFT_BYTES = 64 << 20


def sleep() -> None:
    """A loop that never gets what it waits for."""
    while True:
        time.sleep(1000)


def lock() -> None:
    """A lock that nobody releases."""
    held = threading.Lock()
    held.acquire()
    held.acquire()


def compute() -> None:
    """A busy loop."""
    while True:
        pass


def backtrack() -> None:
    """A regular expression that takes longer than the universe lasts."""
    re.match(r"(a?){40}a{40}", "a" * 40)


def c_call() -> None:
    """A call into C that has released the interpreter lock, as a synchronisation with a GPU."""
    ctypes.CDLL(os.environ[LIBRARY_VARIABLE]).c_call()


def synchronize() -> None:
    """The same under the name that torch gives to it."""
    ctypes.CDLL(os.environ[LIBRARY_VARIABLE]).c_call()


def c_call_with_lock() -> None:
    """A call into C that holds the interpreter lock."""
    ctypes.PyDLL(os.environ[LIBRARY_VARIABLE]).c_call()


def d_state() -> None:
    """In the kernel, where no signal but SIGKILL gets to."""
    ctypes.CDLL(os.environ[LIBRARY_VARIABLE]).d_state()


def d_state_with_lock() -> None:
    """The same, holding the interpreter lock."""
    ctypes.PyDLL(os.environ[LIBRARY_VARIABLE]).d_state()


def slow() -> None:
    """Long, but it ends."""
    time.sleep(SLOW_S)


def half_a_second() -> None:
    """A step ten times as long as the others."""
    time.sleep(0.5)


def segfault() -> None:
    """A read of address 0."""
    faulthandler.disable()
    ctypes.string_at(0)


def abort() -> None:
    """What a failed assertion of a C++ library does."""
    os.abort()


def kill() -> None:
    """As the kernel's out-of-memory killer."""
    os.kill(os.getpid(), signal.SIGKILL)


def exit_3() -> None:
    """Gone without a word."""
    os._exit(3)


def needs_space() -> None:
    """A file that training cannot do without; the disk of the run folder is full."""
    with open("run/needed", "wb", buffering=0) as file:
        while file.write(bytes(1 << 20)):
            pass


def error() -> None:
    """What a decoder may raise; not one of those errors that name a mistake of the user."""
    raise RuntimeError("the decoder has failed")


def memory() -> None:
    """A leak that meets the limit of the process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + MEMORY_LEFT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))
    leaked = []
    while True:
        leaked.append(bytearray(1 << 20))


def sleep_at_exit() -> None:
    """The interpreter's end takes for ever."""
    atexit.register(sleep)


def stuck_child_at_exit() -> None:
    """A child in state D, which multiprocessing waits for when the interpreter ends."""
    child = get_context("spawn").Process(target=d_state_without_sigterm, daemon=True)
    child.start()
    looks = 0
    while looks < 5:  # once may be a file that it reads
        state = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]
        looks = looks + 1 if state == "D" else 0
        time.sleep(0.1)


def d_state_without_sigterm() -> None:
    """State D, as deep as that of a driver: only SIGKILL gets through to this one."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    d_state()


KINDS: dict[str, Callable[[], None]] = {
    name: value
    for name, value in vars(sys.modules[__name__]).items()
    if callable(value) and getattr(value, "__module__", "") == __name__
}
