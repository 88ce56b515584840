"""Decoding of annotation files with different layouts, and error messages with the damaged record."""

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from yolo_lightning.data.formats.coco_json import decode

Coco = Callable[..., dict[str, Any]]
WriteJson = Callable[..., Path]

BOX = [1, 2, 10, 20]


def write_ascii(content: dict[str, Any]) -> str:
    return json.dumps(content)


def write_indented(content: dict[str, Any]) -> str:
    return "\n\t " + json.dumps(content, indent=4) + "\r\n"


def write_compact(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)


def write_other_order(content: dict[str, Any]) -> str:
    reordered = {key: [dict(reversed(entry.items())) for entry in content[key]] for key in reversed(content)}
    return json.dumps(reordered)


def write_with_mark(content: dict[str, Any]) -> str:
    return "\ufeff" + json.dumps(content)


@pytest.mark.parametrize("write", [write_ascii, write_indented, write_compact, write_other_order, write_with_mark])
def test_layout_of_the_text_does_not_matter(
    coco: Coco, write_json: WriteJson, write: Callable[[dict[str, Any]], str]
) -> None:
    content = coco([[BOX], []])
    content["images"][1]["file_name"] = 'frames/Ål"}, {\\/image_0001.jpg'
    expected = decode(write_json(content, "expected.json"))
    assert decode(write_json(write(content))) == expected
    assert expected.images[1].file_name == 'frames/Ål"}, {\\/image_0001.jpg'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("indent", [None, 4])
def test_weather_that_is_not_a_number_does_not_spoil_the_file(
    coco: Coco, write_json: WriteJson, value: float, indent: int | None
) -> None:
    content = coco([[BOX]])
    content["images"][0]["meta"] = {"Temperature": value, "Humidity": [value, 1], "Wind Speed": 2.5}
    assert len(decode(write_json(json.dumps(content, indent=indent))).images) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_box_that_is_not_a_number_is_refused_by_its_record(coco: Coco, write_json: WriteJson, value: float) -> None:
    content = coco([[BOX, BOX, [1, 2, value, 4]]])
    with pytest.raises(
        ValueError, match=r"Train\.json .*annotations\[2\] .*\"id\": 2.* got `null` - at `\$\.bbox\[2\]`"
    ):
        decode(write_json(content))


def test_name_that_looks_like_no_number_keeps_its_text(coco: Coco, write_json: WriteJson) -> None:
    content = coco([[BOX]])
    content["images"][0]["file_name"] = "frames/xNaN, -xInfinity]/NaN.jpg"
    content["images"][0]["meta"] = {"Temperature": float("nan")}
    assert decode(write_json(content)).images[0].file_name == "frames/xNaN, -xInfinity]/NaN.jpg"


@pytest.mark.parametrize(
    ("key", "number", "change", "message"),
    [
        ("images", 1, {"width": "64"}, r"Expected `int \| float`, got `str` - at `\$\.width`"),
        ("images", 0, {"file_name": None}, r"Expected `str`, got `null` - at `\$\.file_name`"),
        ("images", 2, {"id": None}, r"got `null` - at `\$\.id`"),
        ("categories", 3, {"name": 4}, r"Expected `str`, got `int` - at `\$\.name`"),
        ("annotations", 1, {"bbox": [1, 2, 3]}, r"length 4"),
        ("annotations", 2, {"category_id": "1"}, r"at `\$\.category_id`"),
    ],
)
def test_record_of_another_type_is_named(
    coco: Coco, write_json: WriteJson, key: str, number: int, change: dict[str, Any], message: str
) -> None:
    content = copy.deepcopy(coco([[BOX], [BOX], [BOX]]))
    content[key][number].update(change)
    identity = json.dumps(content[key][number]["id"])
    with pytest.raises(ValueError, match=rf"Train\.json is not .*{key}\[{number}\] {{\"id\": {identity}.*{message}"):
        decode(write_json(content))


@pytest.mark.parametrize(("key", "number"), [("images", 0), ("images", 1), ("annotations", 0), ("annotations", 1)])
@pytest.mark.parametrize("indent", [None, 4])
def test_cut_off_file_is_named_with_the_text_before_the_end(
    coco: Coco, write_json: WriteJson, key: str, number: int, indent: int | None
) -> None:
    content = coco([[BOX] * 3, [], []])
    whole = json.dumps(content, indent=indent)
    next_one = json.dumps(content[key][number + 1]["id"])
    position = whole.index(f'"id": {next_one}', whole.index(f'"{key}"'))
    path = write_json(whole[: position + 6])
    last_line = " ".join(whole[position - 60 : position + 6].split())
    with pytest.raises(ValueError, match=r"Train\.json .* ends inside a record after [\d,]+ bytes") as raised:
        decode(path)
    assert str(raised.value).endswith(last_line)


def test_every_beginning_of_a_file_is_refused(coco: Coco, write_json: WriteJson) -> None:
    whole = json.dumps(coco([[BOX]]))
    for length in range(len(whole)):
        with pytest.raises(ValueError, match=r"Train\.json is not an LTDv2 annotation file"):
            decode(write_json(whole[:length]))


def test_damaged_byte_is_named_with_the_record_before(coco: Coco, write_json: WriteJson) -> None:
    whole = json.dumps(coco([[BOX] * 3]))
    position = whole.index('"category_id": 3')
    path = write_json(whole[:position] + "\0" + whole[position + 1 :])
    with pytest.raises(ValueError, match=rf"\(byte {position}\); text before the error: .*\"id\": 2, "):
        decode(path)


def test_bytes_that_are_not_utf8_are_named_with_the_record_before(coco: Coco, write_json: WriteJson) -> None:
    path = write_json(coco([[BOX], [BOX]]))
    path.write_bytes(path.read_bytes().replace(b"image_0001.jpg", b"image_\xff001.jpg"))
    with pytest.raises(ValueError, match=r"not UTF-8 text: frames/.*/image_.*001\.jpg"):
        decode(path)


def test_file_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Train.json").write_text("{}")

    def refuse(*_: object) -> int:  # root may read every file
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ValueError, match=r"Train\.json cannot be read: .*Permission denied"):
        decode(tmp_path / "Train.json")
