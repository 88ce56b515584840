"""Splits of a data.yaml: images, labels, and the reuse of the index."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from yolo_lightning.data.formats.annotations import Annotations
from yolo_lightning.data.formats.yolo import YoloSplit, image_ids
from yolo_lightning.data.formats.yolo_description import read_description
from yolo_lightning.data.formats.yolo_files import label_file
from yolo_lightning.data.index.split_index import SplitIndex, open_packed

YoloSet = Callable[..., Path]
BOX = "0 0.5 0.5 0.25 0.5\n"


def read(file: Path) -> Annotations:
    return YoloSplit(read_description(file), "train").read()


def open_train(file: Path, index_root: Path) -> SplitIndex:
    split = YoloSplit(read_description(file), "train")
    return open_packed("train", split.state(), split.read, index_root)


def texts(values: np.ndarray) -> list[str]:
    return [bytes(value).decode() for value in values]


def test_split_is_sorted_by_path_and_measured(yolo_set: YoloSet) -> None:
    split = read(yolo_set({"train/b.png": BOX, "train/sub/c.jpg": None, "train/a.bmp": "1 0.5 0.5 1 1\n" + BOX}))
    assert texts(split.file_names) == ["images/train/a.bmp", "images/train/b.png", "images/train/sub/c.jpg"]
    assert texts(split.image_ids) == ["images/train/a", "images/train/b", "images/train/sub/c"]
    assert split.shapes.tolist() == [[48, 64]] * 3
    assert split.box_offsets.tolist() == [0, 2, 3, 3]
    assert split.boxes.tolist() == [[0, 0, 64, 48], [24, 12, 40, 36], [24, 12, 40, 36]]
    assert split.labels.tolist() == [1, 0, 0]
    assert (split.boxes.dtype, split.labels.dtype) == (np.float32, np.int8)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("/d/images/train/a.jpg", "/d/labels/train/a.txt"),
        ("/images/d/images/a.b.jpg", "/images/d/labels/a.b.txt"),
        ("/d/train/a.jpg", "/d/train/a.txt"),
        ("/d/myimages/a.jpg", "/d/myimages/a.txt"),
    ],
)
def test_labels_lie_where_the_last_images_is_replaced(image: str, expected: str) -> None:
    assert label_file(image) == expected


def test_images_that_differ_in_their_suffix_alone_keep_it_in_their_ids() -> None:
    assert image_ids(["x/a.jpg", "x/a.png", "x/b.png"]) == ["x/a.jpg", "x/a.png", "x/b"]


def test_image_keeps_its_suffix_in_its_id_if_another_image_has_the_rest_of_its_name() -> None:
    names = ["a.jpg", "a.jpg.png", "a.jpg.png.png", "a.png", "b.jpg.png"]
    assert image_ids(names) == ["a.jpg", "a.jpg.png", "a.jpg.png.png", "a.png", "b.jpg"]


@pytest.mark.parametrize("count", [128, 129])
def test_labels_have_room_for_all_classes(yolo_set: YoloSet, count: int) -> None:
    names = [f"c{number}" for number in range(count)]
    split = read(yolo_set({"train/a.png": f"{count - 1} 0.5 0.5 1 1"}, names=names))
    assert split.labels.tolist() == [count - 1]
    assert split.labels.dtype == (np.int8 if count == 128 else np.int16)


def test_boxes_are_clipped_to_the_image_and_those_of_no_size_dropped(yolo_set: YoloSet) -> None:
    split = read(yolo_set({"train/a.png": "0 1 0.5 0.5 0.5\n0 0.5 0.5 0 0.5\n"}))
    assert split.boxes.tolist() == [[48, 12, 64, 36]]
    assert (split.facts.clipped, split.facts.dropped) == (1, 1)


def test_box_that_exceeds_the_image_by_the_rounding_of_its_numbers_does_not_count_as_clipped(yolo_set: YoloSet) -> None:
    split = read(yolo_set({"train/a.png": "0 0.833333 0.5 0.333335 1\n0 0.83 0.5 0.35 1\n"}))
    assert split.boxes[:, 2].tolist() == [64, 64]
    assert split.facts.clipped == 1


def test_notes_tell_what_a_user_would_want_to_know(yolo_set: YoloSet) -> None:
    file = yolo_set({"train/a.png": BOX * 3, "train/b.png": None, "train/c.png": BOX}, train=["images/train"] * 2)
    (file.parent / "images" / "train" / "c.png").write_bytes(b"torn")
    assert read(file).facts.notes == (
        f"1 images without a label file (background), such as {file.parent}/labels/train/b.txt",
        f"3 duplicate entries of images, each used once, such as {file.parent}/images/train/a.png",
        "1 missing or damaged images",
        "2 duplicate label lines",
    )


def test_equal_class_names_are_reported(yolo_set: YoloSet) -> None:
    split = read(yolo_set({"train/a.png": BOX}, names=["cat", "dog", "cat"]))
    assert split.facts.class_names == ("cat (0)", "dog", "cat (2)")
    assert split.facts.notes[0].startswith("2 classes have the name 'cat' and remain different classes")


def test_label_files_without_an_image_are_counted(yolo_set: YoloSet) -> None:
    file = yolo_set({"train/a.png": BOX, "train/B.PNG": BOX, "train/c.png": BOX})
    for name in ("images/train/c.png", "labels/train/classes.txt"):
        (file.parent / name).unlink() if "images" in name else (file.parent / name).write_text("")
    assert read(file).facts.notes == (f"1 label files without an image, such as {file.parent}/labels/train/c.txt",)


def test_label_files_of_several_images_are_counted(yolo_set: YoloSet) -> None:
    file = yolo_set({"train/a.png": BOX, "train/a.jpg": BOX, "train/b.png": BOX})
    (file.parent / "images" / "train" / "link.png").symlink_to("b.png")
    notes = read(file).facts.notes
    assert f"1 label files belong to several images of one name, which all have its boxes, such as {file.parent}/" in (
        "".join(notes)
    )


def test_polygons_and_oriented_boxes_are_counted(yolo_set: YoloSet) -> None:
    obb = "0 0.1 0.1 0.5 0.2 0.4 0.6 0 0.5\n"
    notes = read(yolo_set({"train/a.png": obb + "0 0.1 0.1 0.2 0.1 0.2 0.2\n", "train/b.png": BOX})).facts.notes
    assert notes == ("2 polygons or oriented boxes, replaced by the boxes around them",)


def test_damaged_image_stays_without_boxes(yolo_set: YoloSet) -> None:
    file = yolo_set({"train/a.png": BOX, "train/b.png": BOX})
    (file.parent / "images" / "train" / "a.png").write_bytes(b"torn")
    split = read(file)
    assert split.shapes.tolist() == [[1, 1], [48, 64]]
    assert split.box_offsets.tolist() == [0, 0, 1]


def test_several_folders_are_one_split(yolo_set: YoloSet) -> None:
    file = yolo_set({"b/1.png": BOX, "a/2.png": BOX}, train=["images/b", "images/a"])
    assert texts(read(file).file_names) == ["images/a/2.png", "images/b/1.png"]


def test_images_outside_of_the_dataset_keep_their_whole_path(yolo_set: YoloSet, tmp_path: Path) -> None:
    file = yolo_set({"train/a.png": BOX})
    outside = tmp_path / "outside" / "images"
    shutil.copytree(file.parent / "images" / "train", outside)
    file.write_text(f"train: {outside}\nnames: [cat]\n")
    assert texts(read(file).file_names) == [str(outside / "a.png")]


@pytest.mark.parametrize("style", ["dotted", "absolute", "beside the list", "below the root"])
def test_list_names_images_in_four_ways(yolo_set: YoloSet, style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = yolo_set({"train/a.png": BOX, "train/b.png": BOX, "train/c.png": BOX}, train="lists/train.txt")
    monkeypatch.chdir("/")
    folder = file.parent / "lists"
    folder.mkdir()
    prefix = {
        "dotted": "./../images/",
        "absolute": f"{file.parent}/images/",
        "beside the list": "../images/",
        "below the root": "images/",
    }[style]
    (folder / "train.txt").write_text(f"\ufeff{prefix}train/c.png\n\n{prefix}train/a.png  \r\n")
    split = read(file)
    assert [Path(name).name for name in texts(split.file_names)] == ["a.png", "c.png"]
    assert split.facts.kept == 2


def test_image_of_a_list_that_is_missing_stays_in_the_split(yolo_set: YoloSet) -> None:
    file = yolo_set({"train/a.png": BOX}, train="train.txt")
    for line in ("images/train/a.png 1", "image,label", "images/train/a"):
        (file.parent / "train.txt").write_text(f"./images/train/a.png\n{line}\n")
        with pytest.raises(ValueError, match=rf"train\.txt: a line must be the path of an image, got '{line}'"):
            YoloSplit(read_description(file), "train")
    (file.parent / "train.txt").write_text(".\\images\\train\\a.png\r\n./images/train/z.png\n")
    split = read(file)
    assert texts(split.file_names) == ["images/train/a.png", "images/train/z.png"]
    assert "1 missing or damaged images" in split.facts.notes


def test_split_without_images_is_refused(yolo_set: YoloSet) -> None:
    file = yolo_set({"train/a.png": BOX})
    (file.parent / "images" / "train" / "a.png").rename(file.parent / "images" / "train" / "a.dng")
    message = r"no images for 'train' in .*/images/train \(formats: \.avif, .*1 files with other suffixes \(1 \.dng\)"
    with pytest.raises(ValueError, match=message):
        read(file)


def test_all_label_files_are_checked_before_the_first_are_named(yolo_set: YoloSet) -> None:
    file = yolo_set({f"train/{number}.png": "7 0.5 0.5 0.1 0.1" for number in range(8)})
    with pytest.raises(ValueError, match="8 label files cannot be used") as raised:
        read(file)
    message = str(raised.value)
    assert message.count("class must be an integer from 0 to 1, got 7") == 5
    assert message.endswith("and 3 more")
    assert f"{file.parent}/labels/train/0.txt, line 1" in message


def test_unchanged_split_is_not_read_again(yolo_set: YoloSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = yolo_set({"train/a.png": BOX})
    first = open_train(file, tmp_path / "index")
    monkeypatch.setattr(YoloSplit, "read", lambda _: pytest.fail("read again"))
    assert open_train(file, tmp_path / "index").folder == first.folder


@pytest.mark.parametrize("change", ["label", "new label", "image", "new image", "classes", "time"])
def test_changed_split_is_read_again(yolo_set: YoloSet, tmp_path: Path, change: str) -> None:
    file = yolo_set({"train/a.png": BOX, "train/b.png": None})
    images, labels = (file.parent / kind / "train" for kind in ("images", "labels"))
    first = open_train(file, tmp_path / "index")
    if change == "label":
        (labels / "a.txt").write_text(BOX + BOX.replace("0.25", "0.3"))
    elif change == "new label":
        (labels / "b.txt").write_text(BOX)
    elif change == "image":
        shutil.copy(images / "b.png", images / "a.png")
    elif change == "new image":
        shutil.copy(images / "b.png", images / "c.png")
    elif change == "classes":
        file.write_text(file.read_text().replace("dog", "cow"))
    else:
        os.utime(labels / "a.txt", ns=(1, 1))
    assert open_train(file, tmp_path / "index").folder != first.folder


def test_fingerprint_is_of_the_content_not_of_the_place(yolo_set: YoloSet, tmp_path: Path) -> None:
    file = yolo_set({"train/a.png": BOX})
    first = open_train(file, tmp_path / "index")
    moved = tmp_path / "moved"
    shutil.copytree(file.parent, moved)
    assert open_train(moved / "data.yaml", tmp_path / "index").fingerprint == first.fingerprint
