"""Status of the ranks of a distributed fit: which rank hangs, and which ranks wait for another rank."""

import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from yolo_lightning.supervision.heartbeat import Heartbeat, NoHeartbeat, read_heartbeat
from yolo_lightning.utils.activity import Activity
from yolo_lightning.utils.distributed import rank_suffix
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.json_record import read_record
from yolo_lightning.utils.process_identity import started_ticks
from yolo_lightning.utils.run_files import HEARTBEAT_FILE, RANKS

MOST_RANKS = 4096
"""Largest number of files that are read."""


@dataclass(frozen=True, slots=True)
class RankStatus:
    """Activity of one rank, in a file of the shared run folder.

    The process of `StallMonitor` beside the rank writes the file, because other hosts see neither the writes through
    the memory map of the heartbeat file nor the clock of these writes.
    """

    rank: int
    host: str
    phase: str
    activity: str  # within the phase; empty if unknown
    step: int  # batches trained since training began
    waited_s: float  # seconds since the last heartbeat
    written_s: float  # wall clock of the host, seconds since 1970

    @staticmethod
    def of(rank: int, heartbeat: Heartbeat, waited_s: float) -> "RankStatus":
        """Return the status of a rank on this host."""
        place = heartbeat.phase.label, heartbeat.activity.label, heartbeat.step
        return RankStatus(rank, socket.gethostname(), *place, waited_s, time.time())

    @property
    def is_waiting(self) -> bool:
        """Whether the rank waits for other ranks."""
        return self.activity == Activity.EXCHANGE.label

    @property
    def place(self) -> str:
        """Host and activity, for example `node2 in step (forward)`."""
        activity = f" ({self.activity})" if self.activity else ""
        return f"{self.host} in {self.phase}{activity}"


def write_rank(run: Path, status: RankStatus) -> None:
    """Replace the status of a rank in the run folder."""
    folder = run / RANKS
    folder.mkdir(exist_ok=True)
    write_json(folder / f"{status.rank}.json", asdict(status), indent=None, durable=False)


def read_ranks(run: Path) -> list[RankStatus]:
    """Return the status of each rank that has written one; under a supervisor, of all ranks but the first."""
    paths = sorted((run / RANKS).glob("*.json"))[:MOST_RANKS]
    statuses = [*filter(None, (read_record(path, RankStatus) for path in paths))]
    if not statuses:
        now_s = time.monotonic()
        heartbeats = rank_heartbeats(run).items()
        statuses = [RankStatus.of(rank, heartbeat, now_s - heartbeat.phase_began_s) for rank, heartbeat in heartbeats]
    return sorted(statuses, key=lambda status: status.rank)


def rank_heartbeats(run: Path) -> dict[int, Heartbeat]:
    """Return the heartbeats of the living ranks of this host in ascending order, except of the first rank."""
    heartbeats = {}
    for rank in range(1, MOST_RANKS):
        heartbeat = read_heartbeat(run / f"{HEARTBEAT_FILE}{rank_suffix(rank)}")
        if heartbeat is NoHeartbeat.MISSING:
            break
        if isinstance(heartbeat, Heartbeat) and heartbeat.process_started_ticks == started_ticks(heartbeat.process):
            heartbeats[rank] = heartbeat
    return heartbeats


def hanging_rank(run: Path) -> tuple[int, Heartbeat] | None:
    """Return the first of the further ranks of this host that does not wait for other ranks, with its heartbeat."""
    for rank, heartbeat in rank_heartbeats(run).items():
        if heartbeat.activity is not Activity.EXCHANGE:
            return rank, heartbeat
    return None
