import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from yolo_lightning.supervision import helper_process as bounded_work
from yolo_lightning.supervision.helper_process import bounded


def test_result_comes_back_however_long() -> None:
    assert bounded(lambda: "x" * 1_000_000, 20) == "x" * 1_000_000
    assert bounded(lambda: 0, 20) == 0


def test_failure_is_nothing() -> None:
    assert bounded(lambda: 1 / 0, 20) is None
    assert bounded(lambda: os._exit(3), 20) is None
    assert bounded(lambda: os.kill(os.getpid(), signal.SIGKILL), 20) is None


def children() -> set[str]:
    """Processes that this one has started; other tests may have left a fork server or a tracker."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_work_that_never_returns_is_left_and_ended() -> None:
    before, began_s = children(), time.monotonic()
    assert bounded(lambda: time.sleep(1000), 0.2) is None
    assert 0.2 <= time.monotonic() - began_s < 10
    while children() != before and time.monotonic() - began_s < 30:
        bounded(lambda: 0, 1)  # reads the exit code of the killed child, which ends later on a busy machine
    assert children() == before


def test_children_that_hang_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL that does nothing stands for children that wait in the kernel."""
    kill, hung = os.kill, []
    monkeypatch.setattr(bounded_work.os, "kill", lambda child, number: hung.append(child))
    try:
        for _ in range(3 * bounded_work.MOST_LEFT):
            assert bounded(lambda: time.sleep(1000), 0.01) is None
        assert len(hung) == bounded_work.MOST_LEFT
        assert bounded(lambda: 1, 20) is None
    finally:
        for child in hung:
            kill(child, signal.SIGKILL)
    monkeypatch.undo()
    end_s = time.monotonic() + 20
    while bounded(lambda: 1, 20) != 1:
        assert time.monotonic() < end_s
    assert {child for child in hung if Path(f"/proc/{child}").exists()} <= bounded_work._left


def test_child_holds_no_file_of_its_parent(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as file:
        number = file.fileno()
        assert bounded(lambda: Path(f"/proc/self/fd/{number}").exists(), 20) is False
        assert bounded(lambda: Path("/proc/self/fd/2").exists(), 20) is True


def test_supervisors_handlers_are_not_the_childs() -> None:
    code = (
        "import os, signal, time\n"
        "from yolo_lightning.supervision.helper_process import bounded\n"
        "signal.signal(signal.SIGTERM, lambda *a: print('handled'))\n"
        "print(bounded(lambda: os.kill(os.getpid(), signal.SIGTERM), 20))\n"
    )
    root = Path(__file__).resolve().parent.parent.parent
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"
