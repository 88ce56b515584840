"""Conversion of every layout: equal boxes, splits, files that are left out."""

import errno
import json
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest

from tests.helpers.layouts import (
    CLASSES,
    LABELS,
    WRITERS,
    Boxes,
    Images,
    draw,
    regions,
    write_csv,
    write_csv_with_sides,
    write_label_files,
    write_text,
    write_voc,
)
from yolo_lightning.commands.prepare.convert import convert
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.formats.yolo import YoloSplit
from yolo_lightning.data.formats.yolo_description import read_description
from yolo_lightning.data.layouts import source_dataset, write_dataset
from yolo_lightning.data.layouts.choose_layout import find_layout
from yolo_lightning.data.layouts.label_studio import read_label_studio
from yolo_lightning.data.layouts.labelled_folder import SourceFolder, paired
from yolo_lightning.data.layouts.write_dataset import held_out
from yolo_lightning.errors import UserError
from yolo_lightning.utils.suggestions import missing

SIZES = ((64, 48), (30, 50), (17, 9))


def random_images(seed: int, count: int = 20) -> dict[str, tuple[tuple[int, int], Boxes]]:
    """Return images of several sizes with boxes of whole pixels; every fifth image is empty."""
    random = np.random.default_rng(seed)
    images: dict[str, tuple[tuple[int, int], Boxes]] = {}
    for number in range(count):
        width, height = SIZES[number % len(SIZES)]
        boxes = []
        for _ in range(0 if number % 5 == 4 else random.integers(1, 5)):
            x1, y1 = random.integers(0, (width, height)).tolist()
            x2, y2 = random.integers((x1 + 1, y1 + 1), (width + 1, height + 1)).tolist()
            boxes.append((int(random.integers(2)), x1, y1, x2, y2))
        images[f"clip_{number % 4} a/frame_{number:03}.png"] = ((width, height), boxes)
    return images


def converted(target: Path) -> dict[str, tuple[str, list[tuple[str, list[float]]]]]:
    """Return split and sorted boxes, with class names, of each image of a data.yaml by its file name."""
    description = read_description(target)
    content: dict[str, tuple[str, list[tuple[str, list[float]]]]] = {}
    for key in description.entries:
        split = YoloSplit(description, key).read()
        assert (split.facts.impossible, split.facts.dropped) == ("", 0)
        for position, name in enumerate(split.file_names):
            part = slice(split.box_offsets[position], split.box_offsets[position + 1])
            names = [description.class_names[label] for label in split.labels[part]]
            boxes = sorted(zip(names, split.boxes[part].tolist(), strict=True))
            content[name.decode().rpartition("/")[2]] = (key, boxes)
    return content


def expected(images: Images) -> dict[str, list[tuple[str, list[float]]]]:
    return {
        name.rpartition("/")[2]: sorted((CLASSES[label], [float(value) for value in box]) for label, *box in set(boxes))
        for name, (_, boxes) in images.items()
    }


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("layout", WRITERS)
def test_boxes_are_those_of_the_source(layout: str, seed: int, tmp_path: Path) -> None:
    images = random_images(seed)
    if layout == "Label Studio JSON-MIN":  # names of uploads have no folder
        images = {name.replace("/", "_"): content for name, content in images.items()}
    WRITERS[layout](tmp_path / "source", images)
    convert(str(tmp_path / "source"), str(tmp_path / "out"))
    result = converted(tmp_path / "out")
    wanted = expected(images)
    assert result.keys() == wanted.keys()
    for name, (_, boxes) in result.items():
        assert [label for label, _ in boxes] == [label for label, _ in wanted[name]]
        np.testing.assert_allclose([box for _, box in boxes], [box for _, box in wanted[name]], atol=1e-4)


def box_images(names: list[str]) -> dict[str, tuple[tuple[int, int], Boxes]]:
    return {name: ((64, 48), [(0, 8, 8, 24, 20)]) for name in names}


def splits_of(target: Path) -> dict[str, str]:
    return {name: split for name, (split, _) in converted(target).items()}


