"""Halves of a split that share no clip."""

from pathlib import Path

import numpy as np
from synthetic import draw_dataset

from tests.helpers.data_module import data_module
from yolo_lightning.commands.half_scores import first_half
from yolo_lightning.data.index.split_index import SplitIndex


def index_of(root: Path, folder: Path, share: float = 1.0) -> SplitIndex:
    return data_module(str(root), valid_fraction=share, index_root=str(folder)).open("valid").index


def test_clips_stay_whole_and_each_month_is_in_both_halves(tmp_path: Path) -> None:
    draw_dataset(tmp_path / "data", train_frames=8, valid_frames=320, test_frames=1, width=96, height=64)
    for share in (1.0, 0.7):
        index = index_of(tmp_path / "data", tmp_path / "index", share)
        half = first_half(index)
        assert len(half) == len(index)
        assert not set(index.clips()[half]) & set(index.clips()[~half])
        assert len(np.unique(index.months())) == 8
        for month in np.unique(index.months()):
            in_month = index.months() == month
            counts = [len(np.unique(index.clips()[in_month & part])) for part in (half, ~half)]
            assert min(counts) >= 1
            assert abs(counts[0] - counts[1]) <= 1


def test_another_place_of_the_data_makes_no_other_halves(look_alike: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    copy.symlink_to(look_alike)
    halves = [first_half(index_of(root, tmp_path / root.name)) for root in (look_alike, copy)]
    assert np.array_equal(*halves)
