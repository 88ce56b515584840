"""Complete runs that a power cut, a log-out and `stop` end."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch

from tests.conftest import REPOSITORY
from yolo_lightning.supervision.processes import marked
from yolo_lightning.supervision.run_lock import current_holder
from yolo_lightning.supervision.trainer import marker_of

LIMIT_S = 240.0
PROGRAM = [sys.executable, "-m", "yolo_lightning"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}

pytestmark = pytest.mark.whole_run


@pytest.fixture
def configuration(tmp_path: Path, look_alike: Path, index_root: Path) -> Path:
    """Return a configuration file of a small fit with one loader worker and a checkpoint after every second step."""
    callback = {"class_path": "LastCheckpoint", "init_args": {"interval_steps": 2}}
    trainer = {"accelerator": "cpu", "max_epochs": 3, "num_sanity_val_steps": 0, "callbacks": [callback]}
    data = {
        "root": str(look_alike),
        "storage": {"index_root": str(index_root)},
        "image_size": 64,
        "batch_size": 4,
        "loader": {"num_workers": 1},
    }
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps({"trainer": trainer, "data": data}))
    return path


def unit_command(configuration: Path, run: Path) -> list[str]:
    """Return the command line of the unit that `service install` would write, as systemd starts it."""
    words = ["service", "install", str(configuration), "--show", "--", "--trainer.default_root_dir", str(run)]
    shown = subprocess.run([*PROGRAM, *words], env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    match = re.search(r"^ExecStart=(.+)$", shown, re.MULTILINE)
    assert match is not None
    run.mkdir()
    return shlex.split(match[1])


def start(command: list[str]) -> subprocess.Popen[str]:
    """Start a command in a process tree of its own."""
    return subprocess.Popen(
        command, env=ENVIRONMENT, start_new_session=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def wait_for(path: Path) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < end_s, f"{path} was not written"
        time.sleep(0.02)


def last_weights(run: Path) -> dict[str, torch.Tensor]:
    content = torch.load(max((run / "checkpoints").glob("step-*.ckpt")), weights_only=True)
    return {name: value for name, value in content["state_dict"].items() if isinstance(value, torch.Tensor)}


def test_unit_resumes_after_a_power_cut_until_the_run_is_finished(configuration: Path, tmp_path: Path) -> None:
    """SIGKILL of the supervisor, the trainer and the workers; then the unit's command in a new process tree."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    undisturbed = start(unit_command(configuration, whole))
    shown, _ = undisturbed.communicate(timeout=LIMIT_S)
    assert undisturbed.returncode == 0, shown

    command = unit_command(configuration, cut)
    first = start(command)
    wait_for(cut / "checkpoints/step-000000004.ckpt.json")
    holder = current_holder(cut)
    assert holder is not None
    processes = {holder.process, *(marked_process.pid for marked_process in marked(marker_of(holder.marker)))}
    assert len(processes) >= 3  # supervisor, trainer, worker
    for process in processes:
        os.kill(process, signal.SIGKILL)
    assert first.wait(30) == -signal.SIGKILL
    assert not (cut / "finished.json").exists()

    second = start(command)
    shown, _ = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 0, shown
    assert re.search(r"checkpoint: .*step-", shown)
    expected = last_weights(whole)
    actual = last_weights(cut)
    assert expected.keys() == actual.keys()
    assert [name for name in expected if not torch.equal(expected[name], actual[name])] == []

    third = start(command)
    shown, _ = third.communicate(timeout=LIMIT_S)
    assert third.returncode == 0
    assert "the training is finished, 3 of 3 epochs are done" in shown


def test_detached_run_continues_after_a_log_out_until_it_is_stopped(configuration: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["fit", "--config", str(configuration), "--trainer.max_epochs=1000", f"--trainer.default_root_dir={run}"]
    shell = start(["bash", "-c", f"{shlex.join([*PROGRAM, *words, '--detach'])}; echo returned $?; sleep 600"])
    assert shell.stdout is not None
    lines = []
    while not lines or not lines[-1].startswith("returned"):
        lines.append(shell.stdout.readline())
        assert lines[-1], "".join(lines)
    shown = "".join(lines)
    assert lines[-1] == "returned 0\n", shown
    assert f"monitor {run}\n" in shown
    assert f"stop {run}\n" in shown
    assert "Not covered:\n  - nobody is told" in shown
    holder = current_holder(run)
    assert holder is not None
    try:
        os.killpg(shell.pid, signal.SIGHUP)
        shell.wait(30)
        os.kill(holder.process, signal.SIGHUP)
        steps = len(list((run / "checkpoints").glob("step-*.json")))
        wait_for(run / "checkpoints/step-000000008.ckpt.json")
        assert steps < 4
        assert current_holder(run) == holder
        stopped = subprocess.run(
            [*PROGRAM, "stop", str(run)], env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        assert stopped.returncode == 0, stopped.stderr
        assert re.search(r"stopped after step \d+, saved in .*step-\d+\.ckpt; the fit", stopped.stdout)
        assert "trained again" not in stopped.stdout
        assert current_holder(run) is None
        assert marked(marker_of(holder.marker)) == []
    finally:
        if current_holder(run) is not None:
            os.kill(holder.process, signal.SIGKILL)


def test_detached_fit_that_cannot_start_returns_its_error(configuration: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights.ckpt"
    with zipfile.ZipFile(weights, "w") as archive:  # an archive of torch.save, whose content only torch can read
        archive.writestr("weights/data.pkl", "nothing that can be loaded")
    words = ["fit", "--config", str(configuration), f"--trainer.default_root_dir={tmp_path / 'run'}", "--detach"]
    done = subprocess.run(
        [*PROGRAM, *words, f"--model.weights={weights}"], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "weights.ckpt" in done.stdout
    assert "Detached" not in done.stdout