@pytest.mark.parametrize("folders", [("train", "valid"), ("train_images", "val_images"), ("train2017", "val2017")])
def test_splits_that_folders_name_are_kept(folders: tuple[str, str], tmp_path: Path) -> None:
    for folder in folders:
        write_csv(tmp_path / "source" / folder, box_images([f"{folder}_{number}.png" for number in range(2)]))
    convert(str(tmp_path / "source"), str(tmp_path / "out"))
    assert splits_of(tmp_path / "out") == {
        f"{folder}_{number}.png": split
        for folder, split in zip(folders, ("train", "val"), strict=True)
        for number in range(2)
    }


def test_splits_that_lists_name_are_kept_unless_a_share_is_given(tmp_path: Path) -> None:
    write_voc(tmp_path / "source", box_images(["2007_1.png", "2007_2.png", "2007_3.png", "2007_4.png"]))
    write_text(tmp_path / "source/ImageSets/Main/train.txt", "2007_1\n2007_3\n2007_4\n")
    write_text(tmp_path / "source/ImageSets/Main/val.txt", "2007_2\n")
    convert(str(tmp_path / "source"), str(tmp_path / "out"))
    assert [name for name, split in splits_of(tmp_path / "out").items() if split == "val"] == ["2007_2.png"]
    convert(str(tmp_path / "source"), str(tmp_path / "halves"), valid_share=0.5)
    assert [*splits_of(tmp_path / "halves").values()].count("val") == 2


@pytest.mark.parametrize(("stem", "end"), [("my frame {}", ".png"), ("my frame {}", ""), ("frame{}", "  1")])
def test_names_in_lists_of_images_may_contain_spaces(stem: str, end: str, tmp_path: Path) -> None:
    stems = [stem.format(number) for number in range(4)]
    WRITERS["Darknet"](tmp_path / "source", box_images([f"{name}.png" for name in stems]))
    for split, listed in (("val", stems[:2]), ("train", stems[2:])):
        write_text(tmp_path / f"source/{split}.txt", "".join(f"data/obj_train_data/{name}{end}\n" for name in listed))
    convert(str(tmp_path / "source"), str(tmp_path / "out"))
    splits = splits_of(tmp_path / "out")
    assert [splits[f"{name}.png"] for name in stems] == ["val", "val", "train", "train"]


def test_what_lists_of_images_lack_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "source"
    WRITERS["Darknet"](source, box_images(["a.png", "b.png", "test.png"]))
    write_text(
        source / "voc.data", "classes = 2\ntrain = /home/me/list_a.txt\nvalid = data/list_b.txt\ntest = no.txt\n"
    )
    write_text(source / "list_a.txt", "/home/me/a.png\n/home/me/c.png\n/home/me/d.png\n")
    write_text(source / "list_b.txt", "data/b.png\n")
    write_text(source / "train.txt", "a.png\n")
    convert(str(source), str(tmp_path / "out"))
    output = capsys.readouterr().out
    assert "2 lines of lists left out, because their image does not exist, such as list_a.txt: /home/me/c.png" in output
    assert "1 lists left out, because they do not exist, such as voc.data: no.txt" in output
    assert "1 images in no list, which are converted, too, such as obj_train_data/test.png" in output
    assert "left out that are neither" not in output  # lists are used
    assert splits_of(tmp_path / "out") == {"a.png": "train", "b.png": "val", "test.png": "train"}


