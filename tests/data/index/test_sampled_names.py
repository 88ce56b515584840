"""Sample of the frames of a split by a hash of their names."""

import pytest

from yolo_lightning.data.index.sampled_names import sampled_positions


@pytest.mark.parametrize("period", [2, 3, 10])
def test_frames_of_every_kind_are_sampled_if_the_kinds_take_turns(period: int) -> None:
    kinds = [f"kind{number}" for number in range(period)]
    names = [f"{shot:05d}_{kind}.png" for shot in range(1000) for kind in kinds]
    positions = sampled_positions(names, 64)
    assert len(set(positions)) == 64
    assert positions == sorted(positions)
    assert {names[position].partition("_")[2] for position in positions} == {f"{kind}.png" for kind in kinds}


def test_sample_depends_on_the_names_and_not_on_their_order() -> None:
    names = [f"{number}.jpg" for number in range(500)]
    chosen = {names[position] for position in sampled_positions(names, 20)}
    assert chosen == {names[::-1][position] for position in sampled_positions(names[::-1], 20)}


@pytest.mark.parametrize("count", [0, 1, 5])
def test_all_frames_of_a_small_split_are_sampled(count: int) -> None:
    assert sampled_positions([f"{number}.jpg" for number in range(count)], 5) == list(range(count))
