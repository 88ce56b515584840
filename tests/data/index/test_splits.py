"""Parts of a split: whole clips of every month, equal in every run; a smaller part is contained in a larger one."""

import json
import pickle
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.annotations import open_ltdv2
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.index.splits import describe_split, hold_out, subset

CLIPS_OF_MONTH = {"202005": 10, "202006": 4, "202101": 1}
FRAMES_OF_CLIP = 3


@pytest.fixture
def index(tmp_path: Path, write_json: Callable[..., Path]) -> SplitIndex:
    """15 clips in three months; frame `i` has `i % 3` boxes, and the first frames of all clips come first."""
    clips = [(month, number) for month, count in CLIPS_OF_MONTH.items() for number in range(count)]
    images = [
        {
            "id": int(f"{month}{number:03d}1012{position:02d}00"),
            "file_name": f"frames/{month}10/clip_{number}_1200/image_{position:04d}.jpg",
            "width": 64 + position,
            "height": 48,
        }
        for position in range(FRAMES_OF_CLIP)
        for month, number in clips
    ]
    annotations = [
        {"image_id": image["id"], "category_id": 1 + box, "bbox": [i % 40, box, 20, 20]}
        for i, image in enumerate(images)
        for box in range(i % 3)
    ]
    names = ("background", "person", "bicycle", "motorcycle", "vehicle")
    categories = [{"id": number, "name": name} for number, name in enumerate(names)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    return open_ltdv2(write_json(content), tmp_path / "index")


def clip_names(index: SplitIndex) -> set[str]:
    return {index.clip_name(number) for number in np.unique(index.clips())}


def counts_of_months(index: SplitIndex) -> dict[str, int]:
    return {month: sum(f"/{month}" in name for name in clip_names(index)) for month in CLIPS_OF_MONTH}


@pytest.fixture
def part(index: SplitIndex) -> SplitIndex:
    return index.of_clips(np.array([2, 5, 14]))


def test_frames_of_a_subset_are_those_of_the_file(index: SplitIndex, part: SplitIndex) -> None:
    positions = [position for position in range(len(index)) if index.clips()[position] in (2, 5, 14)]
    assert len(part) == len(positions) == 9
    for number, position in enumerate(positions):
        for question in ("image_id", "file_name", "shape"):
            assert getattr(part, question)(number) == getattr(index, question)(position)
        for question in ("boxes", "labels"):
            assert np.array_equal(getattr(part, question)(number), getattr(index, question)(position))


def test_arrays_of_a_subset_agree_with_its_frames(index: SplitIndex, part: SplitIndex) -> None:
    offsets, labels = part.box_offsets(), part.all_labels()
    assert part.image_ids() == [part.image_id(number) for number in range(9)]
    assert part.file_names() == [part.file_name(number) for number in range(9)]
    assert [labels[offsets[i] : offsets[i + 1]].tolist() for i in range(9)] == [
        part.labels(i).tolist() for i in range(9)
    ]
    assert offsets[-1] == len(labels) > 0
    assert part.clips().tolist() == [2, 5, 14] * 3
    assert part.positions_in_clip().tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert part.months().tolist() == [202005, 202005, 202101] * 3
    assert [part.month(index) for index in range(9)] == [202005, 202005, 202101] * 3
    assert part.clip_name(14) == index.clip_name(14)
    assert part.text_ids().tolist() == [False] * 9
    assert part.pixels() == sum(height * width for height, width in map(part.shape, range(9)))


def test_pickled_subset_is_small_and_the_same(part: SplitIndex) -> None:
    part.boxes(0)
    content = pickle.dumps(part)
    copy: SplitIndex = pickle.loads(content)
    assert len(content) < 500
    assert copy == part
    assert copy.image_ids() == part.image_ids()


def test_fingerprint_tells_parts_of_a_file_apart(index: SplitIndex, part: SplitIndex) -> None:
    other = index.of_clips(np.arange(3))
    assert len({index.fingerprint, part.fingerprint, other.fingerprint}) == 3
    assert part.fingerprint == pickle.loads(pickle.dumps(part)).fingerprint


@pytest.mark.parametrize(
    ("share", "counts"), [(0.01, (1, 1, 1)), (0.3, (3, 1, 1)), (0.5, (5, 2, 1)), (0.99, (10, 4, 1))]
)
def test_subset_takes_its_share_of_each_month_and_one_clip_at_least(
    index: SplitIndex, share: float, counts: tuple[int, ...]
) -> None:
    assert tuple(counts_of_months(subset(index, share)).values()) == counts


def test_larger_subset_holds_the_smaller(index: SplitIndex) -> None:
    held = [clip_names(subset(index, share)) for share in (0.1, 0.3, 0.5, 0.8, 1.0)]
    assert all(small < large for small, large in pairwise(held))


def test_choice_depends_on_the_names_of_the_clips_alone(
    index: SplitIndex, tmp_path: Path, write_json: Callable[..., Path]
) -> None:
    content = json.loads((tmp_path / "Train.json").read_text())
    content["images"].reverse()
    other = open_ltdv2(write_json(content, "Reversed.json"), tmp_path / "index")
    assert clip_names(subset(other, 0.4)) == clip_names(subset(index, 0.4))


@pytest.mark.parametrize("share", [0.01, 0.25, 0.5, 0.99])
def test_held_out_clips_and_the_rest_make_the_file(index: SplitIndex, share: float) -> None:
    training, held_out = hold_out(index, share)
    assert clip_names(training) | clip_names(held_out) == clip_names(index)
    assert clip_names(training) & clip_names(held_out) == set()
    assert set(training.image_ids()) | set(held_out.image_ids()) == set(index.image_ids())


@pytest.mark.parametrize(("share", "counts"), [(0.01, (1, 1, 0)), (0.3, (3, 1, 0)), (0.99, (9, 3, 0))])
def test_every_month_is_trained_on(index: SplitIndex, share: float, counts: tuple[int, ...]) -> None:
    assert tuple(counts_of_months(hold_out(index, share)[1]).values()) == counts


def test_single_clip_cannot_be_divided(split: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"data\.split\.valid_share is 0\.5, but no month has two clips"):
        hold_out(split([[]] * 4).index, 0.5)


def test_subset_of_what_remains_after_holding_out(index: SplitIndex) -> None:
    training, held_out = hold_out(index, 0.3)
    part = subset(training, 0.5)
    assert tuple(counts_of_months(part).values()) == (4, 2, 1)
    assert clip_names(part) < clip_names(training)
    assert clip_names(subset(held_out, 0.5)) < clip_names(held_out)


def test_split_is_described_in_one_line(index: SplitIndex, part: SplitIndex) -> None:
    assert describe_split(index) == "45 frames, 15 clips, 3 months from 202005 to 202101"
    assert describe_split(part) == "9 of 45 frames, 3 of 15 clips, 2 months from 202005 to 202101"
