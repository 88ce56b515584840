"""Exact resume within an epoch for any map-style dataset."""

import random
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate

from yolo_lightning.data.array_types import Int64Array
from yolo_lightning.data.sampling.global_batches import limited
from yolo_lightning.data.sampling.resumable_loader import EpochBatchSampler, ResumableLoader, SampleKey
from yolo_lightning.errors import UserError
from yolo_lightning.utils.choices import check_types, plain
from yolo_lightning.utils.rank_zero import rank_zero_info
from yolo_lightning.utils.suggestions import did_you_mean, similar

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

SHUFFLE_STREAM = 6
GENERATOR_STREAM = 7
COLLATE_STREAM = 8
WORKER_STREAM = 9
"""Seed components that separate these random numbers from others of the same seed; see `epoch_order`."""


class ShuffledOrder:
    """Every sample once per epoch, in an order that depends on (seed, epoch) only, or in the order of the dataset."""

    def __init__(self, length: int, seed: int = 0, shuffle: bool = True) -> None:
        self.length = length
        self.settings: dict[str, Any] = {"samples": length, "seed": seed, "shuffle": shuffle}
        self._seed = seed
        self._shuffle = shuffle

    def indices(self, epoch: int, cycle: int = 0) -> Int64Array:
        if not self._shuffle:
            return np.arange(self.length)
        seeds = [SHUFFLE_STREAM, self._seed, epoch]
        if cycle:
            seeds.append(cycle)
        return np.random.default_rng(seeds).permutation(self.length)


class SeededDataset(Dataset[Any]):
    """Dataset whose samples depend on (seed, epoch, index) only, even if they are augmented at random.

    The generators of Python, NumPy and torch (CPU) are seeded for each sample and restored after it: the sample depends
    neither on the worker that prepares it nor on the samples before it. A generator that the dataset has created itself
    is not seeded. Samples are returned with their keys, for `_collate_seeded`.

    Args:
        dataset: Any map-style dataset.
        seed: Seed of the run, >= 0.
    """

    def __init__(self, dataset: Any, seed: int = 0) -> None:
        self.dataset = dataset
        self.seed = seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: SampleKey) -> tuple[SampleKey, Any]:
        with _seeded(GENERATOR_STREAM, self.seed, *key.seeds):
            return key, self.dataset[key.frame]


def _collate_seeded(collate: Callable[[list[Any]], Any], seed: int, samples: list[tuple[SampleKey, Any]]) -> Any:
    """Return a batch whose random numbers depend on (seed, epoch, index of the first sample) only."""
    key, _ = samples[0]
    with _seeded(COLLATE_STREAM, seed, *key.seeds):
        return collate([sample for _, sample in samples])


def _init_seeded(init: Callable[[int], None], seed: int, worker: int) -> None:
    """Prepare a worker with the same random numbers in every worker: samples do not depend on the worker."""
    with _seeded(WORKER_STREAM, seed):
        init(worker)


