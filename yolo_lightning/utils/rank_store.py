"""Exchange between the ranks of a launcher before the process group exists, through the store of torch's rendezvous.

The store is the one through which torch forms the process group afterwards.
"""

import json
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from yolo_lightning.errors import UserError
from yolo_lightning.utils.distributed import disagreement, launch_id
from yolo_lightning.utils.slurm import is_slurm_task

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # not in `__all__`


class RankStore:
    """Messages of the first rank to all other ranks, and a comparison of facts.

    All ranks call the methods in the same order. An exception of the first rank ends all ranks.

    Args:
        store: Store that all ranks share and that contains no keys of an earlier start.
        rank: Rank of this process.
        size: Number of ranks.
    """

    def __init__(self, store: "Store", rank: int, size: int) -> None:
        self._store = store
        self.rank = rank
        self.size = size

    def decide(self, name: str, decision: Callable[[], Any]) -> Any:
        """Return what `decision` returns in the first rank, as JSON; the other ranks do not call `decision`.

        Raises:
            UserError: In all ranks, if `decision` raises an exception; the first rank raises that exception.
        """
        if self.rank:
            message = json.loads(self._store.get(name))
            self._store.set(f"{name}/received/{self.rank}", "1")
            if "error" in message:
                raise UserError(message["error"])
            return message["decision"]
        try:
            content = decision()
        except BaseException as error:
            with suppress(RuntimeError):  # another rank has ended, too
                self._publish(name, {"error": f"the first rank ended: {error}"})
            raise
        self._publish(name, {"decision": content})
        return content

    def compare(self, facts: Mapping[str, Any]) -> None:
        """Raise a UserError in all ranks if a fact of a rank differs from that of the first rank."""
        self._store.set(f"facts/{self.rank}", json.dumps((socket.gethostname(), facts), default=str))
        verdict = self.decide("verdict", self._verdict)
        if verdict is not None:
            raise UserError(verdict)

    def _verdict(self) -> str | None:
        return disagreement([json.loads(self._store.get(f"facts/{rank}")) for rank in range(self.size)])

    def _publish(self, name: str, message: dict[str, Any]) -> None:
        """Send a message to all other ranks, and wait until they have read it: the first rank can hold the store."""
        self._store.set(name, json.dumps(message, default=str))
        receipts = [f"{name}/received/{rank}" for rank in range(1, self.size)]
        if receipts:
            self._store.wait(receipts)


def connect_ranks(timeout: timedelta | None = None) -> RankStore | None:
    """Return the store of the ranks that torchrun or srun has started; None for another process.

    The store must live until the process group exists, because torch uses it again.

    Args:
        timeout: Limit for the start of all ranks and for each message; None for that of torch, 30 minutes.

    Raises:
        DistStoreError: If a rank is missing.
    """
    if is_slurm_task():
        from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

        tasks = SLURMEnvironment()
        # As Lightning does later: torch reads the variables.
        os.environ |= {"MASTER_ADDR": tasks.main_address, "MASTER_PORT": str(tasks.main_port)}
        return _rendezvous(tasks.global_rank(), tasks.world_size(), timeout)
    if launch_id() is None or "MASTER_PORT" not in os.environ:
        return None
    return _rendezvous(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), timeout)


def _rendezvous(rank: int, size: int, timeout: timedelta | None) -> RankStore:
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # not in `__all__`
    from torch.distributed.constants import default_pg_timeout
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(rendezvous("env://", rank, size, timeout=timeout or default_pg_timeout))
    return RankStore(PrefixStore("yolo_lightning", store), rank, size)
