"""How many spawned workers import at a time."""

import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.helpers.slow_import import SlowImport, work
from yolo_lightning.data import worker_processes
from yolo_lightning.data.worker_processes import SpawnedWorker, SpawningContext

LONG_S = 1000.0
"""Longer than any test may take."""


def start(context: SpawningContext, what: SlowImport) -> SpawnedWorker:
    worker = context.Process(target=work, args=(what,))
    worker.start()
    return worker


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_processes, "available_cores", lambda: 1)
    monkeypatch.setattr(worker_processes, "IMPORT_LIMIT_S", LONG_S)


def test_no_more_workers_import_at_once_than_there_are_cores(tmp_path: Path) -> None:
    context = SpawningContext(1)
    for worker in [start(context, SlowImport(tmp_path, 0.2)) for _ in range(3)]:
        worker.join()
        assert worker.exitcode == 0
    times = sorted([float(word) for word in note.read_text().split()] for note in tmp_path.iterdir())
    assert len(times) == 3
    assert all(before[1] <= after[0] for before, after in pairwise(times))


def test_worker_that_dies_while_it_imports_keeps_nobody_waiting(tmp_path: Path) -> None:
    context = SpawningContext(1)
    dead, alive = start(context, SlowImport(tmp_path, fails=True)), start(context, SlowImport(tmp_path))
    dead.join()
    alive.join()
    assert (dead.exitcode, alive.exitcode) == (3, 0)


def test_worker_that_hangs_while_it_imports_keeps_the_next_one_waiting_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_processes, "IMPORT_LIMIT_S", 0.2)
    context = SpawningContext(1)
    began_s = time.monotonic()
    hung, alive = start(context, SlowImport(tmp_path, LONG_S)), start(context, SlowImport(tmp_path))
    waited_s = time.monotonic() - began_s
    alive.join()
    hung.kill()
    hung.join()
    assert waited_s >= 0.2
    assert alive.exitcode == 0