@contextmanager
def _seeded(*numbers: int) -> Iterator[None]:
    """Seed the generators of Python, NumPy and torch (CPU) in the block; restore their states after it."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    words = np.random.SeedSequence(numbers).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.default_generator.manual_seed(int(words[2]))  # torch.manual_seed would seed the GPUs, too
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def resumable_loader(
    dataset: Sized,
    batch_size: int,
    *,
    trainer: "Trainer | None" = None,
    seed: int = 0,
    shuffle: bool = True,
    collate_fn: Callable[[list[Any]], Any] = default_collate,
    **options: Any,
) -> ResumableLoader:
    """Return a training DataLoader that resumes at the sample after the last trained one, for any map-style dataset.

    The order of an epoch depends on (seed, epoch), and each sample on (seed, epoch, index), also if the dataset draws
    random numbers from the global generators of Python, NumPy or torch. Random numbers of `collate_fn` depend on (seed,
    epoch, index of the first sample of the batch). Those of `worker_init_fn` depend on the seed and are equal in all
    workers. The number of workers and of ranks may change when a run resumes. Incomplete last batches are kept; ranks
    divide every batch without repeating samples. With `trainer.overfit_batches`, epochs have the order of the dataset.

    Lightning stores the position in checkpoints. In other loops use `state_dict` and `load_state_dict` of the loader.

    Args:
        dataset: Map-style dataset, `dataset[i]` for i from 0 to `len(dataset) - 1`.
        batch_size: Samples per batch and rank; may change when a run resumes within an epoch.
        trainer: The Trainer that uses the loader. Required in a fit: without the Trainer, other iterations over the
            loader, `trainer.estimated_stepping_batches` and another batch size make a resume inexact. With several
            ranks, also set `use_distributed_sampler=False`.
        seed: Seed of the order and of the samples, >= 0.
        shuffle: Whether the order is random.
        collate_fn: As in `DataLoader`.
        options: Further arguments of `DataLoader`, such as `num_workers`.

    Raises:
        UserError: If a number is out of range, or an option determines the order of the samples.
    """
    innermost: Any = dataset
    while isinstance(innermost, Subset):
        innermost = innermost.dataset
    # torch gives a `__getitem__` that raises to every dataset without one, also to an iterable dataset.
    getter = getattr(type(innermost), "__getitem__", None)
    is_stream = isinstance(innermost, IterableDataset) or getter is Dataset.__getitem__
    has_items = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") and not is_stream
    if not has_items or isinstance(dataset, str | bytes | type) or (isinstance(dataset, Mapping) and 0 not in dataset):
        raise UserError(f"dataset must have a length and dataset[index], got {type(innermost).__name__}")
    for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0), ("len(dataset)", len(dataset), 1)):
        if not isinstance(plain(value), int) or isinstance(value, bool) or value < least:
            raise UserError(f"{name} must be an integer >= {least}, got {value!r}")
    if not callable(collate_fn) or not (trainer is None or isinstance(getattr(trainer, "global_rank", None), int)):
        raise UserError(f"collate_fn must be a function, trainer a Trainer or None, got {collate_fn} and {trainer}")
    hints = {"shuffle": bool, "num_workers": int, "pin_memory": bool, "generator": torch.Generator | None}
    check_types("resumable_loader", hints, {"shuffle": shuffle, **options})
    refused = sorted(options.keys() & {"sampler", "batch_sampler", "drop_last"})
    if refused:
        raise UserError(
            f"resumable_loader determines the order of the samples; remove {', '.join(refused)}. Samples that an epoch "
            "should contain several times, or not at all, are chosen by torch.utils.data.Subset(dataset, indices)"
        )
    arguments = signature(DataLoader).parameters
    for name in options.keys() - arguments:
        raise TypeError(f"resumable_loader has no argument {name!r}{did_you_mean(similar(name, arguments))}")
    batch_size = plain(batch_size)
    seed = plain(seed)
    if trainer is None:
        keys = EpochBatchSampler(ShuffledOrder(len(dataset), seed, shuffle), batch_size)
    else:
        from yolo_lightning.utils.loop_position import LoaderLoop  # imports Lightning

        if trainer.overfit_batches and shuffle:  # type: ignore[attr-defined]
            rank_zero_info("resumable_loader: not shuffled, because trainer.overfit_batches repeats the first batches")
            shuffle = False
        order = ShuffledOrder(len(dataset), seed, shuffle)
        keys = EpochBatchSampler(order, batch_size, trainer.global_rank, trainer.world_size)
        options |= {"epoch_batches": limited(len(keys), trainer.limit_train_batches), "loop": LoaderLoop(trainer)}
    if options.get("worker_init_fn") is not None:
        options["worker_init_fn"] = partial(_init_seeded, options["worker_init_fn"], seed)
    # With a generator of its own, the DataLoader does not draw its base seed from the generator that the model uses.
    options.setdefault("generator", torch.Generator().manual_seed(seed))
    collate = partial(_collate_seeded, collate_fn, seed)
    return ResumableLoader(SeededDataset(dataset, seed), keys, collate, prefix="", **options)
