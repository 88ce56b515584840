"""The guard that the script of the user needs, and workers whose training process is killed."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from yolo_lightning.data.worker_processes import SpawningContext, _require_main_guard

SCRIPT = """
from yolo_lightning.data.worker_processes import ForkServingContext, SpawningContext

def start():
    for context in (SpawningContext, ForkServingContext):
        context().Process(
            target=print
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


def test_a_program_that_is_not_a_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python - < program.py`: workers cannot import the program."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "<stdin>", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    _require_main_guard.cache_clear()
    with pytest.raises(SystemExit, match=r"<stdin> is not a file\. Save the program as a file, or"):
        SpawningContext().Process(target=print)


def test_main_module_of_a_package_needs_no_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "__main__.py").write_text(SCRIPT.format("start()"))
    done = subprocess.run([sys.executable, "-m", "tool"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


KILLED_WHILE_A_WORKER_STARTS = """
import sys, time
from tests.helpers.slow_import import SlowImport, wait
from yolo_lightning.data.worker_processes import ForkServingContext, SpawningContext

if __name__ == "__main__":
    context = {"spawn": SpawningContext, "forkserver": ForkServingContext}[sys.argv[1]]()
    context.Process(target=wait, args=(SlowImport(3.0),)).start()
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
        [sys.executable, str(script), context], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.kill()
    process.wait()
    # All processes have the output open: worker, resource tracker, fork server.
    assert select.select([process.stdout], [], [], 20)[0], "a process is left"
    assert process.stdout.read() == ""
