"""Fits of several processes by the command line, by Lightning's launcher and by torchrun, with and without failures."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from lightning.pytorch.cli import LightningCLI
from torch.distributed import DistStoreError, HashStore

from tests.conftest import REPOSITORY, TINY, data_options
from tests.helpers.program import COMMAND, run_python
from yolo_lightning import cli
from yolo_lightning.utils.rank_store import RankStore

HELPER = str(REPOSITORY / "tests" / "helpers" / "fail_once.py")
FRESH_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Else a restarted process may read the address of one that is dead; see docs/scaling.md."""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
EPOCHS, FRAMES, GLOBAL_BATCH, STEPS = 2, 16, 6, 6
"""Three global batches in an epoch, the last of four frames."""
FIT = [
    *("fit", "--trainer.max_epochs", str(EPOCHS), "--trainer.strategy", "ddp", "--trainer.accelerator", "cpu"),
    *("--trainer.default_root_dir", "run", "--data.loader.num_workers", "0", *TINY),
    *("--model.recipe.nominal_batch", str(GLOBAL_BATCH)),
]
Fit = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def fit(tmp_path: Path, look_alike: Path, index_root: Path) -> Fit:
    """Runs a command line of several processes in an empty folder, to its end."""
    (tmp_path / "record").mkdir()

    def call(
        launcher: list[str],
        *options: str,
        processes: int = 2,
        program: str = HELPER,
        timeout_s: float = 170.0,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        data = ["--data.root", str(look_alike), "--data.storage.index_root", str(index_root)]
        size = ["--data.batch_size", str(GLOBAL_BATCH // processes)]
        words = [*launcher, *program.split(), *FIT, *data, *size, *options]
        settings = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "RECORD": str(tmp_path / "record")}
        return subprocess.run(
            words,
            cwd=tmp_path,
            env=os.environ | FRESH_STORE | settings | environment,
            check=False,
            timeout=timeout_s,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    return call


def trained(record: Path) -> list[Counter[str]]:
    """How often each frame was trained on in each epoch, over all processes and attempts."""
    counts = [Counter[str]() for _ in range(EPOCHS)]
    for path in record.glob("*.txt"):
        for line in path.read_text().splitlines():
            epoch, ids = line.split(" ")
            counts[int(epoch)].update(ids.split(","))
    return counts


def assert_each_once(record: Path) -> None:
    for counts in trained(record):
        assert set(counts.values()) == {1}
        assert len(counts) == FRAMES


@pytest.mark.whole_run
def test_step_of_two_processes_exchanges_two_messages(fit: Fit) -> None:
    """The gradients, and one record with failures, losses and stop signals."""
    agent = [*TORCHRUN, "--standalone", "--nproc-per-node", "2"]
    options = ["--trainer.devices", "2", "--trainer.callbacks+=count_messages.CountMessages"]
    done = fit(agent, *options, program="-m yolo_lightning", PYTHONPATH=f"{REPOSITORY}:{REPOSITORY / 'scripts'}")
    assert done.returncode == 0, done.stdout[-12000:]
    assert "collective operations of a step: 2 allreduce; " in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["kill", "hang"])
def test_all_processes_are_restarted_at_the_newest_checkpoint(fit: Fit, tmp_path: Path, failure: str) -> None:
    """A process that hangs leaves its stacks."""
    agent = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    done = fit(agent, "--trainer.devices", "2", FAILURE=failure, FAIL_AT="4")
    assert done.returncode == 0, done.stdout[-12000:]
    assert_each_once(tmp_path / "record")
    assert {path.name for path in (tmp_path / "record").iterdir()} == {"0-0.txt", "0-1.txt", "1-0.txt", "1-1.txt"}
    stacks = [path.read_text() for path in (tmp_path / "run/incidents").glob("*-rank1/stacks.txt")]
    assert ["fail_once.py" in text for text in stacks] == [True] * (failure == "hang")
    reports = [json.loads(path.read_text()) for path in (tmp_path / "run/incidents").glob("*/incident.json")]
    waiting = [report["sentence"] for report in reports if report["rank"] == 0]
    assert ["it waits for rank 1 on " in sentence for sentence in waiting] == [True] * (failure == "hang")
    assert json.loads((tmp_path / "run/finished.json").read_text())["steps"] == STEPS
    assert not (tmp_path / "run-2").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_process_that_waited_for_a_batch_in_vain_is_restarted_a_rung_down(fit: Fit, tmp_path: Path) -> None:
    agent = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    options = ["--trainer.devices", "2", "--data.loader.num_workers", "1"]
    done = fit(agent, *options, timeout_s=500, FAILURE="hang waiting", FAIL_AT="4")
    assert done.returncode == 0, done.stdout[-12000:]
    before, after = done.stdout.split("loader: fallback level 'no workers' after a loader stall")
    assert "train loader: batch 3, 1 spawn worker" in before
    assert "train loader: batch 3, no workers" in after
    assert json.loads((tmp_path / "run/finished.json").read_text())["steps"] == STEPS


SUPERVISED = """
supervision: {enabled: true, kill_after_s: 1, poll_s: 0.2, phase_timeouts: {step_s: 20, fetch_s: 20}}
trainer:
  callbacks:
    - class_path: EMA
    - class_path: MeanAP
    - class_path: RandomState
    - class_path: tests.helpers.fail_once.FailOnce
    - class_path: LastCheckpoint
      init_args: {interval_steps: 1}
"""


def working_in(folder: Path) -> list[str]:
    """Command lines of processes whose working folder that is."""
    command_lines = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").resolve() == folder:
                command_lines.append((process / "cmdline").read_text().replace("\0", " "))
    return command_lines


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("failure", ["kill", "hang"])
def test_supervisor_ends_all_processes_of_lightnings_launcher_and_restarts_them(
    fit: Fit, tmp_path: Path, failure: str
) -> None:
    (tmp_path / "supervised.yaml").write_text(SUPERVISED)
    options = ["--config", "supervised.yaml", "--trainer.devices", "2"]
    done = fit([sys.executable], *options, program="-m yolo_lightning", timeout_s=500, FAILURE=failure, FAIL_AT="4")
    assert done.returncode == 0, done.stdout[-12000:]
    assert_each_once(tmp_path / "record")
    assert {path.name for path in (tmp_path / "record").iterdir()} == {"0-0.txt", "0-1.txt", "1-0.txt", "1-1.txt"}
    assert json.loads((tmp_path / "run/finished.json").read_text())["steps"] == STEPS
    assert json.loads((tmp_path / "run/supervision.json").read_text())["restarts"] == 1
    seen = [path.read_text(errors="replace") for path in (tmp_path / "run/incidents").rglob("*") if path.is_file()]
    assert failure == "kill" or any("fail_once.py" in text for text in seen)  # the stacks of the process that hung
    assert working_in(tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_loader_that_hangs_in_the_second_rank_lowers_the_level_of_the_loader(fit: Fit, tmp_path: Path) -> None:
    """The supervisor watches the first rank, which waits for the second one."""
    (tmp_path / "supervised.yaml").write_text(SUPERVISED)
    options = ["--config", "supervised.yaml", "--trainer.devices", "2", "--data.loader.num_workers", "1"]
    failure = {"FAILURE": "hang waiting", "FAIL_AT": "4"}
    done = fit([sys.executable], *options, program="-m yolo_lightning", timeout_s=500, **failure)
    assert done.returncode == 0, done.stdout[-12000:]
    assert json.loads((tmp_path / "run/finished.json").read_text())["steps"] == STEPS
    (path,) = (tmp_path / "run/incidents").glob("*/incident.json")
    incident = json.loads(path.read_text())
    assert (incident["class"], incident["rank"], incident["activity"]) == ("loader stall", 1, "load")
    assert f"of rank 1 on {socket.gethostname()} in phase fetch (load)" in incident["sentence"]
    assert "fallback level" in incident["outcome"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_fit_of_two_processes_ends_before_its_deadline(fit: Fit, tmp_path: Path) -> None:
    (tmp_path / "supervised.yaml").write_text(SUPERVISED)
    options = ["--config", "supervised.yaml", "--trainer.devices", "2", "--max_hours", "0.04"]
    began_s = time.time()
    done = fit([sys.executable], *options, program="-m yolo_lightning", timeout_s=500, FAILURE="kill", FAIL_AT="4")
    assert done.returncode == 0, done.stdout[-12000:]
    seconds = (tmp_path / "run/finished.json").stat().st_mtime - began_s  # of the training; best.pt and report follow
    assert json.loads((tmp_path / "run/supervision.json").read_text())["restarts"] == 1
    assert 0.6 * 144 < seconds < 144 + 5
    checkpoint = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)
    plan = next(state["plan"] for state in checkpoint["callbacks"].values() if "plan" in state)
    assert checkpoint["global_step"] == plan["steps"] > STEPS  # one plan for both processes
    assert checkpoint["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(0.01 * 0.01)
    steps = [len((tmp_path / f"record/1-{rank}.txt").read_text().splitlines()) for rank in (0, 1)]
    assert steps[0] == steps[1]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_fit_goes_on_with_another_number_of_processes(fit: Fit, tmp_path: Path, before: int, after: int) -> None:
    agent = [*TORCHRUN, "--standalone", "--nproc-per-node"]
    killed = fit([*agent, str(before)], "--trainer.devices", str(before), processes=before, FAILURE="kill", FAIL_AT="2")
    assert killed.returncode != 0
    for path in (tmp_path / "record").glob("0-*.txt"):
        path.rename(path.with_name(f"before-{path.name}"))
    done = fit([*agent, str(after)], "--trainer.devices", str(after), "--resume", processes=after)
    assert done.returncode == 0, done.stdout[-12000:]
    assert_each_once(tmp_path / "record")


Agents = Callable[..., list[subprocess.Popen[str]]]


@pytest.fixture
def agents(tmp_path: Path, look_alike: Path, index_root: Path) -> Agents:
    """Starts two agents, the two machines of one launch, with one process each; they print into `<machine>.log`.

    Named arguments are variables of the second.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "record").mkdir()
    data = ["--data.root", str(look_alike), "--data.storage.index_root", str(index_root), "--data.batch_size", "3"]
    where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "test"]

    def start(*options: str, **second: str) -> list[subprocess.Popen[str]]:
        settings = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "RECORD": str(tmp_path / "record")}
        started = []
        for machine in range(2):
            words = [*TORCHRUN, "--node-rank", str(machine), "--nproc-per-node", "1", *where, *options]
            with (tmp_path / f"{machine}.log").open("w") as log:
                started.append(
                    subprocess.Popen(
                        [*words, HELPER, *FIT, *data, "--trainer.devices", "1"],
                        cwd=tmp_path,
                        env=os.environ | FRESH_STORE | settings | (second if machine else {}),
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        text=True,
                    )
                )
            await_listener(port)  # the first agent holds the store, and must live
        return started

    return start


def await_listener(port: int) -> None:
    """Wait until somebody listens at the port."""
    for _ in range(600):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
    raise TimeoutError(port)


@pytest.mark.slow
def test_two_agents_on_one_machine_are_two_nodes(agents: Agents, tmp_path: Path) -> None:
    assert [agent.wait(timeout=170) for agent in agents("--nnodes", "2")] == [0, 0]
    assert_each_once(tmp_path / "record")
    assert json.loads((tmp_path / "run/finished.json").read_text())["steps"] == STEPS
    assert {path.name for path in (tmp_path / "run").glob("heartbeat*")} >= {"heartbeat", "heartbeat-rank1"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_machine_that_is_lost_is_done_without(agents: Agents, tmp_path: Path) -> None:
    elastic = ["--nnodes", "1:2", "--max-restarts", "2", "--rdzv-conf", "keep_alive_interval=1,last_call_timeout=20"]
    codes = [agent.wait(timeout=500) for agent in agents(*elastic, FAILURE="kill agent", FAIL_AT="4")]
    assert codes == [0, -signal.SIGKILL], (tmp_path / "0.log").read_text()[-12000:]
    assert_each_once(tmp_path / "record")
    assert {path.name for path in (tmp_path / "record").iterdir()} == {"0-0.txt", "0-1.txt", "1-0.txt"}
    assert (tmp_path / "run/finished.json").is_file()
    assert working_in(tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_answers_of_two_processes_are_those_of_one(
    fit: Fit, tmp_path: Path, look_alike: Path, index_root: Path
) -> None:
    """Trained by Lightning's own launcher; four processes where one has two frames."""
    assert fit([sys.executable], "--trainer.devices", "2").returncode == 0
    assert_each_once(tmp_path / "record")
    data = [*data_options(look_alike, index_root), "--data.batch_size", "1", "--trainer.accelerator", "cpu", *TINY]
    data += ["--model.weights", "run/checkpoints/last.ckpt"]
    answers = {}
    for processes, subcommands in ((1, ("test", "predict")), (2, ("test",)), (4, ("test", "predict"))):
        for subcommand in subcommands:
            words = ["--trainer.devices", str(processes), "--trainer.default_root_dir", f"of-{processes}"]
            words += ["--trainer.strategy", "ddp"] if processes > 1 else []
            done = run_python(tmp_path, *COMMAND, subcommand, *data, *words)
            assert done.returncode == 0, done.stderr
            name = {"test": "scores.json", "predict": "predictions.json"}[subcommand]
            answers[processes, subcommand] = json.loads((tmp_path / f"of-{processes}" / name).read_text())
    assert answers[1, "test"] == answers[2, "test"] == answers[4, "test"]
    assert answers[1, "predict"] == answers[4, "predict"]


def test_batch_norm_over_processes_is_refused_on_a_cpu(
    run: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    processes = ("--trainer.devices", "2", "--trainer.strategy", "ddp", "--data.batch_size", "4")
    with pytest.raises(SystemExit) as ended:
        run("fit", "--trainer.sync_batchnorm", "true", *processes)
    assert ended.value.code == 2
    assert "trainer.sync_batchnorm must be false on a CPU, got true" in capsys.readouterr().err


@pytest.mark.parametrize(("started", "devices"), [(2, "auto"), (1, "2")])
def test_another_number_of_devices_than_processes_is_named(
    run: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    started: int,
    devices: str,
) -> None:
    monkeypatch.setattr(cli, "connect_ranks", lambda timeout: RankStore(HashStore(), 0, started))
    monkeypatch.setattr(cli, "plan_of_all_ranks", lambda ranks, options, plan: plan())
    with pytest.raises(SystemExit) as ended:
        run("fit", "--trainer.devices", devices, "--data.batch_size", "4")
    assert ended.value.code == 2
    problem = f"must be {started}, the number of processes that torchrun has started, got {3 - started} x 1: set"
    assert problem in capsys.readouterr().err


def test_missing_process_is_reported_in_a_line(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    def time_out(cli: LightningCLI, subcommand: str) -> None:
        assert cli.trainer.strategy._timeout == timedelta(seconds=90)
        raise DistStoreError("Timed out after 91 seconds waiting for clients. 1/2 clients joined.")

    monkeypatch.setattr(LightningCLI, "_run_subcommand", time_out)
    with pytest.raises(SystemExit, match=r"error: a process is missing.*1/2 clients joined.*configs/engine/ddp.yaml"):
        run("fit", "--trainer.strategy", "DDPStrategy", "--trainer.strategy.timeout", "0:01:30")
