"""Keys of a data.yaml, and error messages for an invalid one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from yolo_lightning.data.formats.yolo_description import read_description

YoloSet = Callable[..., Path]


def test_keys_are_read(yolo_set: YoloSet) -> None:
    file = yolo_set({"train/a.png": None, "val/a.png": None}, nc=2, channels=3, download="https://example.org/a.zip")
    description = read_description(file)
    assert description.root == file.parent
    assert description.places("train") == [file.parent / "images" / "train"]
    assert description.class_names == ("cat", "dog")
    assert (description.channels, description.keypoint_columns) == (3, 0)


@pytest.mark.parametrize(
    ("names", "count", "expected"),
    [
        ({1: "b", 0: "a"}, None, ("a", "b")),
        ({"0": "a", "1": "b"}, 2, ("a", "b")),
        (["a", 2.5, 3], None, ("a", "2.5", "3")),
        (None, 3, ("class_0", "class_1", "class_2")),
        (["a", "b", "a"], None, ("a (0)", "b", "a (2)")),
    ],
)
def test_names_are_a_list_a_mapping_or_counted(yolo_set: YoloSet, names: Any, count: Any, expected: Any) -> None:
    assert read_description(yolo_set({}, names=names, nc=count)).class_names == expected


@pytest.mark.parametrize("line", ["[{}]", "{{0: {}}}"])
@pytest.mark.parametrize("name", ["007", "0x1F", "1e3", "1.0e+3", "1_000", "12:30", "2024-01-01", "yes", "Off", "true"])
def test_names_that_yaml_reads_as_other_types_are_texts(tmp_path: Path, name: str, line: str) -> None:
    file = tmp_path / "data.yaml"
    file.write_text(f"train: .\nnc: 1\nnames: {line.format(name)}\n")
    assert read_description(file).class_names == (name,)


def test_folders_that_yaml_reads_as_other_types_are_texts(tmp_path: Path) -> None:
    (tmp_path / "007" / "2024-01-01").mkdir(parents=True)
    file = tmp_path / "data.yaml"
    file.write_text("path: 007\ntrain: 2024-01-01\nval: [2024-01-01]\nnc: 1\n")
    description = read_description(file)
    assert description.places("train") == description.places("val") == [tmp_path / "007" / "2024-01-01"]


@pytest.mark.parametrize(
    ("names", "form"),
    [
        (["a", None], "with quotes around null"),
        ([["a"], ["b"]], r"as names: \[person, car\]"),
        ({0: "a", 1: " "}, r"as names: \[person, car\]"),
    ],
)
def test_names_that_are_no_texts_are_refused(yolo_set: YoloSet, names: Any, form: str) -> None:
    with pytest.raises(ValueError, match=rf"data\.yaml: 'names' must be texts, {form}, got"):
        read_description(yolo_set({}, names=names))


@pytest.mark.parametrize(("key", "meant"), [("valid", "val"), ("Train", "train"), ("name", "names")])
def test_misspelled_key_is_refused(yolo_set: YoloSet, key: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"data\.yaml: the key {key} is unknown\. Did you mean {meant}\?"):
        read_description(yolo_set({}, **{key: "a", meant: None}))


def test_path_is_relative_to_the_file(yolo_set: YoloSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    file = yolo_set({}, path="sub")
    (file.parent / "sub").mkdir()
    assert read_description(file).root == file.parent / "sub"


def test_path_may_be_relative_to_the_working_folder(
    yolo_set: YoloSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    assert read_description(yolo_set({}, path="elsewhere")).root == tmp_path / "elsewhere"


def test_absolute_path_and_a_given_root(yolo_set: YoloSet, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    file = yolo_set({}, path=str(tmp_path))
    assert read_description(file).root == tmp_path
    assert read_description(file, tmp_path / "other").root == tmp_path / "other"


def test_folder_stands_for_its_data_yaml(yolo_set: YoloSet) -> None:
    file = yolo_set({})
    assert read_description(file.parent).file == file


def test_superfluous_step_up_is_passed_over(yolo_set: YoloSet) -> None:
    file = yolo_set({"train/a.png": None}, train="../images/train")
    assert read_description(file).places("train") == [file.parent / "images" / "train"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"train": None, "val": None}, "must have the key 'train' or 'val'"),
        ({"names": None}, "must have the key 'names' or 'nc'"),
        ({"nc": 3}, "'nc' must be 2, the number of 'names', got 3"),
        ({"nc": "many"}, "'nc' must be an integer from 1 to 32767, got 'many'"),
        ({"nc": 1.5}, "'nc' must be an integer from 1 to 32767, got 1.5"),
        ({"nc": 0, "names": None}, "'nc' must be an integer from 1 to 32767, got 0"),
        ({"names": {0: "a", 2: "b"}}, r"the keys of 'names' must be 0 to 1, got \[0, 2\]"),
        ({"names": {"a": 0}}, r"the keys of 'names' must be 0 to 0, got \['a'\]"),
        ({"names": []}, r"'names' must be a list, or names by class number, .*, got \[\]"),
        ({"names": "cat, dog"}, r"'names' must be .*, as names: \[cat, dog\], got 'cat, dog'"),
        ({"names": None, "classes": ["cat"]}, r"the key classes is unknown\. Did you mean names"),
        ({"train": {"a": "b"}}, "'train' must be a folder.* got {'a': 'b'}"),
        ({"train": ["images", ["a"]]}, "'train' must be a folder.* got .*'a'"),
        ({"path": ["a"]}, r"'path' must be a folder, got \['a'\]"),
        ({"channels": 4}, "'channels' must be one of 1, 3, got 4"),
        ({"kpt_shape": 17}, "'kpt_shape' must be a list of two integers from 0 to 10000, got 17"),
    ],
)
def test_contradiction_is_refused(yolo_set: YoloSet, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"data\.yaml.*{message}"):
        read_description(yolo_set({}, **keys))


def test_missing_path_says_where_it_was_looked_for(
    yolo_set: YoloSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    file = yolo_set({}, path="coco8")
    with pytest.raises(ValueError, match="datasets_dir is not used") as raised:
        read_description(file)
    assert f"tried {file.parent / 'coco8'} and {tmp_path / 'coco8'}" in str(raised.value)


def test_paths_of_windows(yolo_set: YoloSet) -> None:
    description = read_description(yolo_set({"train/a.png": None}, path=".\\", train=".\\images\\train"))
    assert description.places("train") == [description.root / "images" / "train"]
    with pytest.raises(
        ValueError, match=r"'path' is C:\\data, which is not .* is one of Windows: replace its beginning"
    ):
        read_description(yolo_set({}, path="C:\\data"))


def test_missing_split_is_named_when_it_is_asked_for(yolo_set: YoloSet) -> None:
    description = read_description(yolo_set({"train/a.png": None}, test="images/tset"))
    assert len(description.places("train")) == 1
    with pytest.raises(ValueError, match="Patterns are not read: name the folder of the images"):
        read_description(yolo_set({}, test="images/*.jpg")).places("test")
    with pytest.raises(ValueError, match=r"'test' is images/tset, which does not exist .tried .*images/tset"):
        description.places("test")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("names: [a\n", "cannot be read as YAML"),
        ("just text", "is not a data.yaml: it must have keys"),
        ("", "is not a data.yaml: it must have keys"),
        ("\x00", "cannot be read as YAML"),
    ],
)
def test_file_that_is_no_data_yaml_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "data.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_description(file)


def test_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.format .*absent\.yaml does not exist"):
        read_description(tmp_path / "absent.yaml")
