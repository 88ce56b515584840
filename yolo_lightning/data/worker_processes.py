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
    Pipe,
    forkserver,
    popen_forkserver,
    popen_spawn_posix,
    resource_tracker,
    util,
)
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess, SpawnContext, SpawnProcess
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from yolo_lightning.utils.host import available_cores
from yolo_lightning.utils.process_identity import Process, is_same, read_process
from yolo_lightning.utils.stop_signals import STOP_SIGNALS

THREADS_VARIABLE = "OMP_NUM_THREADS"  # Read once by OpenMP (torch) and OpenBLAS (NumPy), when a process loads them

PRELOADED = ["yolo_lightning.data.dataset"]
"""Imported once by the fork server for all workers; torch takes two seconds and 300 MB."""

IMPORT_LIMIT_S = 30.0  # Maximum time for which an importing worker delays the start of the next one

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
    frame, main = sys._getframe(), sys.modules["__main__"]
    file, module = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if file is None or (module is not None and module.name.endswith("__main__")):  # not imported by workers
        return
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

    threads = 1

    def prepare(self, threads: int) -> None:
        """Record settings and the training process before the start."""
        self.threads, self.trainer = threads, read_process(os.getpid())
        util.get_temp_dir()  # workers inherit the folder of their sockets, which this process deletes at its end

    def run(self) -> None:
        Thread(target=end_with_trainer, args=(self.trainer,), name="end with trainer", daemon=True).start()
        super().run()  # type: ignore[misc]


class SpawnedWorker(EndsWithTrainer, SpawnProcess):
    """A spawned process with `threads` OpenMP and BLAS threads that ignores SIGINT and SIGTERM.

    `importing` is one end of a pipe, which is closed when the process has imported everything, or dies.
    """

    _Popen = SpawnedPopen
    importing: Connection

    def start(self) -> None:
        with thread_environment(self.threads), _stop_signals_blocked():
            super().start()
        self.importing.close()

    def run(self) -> None:
        """Run without finalising the interpreter.

        The thread that sends batches may be inside torch when an iterator is dropped within an epoch. At finalisation
        Python unwinds that thread through C++ code, which aborts the process.
        """
        self.importing.close()
        super().run()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def start_fork_server(threads: int) -> None:
    """Start the fork server, whose workers have `threads` OpenMP and BLAS threads, unless it runs; do not await it."""
    ForkServerContext().set_forkserver_preload(PRELOADED)
    with thread_environment(threads), _stop_signals_blocked():
        forkserver.ensure_running()


class ForkServedWorker(EndsWithTrainer, ForkServerProcess):
    """A process forked from the fork server, with the environment of the server."""

    _Popen = ForkServedPopen

    def start(self) -> None:
        start_fork_server(self.threads)
        with _stop_signals_blocked():
            super().start()


class SpawningContext(SpawnContext):
    """Python's spawn context, with `threads` OpenMP and BLAS threads per process.

    At most one process per core imports at a time. Four workers on two cores would finish importing at the same time,
    and the first batch, made by the first worker, would be delayed until then.
    """

    def __init__(self, threads: int) -> None:
        _require_main_guard()
        self.threads = threads
        self._importing: list[Connection] = []

    def Process(self, *arguments: Any, **keywords: Any) -> SpawnedWorker:  # type: ignore[override]
        """Return a process that has not started; wait until fewer processes are importing than there are cores."""
        self._await_core()
        worker = SpawnedWorker(*arguments, **keywords)
        worker.prepare(self.threads)
        importing, worker.importing = Pipe(duplex=False)
        self._importing.append(importing)
        return worker

    def _await_core(self) -> None:
        while len(self._importing) >= available_cores():
            # A worker that exceeds the limit may hang, which is detected by the process that waits for its batch.
            for connection in wait(self._importing, timeout=IMPORT_LIMIT_S) or tuple(self._importing):
                self._importing.remove(connection)  # type: ignore[arg-type]
                connection.close()  # type: ignore[union-attr]


class ForkServingContext(ForkServerContext):
    """Python's forkserver context, with `threads` OpenMP and BLAS threads per process."""

    def __init__(self, threads: int) -> None:
        _require_main_guard()
        self.threads = threads

    def Process(self, *arguments: Any, **keywords: Any) -> ForkServedWorker:  # type: ignore[override]
        worker = ForkServedWorker(*arguments, **keywords)
        worker.prepare(self.threads)
        return worker


@contextmanager
def thread_environment(threads: int) -> Iterator[None]:
    """Set the number of threads of processes started inside; libraries read the variable when they are loaded.

    In this process nothing reads the variable any more once torch is loaded.
    """
    with environment_lock:
        before = os.environ.get(THREADS_VARIABLE)
        os.environ[THREADS_VARIABLE] = str(threads)
        try:
            yield
        finally:
            if before is None:
                del os.environ[THREADS_VARIABLE]
            else:
                os.environ[THREADS_VARIABLE] = before


def end_with_trainer(trainer: Process | None) -> None:
    """Wait until the recorded training process has exited, then exit; without /proc nothing is recorded."""
    while trainer is None or is_same(trainer):
        time.sleep(CHECK_TRAINER_S)
    os._exit(1)


@contextmanager
def _stop_signals_blocked() -> Iterator[None]:
    """Block the stop signals in processes started inside, from their first instruction on.

    Processes inherit the signal mask. A handler would be missing during the start, and torch replaces the handler of
    SIGTERM. Signals to this process are delivered afterwards. The resource tracker must be running, because its start
    unblocks SIGINT and SIGTERM.
    """
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
