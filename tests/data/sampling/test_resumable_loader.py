"""Training order that survives interruptions."""

import io
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.utils.data import Dataset

from yolo_lightning.data.sampling.epoch_order import SampledOrder
from yolo_lightning.data.sampling.resumable_loader import EpochBatchSampler, Position, ResumableLoader, SampleKey

COUNT, BATCH_SIZE, SEED = 7, 2, 3
EPOCH_BATCHES = 4
EPOCHS = 3
POSITIONS = range(2 * EPOCH_BATCHES + 1)

Keys = list[list[SampleKey]]


class Shuffled(SampledOrder):
    """An order of `COUNT` samples in which the first stands twice, in place of the second."""

    def __init__(self, seed: int = SEED, rule: str | None = None) -> None:
        self.length = COUNT
        self.settings = {"seed": seed, "rule": rule}
        self.seed = seed

    def indices(self, epoch: int, cycle: int = 0) -> npt.NDArray[np.int64]:
        seeds = (self.seed, epoch, cycle) if cycle else (self.seed, epoch)
        order = np.random.default_rng(seeds).permutation(COUNT)
        return np.where(order == 1, 0, order)


class KeyDataset(Dataset[SampleKey]):
    """Its samples are the keys it is asked for."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, key: SampleKey) -> SampleKey:
        return key


class Loop:
    """Training loop of a Trainer with one loader that has not started to train."""

    def __init__(self) -> None:
        self.recounted: list[int] = []

    def epochs_trained(self) -> int:
        return 0

    def loaders(self) -> int:
        return 1

    def iterators(self) -> list[Any]:
        return []

    def announce_epoch(self) -> None:
        pass

    def recount(self, batches: int) -> None:
        self.recounted.append(batches)


def make_loader(
    workers: int = 0,
    persistent: bool = False,
    epoch_batches: int | None = None,
    batch_size: int = BATCH_SIZE,
    loop: Any = None,
    **order: Any,
) -> ResumableLoader:
    worker_options: dict[str, Any] = (
        {"multiprocessing_context": "spawn", "persistent_workers": persistent, "timeout": 120} if workers else {}
    )
    return ResumableLoader(
        KeyDataset(),
        EpochBatchSampler(Shuffled(**order), batch_size),
        list,
        epoch_batches,
        loop,
        num_workers=workers,
        **worker_options,
    )


def stream(loader: ResumableLoader) -> Iterator[list[SampleKey]]:
    """Batches of one epoch after the other, without end; each epoch is cut at the loader's limit, as Trainer does."""
    while True:
        batches = -(-loader.state_dict()["delivered_samples"] // loader.keys.batch_size)
        yield from islice(loader, loader.epoch_batches - batches % loader.epoch_batches)


def take(loader: ResumableLoader, batches: int) -> Keys:
    return list(islice(stream(loader), batches))


def keys_of(epoch: int, seed: int = SEED) -> list[SampleKey]:
    """The samples of one epoch, straight from the definition of the order."""
    indices = Shuffled(seed).indices(epoch).tolist()
    partners = [tuple(indices[place - distance] for distance in (1, 4, 6)) for place in range(COUNT)]
    earlier = [indices[:place].count(index) for place, index in enumerate(indices)]
    return [SampleKey(epoch, *member) for member in zip(indices, earlier, partners, strict=True)]


def uninterrupted(epoch_batches: int = EPOCH_BATCHES) -> Keys:
    """All batches of the first epochs."""
    return [
        keys_of(epoch)[first : first + BATCH_SIZE]
        for epoch in range(EPOCHS)
        for first in range(0, epoch_batches * BATCH_SIZE, BATCH_SIZE)
    ]


def state_after(batches: int, **options: Any) -> dict[str, Any]:
    loader = make_loader(**options)
    take(loader, batches)
    return loader.state_dict()


def resumed(state: dict[str, Any], **options: Any) -> ResumableLoader:
    loader = make_loader(**options)
    loader.load_state_dict(state)
    return loader


def test_sampler_starts_again_at_the_same_sample_when_asked_twice() -> None:
    sampler = EpochBatchSampler(Shuffled(), BATCH_SIZE)
    sampler.position = Position(0, 4)
    assert list(sampler) == list(sampler) == uninterrupted()[2:4]


def test_sampler_may_start_within_a_batch() -> None:
    sampler = EpochBatchSampler(Shuffled(), 3)
    assert list(sampler.from_position(Position(0, 2))) == [keys_of(0)[2:5], keys_of(0)[5:7]]


@pytest.mark.parametrize("position", POSITIONS)
def test_resumed_loader_gives_exactly_the_remaining_batches(position: int) -> None:
    expected = uninterrupted()[position:]
    assert take(resumed(state_after(position)), len(expected)) == expected


@pytest.mark.parametrize("position", POSITIONS)
def test_state_right_after_resuming_is_an_equal_position(position: int) -> None:
    again = resumed(resumed(state_after(position)).state_dict())
    expected = uninterrupted()[position:]
    assert take(again, len(expected)) == expected


@pytest.mark.parametrize("position", range(7))
def test_limited_epochs_roll_over_at_their_limit(position: int) -> None:
    expected = uninterrupted(epoch_batches=3)[position:]
    assert take(resumed(state_after(position, epoch_batches=3), epoch_batches=3), len(expected)) == expected


def test_loader_may_be_repositioned_after_use() -> None:
    loader = make_loader()
    take(loader, 6)
    loader.load_state_dict(state_after(1))
    assert take(loader, 2) == uninterrupted()[1:3]


@pytest.mark.whole_run
def test_resume_with_persistent_spawned_workers() -> None:
    loader = resumed(state_after(1), workers=2, persistent=True)
    assert take(loader, 4) == uninterrupted()[1:5]
    state = loader.state_dict()
    assert take(resumed(state), 2) == uninterrupted()[5:7]
    loader.load_state_dict(state)
    assert take(loader, 5) == uninterrupted()[5:10]


@pytest.mark.parametrize(("name", "saved", "now"), [("seed", 3, 4), ("rule", None, "another")])
def test_other_order_is_refused_within_an_epoch(name: str, saved: Any, now: Any) -> None:
    with pytest.raises(ValueError, match=rf"data\.{name} must be {saved}, got {now}: .* within epoch 1"):
        resumed(state_after(5), **{name: now})


@pytest.mark.parametrize("batch_size", range(1, COUNT + 2))
@pytest.mark.parametrize("position", range(1, EPOCH_BATCHES))
def test_other_batch_size_deals_the_rest_of_the_epoch(position: int, batch_size: int) -> None:
    loop = Loop()
    loader = make_loader(batch_size=batch_size, loop=loop)
    loader.load_state_dict(state_after(position))
    rest = list(loader)
    assert [key for batch in rest for key in batch] == keys_of(0)[position * BATCH_SIZE :]
    assert [len(batch) for batch in rest[:-1]] == [batch_size] * (len(rest) - 1)
    assert loop.recounted == [len(loader) - len(rest)]
    assert [key for batch in loader for key in batch] == keys_of(1)


@pytest.mark.parametrize("sizes", [(2, 3, 1), (1, 2, 4), (3, 1, 2)])
def test_batch_size_may_change_twice_within_an_epoch(sizes: tuple[int, int, int]) -> None:
    seen: list[SampleKey] = []
    state: dict[str, Any] | None = None
    for size in sizes:
        loader = make_loader(batch_size=size)
        if state is not None:
            loader.load_state_dict(state)
        batches = take(loader, 1) if size != sizes[-1] else list(loader)
        seen += [key for batch in batches for key in batch]
        state = loader.state_dict()
    assert seen == keys_of(0)


def test_batches_done_are_told_as_they_were_where_nothing_has_changed() -> None:
    loop = Loop()
    for position in POSITIONS:
        make_loader(loop=loop).load_state_dict(state_after(position))
    assert loop.recounted == [position % EPOCH_BATCHES for position in POSITIONS if position % EPOCH_BATCHES]


def test_position_beyond_the_end_of_shorter_epochs_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"after 4 samples of epoch 0, but an epoch has 3 samples: raise trainer\.limit"
    ):
        resumed(state_after(2), batch_size=1, epoch_batches=3)


