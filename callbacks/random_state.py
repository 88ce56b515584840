"""State of all random generators in checkpoints."""

import random
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from yolo_lightning.utils.accelerator import random_states, set_random_states
from yolo_lightning.utils.distributed import gather
from yolo_lightning.utils.loop_position import steps_begun

OTHERS = "others"
"""Key of the states of all ranks but the first, in their order."""

RANK_STREAM = 5
"""Separates the random numbers of further ranks from other random numbers with the same seed."""


class RandomState(Callback):
    """Saves and restores the random generators of Python, NumPy and torch, so that a resumed run is reproducible.

    Layers such as dropout need them; the data does not, because it depends on seed, epoch and index alone. A checkpoint
    contains the generators of all ranks. A rank without a saved state is seeded by (seed, rank, steps); so are all
    ranks but the first at the start of a run.
    """

    def __init__(self) -> None:
        self._loaded: list[dict[str, Any]] = []

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank, and those of all ranks but the first; a collective call."""
        state = generators()
        return state | {OTHERS: gather(state)[1:]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state until training starts, because the setup may draw random numbers."""
        self._loaded = [state_dict, *state_dict[OTHERS]]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        rank = trainer.global_rank
        loaded = self._loaded
        self._loaded = []
        if loaded and len(loaded) != trainer.world_size:
            rank_zero_info(
                f"random generators: the checkpoint contains those of {len(loaded)} ranks, the world size is "
                f"{trainer.world_size}; ranks without a saved state are seeded again"
            )
        if rank < len(loaded):
            restore(loaded[rank])
        elif rank:
            seed_process(torch.initial_seed(), rank, steps_begun(trainer))


def generators() -> dict[str, Any]:
    """Return the state of the generators of this process, as tensors and plain Python."""
    name, keys, *rest = np.random.get_state(legacy=True)
    accelerator, accelerator_states = random_states()
    return {
        "python": random.getstate(),
        "numpy": [name, np.asarray(keys).tolist(), *rest],
        "torch": torch.get_rng_state(),
        "accelerator": accelerator,
        "accelerator_states": accelerator_states,
    }


def restore(state: dict[str, Any]) -> None:
    """Set the generators of this process; those of accelerators only if their type and number are unchanged."""
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"].cpu())
    set_random_states(state["accelerator"], state["accelerator_states"])


def seed_process(seed: int, rank: int, steps: int) -> None:
    """Seed all generators of this process by the seed of the run, the rank and the number of trained steps."""
    words = np.random.SeedSequence((RANK_STREAM, seed, rank, steps)).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]))
