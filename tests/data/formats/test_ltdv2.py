"""Reading the official annotation files."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from yolo_lightning.data.formats.annotations import Annotations
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES, read_annotations

Coco = Callable[..., dict[str, Any]]
WriteJson = Callable[..., Path]

NAMED = {0: "background", 1: "person", 2: "bicycle", 3: "motorcycle", 4: "vehicle"}
BOX = [1, 2, 10, 20]


def box_counts(annotations: Annotations) -> tuple[int, int, int]:
    return annotations.facts.kept, annotations.facts.clipped, annotations.facts.dropped


def categories(order: tuple[int, ...]) -> list[dict[str, Any]]:
    return [{"id": number, "name": NAMED[number]} for number in order]


@pytest.mark.parametrize(
    "order", [(0, 1, 2, 3, 4), (3, 0, 4, 2, 1), (1, 2, 3, 4)], ids=["official", "shuffled", "bare"]
)
def test_class_is_category_id_minus_one_whatever_the_order_of_the_list(
    coco: Coco, write_json: WriteJson, order: tuple[int, ...]
) -> None:
    annotations = read_annotations(write_json(coco([[BOX] * 4], categories=categories(order))))
    assert annotations.labels.tolist() == [0, 1, 2, 3]
    assert CLASS_NAMES == ("person", "bicycle", "motorcycle", "vehicle")


def test_category_names_may_differ_in_case_and_blanks(coco: Coco, write_json: WriteJson) -> None:
    named = [{"id": number, "name": f" {NAMED[number].title()} "} for number in NAMED]
    assert read_annotations(write_json(coco([[BOX]], categories=named))).labels.tolist() == [0]


@pytest.mark.parametrize(
    "named",
    [
        {1: "human", 2: "bicycle", 3: "motorcycle", 4: "vehicle"},
        {1: "person", 2: "motorcycle", 3: "bicycle", 4: "vehicle"},
        {1: "background", 2: "person", 3: "bicycle", 4: "motorcycle", 5: "vehicle"},
        {0: "person", 1: "bicycle", 2: "motorcycle", 3: "vehicle"},
        {1: "person"},
        {},
    ],
)
def test_other_category_names_are_refused(coco: Coco, write_json: WriteJson, named: dict[int, str]) -> None:
    listed = [{"id": number, "name": name} for number, name in named.items()]
    with pytest.raises(ValueError, match=r"Train\.json: categories must be .*'person'.* got "):
        read_annotations(write_json(coco([[BOX]], categories=listed)))


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"annotation file .*Train\.json cannot be read: .*No such file"):
        read_annotations(tmp_path / "Train.json")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        '{"images": [',
        "[]",
        "{}",
        '{"images": [], "annotations": []}',
        '{"images": 3, "categories": []}',
    ],
)
def test_file_of_another_shape_is_refused(write_json: WriteJson, text: str) -> None:
    with pytest.raises(ValueError, match=r"Train\.json is not an LTDv2 annotation file"):
        read_annotations(write_json(text))


@pytest.mark.parametrize("category", [0, 5, -1])
def test_annotation_of_an_unknown_category_is_refused(coco: Coco, write_json: WriteJson, category: int) -> None:
    content = coco([[BOX, BOX]])
    content["annotations"][1]["category_id"] = category
    with pytest.raises(ValueError, match=rf"annotations\[1\]\.category_id must be one of 1, 2, 3, 4, got {category}"):
        read_annotations(write_json(content))


@pytest.mark.parametrize("text", [False, True], ids=["both-int", "int-and-str"])
def test_duplicate_image_ids_are_refused(coco: Coco, write_json: WriteJson, text: bool) -> None:
    content = coco([[], [], []])
    same = content["images"][0]["id"]
    content["images"][2]["id"] = str(same) if text else same
    with pytest.raises(ValueError, match="1 image ids are not unique"):
        read_annotations(write_json(content))


def test_empty_list_of_images_is_refused(coco: Coco, write_json: WriteJson) -> None:
    with pytest.raises(ValueError, match="the list of images is empty"):
        read_annotations(write_json(coco([])))


@pytest.mark.parametrize("side", ["width", "height"])
@pytest.mark.parametrize("pixels", [0, -384])
def test_frame_without_size_is_refused(coco: Coco, write_json: WriteJson, side: str, pixels: int) -> None:
    content = coco([[], []])
    content["images"][1][side] = pixels
    with pytest.raises(
        ValueError, match=rf"images\[1\] .*'?frames/.*image_0001\.jpg.*: Expected `int` >= 1 - at `\$\.{side}`"
    ):
        read_annotations(write_json(content))


def test_file_without_annotations_is_a_split_without_boxes(coco: Coco, write_json: WriteJson) -> None:
    content = coco([[], []])
    del content["annotations"]
    annotations = read_annotations(write_json(content, "TestNoLabels.json"))
    assert annotations.boxes.shape == (0, 4)
    assert annotations.box_offsets.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("bbox", "expected"),
    [
        ([-5, 10, 20, 10], [0, 10, 15, 20]),
        ([10, -5, 10, 20], [10, 0, 20, 15]),
        ([60, 10, 20, 10], [60, 10, 64, 20]),
        ([10, 40, 10, 20], [10, 40, 20, 48]),
    ],
    ids=["left", "top", "right", "bottom"],
)
def test_box_across_an_edge_is_clipped_and_counted(
    coco: Coco, write_json: WriteJson, bbox: list[float], expected: list[float]
) -> None:
    annotations = read_annotations(write_json(coco([[bbox, BOX]])))
    assert annotations.boxes.tolist() == [expected, [1, 2, 11, 22]]
    assert box_counts(annotations) == (2, 1, 0)


@pytest.mark.parametrize(
    "bbox",
    [[1, 2, 0, 5], [1, 2, 5, 0], [10, 10, -4, 4], [64, 10, 5, 5], [10, 48, 5, 5], [-9, -9, 3, 3]],
    ids=["width-0", "height-0", "negative", "right-of-frame", "below-frame", "outside"],
)
def test_box_of_no_size_is_dropped_and_counted(coco: Coco, write_json: WriteJson, bbox: list[float]) -> None:
    annotations = read_annotations(write_json(coco([[bbox, BOX], [BOX]])))
    assert annotations.box_offsets.tolist() == [0, 1, 2]
    assert annotations.labels.tolist() == [1, 0]
    assert box_counts(annotations) == (2, 0, 1)
    assert re.search("dropped boxes have no area .* x1, y1, x2, y2 = .* of .*image_", annotations.facts.notes[0])


@pytest.mark.parametrize("bbox", [[1e39, 1, 2, 2], [1, 1, 1e308, 2], [-70_000, 1, 2, 2]])
def test_box_far_outside_is_refused(coco: Coco, write_json: WriteJson, bbox: list[float]) -> None:
    with pytest.raises(ValueError, match=r"annotations\[1\] .*: Expected `float` [<>]= -?65536\.0 - at `\$\.bbox"):
        read_annotations(write_json(coco([[BOX, bbox]])))


def test_keys_that_decoders_ignore_are_named(coco: Coco, write_json: WriteJson) -> None:
    text = json.dumps(coco([[BOX]]))
    path = write_json({})
    path.write_text(text[:-1] + ', "annotations": []}')
    with pytest.raises(ValueError, match='has the key "annotations" more than once'):
        read_annotations(path)
    path.write_text(text.replace('"annotations"', '"Annotations"'))
    assert read_annotations(path).facts.notes == ("the file has no key 'annotations'",)
    path.write_text(text.replace('"file_name"', '"annotations": [], "file_name"'))
    assert box_counts(read_annotations(path)) == (1, 0, 0)


def test_boxes_are_grouped_by_image_and_keep_their_order_within_it(coco: Coco, write_json: WriteJson) -> None:
    content = coco([[[0, 0, 1, 1], [0, 0, 2, 2]], [], [[0, 0, 3, 3], [0, 0, 4, 4]]])
    first_a, first_b, last_a, last_b = content["annotations"]
    content["annotations"] = [last_a, first_a, last_b, first_b]
    annotations = read_annotations(write_json(content))
    assert annotations.box_offsets.tolist() == [0, 2, 2, 4]
    assert annotations.boxes[:, 2].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("convert_image", "convert_annotation"),
    [(int, int), (str, str), (int, str), (str, int)],
    ids=lambda kind: kind.__name__,
)
def test_ids_end_as_text_whether_number_or_text(
    coco: Coco, write_json: WriteJson, convert_image: type, convert_annotation: type
) -> None:
    content = coco([[BOX], [BOX]])
    for image in content["images"]:
        image["id"] = convert_image(image["id"])
    for annotation in content["annotations"]:
        annotation["image_id"] = convert_annotation(annotation["image_id"])
    annotations = read_annotations(write_json(content))
    assert annotations.image_ids.tolist() == [b"20200502114223915", b"20200502114223916"]
    assert annotations.box_offsets.tolist() == [0, 1, 2]


def test_ids_that_share_a_float64_stay_apart(coco: Coco, write_json: WriteJson) -> None:
    content = coco([[BOX], []])
    first, second = 20200502114223916, 20200502114223917
    assert float(first) == float(second)
    content["images"][0]["id"], content["images"][1]["id"] = first, second
    content["annotations"][0]["image_id"] = second
    annotations = read_annotations(write_json(content))
    assert annotations.image_ids.tolist() == [b"20200502114223916", b"20200502114223917"]
    assert annotations.box_offsets.tolist() == [0, 0, 1]


def test_file_names_beyond_ascii_survive(coco: Coco, write_json: WriteJson) -> None:
    content = coco([[]])
    content["images"][0]["file_name"] = "frames/Ålborg/image_0001.jpg"
    assert read_annotations(write_json(content)).file_names[0].decode() == "frames/Ålborg/image_0001.jpg"
