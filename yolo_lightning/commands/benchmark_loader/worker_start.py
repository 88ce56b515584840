"""How soon loader workers deliver, and what they hold in memory."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class WorkerStart:
    """How workers began.

    Attributes:
        first_batch_s: Seconds from the start of the workers to the first batch.
        private_bytes: Memory of each worker that it shares with nobody, bytes.
        proportional_bytes: The same, plus its share of what several processes map (PSS), bytes.
    """

    first_batch_s: float
    private_bytes: tuple[int, ...]
    proportional_bytes: tuple[int, ...]


def watch_start(build: Callable[[], Any]) -> WorkerStart:
    """Build a loader, wait for its first batch, look at its workers and let them end."""
    strangers = {process.pid for process in active_children()}
    started = time.perf_counter()
    batches = iter(build())
    next(batches)
    first_batch_s = time.perf_counter() - started
    processes = [process for process in active_children() if process.pid not in strangers]
    memory = [memory_of(process.pid) for process in processes if process.pid is not None]
    del batches
    for process in processes:
        process.join()
    return WorkerStart(first_batch_s, tuple(own for own, _ in memory), tuple(share for _, share in memory))


def floor_of(workers: int) -> WorkerStart:
    """As many interpreters at once as there would be workers, each of which imports torch and nothing else."""
    code = "import torch, sys; print(flush=True); sys.stdin.read()"
    started = time.perf_counter()
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(workers)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        first_batch_s = time.perf_counter() - started
        memory = [memory_of(process.pid) for process in processes]
    finally:
        for process in processes:
            process.communicate()
    return WorkerStart(first_batch_s, tuple(own for own, _ in memory), tuple(share for _, share in memory))


def memory_of(process_id: int) -> tuple[int, int]:
    """Private and proportional memory of a process, bytes; 0 where the system does not tell."""
    try:
        lines = Path(f"/proc/{process_id}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return 0, 0
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return sizes["Private_Clean"] + sizes["Private_Dirty"], sizes["Pss"]
