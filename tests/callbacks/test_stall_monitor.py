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
from yolo_lightning.callbacks import StallMonitor
from yolo_lightning.callbacks.stall_monitor import (
    LastProgress,
    MonitoredPhase,
    remove_incident_without_stacks,
    stall_reason,
)
from yolo_lightning.utils.exit_codes import ExitCode


@pytest.mark.parametrize(
    ("now", "stalled"), [(100.0, False), (109.99, False), (110.0, True), (500.0, True), (99.0, False)]
)
def test_a_stall_begins_when_the_time_is_over(now: float, stalled: bool) -> None:
    progress = LastProgress(MonitoredPhase.FETCH, epoch=3, batch=17, since_s=100.0)
    assert (stall_reason(progress, now, timeout_s=10.0) is not None) == stalled


@pytest.mark.parametrize("phase", list(MonitoredPhase))
def test_reason_names_times_phase_epoch_and_batch(phase: MonitoredPhase) -> None:
    reason = stall_reason(LastProgress(phase, epoch=3, batch=17, since_s=100.0), 142.0, timeout_s=30.0)
    assert reason == f"no progress for 42 s (allowed 30 s) in phase '{phase.value}', epoch 3, batch 17"


def test_no_time_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="timeout_s is 0"):
        StallMonitor(0)


def test_healthy_fit_leaves_no_incident(tmp_path: Path) -> None:
    fit(tmp_path, StallMonitor(1000))
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_made_does_not_end_the_fit(tmp_path: Path) -> None:
    (tmp_path / "incidents").write_text("no folder")
    with pytest.warns(UserWarning, match="stacks of a stall go to stderr"):
        assert fit(tmp_path, StallMonitor(1000)).steps == 4


def test_failing_fit_leaves_no_incident(tmp_path: Path) -> None:
    with pytest.raises(Interrupt):
        fit(tmp_path, StallMonitor(1000), StopAt(0, 2))
    assert list(tmp_path.iterdir()) == []


def test_disarming_leaves_older_incidents(tmp_path: Path) -> None:
    older = tmp_path / "incidents/20200101-000000/stacks.txt"
    older.parent.mkdir(parents=True)
    older.write_text("stacks")
    fit(tmp_path, StallMonitor(1000))
    assert [path.name for path in (tmp_path / "incidents").iterdir()] == ["20200101-000000"]


SCRIPT = '''
"""Trains, and hangs where the first argument says. The import of a spawned worker stays small."""
import os
import signal
import sys
import time
from pathlib import Path

KIND, FOLDER = sys.argv[1], Path(sys.argv[2])


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
    from yolo_lightning.callbacks import stall_monitor

    stall_monitor.GRACE_S = 1.0
    monitor = stall_monitor.StallMonitor(100.0)  # imports and workers may take their time

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, batch_idx):
            monitor.timeout_s = 1.5
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
        enable_model_summary=False, default_root_dir=FOLDER, callbacks=[monitor],
    ).fit(Module(), torch.utils.data.DataLoader(Frames(), batch_size=1, **workers))
    time.sleep(3.5)  # both watchers would have ended an armed process by now


if __name__ == "__main__":
    main()
'''


def session_members(session: int) -> list[int]:
    """Processes of a session; zombies are gone already."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, number = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except (OSError, ValueError):
                continue
            if int(number) == session and state != "Z":
                members.append(int(entry.name))
    return members


class Run:
    """One script that was started, and what it left."""

    def __init__(self, kind: str, folder: Path, forks: Forks) -> None:
        script = folder / "train.py"
        script.write_text(SCRIPT)
        self.folder, self.kind = folder, kind
        self.process = forks.start(script, kind, folder, folder=folder, output=folder / "output.txt")
        self.code: int | None = None

    def wait(self) -> None:
        self.code = self.process.wait()

    def left_over(self) -> list[int]:
        """Processes still there; the resource tracker ends a moment after its parent."""
        for _ in range(50):
            if not session_members(self.process.pid):
                break
            time.sleep(0.1)
        return session_members(self.process.pid)

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
        """Leave nothing behind, whatever failed; these are this test's own processes."""
        for number in session_members(self.process.pid):
            os.kill(number, 9)


