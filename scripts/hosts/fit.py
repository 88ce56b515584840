"""A fit on two hosts: one torchrun agent with one rank on each, started again when it ends with an error."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from hosts.network import ADDRESSES, INTERFACE, TwoNamespaces
from hosts.systemd import with_systemd
from yolo_lightning.supervision.heartbeat import Heartbeat, read_heartbeat
from yolo_lightning.utils.distributed import rank_suffix

PORT = 29400
EPOCHS = 3
CHECKPOINT_STEPS = 2
LONGEST_S = 900.0
POLL_S = 0.1
RESTART_S = 1.0
SCRIPTS = Path(__file__).resolve().parents[1]
SKEWED = """
import sys, datetime as real, torch.distributed.elastic.rendezvous.dynamic_rendezvous as rendezvous
class Skewed(real.datetime):
    @classmethod
    def now(cls, zone=None): return real.datetime.now(zone) + real.timedelta(seconds={seconds})
rendezvous.datetime = Skewed
from torch.distributed.run import main
main(sys.argv[1:])
"""
"""torchrun with another clock."""


@dataclass
class HostedFit:
    """One fit in its folder; lists and tuples have one entry for each host."""

    network: TwoNamespaces
    folder: Path
    data: tuple[Path, Path]  # copies of the dataset
    setups: tuple[str, str] = ("true", "true")  # shell commands before the agents start
    clock_s: tuple[float, float] = (0.0, 0.0)  # what the clocks of the agents are ahead
    machines: str = "2"  # of torchrun's --nnodes
    epochs: int = EPOCHS
    options: tuple[str, ...] = ()  # further options of `fit`
    uses_systemd: bool = False  # whether systemd starts torchrun, by the unit in docs/scaling.md
    most_starts: int = 8
    starts: list[int] = field(default_factory=lambda: [0, 0])
    absent: set[int] = field(default_factory=set)  # hosts whose agent is not started at the moment

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.agents: list[subprocess.Popen[bytes]] = []
        self._ended_s = [0.0, 0.0]

    def start(self) -> None:
        self.agents = [self._start(host) for host in range(2)]

    def serve(self) -> bool:
        """Start agents again that have ended with an error, as a service manager does; return whether the fit runs."""
        runs = False
        for host, agent in enumerate(self.agents):
            code = agent.poll()
            runs = runs or code is None
            if code in (None, 0) or host in self.absent or self.starts[host] >= self.most_starts:
                continue
            self._ended_s[host] = self._ended_s[host] or time.monotonic()
            if time.monotonic() >= self._ended_s[host] + RESTART_S:
                self._ended_s[host] = 0.0
                self.agents[host] = self._start(host)
            runs = True
        return runs

    def serve_for(self, seconds: float) -> None:
        """Call `serve` repeatedly for some time."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self.serve()
            time.sleep(POLL_S)

    def heartbeat(self, rank: int) -> Heartbeat | None:
        heartbeat = read_heartbeat(self.folder / f"run/heartbeat{rank_suffix(rank)}")
        return heartbeat if isinstance(heartbeat, Heartbeat) else None

    def has_reached(self, step: int) -> bool:
        heartbeat = self.heartbeat(0)
        return heartbeat is not None and heartbeat.step >= step

    def kill_rank(self, rank: int) -> None:
        heartbeat = self.heartbeat(rank)
        assert heartbeat is not None
        os.kill(heartbeat.process, signal.SIGKILL)

    def end(self) -> None:
        for agent in self.agents:
            agent.kill()
            agent.wait()

    def codes(self) -> list[int | None]:
        return [agent.poll() for agent in self.agents]

    def log(self, host: int) -> str:
        return (self.folder / f"{host}.log").read_text(errors="replace")

    def runs(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("run*"))

    def is_finished(self) -> bool:
        return (self.folder / "run/finished.json").is_file()

    def _start(self, host: int) -> subprocess.Popen[bytes]:
        self.starts[host] += 1
        torchrun = [sys.executable, "-m", "torch.distributed.run"]
        if self.clock_s[host]:
            torchrun = [sys.executable, "-c", SKEWED.format(seconds=self.clock_s[host])]
        agent = [
            *("--nnodes", self.machines, "--nproc-per-node", "1"),
            *("--max-restarts", "3" if self.most_starts > 1 else "0"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:{PORT}", "--rdzv-id", "two-hosts"),
            *("--rdzv-conf", f"is_host={1 - host},join_timeout=120", "--local-addr", ADDRESSES[host]),
        ]
        fit = [
            *("-m", "yolo_lightning", "fit", "--trainer.max_epochs", str(self.epochs), "--trainer.strategy", "ddp"),
            *("--trainer.accelerator", "cpu", "--trainer.devices", "1", "--trainer.default_root_dir", "run"),
            *("--trainer.num_sanity_val_steps", "0", "--data.loader.num_workers", "0", "--data.batch_size", "2"),
            *("--data.image_size", "64", "--model.recipe.nominal_batch", "4", "--data.root", str(self.data[host])),
            *("--data.storage.index_root", str(self.folder.parent / f"index-{host}")),
            "--trainer.callbacks+=hosts.record.Recorder",
            f"--trainer.callbacks+={{class_path: LastCheckpoint, init_args: {{interval_steps: {CHECKPOINT_STEPS}}}}}",
            *self.options,
        ]
        settings = {"GLOO_SOCKET_IFNAME": INTERFACE, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        settings |= {"OMP_NUM_THREADS": "1", "RECORD": str(self.folder), "PYTHONPATH": f"{SCRIPTS.parent}:{SCRIPTS}"}
        words = [*torchrun, *agent, *fit]
        log_path = self.folder / f"{host}.log"
        if self.uses_systemd:
            words = with_systemd(words, settings, self.folder, log_path)
        with log_path.open("ab") as log:
            return subprocess.Popen(
                self.network.command(host, words, self.setups[host]),
                cwd=self.folder,
                env=os.environ | settings,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
