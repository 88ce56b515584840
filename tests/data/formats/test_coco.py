"""Plain COCO JSON: any categories and ids, crowds, and the search for the images."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest

from tests.helpers.annotations import open_ltdv2
from yolo_lightning.data.formats.annotations import Annotations
from yolo_lightning.data.formats.coco import image_folders, read_coco
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.data.index.split_index import open_index
from yolo_lightning.data.storage.folder_frames import FilesInFolders, ImageFiles
from yolo_lightning.data.storage.image_header import FrameLimits
from yolo_lightning.errors import UserError

WriteJson = Callable[..., Path]


def content(*annotations: dict[str, Any], **replaced: Any) -> dict[str, Any]:
    images = [
        {"id": 7, "file_name": "b/2.jpg", "width": 60, "height": 40, "license": 1, "flickr_url": "x"},
        {"id": 3, "file_name": "a/1.jpg", "width": 60, "height": 40},
        {"id": 391895, "file_name": "3.jpg", "width": 100, "height": 50},
    ]
    categories = [
        {"id": 90, "name": "toothbrush", "supercategory": "indoor"},
        {"id": 1, "name": "person", "keypoints": []},
        {"id": 17, "name": "cat"},
    ]
    whole = [
        {"id": n, "image_id": 7, "category_id": 1, "iscrowd": 0, "area": 1.5, "segmentation": [[1, 2]], **annotation}
        for n, annotation in enumerate(annotations)
    ]
    return {"info": {}, "licenses": [], "images": images, "categories": categories, "annotations": whole, **replaced}


@pytest.fixture
def read(write_json: WriteJson) -> Callable[..., Annotations]:
    return lambda *annotations, **replaced: read_coco(write_json(content(*annotations, **replaced)))


def test_classes_are_the_categories_in_the_order_of_their_ids(read: Callable[..., Annotations]) -> None:
    split = read({"bbox": [0, 0, 5, 5], "category_id": 90}, {"bbox": [0, 0, 5, 5], "category_id": 17})
    assert split.facts.class_names == ("person", "cat", "toothbrush")
    assert split.facts.category_ids == (1, 17, 90)
    assert split.labels.tolist() == [2, 1]


def test_boxes_belong_to_their_image_in_the_order_of_the_file(read: Callable[..., Annotations]) -> None:
    split = read(
        {"bbox": [1.5, 2, 10.25, 3], "image_id": 3},
        {"bbox": [0, 0, 5, 5], "image_id": 7},
        {"bbox": [2, 2, 4, 4], "image_id": 3},
    )
    assert split.image_ids.tolist() == [b"7", b"3", b"391895"]
    assert split.file_names.tolist() == [b"b/2.jpg", b"a/1.jpg", b"3.jpg"]
    assert split.shapes.tolist() == [[40, 60], [40, 60], [50, 100]]
    assert split.box_offsets.tolist() == [0, 1, 3, 3]
    assert split.boxes.tolist() == [[0, 0, 5, 5], [1.5, 2, 11.75, 5], [2, 2, 6, 6]]


@pytest.mark.parametrize("crowd", [1, True])
def test_crowd_regions_are_left_out_and_counted(read: Callable[..., Annotations], crowd: Any) -> None:
    split = read(
        {"bbox": [0, 0, 5, 5], "iscrowd": crowd}, {"bbox": [1, 1, 5, 5]}, {"bbox": [2, 2, 5, 5], "iscrowd": None}
    )
    assert split.boxes[:, 0].tolist() == [1, 2]
    assert split.facts.notes == ("1 of 3 boxes are crowd regions (iscrowd), left out, such as in b/2.jpg",)


@pytest.mark.parametrize(
    "mark",
    [{"ignore": 1}, {"ignore": True}, {"attributes": {"ignore": True}}, {"attributes": {"a": 1, "ignore": "Yes"}}],
    ids=str,
)
def test_records_marked_as_ignored_are_left_out_and_counted(
    read: Callable[..., Annotations], mark: dict[str, Any]
) -> None:
    unmarked: list[dict[str, Any]] = [
        {"ignore": 0, "attributes": {"ignore": False, "occluded": True, "text": "ignore"}},
        {"attributes": {"ignore": "no"}},
        {"attributes": ["ignore"]},
        {"attributes": None},
    ]
    split = read({"bbox": [1, 1, 5, 5], **mark}, *({"bbox": [2, 2, 5, 5], **record} for record in unmarked))
    assert split.boxes[:, 0].tolist() == [2, 2, 2, 2]
    assert split.facts.notes == ("1 of 5 boxes have the mark 'ignore', left out, such as in b/2.jpg",)


def test_record_with_a_polygon_only_names_the_missing_box(read: Callable[..., Annotations]) -> None:
    with pytest.raises(UserError, match=r"annotations\[0\].*`bbox`; the box around each 'segmentation' must be in"):
        read({"area": 2})


def test_equal_names_of_categories_are_reported(read: Callable[..., Annotations]) -> None:
    split = read({"bbox": [0, 0, 5, 5]}, categories=[{"id": 1, "name": "cat"}, {"id": 2, "name": "cat"}])
    (note,) = split.facts.notes
    assert note.startswith(
        "2 classes have the name 'cat' and remain different classes, such as 'cat (1)' and 'cat (2)'"
    )


def test_root_category_of_roboflow_is_named(read: Callable[..., Annotations]) -> None:
    categories = [
        {"id": 0, "name": "animals", "supercategory": "none"},
        {"id": 1, "name": "cat", "supercategory": "animals"},
        {"id": 2, "name": "dog", "supercategory": "animals"},
    ]
    (note,) = read({"bbox": [1, 1, 5, 5]}, categories=categories).facts.notes
    assert note.startswith("category 0 'animals' has no box and is the supercategory of all others")
    boxes = {"bbox": [1, 1, 5, 5], "category_id": 0}, {"bbox": [1, 1, 5, 5]}
    assert read(*boxes, categories=categories).facts.notes == ()
    assert read(categories=categories).facts.notes == ()


def test_whole_numbers_may_be_floats(read: Callable[..., Annotations]) -> None:
    images = [{"id": 7.0, "file_name": "1.jpg", "width": 60.0, "height": 40.0}]
    categories = [{"id": 1.0, "name": "person"}, {"id": 17, "name": "cat"}]
    split = read({"bbox": [1, 1, 5, 5], "category_id": 17.0}, images=images, categories=categories)
    assert split.shapes.tolist() == [[40, 60]]
    assert (split.labels.tolist(), split.facts.category_ids) == ([1], (1, 17))


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ({"width": 60.5}, r"images\[0\]\.width must be a whole number, got 60\.5"),
        ({"width": "60"}, r"images\[0\] .*\$\.width"),
        ({"file_name": ""}, r"images\[0\] .*\$\.file_name"),
        ({"file_name": " "}, r"images\[0\]\.file_name must be the path of an image, got ' '"),
        ({"file_name": "images\\"}, r"images\[0\]\.file_name must be the path of an image, got 'images"),
    ],
)
def test_image_without_whole_size_or_file_is_refused(
    read: Callable[..., Annotations], image: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        read(images=[{"id": 7, "file_name": "1.jpg", "width": 60, "height": 40, **image}])


def test_text_ids_and_foreign_slashes_are_accepted(read: Callable[..., Annotations]) -> None:
    images = [{"id": "frame 1", "file_name": "a\\1.jpg", "width": 60, "height": 40}]
    split = read({"bbox": [0, 0, 5, 5], "image_id": "frame 1"}, images=images)
    assert (split.image_ids.tolist(), split.file_names.tolist()) == ([b"frame 1"], [b"a/1.jpg"])


def test_names_that_two_categories_share_are_told_apart(read: Callable[..., Annotations]) -> None:
    categories = [{"id": 0, "name": "fish"}, {"id": 1, "name": "fish"}, {"id": 2, "name": "crab"}]
    assert read(categories=categories).facts.class_names == ("fish (0)", "fish (1)", "crab")


@pytest.mark.parametrize(
    ("annotation", "replaced", "message"),
    [
        (
            {"bbox": [0, 0, 5, 5], "category_id": 2},
            {},
            r"annotations\[0\]\.category_id must be one of 1, 17, 90, got 2",
        ),
        (
            {"bbox": [0, 0, 5, 5], "category_id": 0},
            {"categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]},
            r"must be one of 1, 2, got 0: .* those of 'categories'; add 1 to each category_id, or renumber",
        ),
        ({"bbox": [0, 0, 5]}, {}, r"is not a COCO annotation file: annotations\[0\]"),
        ({"bbox": None}, {}, r"is not a COCO annotation file: annotations\[0\]"),
        ({"bbox": [0, 0, 5, 5]}, {"categories": []}, "the list of categories is empty"),
        (
            {"bbox": [0, 0, 5, 5]},
            {"categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]},
            "ids of categories must be unique, got 2 categories with id 1",
        ),
    ],
)
def test_record_that_means_nothing_is_named(
    read: Callable[..., Annotations], annotation: dict[str, Any], replaced: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=rf"Train\.json.*{message}"):
        read(annotation, **replaced)


@pytest.mark.parametrize(
    ("file", "folder"),
    [
        ("annotations/instances_train2017.json", "train2017"),
        ("annotations/instances_train2017.json", "images/train2017"),
        ("train/_annotations.coco.json", "train"),
        ("labels.json", "images"),
        ("labels.json", "."),
        ("deep/down/labels.json", "deep/down"),
    ],
)
def test_images_are_found_in_the_usual_places(tmp_path: Path, file: str, folder: str) -> None:
    image = tmp_path / folder / "a" / "1.jpg"
    image.parent.mkdir(parents=True)
    image.touch()
    image_folder = image_folders(tmp_path / file, tmp_path, (), ["a/1.jpg"])[0]
    assert image_folder.resolve() == (tmp_path / folder).resolve()


def test_folder_that_holds_most_of_the_images_is_first(tmp_path: Path) -> None:
    for name in ("images/1.jpg", "pictures/1.jpg", "pictures/2.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    folders = image_folders(tmp_path / "a.json", tmp_path, ("images", "pictures"), ["1.jpg", "2.jpg", "3.jpg"])
    assert folders == [tmp_path / "pictures", tmp_path / "images"]


def test_images_in_none_of_the_places_are_named_with_all_places(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"found none of its images, such as '1\.jpg', in .*; set data\.files\.image_folders"
    ) as raised:
        image_folders(tmp_path / "annotations" / "instances_val.json", tmp_path, (), ["1.jpg"])
    for place in ("val", "images/val", "images", "annotations"):
        assert str(tmp_path / place) in str(raised.value)


def test_images_of_another_unicode_form_are_found(tmp_path: Path) -> None:
    name = normalize("NFC", "Höhe/Brücke.png")
    folder = tmp_path / "train"
    (folder / normalize("NFD", "Höhe")).mkdir(parents=True)
    (folder / normalize("NFD", name)).write_bytes(b"content")
    assert image_folders(tmp_path / "train.json", tmp_path, (), [name])[0] == folder
    for storage in (ImageFiles(folder), FilesInFolders([tmp_path, folder], 1, FrameLimits(), tmp_path)):
        assert storage.content(name) == b"content"
        assert storage.missing([name, "é.png"]) == ["é.png"]


def test_percent_encoded_names_are_recognized(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "my shot.jpg").touch()
    with pytest.raises(UserError, match=r"'my%20shot\.jpg', in .*; 'my shot\.jpg' exists: .* percent-encoded"):
        image_folders(tmp_path / "a.json", tmp_path, (), ["my%20shot.jpg"])


def test_file_read_as_coco_has_an_index_of_its_own(
    coco: Callable[..., dict[str, Any]], write_json: WriteJson, tmp_path: Path
) -> None:
    path = write_json(coco([[[1, 2, 3, 4]]]))
    assert open_ltdv2(path, tmp_path / "index").facts.class_names == CLASS_NAMES
    as_coco = open_index(path, tmp_path / "index", read_coco)
    assert as_coco.facts.class_names == ("background", *CLASS_NAMES)
    assert as_coco.labels(0).tolist() == [1]
