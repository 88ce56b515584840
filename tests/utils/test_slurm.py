"""Tasks of a SLURM job are recognized, and the first one requeues the job."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from yolo_lightning.errors import UserError
from yolo_lightning.utils.distributed import launch_id
from yolo_lightning.utils.slurm import is_slurm_task, requeued, require_whole_launch

TASK = {"SLURM_JOB_ID": "71", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_NAME": "train"}


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    for name, value in TASK.items():
        monkeypatch.setenv(name, value)
    handler = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGUSR1, handler)


@pytest.mark.usefixtures("task")
@pytest.mark.parametrize(("name", "value"), [("SLURM_NTASKS", "1"), ("SLURM_JOB_NAME", "interactive")])
def test_job_of_one_task_and_interactive_job_are_no_launch(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    assert is_slurm_task()
    assert launch_id() == "slurm-71-0"
    monkeypatch.setenv(name, value)
    assert launch_id() is None


@pytest.mark.usefixtures("task")
def test_process_of_several_tasks_without_srun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"SLURM_NTASKS_PER_NODE must be set by --ntasks-per-node, got only --ntasks=2"):
        require_whole_launch()
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "2")
    require_whole_launch()
    monkeypatch.delenv("SLURM_STEP_ID")
    with pytest.raises(UserError, match=r"that srun has not started, got 2\. .* SLURM_JOB_NAME=interactive"):
        require_whole_launch()
    monkeypatch.setenv("SLURM_JOB_NAME", "interactive")
    require_whole_launch()


@pytest.mark.usefixtures("task")
def test_torchrun_in_a_job_is_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "launch-1")
    assert not is_slurm_task()
    assert launch_id() == "launch-1"


@pytest.mark.usefixtures("task")
@pytest.mark.parametrize(
    ("code", "rank", "text"), [(138, "0", "requeue 71\n"), (138, "1", ""), (143, "0", ""), (0, "0", "")]
)
def test_first_task_requeues_the_job_after_its_signal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, rank: str, text: str
) -> None:
    assert 128 + signal.SIGUSR1 == 138
    scontrol, record = tmp_path / "scontrol", tmp_path / "requeued"
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {record}\n')
    scontrol.chmod(0o755)
    record.touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("SLURM_PROCID", rank)
    with pytest.raises(SystemExit), requeued():
        raise SystemExit(code)
    assert record.read_text() == text
    # A signal that reaches the task later must not kill the ending interpreter.
    assert (signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN) == (code == 138)


@pytest.mark.usefixtures("task")
def test_requeue_that_fails_names_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit), requeued():
        raise SystemExit(138)
    assert "the job is not requeued: " in (error := capsys.readouterr().err)
    assert "Run: scontrol requeue 71" in error
