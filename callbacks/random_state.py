"""Puts the state of all random generators into the checkpoint."""

import random
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from yolo_lightning.position import steps_begun

RANK_STREAM = 5
"""Keeps the random numbers of further processes apart from those that other streams draw from the same seed."""


class RandomState(Callback):
    """Saves and restores Python's, NumPy's and torch's generators, so that a resumed run draws what the other would.

    Data do not need it (they depend on seed, epoch and index alone); layers such as dropout do. A checkpoint holds the
    generators of the first process. Each of the others begins a stream of its own whenever training starts or resumes,
    by (seed, rank, steps).
    """

    def __init__(self) -> None:
        self._loaded: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """The generators now, as tensors and plain Python."""
        name, keys, *rest = np.random.get_state(legacy=True)
        return {
            "python": random.getstate(),
            "numpy": [name, np.asarray(keys).tolist(), *rest],
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state until training starts; set-up in between may draw."""
        self._loaded = state_dict

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore."""
        if trainer.global_rank:
            seed_process(torch.initial_seed(), trainer.global_rank, steps_begun(trainer))
        if self._loaded is None or trainer.global_rank:
            return
        random.setstate(self._loaded["python"])
        name, keys, *rest = self._loaded["numpy"]
        np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
        torch.set_rng_state(self._loaded["torch"].cpu())
        if len(self._loaded["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all([state.cpu() for state in self._loaded["cuda"]])
        self._loaded = None


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
