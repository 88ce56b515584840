"""Every file of a split is used, repeated, or counted in one line."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from unicodedata import normalize

import pytest

from yolo_lightning.data.formats.yolo import YoloSplit
from yolo_lightning.data.formats.yolo_description import read_description
from yolo_lightning.data.formats.yolo_files import SplitFiles, find_split_files
from yolo_lightning.data.index.split_index import SplitIndex, open_packed
from yolo_lightning.data.index.splits import hold_out
from yolo_lightning.errors import UserError

YoloSet = Callable[..., Path]
UnicodeForm = Literal["NFC", "NFD"]
BOX = "0 0.5 0.5 0.25 0.5\n"


def find(file: Path, *, outside_root: bool = True) -> SplitFiles:
    return find_split_files(read_description(file), "train", outside_root=outside_root)


def open_train(file: Path, index_root: Path) -> SplitIndex:
    split = YoloSplit(read_description(file), "train")
    return open_packed("train", split.state(), split.read, index_root)


def note(files: SplitFiles, part: str) -> str:
    (line,) = (line for line in files.notes if part in line)
    return line


def test_links_are_used_again_and_counted(yolo_set: YoloSet) -> None:
    file = yolo_set({"train/a.png": BOX, "train/b.png": BOX})
    images = file.parent / "images" / "train"
    (images / "rare.png").symlink_to("a.png")
    (images / "more").symlink_to(images)  # contains itself
    (file.parent / "images" / "train" / "sub").mkdir()
    (images / "sub" / "c.png").symlink_to(images / "b.png")
    (images / "again").symlink_to(images / "sub")
    files = find(file)
    assert [name.removeprefix("images/train/") for name in files.names] == [
        "a.png",
        "again/c.png",
        "b.png",
        "rare.png",
        "sub/c.png",
    ]
    assert files.originals == {2: 1, 3: 0, 4: 1}
    labels = [Path(label).name for label in files.labels]  # a link without a label file has that of its target
    assert labels == ["a.txt", "b.txt", "b.txt", "a.txt", "b.txt"]
    assert note(files, "links to another image") == (
        f"3 images that are links to another image of the split, each used again, such as {images}/b.png"
    )
    assert "1 links to folders that contain the link" in note(files, "links to folders")


@pytest.mark.parametrize(("image_form", "label_form"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_names_of_another_unicode_form_are_found(
    image_form: UnicodeForm, label_form: UnicodeForm, yolo_set: YoloSet
) -> None:
    image = normalize(image_form, "Brücke")
    label = normalize(label_form, "Brücke")
    file = yolo_set({f"train/{image}.png": None, "train/b.png": BOX}, train="images/list.txt")
    labels = file.parent / "labels" / "train"
    (labels / f"{label}.txt").write_text(BOX)
    (labels / f"{normalize(label_form, 'Höhe')}.txt").write_text(BOX)
    (file.parent / "images" / "list.txt").write_text(f"train/b.png\ntrain/{label}.png\n")
    for train in ("images/list.txt", "images/train"):
        file.write_text(file.read_text().replace("images/list.txt", train))
        files = find(file)
        assert files.names == sorted(["images/train/b.png", f"images/train/{image}.png"])
        assert f"{labels}/{label}.txt" in files.labels
        assert not [note for note in files.notes if "background" in note]
    assert "1 label files without an image" in note(files, "without an image")


def test_a_list_from_windows_is_named(yolo_set: YoloSet) -> None:
    file = yolo_set({"train/a.png": BOX}, train="list.txt")
    (file.parent / "list.txt").write_text("C:\\data\\images\\train\\a.png\n")
    with pytest.raises(
        UserError, match=r"'C:/data/images/train/a.png' does not exist. A path with the letter of a drive"
    ):
        find(file)


def test_labels_that_cannot_be_listed_are_no_backgrounds(yolo_set: YoloSet, monkeypatch: pytest.MonkeyPatch) -> None:
    file = yolo_set({"train/a.png": BOX}, train="list.txt")
    (file.parent / "list.txt").write_text("images/train/a.png\n")
    listdir = os.listdir

    def listed(folder: str) -> list[str]:
        if "labels" in str(folder):
            raise PermissionError(13, "Permission denied", folder)
        return listdir(folder)

    monkeypatch.setattr(os, "listdir", listed)
    with pytest.raises(UserError, match=r"folder of labels .*/labels/train cannot be listed: allow it with chmod u\+r"):
        find(file)


def test_links_to_one_image_are_not_divided(yolo_set: YoloSet, tmp_path: Path) -> None:
    file = yolo_set({f"train/{number}.png": BOX for number in range(6)})
    images = file.parent / "images" / "train"
    for number in range(6):
        for copy in range(3):
            (images / f"{number}-{copy}.png").symlink_to(f"{number}.png")
    index = open_train(file, tmp_path / "index")
    assert len(index) == 24
    parts = hold_out(index, 0.5)
    assert [len(part) for part in parts] == [12, 12]
    numbers = [{Path(name).name[0] for name in part.file_names()} for part in parts]
    assert not numbers[0] & numbers[1]


@pytest.mark.parametrize("place", ["suffix", "beside", "link of the folder", "target of the folder", "target"])
def test_labels_next_to_their_usual_place_are_used(yolo_set: YoloSet, tmp_path: Path, place: str) -> None:
    file = yolo_set({"train/a.png": BOX, "train/b.png": BOX})
    images = file.parent / "images" / "train"
    labels = file.parent / "labels" / "train"
    elsewhere = tmp_path / "elsewhere" / "images" / "all"
    elsewhere.parent.mkdir(parents=True)
    if place == "suffix":
        (labels / "a.txt").rename(labels / "a.TXT")
        expected = labels / "a.TXT"
    elif place == "beside":
        expected = (labels / "a.txt").rename(images / "a.txt")
    elif place == "link of the folder":
        images.rename(elsewhere)
        images.symlink_to(elsewhere)
        expected = labels / "a.txt"
    elif place == "target of the folder":
        images.rename(elsewhere)
        images.mkdir()
        (images / "sub").symlink_to(elsewhere)
        (tmp_path / "elsewhere" / "labels").mkdir()
        labels.rename(tmp_path / "elsewhere" / "labels" / "all")
        expected = tmp_path / "elsewhere" / "labels" / "all" / "a.txt"
    else:
        elsewhere.mkdir()
        (images / "a.png").rename(elsewhere / "x.png")
        (images / "a.png").symlink_to(elsewhere / "x.png")
        (tmp_path / "elsewhere" / "labels" / "all").mkdir(parents=True)
        expected = (labels / "a.txt").rename(tmp_path / "elsewhere" / "labels" / "all" / "x.txt")
    files = find(file)
    assert files.labels[0] == str(expected)
    count = sum(label not in (str(labels / "a.txt"), str(labels / "b.txt")) for label in files.labels) or 2
    assert note(files, "not in the usual folder").startswith(f"{count} used label files")
    assert YoloSplit(read_description(file), "train").read().facts.kept == 2


def test_second_label_file_of_an_image_is_counted(yolo_set: YoloSet) -> None:
    file = yolo_set({"train/a.png": BOX, "train/b.png": BOX})
    shutil.copy(file.parent / "labels" / "train" / "a.txt", file.parent / "images" / "train" / "a.txt")
    shutil.copy(file.parent / "labels" / "train" / "b.txt", file.parent / "labels" / "train" / "b.TXT")
    files = find(file)
    assert files.labels == [str(file.parent / "labels" / "train" / name) for name in ("a.txt", "b.txt")]
    assert files.notes == (
        "2 label files left out, because another label file of the same image is used, such as "
        f"{file.parent}/images/train/a.txt",
    )


def test_other_files_are_counted_by_suffix(yolo_set: YoloSet) -> None:
    file = yolo_set({"train/a.png": BOX, "train/b.png": BOX})
    for name in ("a.dng", "b.DNG", "noise", "._a.png"):
        (file.parent / "images" / "train" / name).write_text("")
    (file.parent / "images" / "train" / ".trash").mkdir()
    (file.parent / "labels" / "train" / "a.xml").write_text("")
    (file.parent / "labels" / "train" / "sub").mkdir()
    (file.parent / "labels" / "train" / "sub" / "c.txt").write_text(BOX)
    os.mkfifo(file.parent / "images" / "train" / "pipe.jpg")
    files = find(file)
    assert "4 files with other suffixes (2 .dng, 1 without suffix, 1 .xml), such as" in note(files, "suffixes")
    assert note(files, "suffixes").endswith(".tiff, .webp")
    assert note(files, "hidden files") == (
        f"left out 1 hidden files (names that begin with a dot), such as {file.parent}/images/train/._a.png"
    )
    assert "left out 1 hidden folders" in note(files, "hidden folders")
    assert "left out 1 pipes" in note(files, "pipes")
    assert note(files, "without an image") == (
        f"1 label files without an image, such as {file.parent}/labels/train/sub/c.txt"
    )


def test_link_without_a_target_is_a_missing_image(yolo_set: YoloSet) -> None:
    file = yolo_set({"train/a.png": BOX, "train/b.png": BOX})
    (file.parent / "images" / "train" / "a.png").unlink()
    (file.parent / "images" / "train" / "a.png").symlink_to("not-fetched")
    assert "1 missing or damaged images" in YoloSplit(read_description(file), "train").read().facts.notes


def test_labels_in_the_folder_of_the_images_are_not_left_out(yolo_set: YoloSet) -> None:
    file = yolo_set({"train/a.png": BOX}, train=".")
    assert find(file).labels == [str(file.parent / "labels" / "train" / "a.txt")]
    assert [line for line in find(file).notes if ".txt" in line] == []


def write_list(file: Path, lines: list[str]) -> None:
    (file.parent / "lists").mkdir()
    (file.parent / "lists" / "train.txt").write_text("\n".join(lines))


def test_each_line_of_a_list_is_resolved(yolo_set: YoloSet) -> None:
    file = yolo_set({f"train/{name}.png": BOX for name in "bcde"}, train="lists/train.txt")
    lines = ["images/train/a.png", "../images/train/b.png", f"{file.parent}/images/train/c.png"]
    lines += ["images/train/d.png", "images/train/e.png"]
    write_list(file, lines)
    files = find(file)
    assert files.names == [f"images/train/{name}.png" for name in "abcde"]  # a is missing, and expected below the root
    assert [Path(label).name for label in files.labels] == ["", "b.txt", "c.txt", "d.txt", "e.txt"]


def test_spellings_of_one_image_are_one_image(yolo_set: YoloSet, tmp_path: Path) -> None:
    file = yolo_set({"train/a.png": BOX}, train=["images/train", "lists/train.txt"])
    (tmp_path / "link").symlink_to(file.parent)
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (file.parent / "jump").symlink_to(tmp_path / "far" / "deep")
    paths = ["../images/train/a.png", "images/./train/a.png", f"{tmp_path}/link/images/train/a.png"]
    write_list(file, [*paths, f"{file.parent}/jump/../../set/images/train/a.png"])
    files = find(file, outside_root=False)
    assert files.names == ["images/train/a.png"]
    assert note(files, "duplicate").startswith("4 duplicate entries of images, each used once, such as")


@pytest.mark.parametrize("changed", ["labels/train/a.txt", "images/train/a.png"])
def test_equal_size_and_time_do_not_hide_a_change(yolo_set: YoloSet, changed: str) -> None:
    file = yolo_set({"train/a.png": BOX})
    before = find(file).state
    assert find(file).state == before
    path = file.parent / changed
    status = path.stat()
    time.sleep(0.02)  # longer than the resolution of the clock of a file system
    path.write_bytes(path.read_bytes()[:-1] + b" ")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert find(file).state != before


def test_moved_dataset_with_absolute_names_keeps_its_identity(yolo_set: YoloSet, tmp_path: Path) -> None:
    file = yolo_set({f"{folder}/{number}.png": BOX for folder in ("train", "more") for number in range(6)})
    parts = []
    for place in ("z", "a/b"):
        moved = tmp_path / place / "images"
        shutil.copytree(file.parent / "images", moved)
        shutil.copytree(file.parent / "labels", moved.parent / "labels")
        file.write_text(f"train: [{moved}/train, {moved}/more]\nnames: [cat]\n")
        index = open_train(file, tmp_path / "index")
        assert index.file_name(0).startswith(str(tmp_path))
        parts.append([index.fingerprint, *(part.fingerprint for part in hold_out(index, 0.5))])
    assert parts[0] == parts[1]