def continue_suspended(process: int) -> None:
    """Let a process that stops itself go on after longer than both watchers would have waited."""
    stat = Path(f"/proc/{process}/stat")
    while stat.is_file() and stat.read_text().rpartition(")")[2].split()[0] not in "TZ":
        time.sleep(0.05)
    time.sleep(4.0)
    os.kill(process, signal.SIGCONT)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Iterator[dict[str, Run]]:
    """All five at once, as they mostly wait."""
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


@pytest.mark.parametrize("kind", ["main", "worker"])
def test_stalled_process_ends_by_itself_with_its_own_code(runs: dict[str, Run], kind: str) -> None:
    assert runs[kind].code == ExitCode.STALLED == 75, runs[kind].text()


def test_process_whose_interpreter_lock_is_held_ends_by_itself(runs: dict[str, Run]) -> None:
    assert runs["lock"].code not in (0, None)


@pytest.mark.parametrize(("kind", "function"), [("main", "sleep_for_ever"), ("lock", "hold_the_interpreter_lock")])
def test_stacks_name_the_function_that_hangs(runs: dict[str, Run], kind: str, function: str) -> None:
    assert function in runs[kind].stacks()


def test_stacks_name_the_wait_for_a_worker(runs: dict[str, Run]) -> None:
    assert "_next_data" in runs["worker"].stacks()


@pytest.mark.parametrize("kind", ["main", "worker"])
def test_incident_names_phase_and_batch(runs: dict[str, Run], kind: str) -> None:
    incident = runs[kind].incident()
    assert (incident["phase"], incident["epoch"], incident["batch"]) == ("wait for a batch", 0, 3)


def test_incident_names_process_and_workers(runs: dict[str, Run]) -> None:
    assert runs["main"].incident()["process"] == runs["main"].process.pid
    assert runs["main"].incident()["workers"] == {}
    assert len(runs["worker"].incident()["workers"]) == 1


def test_message_says_where_the_stacks_are_and_that_nothing_was_saved(runs: dict[str, Run]) -> None:
    text = runs["main"].text()
    assert "stalled: no progress for" in text
    assert f"{runs['main'].folder}/incidents/" in text
    assert text.rstrip().endswith("nothing was saved yet")


def test_last_resort_ends_with_the_process_that_it_watches(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\nfrom yolo_lightning.supervision.last_resort import LastResort\n"
        "print(LastResort(1000.0, 12)._child.pid, flush=True)\nos._exit(0)"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    end_s = time.monotonic() + 30
    while Path(f"/proc/{int(done.stdout)}").exists():
        assert time.monotonic() < end_s
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["main", "worker", "lock"])
def test_no_process_is_left(runs: dict[str, Run], kind: str) -> None:
    assert runs[kind].left_over() == []


def test_time_in_which_the_process_was_suspended_is_no_stall(runs: dict[str, Run]) -> None:
    assert runs["suspended"].code == 0, runs["suspended"].text()
    assert not (runs["suspended"].folder / "incidents").exists()


def test_healthy_run_disarms_and_leaves_no_incident(runs: dict[str, Run]) -> None:
    assert runs["healthy"].code == 0, runs["healthy"].text()
    assert not (runs["healthy"].folder / "incidents").exists()


def test_only_incidents_without_stacks_are_removed(tmp_path: Path) -> None:
    for name, content in (("killed", ""), ("stalled", "Thread 0x1")):
        (tmp_path / "incidents" / name).mkdir(parents=True)
        (tmp_path / "incidents" / name / "stacks.txt").write_text(content)
        remove_incident_without_stacks(tmp_path / "incidents" / name)
    assert [folder.name for folder in (tmp_path / "incidents").iterdir()] == ["stalled"]
    remove_incident_without_stacks(tmp_path / "incidents" / "stalled")
    assert (tmp_path / "incidents" / "stalled" / "stacks.txt").is_file()
