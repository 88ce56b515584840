"""Two tasks of a SLURM job on this machine, with a stand-in for scontrol: requeue and resume."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hosts.slurm import job_variables, task_variables, write_scontrol

from tests.conftest import REPOSITORY
from tests.test_distributed_fit import FIT, SUPERVISED, assert_each_once

pytestmark = [pytest.mark.whole_run, pytest.mark.timeout(400)]


class Job:
    """A job of two tasks in `folder`; a call of `run` is one start of the job."""

    def __init__(self, folder: Path, data: list[str]) -> None:
        self.folder, self._data = folder, data
        (folder / "record").mkdir()
        (folder / "tasks.yaml").write_text(SUPERVISED.replace("enabled: true", "enabled: false"))
        write_scontrol(folder)

    def run(self, **environment: str) -> tuple[list[int], str]:
        """Return the exit codes of both tasks and what they have printed."""
        settings = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "RECORD": str(self.folder / "record")}
        settings |= job_variables(self.folder)
        words = [sys.executable, "-m", "yolo_lightning", *FIT, *self._data, "--config", "tasks.yaml"]
        tasks = [
            subprocess.Popen(
                [*words, "--data.batch_size", "3", "--trainer.devices", "2"],
                cwd=self.folder,
                env=os.environ | settings | environment | task_variables(rank),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            output = "".join(task.communicate(timeout=180)[0] for task in tasks)
        finally:
            for task in tasks:
                task.kill()
        return [task.returncode for task in tasks], output


@pytest.mark.parametrize("rank", ["0", "1"])
def test_job_that_one_task_receives_the_signal_of_is_saved_requeued_and_resumed(
    tmp_path: Path, look_alike: Path, index_root: Path, rank: str
) -> None:
    """The other task receives no signal, as with a long delay between the two signals."""
    job = Job(tmp_path, ["--data.root", str(look_alike), "--data.storage.index_root", str(index_root)])
    codes, output = job.run(FAILURE="requeue", FAIL_RANK=rank, FAIL_AT="3")
    assert codes == [128 + signal.SIGUSR1] * 2, output
    assert (tmp_path / "requeued").read_text() == "requeue 71\n"
    assert "stopped by SIGUSR1 after step 4; saved in " in output
    codes, output = job.run(SLURM_RESTART_COUNT="1")
    assert codes == [0, 0], output
    assert [path.name for path in tmp_path.glob("run*")] == ["run"]
    assert json.loads((tmp_path / "run/finished.json").read_text())["steps"] == 6
    assert_each_once(tmp_path / "record")
    codes, output = job.run(SLURM_RESTART_COUNT="2")
    assert codes == [0, 0], output
    assert "the training is finished, 2 of 2 epochs are done." in output
    assert "To start a new run, submit a new job." in output