def test_rule_that_the_checkpoint_does_not_know_is_refused_within_an_epoch() -> None:
    state = state_after(5)
    del state["settings"]["rule"]
    with pytest.raises(ValueError, match=r"data\.rule must be None, got another: .* within epoch 1"):
        resumed(state, rule="another")


@pytest.mark.parametrize(("name", "now"), [("batch_size", 3), ("seed", 4), ("rule", "another")])
def test_other_order_is_accepted_at_the_end_of_an_epoch(name: str, now: Any) -> None:
    loader = resumed(state_after(EPOCH_BATCHES), **{name: now})
    assert [key for batch in list(loader) for key in batch] == keys_of(1, now if name == "seed" else SEED)


def test_refused_state_leaves_the_loader_as_it_was() -> None:
    loader = make_loader(seed=4)
    with pytest.raises(ValueError, match=r"data\.seed must be 3, got 4: .* within epoch 0"):
        loader.load_state_dict(state_after(1))
    assert loader.state_dict() == state_after(0, seed=4)


def test_state_is_plain_python_and_loads_with_weights_only() -> None:
    state = state_after(5)
    assert (state["epoch"], state["delivered_samples"], state["epoch_samples"]) == (1, BATCH_SIZE, COUNT)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == state


def test_epochs_with_mosaic_are_read_at_the_start_of_an_epoch_and_kept_within_it() -> None:
    """A deadline may change the number within an epoch; a resumed epoch keeps its number."""
    numbers = iter((1, 2))
    loader = make_loader()
    loader.mosaic_epochs = lambda: next(numbers)
    seen = [{key.has_mosaic for key in batch} for batch in take(loader, EPOCH_BATCHES + 1)]
    assert seen == [{True}] * (EPOCH_BATCHES + 1)
    resumed = make_loader()
    resumed.mosaic_epochs = lambda: 1
    resumed.load_state_dict(loader.state_dict())
    seen = [{key.has_mosaic for key in batch} for batch in take(resumed, EPOCH_BATCHES)]
    assert seen == [{True}] * (EPOCH_BATCHES - 1) + [{False}]


