"""Puts the state of all random generators into the checkpoint."""

import random
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from yolo_lightning.utils.distributed import gather_on_first
from yolo_lightning.utils.loop_position import steps_begun

OTHERS = "others"
"""Key of the states of further processes, in the order of their ranks."""

RANK_STREAM = 5
"""Keeps the random numbers of further processes apart from those that other streams draw from the same seed."""


class RandomState(Callback):
    """Saves and restores Python's, NumPy's and torch's generators, so that a resumed run draws what the other would.

    Data do not need it (they depend on seed, epoch and index alone); layers such as dropout do. A checkpoint holds the
    generators of all processes. A process whose rank it does not know begins a stream of its own, by (seed, rank,
    steps); so does each but the first at the start of a run.
    """

    def __init__(self) -> None:
        self._loaded: list[dict[str, Any]] = []

    def state_dict(self) -> dict[str, Any]:
        """The generators of all processes now, in the first; their own in the others. A collective call."""
        own = generators()
        return own | {OTHERS: (gather_on_first(own) or [])[1:]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state until training starts; set-up in between may draw."""
        self._loaded = [state_dict, *state_dict.get(OTHERS, ())]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore."""
        rank, loaded = trainer.global_rank, self._loaded
        self._loaded = []
        if loaded and len(loaded) != trainer.world_size:
            rank_zero_info(
                f"random generators: the checkpoint holds those of {len(loaded)} processes, there are now "
                f"{trainer.world_size}; those it does not know draw other numbers"
            )
        if rank < len(loaded):
            restore(loaded[rank])
        elif rank:
            seed_process(torch.initial_seed(), rank, steps_begun(trainer))


def generators() -> dict[str, Any]:
    """The generators of this process, as tensors and plain Python."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": [name, np.asarray(keys).tolist(), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore(state: dict[str, Any]) -> None:
    """Set the generators of this process; those of GPUs only where there are as many."""
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"].cpu())
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([one.cpu() for one in state["cuda"]])


def seed_process(seed: int, rank: int, steps: int) -> None:
    """Seed all generators of this process.

    Args:
        seed: Of the run.
        rank: Of the process; each has a stream of its own.
        steps: Batches trained so far.
    """
    words = np.random.SeedSequence((RANK_STREAM, seed, rank, steps)).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]))
