"""Frames and boxes per month, as numbers and table."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.helpers.annotations import open_ltdv2
from yolo_lightning.commands.prepare.summary import month_table, monthly_counts
from yolo_lightning.data.index.split_index import SplitIndex

Coco = Callable[..., dict[str, Any]]
WriteJson = Callable[..., Path]

BOX = [1, 2, 10, 20]


@pytest.fixture
def index(coco: Coco, write_json: WriteJson, tmp_path: Path) -> SplitIndex:
    """Index of six frames of two months and two frames without month; box `k` of a frame has class `k`."""
    content = coco([[BOX], [], [BOX] * 4, [BOX, BOX], [], [BOX], [], []])
    folders = ("a", "a", "b", "c", "c", "c", "c", "d")
    ids = (None, None, None, None, 20210100114223901, 20210100114223902, 7, 8)
    temperatures = (10, None, 13, None, -2, -4, None, None)
    moved = {}
    for image, folder, identifier, temperature in zip(content["images"], folders, ids, temperatures, strict=True):
        image["file_name"] = f"frames/{folder}/{image['id']}.jpg"
        image["meta"] = {"Temperature": temperature}
        image["date_captured"] = None
        moved[image["id"]] = identifier or image["id"]
        image["id"] = moved[image["id"]]
    for annotation in content["annotations"]:
        annotation["image_id"] = moved[annotation["image_id"]]
    return open_ltdv2(write_json(content), tmp_path / "index")


def full_size(*, temperatures: bool = True) -> tuple[Any, ...]:
    months = np.array([202005, 202006, 202007, 202008, 202009, 202101, 202102, 202103, 202104])
    names = ("person", "bicycle", "motorcycle", "vehicle")
    boxes = np.array([[308_913, 15_596, 1_821, 36_684]] * 9)
    frames = np.full(9, 41_179)
    counts = [("frames", frames), ("empty", frames // 9), ("clips", frames // 120), ("boxes", boxes.sum(axis=1))]
    degrees = np.linspace(-10.4, 20, 9) if temperatures else np.full(9, np.nan)
    return months, [*counts, *zip(names, boxes.T, strict=True)], degrees


def lines(counts: tuple[Any, ...], width: int) -> list[str]:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(month_table(*counts))
    return console.export_text().splitlines()


def test_counts_of_drawn_frames_add_up_to_the_split(look_alike: Path, index_root: Path) -> None:
    index = open_ltdv2(look_alike / "Train.json", index_root)
    months, counts, temperature = monthly_counts(index)
    assert (counts[0][1].sum(), counts[3][1].sum()) == (len(index), len(index.all_labels()))
    assert months.tolist() == [*range(202005, 202009), *range(202101, 202105)]
    assert not np.isnan(temperature).any()


def test_table_has_a_line_per_month_and_totals(index: SplitIndex) -> None:
    rows = [line.split() for line in lines(monthly_counts(index), 80)]
    assert ["unknown", "2", "2", "2", "0", "0", "0", "0", "0"] in rows
    assert ["2020-05", "4", "1", "3", "7", "3", "2", "1", "1", "11.5"] in rows
    assert ["2021-01", "2", "1", "1", "1", "1", "0", "0", "0", "-3.0"] in rows
    # Half of the frames have no temperature, but a month is weighted by all of its frames.
    assert ["total", "8", "4", "6", "8", "4", "2", "1", "1", "6.7"] in rows


@pytest.mark.parametrize("width", [80, 120])
def test_table_of_the_full_size_fits_a_terminal(width: int) -> None:
    text = "\n".join(lines(full_size(), width))
    assert "…" not in text
    assert "2020-05  41,179  4,575   343   363,014   308,913  15,596  1,821  36,684 -10.4" in text
    assert "total   370,611 41,175 3,087 3,267,126 2,780,217 140,364 16,389 330,156   4.8" in text


def test_temperature_column_exists_only_with_temperatures() -> None:
    assert "°C" in "".join(lines(full_size(), 80))
    assert "°C" not in "".join(lines(full_size(temperatures=False), 80))
