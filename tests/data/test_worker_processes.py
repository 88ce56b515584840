"""Spawned workers: how many import at a time, and the guard that the script of the user needs."""

import os
import select
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
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


SCRIPT = """
from yolo_lightning.data.worker_processes import ForkServingContext, SpawningContext

def start():
    for context in (SpawningContext, ForkServingContext):
        context(
            1
        )

{}
"""


@pytest.mark.parametrize(
    ("statement", "is_refused"),
    [
        ("start()", True),
        ("with open(__file__):\n    start()", True),
        ('if __name__ == "__main__":\n    start()', False),
        ("import os\nif os.environ:\n    try:\n        start()\n    finally:\n        pass", False),
    ],
)
@pytest.mark.parametrize("as_module", [False, True])
def test_script_without_the_guard_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, is_refused: bool, as_module: bool
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    (tmp_path / "train.py").write_text(SCRIPT.format(statement))
    words = ["-m", "train"] if as_module else ["train.py"]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == (1 if is_refused else 0)
    assert len(done.stderr.splitlines()) == is_refused
    assert ('Put its statements under if __name__ == "__main__":' in done.stderr) == is_refused


def test_main_module_of_a_package_needs_no_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "__main__.py").write_text(SCRIPT.format("start()"))
    done = subprocess.run([sys.executable, "-m", "tool"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


KILLED_WHILE_A_WORKER_STARTS = """
import sys, time
from pathlib import Path
from tests.helpers.slow_import import SlowImport, wait
from yolo_lightning.data.worker_processes import ForkServingContext, SpawningContext

if __name__ == "__main__":
    context = {"spawn": SpawningContext, "forkserver": ForkServingContext}[sys.argv[1]](1)
    context.Process(target=wait, args=(SlowImport(Path(sys.argv[2]), 3.0),)).start()
    print("started", flush=True)
    time.sleep(1000)
"""


@pytest.mark.whole_run
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_worker_ends_if_the_training_process_is_killed_while_it_imports(context: str, tmp_path: Path) -> None:
    script = tmp_path / "starts.py"
    script.write_text(KILLED_WHILE_A_WORKER_STARTS)
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(
        [sys.executable, str(script), context, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.kill()
    process.wait()
    # All processes have the output open: worker, resource tracker, fork server.
    assert select.select([process.stdout], [], [], 20)[0], "a process is left"
    assert process.stdout.read() == ""
