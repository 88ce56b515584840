"""The packed index of an annotation file."""

import json
import multiprocessing
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from yolo_lightning.data import index as index_module
from yolo_lightning.data.index import SplitIndex, open_index

Coco = Callable[..., dict[str, Any]]
WriteJson = Callable[..., Path]

BOXES = [[[1, 2, 10, 20], [3, 4, 5, 6]], [], [[0, 0, 64, 48]]]


def identities(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}


def folders(index_root: Path) -> list[Path]:
    return [path for path in index_root.iterdir() if path.is_dir()]


def describe(index: SplitIndex) -> tuple[str, list[str], list[list[float]]]:
    return index.fingerprint, index.image_ids(), index.boxes(0).tolist()


def open_and_describe(annotation_file: Path, index_root: Path) -> tuple[str, list[str], list[list[float]]]:
    return describe(open_index(annotation_file, index_root))


def test_contents_match_the_annotation_file(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    content = coco(BOXES)
    index = open_index(write_json(content), tmp_path / "index")
    assert len(index) == 3
    assert index.image_ids() == [str(image["id"]) for image in content["images"]]
    assert index.file_names() == [image["file_name"] for image in content["images"]]
    assert [index.image_id(1), index.file_name(1)] == [index.image_ids()[1], index.file_names()[1]]
    assert index.shape(1) == (48, 64)


def test_boxes_per_image_match_the_source(look_alike: Path, index_root: Path) -> None:
    content = json.loads((look_alike / "Train.json").read_text())
    index = open_index(look_alike / "Train.json", index_root)
    assert sum(len(index.labels(position)) for position in range(len(index))) == len(content["annotations"]) > 0
    for position, image in enumerate(content["images"]):
        own = [entry for entry in content["annotations"] if entry["image_id"] == image["id"]]
        x, y, width, height = np.array([entry["bbox"] for entry in own]).reshape(-1, 4).T
        np.testing.assert_allclose(index.boxes(position), np.stack((x, y, x + width, y + height), 1), atol=1e-4)
        assert index.labels(position).tolist() == [entry["category_id"] - 1 for entry in own]


def test_boxes_are_copies_that_may_be_changed(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    index = open_index(write_json(coco(BOXES)), tmp_path / "index")
    index.boxes(0)[:] = 0
    index.labels(0)[:] = 3
    assert index.boxes(0).tolist() == [[1, 2, 11, 22], [3, 4, 8, 10]]
    assert index.labels(0).tolist() == [0, 1]


def test_types_are_those_of_a_sample(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    index = open_index(write_json(coco(BOXES)), tmp_path / "index")
    assert (index.boxes(1).shape, index.boxes(1).dtype, index.labels(1).dtype) == ((0, 4), np.float32, np.int64)


def test_counts_are_kept_with_the_index(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    index = open_index(write_json(coco([[[-1, 0, 9, 9], [0, 0, 0, 9], [1, 1, 9, 9]]])), tmp_path / "index")
    assert (index.counts.kept, index.counts.clipped, index.counts.dropped) == (2, 1, 1)


def test_second_open_does_not_rebuild(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    path = write_json(coco(BOXES))
    built = identities(open_index(path, tmp_path / "index").folder)
    assert identities(open_index(path, tmp_path / "index").folder) == built
    assert len(built) == 7


def test_current_index_is_opened_without_writing_anything(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    path = write_json(coco(BOXES))
    index = open_index(path, tmp_path / "index")
    for lock in (tmp_path / "index").glob("*.lock"):
        lock.unlink()
    open_index(path, tmp_path / "index")
    assert list((tmp_path / "index").iterdir()) == [index.folder]


def test_changed_annotation_file_is_packed_again(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    before = open_index(write_json(coco(BOXES)), tmp_path / "index").fingerprint
    index = open_index(write_json(coco([*BOXES, []])), tmp_path / "index")
    assert len(index) == 4
    assert index.fingerprint != before
    assert folders(tmp_path / "index") == [index.folder]


def test_newer_modification_time_alone_is_packed_again(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    path = write_json(coco(BOXES))
    built = identities(open_index(path, tmp_path / "index").folder)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert identities(open_index(path, tmp_path / "index").folder) != built


@pytest.mark.parametrize("text", ["", "[]", '{"source": {"format": 0}}'], ids=["torn", "list", "older-format"])
def test_index_with_another_manifest_is_packed_again(
    coco: Coco, write_json: WriteJson, tmp_path: Path, text: str
) -> None:
    path = write_json(coco(BOXES))
    folder = open_index(path, tmp_path / "index").folder
    (folder / "manifest.json").write_text(text)
    assert open_index(path, tmp_path / "index").fingerprint
    assert len(open_index(path, tmp_path / "index")) == 3


def test_splits_of_one_root_do_not_share_a_folder(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    content = coco(BOXES)
    train = open_index(write_json(content, "Train.json"), tmp_path / "index")
    valid = open_index(write_json(content, "Valid.json"), tmp_path / "index")
    assert train.folder != valid.folder


def test_equal_content_in_other_files_has_the_same_fingerprint(
    coco: Coco, write_json: WriteJson, tmp_path: Path
) -> None:
    content, renamed = coco(BOXES), coco(BOXES)
    for image in renamed["images"]:
        image["id"] = str(image["id"])
    for annotation in renamed["annotations"]:
        annotation["image_id"] = str(annotation["image_id"])
    first = open_index(write_json(content, "a.json"), tmp_path / "index")
    second = open_index(write_json(renamed, "b.json"), tmp_path / "other")
    assert first.fingerprint == second.fingerprint


def moved_box(content: dict[str, Any]) -> None:
    content["annotations"][0]["bbox"][0] += 0.5


def other_class(content: dict[str, Any]) -> None:
    content["annotations"][0]["category_id"] = 4


def other_owner(content: dict[str, Any]) -> None:
    content["annotations"][0]["image_id"] = content["images"][1]["id"]


def other_order(content: dict[str, Any]) -> None:
    content["images"].reverse()


def other_name(content: dict[str, Any]) -> None:
    content["images"][0]["file_name"] = "frames/other.jpg"


def other_size(content: dict[str, Any]) -> None:
    content["images"][0]["width"] = 65


@pytest.mark.parametrize("change", [moved_box, other_class, other_owner, other_order, other_name, other_size])
def test_any_difference_changes_the_fingerprint(
    coco: Coco, write_json: WriteJson, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    content, changed = coco(BOXES), coco(BOXES)
    change(changed)
    first = open_index(write_json(content, "a.json"), tmp_path / "index")
    second = open_index(write_json(changed, "b.json"), tmp_path / "index")
    assert first.fingerprint != second.fingerprint


def test_missing_annotation_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"annotation file .*Train\.json does not exist"):
        open_index(tmp_path / "Train.json", tmp_path / "index")


def test_index_root_that_cannot_be_written_is_refused(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    path = write_json(coco(BOXES))
    with pytest.raises(ValueError, match=r"cannot write the dataset index under .*Train\.json"):
        open_index(path, path / "index")


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def fail(*_: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(("stop", "error"), [(interrupt, KeyboardInterrupt), (fail, ValueError)])
def test_interrupted_build_leaves_no_folder_behind(
    coco: Coco,
    write_json: WriteJson,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop: Callable[..., None],
    error: type[BaseException],
) -> None:
    path = write_json(coco(BOXES))
    with monkeypatch.context() as patch:
        patch.setattr(index_module.np, "save", stop)
        with pytest.raises(error):
            open_index(path, tmp_path / "index")
    assert folders(tmp_path / "index") == []
    assert len(open_index(path, tmp_path / "index")) == 3


def test_refused_annotation_file_leaves_no_folder_behind(write_json: WriteJson, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not an LTDv2 annotation file"):
        open_index(write_json("{}"), tmp_path / "index")
    assert folders(tmp_path / "index") == []


def test_pickles_as_its_path_even_after_use(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    index = open_index(write_json(coco([[[1, 2, 10, 20]]] * 500)), tmp_path / "index")
    expected = describe(index)
    pickled = pickle.dumps(index)
    assert len(pickled) - len(str(index.folder)) < 500
    assert describe(pickle.loads(pickled)) == expected


def test_two_spawned_processes_open_at_once_and_see_the_same(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    path = write_json(coco([[[1, 2, 10, 20]]] * 500))
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        openers = [pool.submit(open_and_describe, path, tmp_path / "index") for _ in range(2)]
        seen = [opener.result() for opener in openers]
        index = open_index(path, tmp_path / "index")
        unpickled = pool.submit(describe, index).result()
    assert seen == [describe(index)] * 2
    assert unpickled == describe(index)
    assert folders(tmp_path / "index") == [index.folder]
