"""Frames of an epoch: fixed length, rotation over all frames, dependence on (seed, epoch) only."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from yolo_lightning.data.formats.annotations import SplitFacts
from yolo_lightning.data.formats.ltdv2 import CATEGORY_IDS, CLASS_NAMES
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.occurrences import occurrences
from yolo_lightning.data.sampling.epoch_order import SampledOrder, Sampling, systematic_counts

Case = tuple[SplitIndex, Sampling]

repeatable = settings(deadline=None, derandomize=True, database=None)
thorough = settings(repeatable, max_examples=200)

MONTHS = np.array([202005, 202006, 202101, 0], np.int32)
SEED = 3


def make_index(clip_lengths: list[int], seed: int = 0) -> SplitIndex:
    """Clips of these lengths, their frames shuffled in the file; months go round; up to three boxes on a frame."""
    generator = np.random.default_rng(seed)
    clips = np.repeat(np.arange(len(clip_lengths)), clip_lengths).astype(np.int32)
    positions = np.concatenate([np.arange(length) for length in clip_lengths]).astype(np.int32)
    shuffle = generator.permutation(len(clips))
    boxes = generator.integers(0, 4, len(clips))
    index = SplitIndex(Path("in memory"))
    vars(index)["facts"] = SplitFacts(CLASS_NAMES, CATEGORY_IDS, int(boxes.sum()), 0, 0, has_clips=True)
    vars(index)["_arrays"] = {
        "image_ids": shuffle,
        "clips": clips[shuffle],
        "positions_in_clip": positions[shuffle],
        "months": MONTHS[clips[shuffle] % len(MONTHS)],
        "box_offsets": np.concatenate(([0], np.cumsum(boxes))),
        "labels": generator.integers(0, len(CLASS_NAMES), boxes.sum()).astype(np.int8),
    }
    return index


indexes = st.builds(make_index, st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(0, 5))
seeds = st.integers(0, 2**33)
epochs = st.integers(0, 60)


@st.composite
def cases(draw: st.DrawFn, **fixed: Any) -> Case:
    index = draw(indexes)
    values = {
        "frame_interval": draw(st.integers(1, min(len(index), 12))),
        "every_frame_of": draw(st.sampled_from([(), ("person",), ("bicycle", "vehicle")])),
        "epoch_frames": draw(st.none() | st.integers(1, 3 * len(index))),
    }
    return index, Sampling(**(values | fixed))


@thorough
@given(cases(), seeds, epochs)
def test_every_epoch_has_the_same_length_and_frames_of_the_split(case: Case, seed: int, epoch: int) -> None:
    order = SampledOrder(*case, seed)
    indices = order.indices(epoch)
    assert len(indices) == order.length
    assert (indices >= 0).all()
    assert (indices < len(case[0])).all()


@repeatable
@given(cases(), seeds, epochs, epochs)
def test_order_depends_on_seed_and_epoch_alone(case: Case, seed: int, epoch: int, other: int) -> None:
    order = SampledOrder(*case, seed)
    order.indices(other)
    assert order.indices(epoch).tolist() == SampledOrder(*case, seed).indices(epoch).tolist()


@repeatable
@given(indexes, seeds, epochs)
def test_without_rules_an_epoch_is_the_permutation_of_seed_and_epoch(index: SplitIndex, seed: int, epoch: int) -> None:
    expected = np.random.default_rng((1, seed, epoch)).permutation(len(index))
    assert SampledOrder(index, Sampling(), seed).indices(epoch).tolist() == expected.tolist()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"frame_interval": 4},
        {"frame_interval": 4, "every_frame_of": ("person",)},
        {"epoch_frames": 50},
        {"epoch_frames": 120},
        {"epoch_frames": 500},
    ],
)
def test_no_two_epochs_or_seeds_have_the_same_order(options: dict[str, Any]) -> None:
    index = make_index([40, 30, 50])
    orders = [SampledOrder(index, Sampling(**options), seed) for seed in (1, 2)]
    assert len({tuple(order.indices(epoch).tolist()) for order in orders for epoch in range(12)}) == 24


@thorough
@given(cases(epoch_frames=None), seeds, st.integers(0, 4))
def test_as_many_epochs_as_the_interval_hold_every_frame(case: Case, seed: int, cycle: int) -> None:
    order, interval = SampledOrder(*case, seed), case[1].frame_interval
    held = [order.indices(epoch) for epoch in range(cycle * interval, (cycle + 1) * interval)]
    assert np.unique(np.concatenate(held)).tolist() == list(range(len(case[0])))


def test_frames_of_an_epoch_are_the_interval_apart_within_each_clip() -> None:
    index = make_index([60, 35, 45])
    order = SampledOrder(index, Sampling(frame_interval=5), SEED)
    for epoch in range(10):
        chosen = order.indices(epoch)
        for clip in range(3):
            positions = np.sort(index.positions_in_clip()[chosen[index.clips()[chosen] == clip]])
            assert set(np.diff(positions).tolist()) == {5}


def test_every_frame_of_a_class_is_in_every_epoch_beside_the_interval() -> None:
    index = make_index([40] * 10)
    rare = np.flatnonzero([2 in index.labels(frame) for frame in range(len(index))])
    order = SampledOrder(index, Sampling(frame_interval=10, every_frame_of=("motorcycle",)), SEED)
    remaining_frames = (len(index) - len(rare)) / 10
    assert order.length == np.ceil(len(rare) + remaining_frames)
    seen: Counter[int] = Counter()
    for epoch in range(10):
        indices = order.indices(epoch)
        assert set(rare.tolist()) <= set(indices.tolist())
        seen.update(indices.tolist())
    assert len(seen) == len(index)
    assert np.mean([seen[frame] for frame in set(seen) - set(rare.tolist())]) == pytest.approx(1, abs=0.1)


def test_unknown_class_of_every_frame_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data.sampling.every_frame_of must .* \(person, .*\), got 'motorbike'"):
        SampledOrder(make_index([8]), Sampling(every_frame_of=("motorbike",)), SEED)


@pytest.mark.parametrize(
    ("frames", "interval", "length"), [(10, 1, 10), (10, 3, 4), (9, 3, 3), (10, 10, 1), (11, 10, 2)]
)
def test_length_of_a_thinned_epoch_is_rounded_up(frames: int, interval: int, length: int) -> None:
    assert SampledOrder(make_index([frames]), Sampling(frame_interval=interval), SEED).length == length


def test_short_epochs_walk_on_through_the_passes() -> None:
    index = make_index([40, 30])
    whole, short = SampledOrder(index, Sampling(), SEED), SampledOrder(index, Sampling(epoch_frames=30), SEED)
    passes = np.concatenate([whole.indices(number) for number in range(3)])
    assert np.concatenate([short.indices(epoch) for epoch in range(7)]).tolist() == passes.tolist()


def test_long_epochs_hold_several_passes() -> None:
    index = make_index([10])
    whole, long = SampledOrder(index, Sampling(), SEED), SampledOrder(index, Sampling(epoch_frames=25), SEED)
    passes = np.concatenate([whole.indices(number) for number in range(5)])
    assert np.concatenate([long.indices(epoch) for epoch in range(2)]).tolist() == passes.tolist()


def test_phase_moves_with_the_pass_where_epochs_are_short() -> None:
    index = make_index([60])
    order = SampledOrder(index, Sampling(frame_interval=4, epoch_frames=5), SEED)
    held = np.concatenate([order.indices(epoch) for epoch in range(12)])
    assert sorted(held.tolist()) == list(range(60))


weights = st.lists(st.floats(0.01, 5), min_size=1, max_size=50)


@repeatable
@given(weights, st.floats(0, 1, exclude_max=True))
def test_counts_are_the_weights_rounded_and_sum_to_the_length(raw: list[float], offset: float) -> None:
    length = int(np.ceil(sum(raw)))
    scaled = np.array(raw) * length / sum(raw)
    counts = systematic_counts(scaled, offset, length)
    assert counts.sum() == length
    assert (counts >= np.floor(scaled - 1e-9)).all()
    assert (counts <= np.ceil(scaled + 1e-9)).all()


@pytest.mark.parametrize(
    ("raw", "offset"),
    [([0.1] * 10, np.nextafter(1, 0)), ([1 / 18] * 18 + [1e-300], 0.0)],
    ids=["sum below the length", "sum above the length"],
)
def test_rounding_errors_do_not_change_the_length(raw: list[float], offset: float) -> None:
    counts = systematic_counts(np.array(raw), offset, 1)
    assert counts.sum() == 1
    assert set(counts.tolist()) == {0, 1}


@repeatable
@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_occurrence_counts_the_same_index_before(indices: list[int]) -> None:
    expected = [indices[:place].count(index) for place, index in enumerate(indices)]
    assert occurrences(np.array(indices)).tolist() == expected


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("frame_interval", 0, ">= 1"),
        ("epoch_frames", 0, ">= 1 or null"),
    ],
)
def test_value_out_of_range_is_refused(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=rf"data\.sampling\.{name} must be {allowed}, got {value!r}"):
        Sampling(**{name: value})


def test_interval_beyond_the_split_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.sampling\.frame_interval must be <= 10, .*, got 11"):
        SampledOrder(make_index([10]), Sampling(frame_interval=11), SEED)


def test_settings_name_all_that_the_order_depends_on() -> None:
    actual_settings = SampledOrder(make_index([10]), Sampling(frame_interval=2, epoch_frames=7), SEED).settings
    assert actual_settings == {
        "seed": SEED,
        "sampling.frame_interval": 2,
        "sampling.every_frame_of": [],
        "sampling.epoch_frames": 7,
    }


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "epoch: 100 of 100 frames"),
        ({"frame_interval": 10}, "epoch: 10 of 100 frames"),
        ({"epoch_frames": 40}, "epoch: 40 of 100 frames, 2.50 epochs per pass of 100"),
    ],
)
def test_effect_on_an_epoch_is_described_in_one_line(options: dict[str, Any], line: str) -> None:
    assert SampledOrder(make_index([60, 40]), Sampling(**options), SEED).describe() == line
