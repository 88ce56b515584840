"""Training order that survives interruptions."""

import io
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from yolo_lightning.data.sampler import EpochBatchSampler, Key, ResumableLoader, epoch_order

COUNT, BATCH_SIZE, SEED = 7, 2, 3
EPOCH_BATCHES = 4
EPOCHS = 3
POSITIONS = range(2 * EPOCH_BATCHES + 1)

Keys = list[list[Key]]


class KeyDataset(Dataset[Key]):
    """Its samples are the keys it is asked for."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, key: Key) -> Key:
        return key


def make_loader(
    workers: int = 0,
    persistent: bool = False,
    epoch_batches: int | None = None,
    batch_size: int = BATCH_SIZE,
    seed: int = SEED,
) -> ResumableLoader:
    worker_options: dict[str, Any] = (
        {"multiprocessing_context": "spawn", "persistent_workers": persistent, "timeout": 120} if workers else {}
    )
    return ResumableLoader(
        KeyDataset(),
        EpochBatchSampler(COUNT, batch_size, seed),
        list,
        epoch_batches,
        num_workers=workers,
        **worker_options,
    )


def stream(loader: ResumableLoader) -> Iterator[list[Key]]:
    """Batches of one epoch after the other, without end; each epoch is cut at the loader's limit, as Trainer does."""
    while True:
        limit = loader.epoch_batches - loader.order.start if loader._positioned else loader.epoch_batches
        yield from islice(loader, limit)


def take(loader: ResumableLoader, batches: int) -> Keys:
    return list(islice(stream(loader), batches))


def uninterrupted(epoch_batches: int = EPOCH_BATCHES) -> Keys:
    """All batches of the first epochs, straight from the definition of the order."""
    return [
        [(epoch, int(index)) for index in epoch_order(COUNT, SEED, epoch)[first : first + BATCH_SIZE]]
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


@pytest.mark.parametrize("epoch", range(3))
@pytest.mark.parametrize("count", [1, 7, 100])
def test_epoch_order_is_a_permutation(count: int, epoch: int) -> None:
    assert sorted(epoch_order(count, SEED, epoch).tolist()) == list(range(count))


def test_epoch_order_depends_on_seed_and_epoch_alone() -> None:
    first = epoch_order(100, 3, 5).tolist()
    torch.manual_seed(99)
    epoch_order(100, 8, 8)
    assert epoch_order(100, 3, 5).tolist() == first


@pytest.mark.parametrize(("seed", "epoch"), [(3, 6), (4, 5), (5, 3)])
def test_epoch_order_differs_for_other_seed_or_epoch(seed: int, epoch: int) -> None:
    assert epoch_order(100, seed, epoch).tolist() != epoch_order(100, 3, 5).tolist()


@pytest.mark.parametrize(("count", "batches"), [(1, 1), (2, 1), (6, 3), (7, 4)])
def test_sampler_says_how_many_batches_an_epoch_has(count: int, batches: int) -> None:
    sampler = EpochBatchSampler(count, BATCH_SIZE, SEED)
    assert len(sampler) == len(list(sampler)) == batches


def test_sampler_gives_every_index_once_with_a_smaller_last_batch() -> None:
    batches = list(EpochBatchSampler(COUNT, BATCH_SIZE, SEED))
    assert [len(batch) for batch in batches] == [2, 2, 2, 1]
    assert sorted(index for batch in batches for _, index in batch) == list(range(COUNT))


def test_sampler_starts_again_at_the_same_batch_when_asked_twice() -> None:
    sampler = EpochBatchSampler(COUNT, BATCH_SIZE, SEED)
    sampler.start = 2
    assert list(sampler) == list(sampler) == uninterrupted()[2:4]


def test_loader_goes_on_to_the_next_epoch_by_itself() -> None:
    loader = make_loader()
    assert list(loader) + list(loader) + list(loader) == uninterrupted()


def test_loader_length_is_that_of_a_whole_epoch_also_after_resuming() -> None:
    assert len(resumed(state_after(2))) == EPOCH_BATCHES


@pytest.mark.parametrize("position", POSITIONS)
def test_resumed_loader_gives_exactly_the_remaining_batches(position: int) -> None:
    expected = uninterrupted()[position:]
    assert take(resumed(state_after(position)), len(expected)) == expected


@pytest.mark.parametrize("position", POSITIONS)
def test_state_right_after_resuming_is_an_equal_position(position: int) -> None:
    again = resumed(resumed(state_after(position)).state_dict())
    expected = uninterrupted()[position:]
    assert take(again, len(expected)) == expected


@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, 2), (5, 1), (5, 2)])
def test_two_resumes_within_one_epoch(first: int, second: int) -> None:
    loader = resumed(state_after(first))
    take(loader, second)
    expected = uninterrupted()[first + second :]
    assert take(resumed(loader.state_dict()), len(expected)) == expected