@pytest.mark.parametrize(
    ("files", "sequences"),
    [
        ([f"clip_{clip}/image_{frame:04}.jpg" for clip in range(20) for frame in range(30)], 20),
        ([f"clip{clip}_{frame}.jpg" for clip in range(20) for frame in range(30)], 20),
        ([f"{frame}.jpg" for frame in range(100)], 20),
        ([f"clip{clip}_{frame}.jpg" for clip in range(10) for frame in range(60)], 10),
        ([f"photo{number}_jpg.rf.{copy}a{number}.jpg" for number in range(5) for copy in range(3)], 5),
        ([f"frame_{number}_{side}.jpg" for number in range(5) for side in ("left", "right")], 5),
        ([f"trip2024_{place}.jpg" for place in "abcdefghij"], 10),
        ([f"trip2024_{place}_jpg.rf.{copy}.jpg" for place in "abcdefghij" for copy in range(3)], 10),
    ],
)
def test_consecutive_images_are_held_out_together(files: list[str], sequences: int) -> None:
    valid_files = held_out(files, 0.2)
    length = len(files) // sequences
    blocks = {files.index(file) // length for file in valid_files}
    assert len(valid_files) == len(files) // 5
    assert len(valid_files) == len(blocks) * length


def test_what_is_left_out_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = box_images(["a/same.png", "b/same.png", "used_1.png", "used_2.png", "other_size.png"])
    write_csv(tmp_path / "source", images)
    rows = "filename,width,height,class,xmin,ymin,xmax,ymax\nsame.png,64,48,car,1,1,9,9\nabsent.png,64,48,car,1,1,9,9\n"
    rows += "other_size.png,640,480,car,1,1,9,9\nused_1.png,64,48,,1,1,90,9\nused_2.png,64,48,car,1,1,9,9\n"
    write_text(tmp_path / "source/annotations.csv", rows)
    convert(str(tmp_path / "source"), str(tmp_path / "out"))
    output = capsys.readouterr().out
    assert "1 annotations left out, because their image does not exist, such as absent.png" in output
    assert "3 images and annotations left out, because several have the same name, such as a/same.png" in output
    assert "1 images left out, whose size is not that of their annotation, such as other_size.png" in output
    assert "2 boxes; 1 clipped to the frame" in output
    assert "unnamed" in output
    assert f"next: python -m yolo_lightning fit --config yolo --data.format {tmp_path}/out/data.yaml" in output
    assert sorted(converted(tmp_path / "out")) == ["used_1.png", "used_2.png"]


def test_a_csv_file_with_one_side_of_the_images_is_read_with_the_sizes_of_the_files(tmp_path: Path) -> None:
    write_csv(tmp_path / "source", box_images(["a.png", "b.png"]))
    rows = "filename,width,class,xmin,ymin,xmax,ymax\na.png,64,car,1,1,9,9\nb.png,64,car,1,1,9,9\n"
    write_text(tmp_path / "source/annotations.csv", rows)
    convert(str(tmp_path / "source"), str(tmp_path / "out"))
    assert sorted(converted(tmp_path / "out")) == ["a.png", "b.png"]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_last_columns_of_a_csv_file_may_be_empty(separator: str, tmp_path: Path) -> None:
    images: dict[str, tuple[tuple[int, int], Boxes]] = {**box_images(["a.png", "b.png"]), "c.png": ((64, 48), [])}
    write_csv(tmp_path / "source", images)
    file = tmp_path / "source/annotations.csv"
    file.write_text(file.read_text().replace(",", separator))
    convert(str(tmp_path / "source"), str(tmp_path / "out"))
    assert {name: len(boxes) for name, (_, boxes) in converted(tmp_path / "out").items()} == {
        "a.png": 1,
        "b.png": 1,
        "c.png": 0,
    }


def test_csv_files_with_boxes_of_two_formats_are_refused(tmp_path: Path) -> None:
    write_csv(tmp_path / "source/train", box_images(["a.png"]))
    write_csv_with_sides(tmp_path / "source/val", box_images(["b.png"]))
    with pytest.raises(UserError, match=r"val/boxes\.csv: the boxes must be x1, y1, x2, y2, as in train"):
        convert(str(tmp_path / "source"), str(tmp_path / "out"))


def test_objects_marked_as_difficult_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_voc(tmp_path / "source", box_images(["a.png", "b.png"]))
    file = tmp_path / "source/Annotations/a.xml"
    file.write_text(file.read_text().replace("<bndbox>", "<difficult>1</difficult><bndbox>"))
    convert(str(tmp_path / "source"), str(tmp_path / "out"))
    assert "1 objects marked as difficult, which are kept, such as Annotations/a.xml" in capsys.readouterr().out
    assert len(converted(tmp_path / "out")) == 2


@pytest.mark.parametrize(
    ("layout", "old", "new", "message"),
    [
        (
            "CVAT for images",
            'occluded="0"',
            'rotation="left"',
            r"rotation in .*png: boxes, sizes and rotations must be numbers",
        ),
        (
            "Label Studio JSON",
            '"annotations": [',
            '"annotations": 3, "x": [',
            "2 tasks left out, which are skipped or not annotated",
        ),
        ("CSV", "car", "c" * 200_000, "not CSV: field larger than field limit"),
    ],
)
def test_values_of_another_form_are_refused(layout: str, old: str, new: str, message: str, tmp_path: Path) -> None:
    WRITERS[layout](tmp_path / "source", box_images(["a.png", "b.png"]))
    (file,) = (path for path in (tmp_path / "source").rglob("*") if path.suffix in (".xml", ".json", ".csv"))
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(UserError, match=message):
        convert(str(tmp_path / "source"), str(tmp_path / "out"))


def test_images_are_links_and_the_source_is_unchanged(tmp_path: Path) -> None:
    write_label_files(tmp_path / "source", box_images(["a.png", "b.png"]))
    before = sorted(path.relative_to(tmp_path) for path in (tmp_path / "source").rglob("*"))
    convert(str(tmp_path / "source"), str(tmp_path / "out"))
    assert sorted(path.relative_to(tmp_path) for path in (tmp_path / "source").rglob("*")) == before
    inodes = {path.stat().st_ino for path in (tmp_path / "out/images").rglob("*.png")}
    assert inodes == {path.stat().st_ino for path in (tmp_path / "source/images").iterdir()}


def test_images_are_copied_where_links_are_impossible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(write_dataset.os, "link", refuse)
    write_label_files(tmp_path / "source", box_images(["a.png", "b.png"]))
    convert(str(tmp_path / "source"), str(tmp_path / "out"))
    assert len(converted(tmp_path / "out")) == 2


def test_classes_without_names_are_numbered(tmp_path: Path) -> None:
    write_label_files(tmp_path / "source", {"a.png": ((64, 48), [(1, 8, 8, 24, 20)]), "b.png": ((64, 48), [])})
    (tmp_path / "source/classes.txt").unlink()
    convert(str(tmp_path / "source"), str(tmp_path / "out"))
    assert read_description(tmp_path / "out").class_names == ("class_0", "class_1")


def test_label_files_in_any_folder_and_what_splits_lack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "source"
    draw(source, box_images(["photos/train/1.png", "photos/val/1.png", "photos/train/2.png"]))
    for name, text in {"train/1": "0 .5 .5 .4 .4\n1 .5 .5 .2 .2", "val/1": "0 .5 .5 .2 .2", "val/3": ""}.items():
        write_text(source / f"boxes/{name}.txt", text)
    convert(str(source), str(tmp_path / "out"))
    output = capsys.readouterr().out
    assert output.index("train  ") < output.index("val\n")
    assert "1 images without a label file (background), such as photos/train/2.png" in output
    assert "1 files left out that are neither images, label files nor lists of images (1 .txt), such as" in output
    assert "1 classes without an object in one split: select other images with --valid_share, such as class_1" in output
    lines = {file.parts[-3:]: len(file.read_text().splitlines()) for file in (tmp_path / "out/labels").rglob("*.txt")}
    assert lines == {("photos", "train", "1.txt"): 2, ("photos", "train", "2.txt"): 0, ("photos", "val", "1.txt"): 1}
    for file in source.rglob("*.txt"):
        file.write_text("")
    with pytest.raises(UserError, match=r"none of the 2 label files, such as boxes/train/1\.txt, contains a box"):
        convert(str(source), str(tmp_path / "empty"))


def test_what_cannot_be_converted_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_csv(source, box_images(["a.png", "b.png"]))
    write_text(tmp_path / "full/a", "")
    for target, message in (("full", "new or empty folder"), ("source/out", "outside of FOLDER")):
        with pytest.raises(UserError, match=message):
            convert(str(source), str(tmp_path / target))
    write_text(source / "annotations.csv", "filename,class,xmin,ymin,xmax,ymax\na.png,car,1,one,2,3\n")
    with pytest.raises(
        UserError, match=r"row 2: boxes, sizes and rotations must be numbers, got \['1', 'one', '2', '3'\]"
    ):
        convert(str(source), str(tmp_path / "out"))
    (source / "annotations.csv").unlink()
    with pytest.raises(UserError, match=r"must contain images and annotations .* with 2 \.png\. .* CSV .*filename,"):
        convert(str(source), str(tmp_path / "out"))
    write_text(source / "data.yaml", "names: [car]")
    with pytest.raises(UserError, match=r"needs no conversion\. Type: python -m yolo_lightning fit"):
        convert(str(source), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("share", [None, 0.5])
def test_a_folder_with_a_test_split_only_is_refused(share: float | None, tmp_path: Path) -> None:
    write_csv(tmp_path / "in/test", box_images(["a.png", "b.png"]))
    with pytest.raises(UserError, match=r"all 2 images into the split test, such as test/a\.png: rename"):
        convert(str(tmp_path / "in"), str(tmp_path / "out"), share)
    convert(str(tmp_path / "in/test"), str(tmp_path / "out"), share)
    assert sorted(splits_of(tmp_path / "out").values()) == ["train", "val"]


def test_label_files_that_belong_to_two_images_each_are_refused(tmp_path: Path) -> None:
    for camera in ("infrared", "visible"):
        draw(tmp_path / "in", box_images(["000.png"]), camera)
    write_text(tmp_path / "in/labels/000.txt", "0 0.5 0.5 0.2 0.2\n")
    message = "no image can be used: 3 images and annotations left out, because several have the same name, such as"
    with pytest.raises(UserError, match=message):
        convert(str(tmp_path / "in"), str(tmp_path / "out"))


def test_an_empty_line_among_class_names_does_not_shift_the_names(tmp_path: Path) -> None:
    write_label_files(tmp_path / "in", box_images(["a.png", "b.png"]))
    write_text(tmp_path / "in/labels/b.txt", "2 0.5 0.5 0.2 0.2\n")
    write_text(tmp_path / "in/classes.txt", "car\n\nbus\ntram\n\n")
    convert(str(tmp_path / "in"), str(tmp_path / "out"))
    assert {boxes[0][0] for _, boxes in converted(tmp_path / "out").values()} == {"car", "bus"}
    assert read_description(tmp_path / "out").class_names == ("car", "class_1", "bus", "tram")


def test_row_of_a_csv_file_with_a_name_only_is_an_image_without_objects(tmp_path: Path) -> None:
    write_csv(tmp_path / "in", box_images(["a.png", "b.png"]))
    table = tmp_path / "in/annotations.csv"
    table.write_text(table.read_text().partition("b.png")[0] + "b.png,,,,,,,\n")
    convert(str(tmp_path / "in"), str(tmp_path / "out"))
    assert [len(boxes) for _, (_, boxes) in sorted(converted(tmp_path / "out").items())] == [1, 0]


@pytest.mark.parametrize("layout", ["images and label files", "Pascal VOC XML"])
def test_unreadable_images_are_left_out(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(source_dataset, "reads_heif", lambda: False)
    WRITERS[layout](tmp_path / "in", box_images(["a.png", "b.png", "c.png", "d.png"]))
    (damaged,) = (tmp_path / "in").glob("*/a.png")
    damaged.write_bytes(b"damaged")
    (heic,) = (tmp_path / "in").glob("*/b.png")
    heic.write_bytes(b"HEIC")
    heic.rename(heic.with_suffix(".heic"))
    convert(str(tmp_path / "in"), str(tmp_path / "out"))
    assert sorted(splits_of(tmp_path / "out")) == ["c.png", "d.png"]
    output = capsys.readouterr().out
    assert f"1 damaged images left out, such as {damaged.parent.name}/a.png" in output
    assert "1 images left out (HEIC images are read with pillow-heif: pip install " in output


def test_names_of_another_unicode_form_are_paired() -> None:
    composed = normalize("NFC", "Höhe/Brücke.jpg")
    decomposed = normalize("NFD", composed)
    assert paired([composed], [decomposed]) == ({composed: decomposed}, set())


@pytest.mark.parametrize("layout", WRITERS)
def test_names_that_begin_with_a_date_are_different(layout: str, tmp_path: Path) -> None:
    names = [f"{day}-{number:04}.png" for day in (20240101, 20240102) for number in range(2)]
    if layout == "Label Studio JSON-MIN":  # whose writer adds the prefix of an upload
        names = [f"{upload}-same.png" for upload in ("0000000a", "0000000b")]
    WRITERS[layout](tmp_path / "source", {name: ((64, 48), [(0, 8, 8, 24, 20)]) for name in names})
    convert(str(tmp_path / "source"), str(tmp_path / "out"))
    assert sorted(converted(tmp_path / "out")) == names


def test_prefix_of_an_upload_is_ignored_only_if_no_file_has_it() -> None:
    files = ["images/0000000a-cat.jpg", "images/dog.jpg"]
    names = ["upload/0000000a-cat.jpg", "upload/0000000b-cat.jpg", "upload/0000000c-dog.jpg"]
    pairs, ambiguous = paired(names, files)
    assert pairs == {names[0]: files[0], names[2]: files[1]}
    assert not ambiguous


def test_newest_annotation_of_label_studio_that_is_not_skipped_is_used(tmp_path: Path) -> None:
    images = box_images(["empty.png", "several.png", "skipped.png", "unfinished.png"])
    source = tmp_path / "in"
    draw(source, images)
    result = [{"type": LABELS, "value": region} for region in regions(*images["several.png"])]
    result.append({"type": "polygonlabels", "value": {"points": [[1, 1], [9, 1], [9, 9]], "polygonlabels": ["cat"]}})
    older = {"result": [*result, *result], "updated_at": "2024-01-01T10:00:00Z"}
    newer = {"result": result, "updated_at": "2024-09-01T10:00:00Z", "prediction": {"result": result}}
    skipped = {"result": result, "was_cancelled": True, "updated_at": "2024-10-01T10:00:00Z"}
    annotations = {
        "empty": [{"result": []}],
        "several": [newer, older, skipped],
        "skipped": [skipped],
        "unfinished": [],
    }
    tasks = [{"data": {"image": f"{name}.png"}, "annotations": parts} for name, parts in annotations.items()]
    write_text(source / "project.json", json.dumps(tasks))
    dataset = read_label_studio(SourceFolder(source), ["project.json"], lambda count: None)
    assert dataset.annotations.file_names.tolist() == [b"empty.png", b"several.png"]
    assert len(dataset.annotations.boxes) == 1
    assert dataset.notes["tasks left out, which are skipped or not annotated"] == ["skipped.png", "unfinished.png"]
    assert dataset.notes["annotations left out, because the image has a newer annotation"] == ["several.png"]
    assert dataset.notes["regions left out that are not rectangles, such as polygons"] == ["several.png"]


def test_tracks_of_cvat_name_the_export_to_choose(tmp_path: Path) -> None:
    source = tmp_path / "in"
    write_voc(source, box_images(["a.png"]))
    (file,) = source.rglob("*.xml")
    file.write_text('<annotations><track id="0" label="car"><box frame="0" outside="1"/></track></annotations>')
    with pytest.raises(UserError, match=r"'CVAT for video' is not read.* Export the task .* as 'CVAT for images'"):
        convert(str(source), str(tmp_path / "out"))


def write_tasks(root: Path, files: dict[str, list[tuple[str, str, int]]], images: list[str]) -> None:
    """Write exports of CVAT by file, each with subset, name and left edge of the box of each image."""
    draw(root, box_images(images))
    for file, rows in files.items():
        elements = [
            f'<image subset="{subset}" name="{name}" width="64" height="48">'
            f'<box label="car" xtl="{left_edge}" ytl="8" xbr="24" ybr="20"/></image>'
            for subset, name, left_edge in rows
        ]
        write_text(root / file, f"<annotations>{''.join(elements)}</annotations>")


@pytest.mark.parametrize(
    ("files", "folders"),
    [
        ({"a/annotations.xml": [("", "1.png", 1)], "b/annotations.xml": [("", "1.png", 2)]}, ("a/images", "b/images")),
        ({"annotations.xml": [("a", "1.png", 1), ("b", "1.png", 2)]}, ("images/a", "images/b")),
    ],
)
def test_images_of_equal_names_in_several_tasks_of_cvat_keep_their_own_boxes(
    files: dict[str, list[tuple[str, str, int]]], folders: tuple[str, str], tmp_path: Path
) -> None:
    source = tmp_path / "in"
    write_tasks(source, files, [f"{folder}/1.png" for folder in folders])
    (layout, annotation_files) = find_layout(SourceFolder(source)) or pytest.fail("unknown layout")
    annotations = layout.read(SourceFolder(source), annotation_files, lambda _: None).annotations
    assert annotations.file_names.tolist() == [f"{folder}/1.png".encode() for folder in folders]
    assert annotations.boxes[:, 0].tolist() == [1, 2]
    assert annotations.box_offsets.tolist() == [0, 1, 2]


def test_image_that_a_file_of_cvat_names_twice_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("", "1.png", 1), ("", "1.png", 2), ("", "2.png", 3), ("", "3.png", 4)]
    write_tasks(tmp_path / "in", {"annotations.xml": rows}, ["images/1.png", "images/2.png", "images/3.png"])
    convert(str(tmp_path / "in"), str(tmp_path / "out"))
    assert sorted(converted(tmp_path / "out")) == ["2.png", "3.png"]
    expected_line = "2 annotations left out, because several of a file name the same image, such as 1.png"
    assert expected_line in capsys.readouterr().out


def test_boxes_in_another_format_are_refused(tmp_path: Path) -> None:
    images = {f"{number}.png": ((64, 48), [(0, 40, 30, 50, 40)]) for number in range(12)}
    write_csv(tmp_path / "source", images)
    table = (tmp_path / "source/annotations.csv").read_text().replace("xmax,ymax", "w,h").replace("xmin,ymin", "x,y")
    write_text(tmp_path / "source/annotations.csv", table.replace("width,height", "iw,ih"))
    with pytest.raises(UserError, match=r"boxes of CSV must be x, y, width, height\. Is it x1, y1, x2, y2"):
        convert(str(tmp_path / "source"), str(tmp_path / "out"))


@pytest.mark.parametrize("layout", WRITERS)
@pytest.mark.parametrize("option", ["root", "format"])
def test_data_of_another_layout_name_the_command(layout: str, option: str, tmp_path: Path) -> None:
    WRITERS[layout](tmp_path / "my data", box_images(["a.png"]))
    with pytest.raises(UserError, match=rf"^data.{option} .* prepare convert '{tmp_path}/my data' 'my data_yolo'$"):
        DetectionDataModule(**{option: str(tmp_path / "my data")})


def test_missing_files_of_ltdv2_name_the_download(tmp_path: Path) -> None:
    data = DetectionDataModule(str(tmp_path))
    with pytest.raises(UserError, match="hf download vapaau/LTDv2 --repo-type dataset --local-dir LTDv2"):
        data.setup("fit")
    write_text(tmp_path / "frames/a.txt", "")
    with pytest.raises(UserError, match=r"annotation file .*Train.json does not exist.* hf download vapaau/LTDv2"):
        data.setup("fit")


def test_missing_weights_name_the_download() -> None:
    address = "https://github.com/ultralytics/assets/releases/download/v8.4.0"
    assert f"curl -L -o absent/yolov8n.pt {address}/yolov8n.pt )" in missing(Path("absent/yolov8n.pt"))
    assert "curl" not in missing(Path("absent/yolov8q.pt")) + missing(Path("absent/best.pt"))
