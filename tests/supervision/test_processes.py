"""A fake process table."""

import os
from pathlib import Path

import pytest

from yolo_lightning.supervision import processes
from yolo_lightning.supervision.processes import loader_workers
from yolo_lightning.utils import process_identity
from yolo_lightning.utils.process_identity import read_process, started_ticks


def stat(pid: int, name: str, state: str, parent: int = 1, pages: int = 0, ticks: int = 0) -> str:
    fields = [state, parent, 0, 100, *[0] * 13, 1, 0, ticks, 0, pages, 0]  # from field 3 of proc(5) on
    return f"{pid} ({name}) {' '.join(map(str, fields))}"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (processes, process_identity):
        monkeypatch.setattr(module, "PROC", tmp_path)
    return tmp_path


def add(table: Path, pid: int, *arguments: object) -> None:
    (table / str(pid)).mkdir()
    (table / str(pid) / "stat").write_text(stat(pid, *arguments))  # type: ignore[arg-type]


def test_workers_are_told_from_other_children(table: Path) -> None:
    add(table, 11, "python", "S", 10)  # multiprocessing's resource tracker
    add(table, 12, "pt_data_worker", "S", 10, 100)
    add(table, 14, "pt_data_worker", "T", 10, 200)
    add(table, 15, "pt_data_worker", "S", 13)
    page = os.sysconf("SC_PAGESIZE")
    workers = [(worker.pid, worker.state, worker.memory_bytes) for worker in loader_workers(10)]
    assert sorted(workers) == [(12, "S", 100 * page), (14, "T", 200 * page)]
    assert loader_workers(99) == []


def test_name_with_brackets_is_read(table: Path) -> None:
    add(table, 7, "a) b (c", "D", 1, 1, 4711)
    process = read_process(7)
    assert process is not None
    assert (process.name, process.state, process.started_ticks, process.session) == ("a) b (c", "D", 4711, 100)
    assert (started_ticks(7), started_ticks(8)) == (4711, 0)
