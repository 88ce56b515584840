import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.callbacks.tiny_training import Interrupt, StopAt, fit
from tests.conftest import REPOSITORY
from tests.helpers.forks import Forks
from yolo_lightning.callbacks import HeartbeatFile, StallMonitor, stall_monitor
from yolo_lightning.supervision.kill import end
from yolo_lightning.supervision.processes import tree
from yolo_lightning.supervision.trainer import MARKER_VARIABLE
from yolo_lightning.utils.process_identity import Process, read_process

pytestmark = pytest.mark.whole_run  # real processes, seconds each


def test_monitor_without_heartbeat_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="StallMonitor needs the callback HeartbeatFile"):
        fit(tmp_path, StallMonitor(1000))


def test_monitor_is_not_armed_without_a_heartbeat(tmp_path: Path) -> None:
    (tmp_path / "heartbeat").mkdir()
    with pytest.warns(UserWarning, match="stalls are not detected"):
        assert fit(tmp_path, HeartbeatFile(), StallMonitor(1000)).steps == 4
    assert not (tmp_path / "incidents").exists()


def test_monitor_does_nothing_under_a_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARKER_VARIABLE, "token")
    monkeypatch.setattr(stall_monitor, "start_stall_process", lambda *_: pytest.fail("started"))
    fit(tmp_path, HeartbeatFile(), StallMonitor(1000))


def test_stacks_file_that_cannot_be_made_does_not_end_the_fit(tmp_path: Path) -> None:
    (tmp_path / "heartbeat.stacks").mkdir()
    with pytest.warns(UserWarning, match="no stacks after a stall inside a C call"):
        assert fit(tmp_path, HeartbeatFile(), StallMonitor(1000)).steps == 4


def test_failing_fit_leaves_no_incident(tmp_path: Path) -> None:
    with pytest.raises(Interrupt):
        fit(tmp_path, HeartbeatFile(), StallMonitor(1000), StopAt(0, 2))
    assert not (tmp_path / "incidents").exists()


SCRIPT = '''
"""Trains, and hangs at the place that the first argument names. A spawned worker imports little."""
import os
import signal
import sys
import time
from pathlib import Path

KIND, FOLDER, TIMEOUT_S = sys.argv[1], Path(sys.argv[2]), 2.5


def sleep_for_ever():
    while True:
        time.sleep(1000)


class Frames:
    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == 3 and KIND in ("main", "worker"):
            sleep_for_ever()
        return float(index)


def main():
    import ctypes
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from yolo_lightning.callbacks import HeartbeatFile, StallMonitor, stall_monitor

    class Monitor(StallMonitor):
        """Begins with the first step, after imports and the start of workers."""

        def setup(self, *arguments, **options):
            pass

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 0:
                super().setup(trainer, pl_module, "fit")

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, batch_idx):
            if KIND == "suspended" and batch_idx == 3:
                time.sleep(0.2)
                os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(0.2)
            if KIND == "lock" and batch_idx == 3:
                self.hold_the_interpreter_lock()
            return self.layer(batch.float().reshape(-1, 1)).sum()

        def hold_the_interpreter_lock(self):
            while True:
                ctypes.PyDLL(None).sleep(1000)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    workers = {"num_workers": 1, "multiprocessing_context": "spawn"} if KIND == "worker" else {}
    Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=FOLDER, callbacks=[HeartbeatFile(), Monitor(TIMEOUT_S)],
    ).fit(Module(), torch.utils.data.DataLoader(Frames(), batch_size=1, **workers))
    time.sleep(TIMEOUT_S + 1.0)  # longer than the timeout of an armed monitor


if __name__ == "__main__":
    main()
'''


class Run:
    """One started script with its output."""

    def __init__(self, kind: str, folder: Path, forks: Forks) -> None:
        script = folder / "train.py"
        script.write_text(SCRIPT)
        self.folder, self.kind = folder, kind
        self.process = forks.start(script, kind, folder, folder=folder, output=folder / "output.txt")
        self.code: int | None = None

    def wait(self) -> None:
        self.code = self.process.wait()

    def left_over(self) -> list[Process]:
        """Return the remaining processes; the resource tracker ends a moment after its parent."""
        end_s = time.monotonic() + 5
        while (processes := tree(self.process.pid)) and time.monotonic() < end_s:
            time.sleep(0.1)
        return processes

    def incident(self) -> dict[str, Any]:
        (path,) = (self.folder / "incidents").glob("*/incident.json")
        content: dict[str, Any] = json.loads(path.read_text())
        return content

    def stacks(self) -> str:
        (path,) = (self.folder / "incidents").glob("*/stacks.txt")
        return path.read_text()

    def text(self) -> str:
        return (self.folder / "output.txt").read_text()

    def end(self) -> None:
        """End all processes of this test."""
        end(tree(self.process.pid))


def continue_suspended(process: int) -> None:
    """Continue a process that stops itself, after the timeout."""
    while (reading := read_process(process)) and reading.state not in "TZ":
        time.sleep(0.05)
    time.sleep(4.0)
    os.kill(process, signal.SIGCONT)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Iterator[dict[str, Run]]:
    """Run all five scripts at once, because they mostly wait."""
    started = {
        kind: Run(kind, tmp_path_factory.mktemp(kind), forks)
        for kind in ("main", "worker", "lock", "healthy", "suspended")
    }
    try:
        continue_suspended(started["suspended"].process.pid)
        for run in started.values():
            run.wait()
        yield started
    finally:
        for run in started.values():
            run.end()


STALLED = {"main": "sleep_for_ever", "lock": "hold_the_interpreter_lock", "worker": "_next_data"}
"""Function in the stacks of each script that hangs."""


@pytest.mark.parametrize("kind", STALLED)
def test_stalled_process_is_killed_and_its_stacks_are_kept(runs: dict[str, Run], kind: str) -> None:
    assert runs[kind].code == -signal.SIGKILL, runs[kind].text()
    assert STALLED[kind] in runs[kind].stacks()
    assert runs[kind].left_over() == []


@pytest.mark.parametrize(("kind", "phase"), [("main", "fetch"), ("worker", "fetch"), ("lock", "step")])
def test_report_and_message_name_phase_and_batch(runs: dict[str, Run], kind: str, phase: str) -> None:
    incident, text = runs[kind].incident(), runs[kind].text()
    assert (incident["phase"], incident["epoch"], incident["batch"]) == (phase, 0, 3)
    assert (incident["process"], incident.get("launch")) == (runs[kind].process.pid, None)
    assert f"in phase {phase}, epoch 1, batch 3, step 3: the trainer" in text
    assert f"stacks in {runs[kind].folder}/incidents/" in text
    assert "; nothing was saved yet\n" in text


def test_monitor_ends_with_the_process_that_it_watches() -> None:
    code = (
        "import os\nfrom pathlib import Path\n"
        "from yolo_lightning.supervision.stall_process import StallJob, start_stall_process\n"
        "started = start_stall_process(StallJob(os.getpid(), '.', '.', 1000.0, 0, 1, {}))\n"
        "print(started.pid, flush=True)\nos._exit(0)"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    end_s = time.monotonic() + 30
    while Path(f"/proc/{int(done.stdout)}").exists():
        assert time.monotonic() < end_s
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["suspended", "healthy"])
def test_suspended_and_healthy_runs_end_normally(runs: dict[str, Run], kind: str) -> None:
    assert runs[kind].code == 0, runs[kind].text()
    assert not (runs[kind].folder / "incidents").exists()
