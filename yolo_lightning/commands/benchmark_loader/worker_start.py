"""Time to the first batch and memory of loader workers."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class WorkerStart:
    """Time from the start of loader workers to the first batch, and the memory of each worker."""

    first_batch_s: float
    private_bytes: tuple[int, ...]
    proportional_bytes: tuple[int, ...]  # PSS: private memory plus a share of the memory that several processes map


def time_first_batch(build: Callable[[], Any]) -> WorkerStart:
    """Build a loader, wait for its first batch, measure its workers and wait until they have exited."""
    other_processes = {process.pid for process in active_children()}
    started = time.perf_counter()
    batches = iter(build())
    next(batches)
    first_batch_s = time.perf_counter() - started
    workers = [process for process in active_children() if process.pid not in other_processes]
    start = _with_memory(first_batch_s, [worker.pid for worker in workers if worker.pid is not None])
    del batches
    for worker in workers:
        worker.join()
    return start


def measure_bound(workers: int) -> WorkerStart:
    """Start `workers` interpreters at once that only import torch; a lower bound for the start of spawned workers."""
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
        return _with_memory(time.perf_counter() - started, [process.pid for process in processes])
    finally:
        for process in processes:
            process.communicate()


def memory_of(process_id: int) -> tuple[int, int]:
    """Return the private memory and the PSS of a process in bytes; zeros if /proc does not report them."""
    try:
        lines = Path(f"/proc/{process_id}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return 0, 0
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return sizes["Private_Clean"] + sizes["Private_Dirty"], sizes["Pss"]


def _with_memory(first_batch_s: float, process_ids: Iterable[int]) -> WorkerStart:
    memory = [memory_of(process_id) for process_id in process_ids]
    return WorkerStart(first_batch_s, tuple(own for own, _ in memory), tuple(share for _, share in memory))
