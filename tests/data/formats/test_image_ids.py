"""Ids that were converted to 64-bit floats, and valid ids with similar properties."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from yolo_lightning.data.formats.ltdv2 import read_annotations

Coco = Callable[..., dict[str, Any]]
WriteJson = Callable[..., Path]

BOX = [1, 2, 10, 20]
START = datetime(2020, 5, 14, 22, 39, 15)


def official_id(moment: datetime) -> int:
    return int(f"{moment:%Y%m}021{moment:%d%H%M%S}")


@pytest.fixture
def recorded(coco: Coco) -> Callable[..., dict[str, Any]]:
    """Return a function that builds frames with official ids and dates, one box each, some seconds after a start."""

    def build(seconds: Sequence[int]) -> dict[str, Any]:
        content = coco([[BOX]] * len(seconds))
        for image, annotation, second in zip(content["images"], content["annotations"], seconds, strict=True):
            moment = START + timedelta(seconds=second)
            image.update(id=official_id(moment), date_captured=moment.isoformat())
            annotation["image_id"] = image["id"]
        return content

    return build


def through_float(content: dict[str, Any]) -> dict[str, Any]:
    for image in content["images"]:
        image["id"] = int(float(image["id"]))
    for annotation in content["annotations"]:
        annotation["image_id"] = int(float(annotation["image_id"]))
    return content


def test_official_ids_pass(recorded: Coco, write_json: WriteJson) -> None:
    annotations = read_annotations(write_json(recorded(range(300))))
    assert annotations.image_ids[0] == b"20200502114223915"
    assert annotations.box_offsets.tolist() == list(range(301))


@pytest.mark.parametrize("written", [float, lambda value: f"{float(value)!r}", lambda value: f"{value}.0"])
def test_id_written_as_a_float_is_refused(recorded: Coco, write_json: WriteJson, written: Callable[[int], Any]) -> None:
    content = recorded(range(3))
    content["images"][1]["id"] = written(content["images"][1]["id"])
    with pytest.raises(
        ValueError, match=r"Train\.json: images\[1\] 'frames/.*_0001\.jpg' has id .*converted to a float"
    ):
        read_annotations(write_json(content))


@pytest.mark.parametrize("written", [float, lambda value: f"{float(value)!r}", lambda value: f"{value}.0"])
def test_image_id_written_as_a_float_is_refused(
    recorded: Coco, write_json: WriteJson, written: Callable[[int], Any]
) -> None:
    content = recorded(range(3))
    content["annotations"][2]["image_id"] = written(content["annotations"][2]["image_id"])
    with pytest.raises(ValueError, match=r"Train\.json: annotations\[2\] has unknown image_id .*converted to a float"):
        read_annotations(write_json(content))


def test_consecutive_ids_that_became_one_are_refused(recorded: Coco, write_json: WriteJson) -> None:
    with pytest.raises(ValueError, match=r"image ids are not unique: images\[1\] .*multiples of 4, .*float"):
        read_annotations(write_json(through_float(recorded(range(1, 9)))))


def test_ids_that_only_occur_twice_are_not_blamed_on_a_float(recorded: Coco, write_json: WriteJson) -> None:
    content = recorded([0, 1, 2, 1])
    with pytest.raises(ValueError, match=r"1 image ids are not unique: images\[3\] .* of images\[1\] ") as caught:
        read_annotations(write_json(content))
    assert "float" not in str(caught.value)


def test_image_id_of_a_rounded_annotation_is_explained(recorded: Coco, write_json: WriteJson) -> None:
    content = recorded([0, 10])
    exact = content["annotations"][1]["image_id"]
    content["annotations"][1]["image_id"] = int(float(exact))
    assert int(float(exact)) != exact
    with pytest.raises(
        ValueError, match=r"annotations\[1\] .*unknown image_id .*, which may have been converted to a float"
    ):
        read_annotations(write_json(content))


def test_fractional_image_id_is_not_blamed_on_rounding(recorded: Coco, write_json: WriteJson) -> None:
    content = recorded([0, 10])
    content["images"][1]["id"] = 1.5
    with pytest.raises(ValueError, match=r"images\[1\] .* has id 1\.5, which is not an integer$"):
        read_annotations(write_json(content))


def test_unknown_image_id_is_not_blamed_on_a_float(recorded: Coco, write_json: WriteJson) -> None:
    content = recorded([0, 10])
    content["annotations"][1]["image_id"] += 100
    with pytest.raises(
        ValueError, match=r"annotations\[1\] has unknown image_id 20200502114224025; ids of images are such as '2020"
    ):
        read_annotations(write_json(content))


def test_every_fourth_second_with_its_date_is_no_sign(recorded: Coco, write_json: WriteJson) -> None:
    content = recorded(range(1, 400, 4))
    assert all(image["id"] % 4 == 0 for image in content["images"])
    assert len(read_annotations(write_json(content)).image_ids) == 100


@pytest.mark.parametrize(
    "ids",
    [
        [4, 8, 12],
        [1.0, 2.0, 3.0],
        ["4e17", "3e15", "image.1e17"],
        ["a" * 17, "b" * 17, "0"],
        [2**60, 2**60 + 1, 2**200],
        [99990000000000060, 99990000000000064, 99990000000000068],
        ["20200502114223915 ", "x20200502114223915", "2020-05-02"],
    ],
    ids=["small", "small-floats", "hashes", "words", "large", "17-digits-of-others", "near"],
)
def test_ids_of_other_datasets_pass(coco: Coco, write_json: WriteJson, ids: list[Any]) -> None:
    content = coco([[BOX]] * 3)
    for image, annotation, value in zip(content["images"], content["annotations"], ids, strict=True):
        image["id"] = annotation["image_id"] = value
    annotations = read_annotations(write_json(content))
    assert annotations.box_offsets.tolist() == [0, 1, 2, 3]
    expected = [str(int(value)) if isinstance(value, float) else str(value) for value in ids]
    assert [identifier.decode() for identifier in annotations.image_ids.tolist()] == expected


def test_small_ids_that_are_floats_on_one_side_only_find_each_other(coco: Coco, write_json: WriteJson) -> None:
    content = coco([[BOX], []])
    content["images"][0]["id"], content["images"][1]["id"] = 12, 13
    content["annotations"][0]["image_id"] = 12.0
    assert read_annotations(write_json(content)).box_offsets.tolist() == [0, 1, 1]