@pytest.mark.parametrize("position", range(EPOCH_BATCHES))
def test_batches_before_the_start_are_those_of_the_interrupted_process(position: int) -> None:
    interrupted = make_loader()
    trained = list(islice(interrupted, position)) if position else []
    resumed = make_loader()
    resumed.load_state_dict(interrupted.state_dict())
    assert resumed.before_start(2) == trained[-2:]
    rest = list(resumed)
    assert resumed.before_start(9) == trained
    assert trained + rest == list(make_loader())
    assert list(islice(resumed, 1))
    assert resumed.before_start(1) == []


def test_iterations_have_positions_of_their_own() -> None:
    loader = make_loader()
    first, second = iter(loader), iter(loader)
    taken = [next(first), next(first), next(second), next(first)]
    assert taken == [*uninterrupted()[:2], uninterrupted()[EPOCH_BATCHES], uninterrupted()[2]]
    del second
    assert take(resumed(loader.state_dict()), 1) == uninterrupted()[3:4]


@pytest.mark.whole_run
def test_iterations_at_the_same_time_do_not_share_persistent_workers() -> None:
    loader = make_loader(workers=1, persistent=True)
    first, second = iter(loader), iter(loader)
    taken = [next(first), next(second), next(first), *second, *first]
    assert taken == [
        uninterrupted()[0],
        uninterrupted()[4],
        uninterrupted()[1],
        *uninterrupted()[5:8],
        *uninterrupted()[2:4],
    ]


@pytest.mark.parametrize(("position", "epochs"), [(5, (0, 1)), (5, (1, 2)), (8, (0,)), (8, (2,))])
def test_announced_epochs_continue_after_a_resume(position: int, epochs: tuple[int, ...]) -> None:
    """Fabric announces epochs from 0 on in every process; other loops continue to count."""
    loader = resumed(state_after(position))
    batches: Keys = []
    for epoch in epochs:
        loader.set_epoch(epoch)
        batches += loader
    assert batches == uninterrupted()[position:]


def test_passes_of_one_announced_epoch_have_other_orders() -> None:
    orders: list[Keys] = []
    for announced in (0, 0, 1):
        loader = make_loader()
        loader.set_epoch(announced)
        orders += [list(loader), list(loader)]
    assert orders[:2] == orders[2:4]
    frames = [[key.frame for batch in order for key in batch] for order in orders]
    assert len({tuple(order) for order in frames}) == 4
    assert [sorted(order) for order in frames[:2]] == [sorted(frames[0])] * 2
