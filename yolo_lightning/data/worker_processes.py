"""Worker processes of a loader: how they start and end. A worker imports this file, so it imports nothing heavy."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe, parent_process, popen_forkserver, popen_spawn_posix, resource_tracker, util
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess, SpawnContext, SpawnProcess
from threading import Lock, Thread
from typing import Any

from yolo_lightning.utils.host import available_cores
from yolo_lightning.utils.stop_signals import STOP_SIGNALS

THREADS_VARIABLE = "OMP_NUM_THREADS"
"""Read once by OpenMP (torch) and OpenBLAS (NumPy), when a process loads them."""

PRELOADED = ["yolo_lightning.data.dataset"]
"""What the fork server imports once for all workers; torch above all, two seconds and 300 MB."""

IMPORT_LIMIT_S = 30.0
"""How long a worker that imports may keep the next one from starting."""

environment_lock = Lock()


class SpawnedPopen(popen_spawn_posix.Popen):
    """Kills where it would send SIGTERM, which workers ignore."""

    def terminate(self) -> None:
        """Send SIGKILL."""
        self.kill()


class ForkServedPopen(popen_forkserver.Popen):
    """Kills where it would send SIGTERM, which workers ignore."""

    def terminate(self) -> None:
        """Send SIGKILL."""
        self.kill()


class SpawnedWorker(SpawnProcess):
    """A process that finds its number of threads in its environment, and ignores SIGINT and SIGTERM.

    Attributes:
        threads: OpenMP and BLAS threads.
        importing: Its end of a pipe, closed as soon as all that it needs is imported, or when it dies.
    """

    threads = 1
    importing: Connection

    def start(self) -> None:
        """Start; the environment is as it was when this returns."""
        with thread_environment(self.threads), stop_signals_blocked():
            super().start()
        self.importing.close()

    @staticmethod
    def _Popen(process: SpawnProcess) -> SpawnedPopen:  # type: ignore[override]
        return SpawnedPopen(process)

    def run(self) -> None:
        """Work, and end without tearing the interpreter down.

        The thread that sends batches may be inside torch at that moment, as it is when an iterator is dropped within an
        epoch; Python would unwind it through C++ code that may not be unwound, which aborts the process.
        """
        self.importing.close()
        super().run()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


class ForkServedWorker(ForkServerProcess):
    """The same, copied from the fork server; the first one starts the server, which keeps its environment."""

    threads = 1

    def start(self) -> None:
        """Start the server if there is none, and the process."""
        ForkServerContext().set_forkserver_preload(PRELOADED)
        with thread_environment(self.threads), stop_signals_blocked():
            super().start()

    def run(self) -> None:
        """Work, and end when the training process dies.

        torch compares the parent's id, which is that of the fork server; the server lives as long as its workers do.
        """
        Thread(target=end_with_parent, name="end with parent", daemon=True).start()
        super().run()

    @staticmethod
    def _Popen(process: ForkServerProcess) -> ForkServedPopen:  # type: ignore[override]
        return ForkServedPopen(process)


class SpawningContext(SpawnContext):
    """Python's spawn context, whose processes have `threads` threads.

    No more of them import at once than there are cores: four on two cores would all be ready when the last one is, and
    the first batch, which is the first worker's, would wait as long.

    Args:
        threads: OpenMP and BLAS threads of each process.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._importing: list[Connection] = []

    def Process(self, *arguments: Any, **keywords: Any) -> SpawnedWorker:  # type: ignore[override]
        """A process that has not started yet; waits until a core is free to start it on."""
        self._await_core()
        share_temporary_folder()
        worker = SpawnedWorker(*arguments, **keywords)
        worker.threads = self.threads
        importing, worker.importing = Pipe(duplex=False)
        self._importing.append(importing)
        return worker

    def _await_core(self) -> None:
        while len(self._importing) >= available_cores():
            # All that are not heard of in this time may hang: whoever needs their batches finds out, not we.
            for connection in wait(self._importing, timeout=IMPORT_LIMIT_S) or tuple(self._importing):
                self._importing.remove(connection)  # type: ignore[arg-type]
                connection.close()  # type: ignore[union-attr]


class ForkServingContext(ForkServerContext):
    """Python's forkserver context, whose processes have `threads` threads.

    Args:
        threads: OpenMP and BLAS threads of each process.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def Process(self, *arguments: Any, **keywords: Any) -> ForkServedWorker:  # type: ignore[override]
        """A process that has not started yet."""
        share_temporary_folder()
        worker = ForkServedWorker(*arguments, **keywords)
        worker.threads = self.threads
        return worker


@contextmanager
def thread_environment(threads: int) -> Iterator[None]:
    """Let processes started inside have `threads` threads: libraries read the variable when they are loaded.

    Other threads of this process that start processes at the same moment would hand the value on; nothing else reads
    it once torch is loaded.
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


def end_with_parent() -> None:
    """Wait until the process that started this one has died, and exit at once."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Let processes started inside ignore SIGINT and SIGTERM from their first instruction on.

    A process inherits the signal mask; a handler would be missing while it starts, and torch replaces the handler of
    SIGTERM. A signal that arrives here meanwhile is delivered afterwards. The resource tracker must be running, as
    starting the tracker unblocks both signals.
    """
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def share_temporary_folder() -> None:
    """Let workers put their sockets into the temporary folder of this process, which deletes the folder when it exits.

    A process inherits the name of the folder, if there is one; a worker that has a folder of its own leaves it behind.
    """
    util.get_temp_dir()
