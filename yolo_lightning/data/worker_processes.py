"""Start and end of a loader's worker processes. Imported by workers, so imports are few."""

import ast
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing import (
    popen_forkserver,
    popen_spawn_posix,
    resource_tracker,
    util,
)
from multiprocessing.context import ForkServerContext, ForkServerProcess, SpawnContext, SpawnProcess
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from yolo_lightning.utils.process_identity import Process, is_same, read_process
from yolo_lightning.utils.stop_signals import STOP_SIGNALS

THREADS_VARIABLE = "OMP_NUM_THREADS"  # Read once by OpenMP (torch) and OpenBLAS (NumPy), when a process loads them

PRELOADED = ["yolo_lightning.data.dataset"]
"""Imported once by the fork server for all workers; torch takes two seconds and 300 MB."""

CHECK_TRAINER_S = 2.0  # Interval at which a worker checks that the training process lives
environment_lock = Lock()

MAIN_GUARD = 'if __name__ == "__main__":'


@cache  # the file can be edited during a run
def _require_main_guard() -> None:
    """End the process with one line if the statement of the script that is running would run again in each worker.

    Every new worker imports the script of the training process. Without a guard the worker would start the training
    again, which Python refuses with a long traceback. A statement inside of any `if` is accepted.

    Raises:
        SystemExit: With a message that names the statement and the guard.
    """
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    module = getattr(main, "__spec__", None)
    if file is None or (module is not None and module.name.endswith("__main__")):  # not imported by workers
        return
    if not os.path.isfile(file):  # <stdin>
        raise SystemExit(
            f"error: loader workers import the program again, and {file} is not a file. Save the program as a file, or "
            "set data.loader.num_workers to 0 (LoaderSettings(num_workers=0))."
        )
    frame = sys._getframe(1)  # not the frame of this function, whose variables would keep all callers alive
    while frame.f_code.co_name != "<module>" or frame.f_code.co_filename != file:
        if frame.f_back is None:
            return
        frame = frame.f_back
    line = frame.f_lineno
    for node in ast.walk(ast.parse(Path(file).read_bytes())):
        if isinstance(node, ast.If) and node.lineno <= line <= (node.end_lineno or line):
            return
    raise SystemExit(
        f"error: {Path(file).name}, line {line}: loader workers import this script again. Put its statements under "
        f"{MAIN_GUARD}, or set data.loader.num_workers to 0 (LoaderSettings(num_workers=0))."
    )


class SpawnedPopen(popen_spawn_posix.Popen):
    """Sends SIGKILL instead of SIGTERM, which workers ignore."""

    terminate = popen_spawn_posix.Popen.kill


class ForkServedPopen(popen_forkserver.Popen):
    """Sends SIGKILL instead of SIGTERM, which workers ignore."""

    terminate = popen_forkserver.Popen.kill


class EndsWithTrainer:
    """A worker process that ends when the training process is gone, by the identity recorded at its creation.

    torch's own check compares the id of the parent with the one at the start of the worker's loop: a training process
    that dies earlier is not noticed, and the parent of a forked worker is the fork server, which lives as long as its
    workers.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        _require_main_guard()
        super().__init__(*arguments, **keywords)
        self.trainer = read_process(os.getpid())
        util.get_temp_dir()  # workers inherit the folder of their sockets, which this process deletes at its end

    def start(self) -> None:
        with _worker_environment():
            super().start()  # type: ignore[misc]

    def run(self) -> None:
        """Run, and exit without exit functions and without finalising the interpreter.

        The thread that sends batches may be inside torch when an iterator is dropped within an epoch. At finalisation
        Python unwinds that thread through C++ code, which aborts the process. From Python 3.13 on, a forked process
        also runs the exit functions of the modules that it has loaded.
        """
        Thread(target=end_with_trainer, args=(self.trainer,), name="end with trainer", daemon=True).start()
        super().run()  # type: ignore[misc]
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


class SpawnedWorker(EndsWithTrainer, SpawnProcess):
    """A spawned process that ignores SIGINT and SIGTERM."""

    _Popen = SpawnedPopen


class ForkServedWorker(EndsWithTrainer, ForkServerProcess):
    """A process forked from the fork server, with the environment of the server."""

    _Popen = ForkServedPopen

    def start(self) -> None:
        ForkServerContext().set_forkserver_preload(PRELOADED)
        super().start()  # starts the fork server, too


class SpawningContext(SpawnContext):
    """Python's spawn context with `SpawnedWorker`."""

    Process = SpawnedWorker


class ForkServingContext(ForkServerContext):
    """Python's forkserver context with `ForkServedWorker`."""

    Process = ForkServedWorker


def end_with_trainer(trainer: Process | None) -> None:
    """Wait until the recorded training process has exited, then exit; without /proc nothing is recorded."""
    while trainer is None or is_same(trainer):
        time.sleep(CHECK_TRAINER_S)
    os._exit(1)


@contextmanager
def _worker_environment() -> Iterator[None]:
    """Give processes started inside one OpenMP and BLAS thread, and block their stop signals from the beginning.

    Libraries read the number of threads when they are loaded; in this process nothing reads the variable any more once
    torch is loaded. Processes inherit the signal mask. A handler would be missing during the start, and torch replaces
    the handler of SIGTERM. Signals to this process are delivered afterwards. The resource tracker must be running,
    because its start unblocks SIGINT and SIGTERM.
    """
    resource_tracker.ensure_running()
    with environment_lock:
        threads = os.environ.get(THREADS_VARIABLE)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        os.environ[THREADS_VARIABLE] = "1"
        try:
            yield
        finally:
            if threads is None:
                del os.environ[THREADS_VARIABLE]
            else:
                os.environ[THREADS_VARIABLE] = threads
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
