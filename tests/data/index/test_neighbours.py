"""Neighbouring frames of a clip: which frames they are."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.annotations import open_ltdv2
from yolo_lightning.data.index.neighbours import Neighbours, numbered
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.input_settings import LARGEST_OFFSET, MOST_NEIGHBOURS, check_neighbours

OFFSETS = (-3, -1, 0, 4)


@pytest.fixture
def index(coco: Callable[..., Any], write_json: Callable[..., Path], tmp_path: Path) -> SplitIndex:
    """60 frames in five clips, not in order."""
    generator = np.random.default_rng(0)
    content = coco([()] * 60)
    for image in content["images"]:
        image["file_name"] = f"frames/clip_{generator.integers(5)}/image_{generator.integers(10**6)}.jpg"
    return open_ltdv2(write_json(content), tmp_path / "index")


def names(neighbours: Neighbours, position: int) -> list[str]:
    return [neighbours.index.file_name(place) for place in neighbours.positions(position)]


def assert_slow_search_agrees(index: SplitIndex) -> None:
    for position in range(len(index)):
        own = index.file_name(position)
        clip = [name for name in index.file_names() if name.rpartition("/")[0] == own.rpartition("/")[0]]
        clip.sort(key=lambda name: numbered(name)[1])
        places = [min(max(clip.index(own) + offset, 0), len(clip) - 1) for offset in OFFSETS]
        assert names(Neighbours(index, OFFSETS), position) == [clip[place] for place in places]


def test_table_agrees_with_a_slow_search(index: SplitIndex) -> None:
    assert_slow_search_agrees(index)


def test_part_of_a_file_has_its_own_positions(index: SplitIndex) -> None:
    assert_slow_search_agrees(index.of_clips(np.array([1, 3])))


def test_worker_gets_no_table(index: SplitIndex) -> None:
    neighbours = Neighbours(index, OFFSETS)
    expected = [neighbours.positions(position) for position in range(5)]
    received = pickle.loads(pickle.dumps(neighbours))
    assert "_table" in vars(neighbours)
    assert "_table" not in vars(received)
    assert [received.positions(position) for position in range(5)] == expected


@pytest.mark.parametrize(
    "offsets",
    [
        [1, 2],
        [0, -1],
        [-1, 0, 0],
        [0, LARGEST_OFFSET + 1],
        [0, 1.0],
        [False, 1],
        list(range(MOST_NEIGHBOURS + 1)),
    ],
)
def test_other_offsets_are_refused(offsets: list[Any]) -> None:
    with pytest.raises(
        ValueError, match=r"^data\.input\.neighbours must be \[\] or at most 16 different offsets .* got \["
    ):
        check_neighbours(offsets)


@pytest.mark.parametrize("offsets", [None, [], (), [0], (0,)])
def test_the_frame_alone_needs_no_neighbours(offsets: Any) -> None:
    assert check_neighbours(offsets) == ()
