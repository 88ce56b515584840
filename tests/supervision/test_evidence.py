"""Real processes: torch's loader with a worker that hangs, a process in the kernel, a folder that cannot be written."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from yolo_lightning.supervision.classify import Evidence, StallClass, describe
from yolo_lightning.supervision.evidence import Request, collect, keep
from yolo_lightning.supervision.heartbeat import NOT_STARTED, Heartbeat, Phase
from yolo_lightning.supervision.helper_process import Helper
from yolo_lightning.supervision.kill import kill_tree
from yolo_lightning.utils.process_identity import read_process
from yolo_lightning.utils.run_files import stacks_path

needs_py_spy = pytest.mark.skipif(
    not (Path(sys.executable).with_name("py-spy").exists() or shutil.which("py-spy")), reason="py-spy is not installed"
)
MARKER_VARIABLE, MARKER = "YOLO_LIGHTNING_TEST_MARKER", f"evidence-{os.getpid()}"
IN_FETCH = replace(NOT_STARTED, phase=Phase.FETCH)
IN_STEP = replace(NOT_STARTED, phase=Phase.STEP)

LOADER = """
import os, signal, sys
from torch.utils.data import DataLoader

class Frames:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            open(sys.argv[1], "w").write(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        return index

if __name__ == "__main__":
    for batch in DataLoader(Frames(), batch_size=1, num_workers=2, multiprocessing_context="spawn"):
        print(int(batch), flush=True)
"""
LOADS_WITHOUT_WORKERS = """
import time

class Frames:
    def __getitem__(self, index):
        if index == 5:
            time.sleep(1000)
        print(index, flush=True)

frames = Frames()
for number in range(8):
    frames[number]
"""
IN_KERNEL = "import ctypes, sys; lib = ctypes.CDLL(sys.argv[1]); print('4', flush=True); lib.dsleep()"
STUCK_IN_VFORK = "#include <unistd.h>\nvoid dsleep(void) { if (vfork() == 0) for (;;) sleep(1000); }\n"


class Started:
    def __init__(self, *command: str) -> None:
        environment = os.environ | {MARKER_VARIABLE: MARKER, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, *command], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def wait_for(self, line: str) -> None:
        assert self.process.stdout is not None
        while self.process.stdout.readline().strip() != line:
            assert self.process.poll() is None

    def wait_for_state(self, pids: list[int], state: str) -> None:
        end_s = time.monotonic() + 60
        while not any((process := read_process(pid)) and process.state == state for pid in pids):
            assert time.monotonic() < end_s
            time.sleep(0.05)

    def look(self, folder: Path, heartbeat: Heartbeat) -> Evidence:
        disk = Helper()
        try:
            return collect(
                Request(folder / "incident", disk, self.process.pid, folder / "heartbeat", heartbeat, (), 10.0)
            )
        finally:
            disk.close(10.0)

    def end(self) -> None:
        kill_tree(self.process.pid, f"{MARKER_VARIABLE}={MARKER}")
        self.process.wait()


@pytest.fixture
def started() -> Iterator[list[Started]]:
    running: list[Started] = []
    yield running
    for trainer in running:
        trainer.end()


@pytest.mark.whole_run
@needs_py_spy
def test_fault_4_torchs_loader_names_the_worker_that_is_stopped(started: list[Started], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOADER)
    started.append(Started(str(script), str(tmp_path / "hangs")))
    trainer = started[0]
    trainer.wait_for("1")
    end_s = time.monotonic() + 60
    while not (tmp_path / "hangs").is_file() or not (tmp_path / "hangs").read_text():
        assert time.monotonic() < end_s
        time.sleep(0.05)
    worker = int((tmp_path / "hangs").read_text())
    trainer.wait_for_state([worker], "T")
    time.sleep(1.0)  # until the main process waits for the batch
    diagnosis = describe(trainer.look(tmp_path, IN_FETCH), StallClass.LOADER_STALL)
    assert f"worker process {worker} (" in diagnosis.sentence
    assert "has not delivered the batch; it is in __getitem__" in diagnosis.sentence
    assert diagnosis.suspect == "index=5"


@needs_py_spy
@pytest.mark.parametrize(("phase", "suspect"), [(Phase.FETCH, "index=5"), (Phase.STEP, "")], ids=["load", "step"])
def test_sample_at_which_a_trainer_without_workers_hangs(
    started: list[Started], tmp_path: Path, phase: Phase, suspect: str
) -> None:
    started.append(Started("-c", LOADS_WITHOUT_WORKERS))
    trainer = started[0]
    trainer.wait_for("4")
    trainer.wait_for_state([trainer.process.pid], "S")
    diagnosis = describe(trainer.look(tmp_path, replace(NOT_STARTED, phase=phase)), StallClass.LOADER_STALL)
    assert diagnosis.suspect == suspect
    assert "it has no workers" in diagnosis.sentence


@needs_py_spy
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_fault_14_process_in_the_kernel_does_not_hold_up_the_evidence(started: list[Started], tmp_path: Path) -> None:
    (tmp_path / "dstate.c").write_text(STUCK_IN_VFORK)
    library = tmp_path / "dstate.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O0", "-o", str(library), str(tmp_path / "dstate.c")], check=True)
    started.append(Started("-c", IN_KERNEL, str(library)))
    trainer = started[0]
    trainer.wait_for("4")
    trainer.wait_for_state([trainer.process.pid], "D")
    began_s = time.monotonic()
    evidence = trainer.look(tmp_path, IN_STEP)
    assert time.monotonic() - began_s < 20
    assert evidence.trainer.state == "D"
    assert evidence.trainer.stack[0].function == "<module>"
    assert "state D" in describe(evidence, StallClass.COMPUTATION).sentence


def test_folder_that_cannot_be_written_costs_no_evidence(started: list[Started], tmp_path: Path) -> None:
    (tmp_path / "incident").write_text("a file where the folder should be")
    started.append(Started("-c", "import time; print('up', flush=True); time.sleep(1000)"))
    started[0].wait_for("up")
    evidence = started[0].look(tmp_path, IN_STEP)
    assert (evidence.trainer.pid, evidence.trainer.state) == (started[0].process.pid, "S")


def test_stacks_are_asked_only_of_a_trainer_that_listens(started: list[Started], tmp_path: Path) -> None:
    """The signal would end a process that has not armed faulthandler."""
    started.append(Started("-c", "import time; print('up', flush=True); time.sleep(1000)"))
    started[0].wait_for("up")
    pid = started[0].process.pid
    stacks_path(tmp_path / "heartbeat").write_text("")
    says_nothing = Heartbeat(pid, 1, 0, 2, 0, 0, 0, Phase.STEP, 0.0, {}, ())
    without_handler = replace(says_nothing, stacks_signal=int(signal.SIGUSR2))  # Lightning removes it after a fit
    for heartbeat in (NOT_STARTED, says_nothing, replace(without_handler, process=pid + 1), without_handler):
        started[0].look(tmp_path, heartbeat)
        assert started[0].process.poll() is None


def test_credentials_are_hidden_in_every_part(tmp_path: Path) -> None:
    disk = Mock()
    Request(tmp_path, disk, 1, tmp_path, NOT_STARTED, (), 1.0).keep(
        "log.txt", 'fit --x "https://u:SECRET@h/services/aB3dE6gH9jK1mN4pSECRET?key=SECRET"'
    )
    disk.post.assert_called_once_with(keep, tmp_path / "log.txt", 'fit --x "https://***@h/services/***?***"')