def test_state_saved_on_the_last_batch_rolls_over_to_the_next_epoch() -> None:
    state = state_after(EPOCH_BATCHES)
    assert (state["epoch"], state["delivered_batches"]) == (0, EPOCH_BATCHES)
    assert take(resumed(state), 1) == uninterrupted()[EPOCH_BATCHES : EPOCH_BATCHES + 1]


def test_state_saved_after_a_whole_epoch_rolls_over_to_the_next_epoch() -> None:
    loader = make_loader()
    list(loader)
    assert take(resumed(loader.state_dict()), 1) == uninterrupted()[EPOCH_BATCHES : EPOCH_BATCHES + 1]


@pytest.mark.parametrize("position", range(7))
def test_limited_epochs_roll_over_at_their_limit(position: int) -> None:
    expected = uninterrupted(epoch_batches=3)[position:]
    assert take(resumed(state_after(position, epoch_batches=3), epoch_batches=3), len(expected)) == expected


def test_epoch_limit_beyond_the_data_is_the_length_of_the_data() -> None:
    assert make_loader(epoch_batches=100).epoch_batches == EPOCH_BATCHES


def test_loader_may_be_repositioned_after_use() -> None:
    loader = make_loader()
    take(loader, 6)
    loader.load_state_dict(state_after(1))
    assert take(loader, 2) == uninterrupted()[1:3]


def test_resume_with_spawned_workers_after_none_and_with_none_after_them() -> None:
    loader = resumed(state_after(1), workers=2)
    assert take(loader, 2) == uninterrupted()[1:3]
    assert take(resumed(loader.state_dict()), 5) == uninterrupted()[3:8]


def test_resume_with_persistent_spawned_workers() -> None:
    loader = resumed(state_after(1), workers=2, persistent=True)
    assert take(loader, 4) == uninterrupted()[1:5]
    state = loader.state_dict()
    assert take(resumed(state), 2) == uninterrupted()[5:7]
    loader.load_state_dict(state)
    assert take(loader, 5) == uninterrupted()[5:10]


@pytest.mark.parametrize(("name", "saved", "now"), [("batch_size", 2, 3), ("seed", 3, 4)])
def test_other_order_is_refused_within_an_epoch(name: str, saved: int, now: int) -> None:
    with pytest.raises(ValueError, match=f"inside epoch 1 with {name} {saved}, now {now}: keep {name} {saved}"):
        resumed(state_after(5), **{name: now})


@pytest.mark.parametrize(("name", "now"), [("batch_size", 3), ("seed", 4)])
def test_other_order_is_accepted_at_the_end_of_an_epoch(name: str, now: int) -> None:
    loader = resumed(state_after(EPOCH_BATCHES), **{name: now})
    keys = [key for batch in list(loader) for key in batch]
    order = epoch_order(COUNT, now if name == "seed" else SEED, epoch=1)
    assert keys == [(1, int(index)) for index in order]


def test_refused_state_leaves_the_loader_as_it_was() -> None:
    loader = make_loader(seed=4)
    with pytest.raises(ValueError, match="inside epoch 0 with seed 3"):
        loader.load_state_dict(state_after(1))
    assert loader.state_dict() == state_after(0, seed=4)


def test_state_is_plain_python_and_loads_with_weights_only() -> None:
    state = state_after(5)
    assert {type(value) for value in state.values()} == {int}
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == state
