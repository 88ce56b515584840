"""Two agents of torchrun on this machine, as on two hosts with a common file system, restarted when they fail."""

import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
import torch

from tests.conftest import REPOSITORY
from tests.test_distributed_fit import FIT, FRESH_STORE, HELPER, TORCHRUN, assert_each_once

pytestmark = [pytest.mark.whole_run, pytest.mark.timeout(600)]

LONGEST_S = 400.0
MOST_STARTS = 5
ALWAYS_TWO, ONE_OR_TWO = "2", "1:2"


class TwoHosts:
    """Runs one fit by two agents, each with one process, in `folder`; the first agent holds torchrun's store.

    `data` contains options of the dataset for each host.
    """

    def __init__(self, folder: Path, data: tuple[list[str], list[str]], machines: str = ALWAYS_TWO) -> None:
        (folder / "record").mkdir(parents=True)
        self.folder, self._data, self._machines = folder, data, machines
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]

    def train(self, most_starts: int = MOST_STARTS, **environment: str) -> list[int]:
        """Start an agent again when it ends with an error, as a service manager does; return the last exit codes."""
        agents = [self._start(host, environment) for host in range(2)]
        starts = [1, 1]
        until_s = time.monotonic() + LONGEST_S
        try:
            while any(agent.poll() is None for agent in agents):
                assert time.monotonic() < until_s, self.output()
                for host in range(2):
                    if agents[host].poll() not in (None, 0) and starts[host] < most_starts:
                        agents[host] = self._start(host, environment)
                        starts[host] += 1
                time.sleep(0.2)
        finally:
            for agent in agents:
                agent.kill()
        return [agent.wait() for agent in agents]

    def _start(self, host: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        settings = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "RECORD": str(self.folder / "record")}
        rendezvous = f"is_host={1 - host},keep_alive_interval=1,last_call_timeout=5"
        words = [
            *(*TORCHRUN, "--nnodes", self._machines, "--nproc-per-node", "1", "--max-restarts", "3"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self._port}", "--rdzv-id", "two-hosts"),
            *("--rdzv-conf", rendezvous, "--monitor-interval", "0.2", HELPER, *FIT, *self._data[host]),
            *("--data.batch_size", "3", "--trainer.devices", "1"),
        ]
        with (self.folder / f"{host}.log").open("ab") as log:
            return subprocess.Popen(
                words,
                cwd=self.folder,
                env=os.environ | FRESH_STORE | settings | environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def output(self) -> str:
        return "\n".join((self.folder / f"{host}.log").read_text(errors="replace")[-6000:] for host in range(2))

    def weights(self) -> list[dict[str, torch.Tensor]]:
        """Return the weights of each rank after the fit."""
        return [torch.load(self.folder / f"weights-{rank}.pt", weights_only=True) for rank in range(2)]

    def assert_one_run(self) -> None:
        """Check that both ranks have trained one run to its end, with equal weights."""
        assert (self.folder / "run/finished.json").is_file(), self.output()
        assert [path.name for path in self.folder.glob("run*")] == ["run"], self.output()
        first, second = self.weights()
        torch.testing.assert_close(second, first, rtol=0, atol=0)


@pytest.fixture(scope="module")
def data(look_alike: Path, index_root: Path) -> list[str]:
    return ["--data.root", str(look_alike), "--data.storage.index_root", str(index_root)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data: list[str]) -> TwoHosts:
    """A fit without a failure."""
    hosts = TwoHosts(tmp_path_factory.mktemp("hosts") / "undisturbed", (data, data))
    assert hosts.train() == [0, 0], hosts.output()
    hosts.assert_one_run()
    return hosts


@pytest.mark.parametrize("failure", ["kill", "kill agent"])
@pytest.mark.parametrize("rank", ["0", "1"])
def test_run_of_two_hosts_continues_after_the_death_of_a_rank_or_an_agent(
    tmp_path: Path, data: list[str], undisturbed: TwoHosts, failure: str, rank: str
) -> None:
    hosts = TwoHosts(tmp_path, (data, data))
    assert hosts.train(FAILURE=failure, FAIL_RANK=rank, FAIL_AT="4") == [0, 0], hosts.output()
    hosts.assert_one_run()
    assert_each_once(tmp_path / "record")
    torch.testing.assert_close(hosts.weights()[0], undisturbed.weights()[0], rtol=0, atol=0)


def test_id_of_a_finished_run_ends_both_hosts_at_once(undisturbed: TwoHosts) -> None:
    assert undisturbed.train(most_starts=1) == [0, 0], undisturbed.output()
    assert "To start a new run, set another --rdzv-id than two-hosts." in undisturbed.output()
    undisturbed.assert_one_run()
    assert_each_once(undisturbed.folder / "record")


def test_host_that_returns_joins_the_run_of_the_host_that_continued_alone(tmp_path: Path, data: list[str]) -> None:
    hosts = TwoHosts(tmp_path, (data, data), ONE_OR_TWO)
    codes = hosts.train(FAILURE="kill agent", FAIL_RANK="1", FAIL_AT="4", HANGS_ALONE="1")
    assert codes == [0, 0], hosts.output()
    hosts.assert_one_run()
    assert_each_once(tmp_path / "record")


def test_annotations_that_differ_on_one_host_end_both(tmp_path: Path, look_alike: Path, data: list[str]) -> None:
    other = tmp_path / "other"
    shutil.copytree(look_alike, other)
    annotations = json.loads((other / "Train.json").read_text())
    annotations["annotations"].pop()
    (other / "Train.json").write_text(json.dumps(annotations))
    hosts = TwoHosts(tmp_path / "hosts", (data, [*data, "--data.root", str(other)]))
    assert 0 not in hosts.train(most_starts=1), hosts.output()
    for host in range(2):
        log = (hosts.folder / f"{host}.log").read_text()
        assert "error: the ranks differ in frames and boxes of train: '" in log
