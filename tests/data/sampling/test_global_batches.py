"""Distribution of samples to the processes of a distributed training."""

from itertools import islice

import pytest
from hypothesis import given, strategies as st

from tests.data.sampling.test_mosaic_partners import Shuffled
from tests.data.sampling.test_resumable_loader import KeyDataset
from yolo_lightning.data.sampling.global_batches import GlobalBatches
from yolo_lightning.data.sampling.resumable_loader import EpochBatchSampler, FileOrderBatches, ResumableLoader

PLACES = {"batch_size": st.integers(1, 5), "processes": st.integers(1, 5), "extra": st.integers(0, 40)}


def shares(samples: int, batch_size: int, processes: int, first: int = 0) -> list[list[slice]]:
    """Slices by process and step."""
    deals = [GlobalBatches(batch_size, rank, processes) for rank in range(processes)]
    return [list(deal.slices(first, samples)) for deal in deals]


@given(**PLACES)
def test_each_sample_goes_to_one_process_in_as_many_batches_as_any_other_has(
    batch_size: int, processes: int, extra: int
) -> None:
    samples = processes + extra
    by_process = shares(samples, batch_size, processes)
    assert {len(steps) for steps in by_process} == {GlobalBatches(batch_size, 0, processes).count(samples)}
    dealt = [
        place for step in zip(*by_process, strict=True) for share in step for place in range(share.start, share.stop)
    ]
    assert dealt == list(range(samples))
    sizes = [share.stop - share.start for steps in by_process for share in steps]
    assert min(sizes) >= 1
    assert max(sizes) <= batch_size + 1


@given(**PLACES)
def test_all_global_batches_but_the_last_are_those_of_one_process(batch_size: int, processes: int, extra: int) -> None:
    steps = list(zip(*shares(processes + extra, batch_size, processes), strict=True))
    assert [(step[0].start, step[-1].stop) for step in steps[:-1]] == [
        (number * batch_size * processes, (number + 1) * batch_size * processes) for number in range(len(steps) - 1)
    ]


def test_rest_of_fewer_samples_than_processes_joins_the_batch_before() -> None:
    by_process = shares(9, batch_size=2, processes=4)
    assert [[share.stop - share.start for share in steps] for steps in by_process] == [[2], [2], [2], [3]]


def test_split_that_is_too_small_for_the_processes_is_refused() -> None:
    with pytest.raises(ValueError, match="2 frames for 3 processes: use at most 2"):
        FileOrderBatches(2, GlobalBatches(4, 0, 3))


COUNT = 23


def loaders(processes: int, global_batch: int) -> list[ResumableLoader]:
    size = global_batch // processes
    return [
        ResumableLoader(KeyDataset(), EpochBatchSampler(Shuffled(COUNT), size, rank, processes), list)
        for rank in range(processes)
    ]


def steps_of(processes: list[ResumableLoader], count: int | None = None) -> list[list[int]]:
    """Frames of each step over all processes, in the order of the ranks."""
    per_rank = [list(islice(loader, count)) for loader in processes]
    return [[key.frame for batch in step for key in batch] for step in zip(*per_rank, strict=True)]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (4, 2), (2, 4)])
@pytest.mark.parametrize("stopped", [1, 3, 4])
def test_resumed_with_another_number_of_processes_deals_the_same_batches(before: int, after: int, stopped: int) -> None:
    uninterrupted = loaders(1, 4)
    expected = steps_of(uninterrupted) + steps_of(uninterrupted)
    first = loaders(before, 4)
    dealt = steps_of(first, stopped)
    state = first[0].state_dict()
    assert all(loader.state_dict()["delivered_samples"] == 4 * stopped for loader in first)
    resumed = loaders(after, 4)
    for loader in resumed:
        loader.load_state_dict(state)
    dealt += steps_of(resumed) + steps_of(resumed)
    assert dealt[:4] == expected[:4]  # four processes deal the rest of three with the fifth
    assert [frame for step in dealt for frame in step] == [frame for step in expected for frame in step]


def test_rest_that_is_too_small_for_the_processes_of_the_resumed_run_is_refused() -> None:
    (alone,) = loaders(1, 11)
    list(islice(alone, 2))  # 22 of 23
    (resumed, _) = loaders(2, 4)
    with pytest.raises(ValueError, match="saved 1 samples before the end of epoch 0, too few for 2 processes"):
        resumed.load_state_dict(alone.state_dict())
