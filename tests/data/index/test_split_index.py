"""The packed index of an annotation file."""

import json
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.conftest import FIRST_ID
from tests.helpers.annotations import open_ltdv2
from yolo_lightning.data.index import index_folder
from yolo_lightning.data.index.split_index import ARRAYS, SplitIndex

Coco = Callable[..., dict[str, Any]]
WriteJson = Callable[..., Path]

BOXES = [[[1, 2, 10, 20], [3, 4, 5, 6]], [], [[0, 0, 64, 48]]]


def identities(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.iterdir()}


def folders(index_root: Path) -> list[Path]:
    return [path for path in index_root.iterdir() if path.is_dir()]


def describe(index: SplitIndex) -> tuple[str, list[str], list[list[float]]]:
    return index.fingerprint, index.image_ids(), index.boxes(0).tolist()


def open_and_describe(annotation_file: Path, index_root: Path) -> tuple[str, list[str], list[list[float]]]:
    return describe(open_ltdv2(annotation_file, index_root))


def test_boxes_per_image_match_the_source(look_alike: Path, index_root: Path) -> None:
    content = json.loads((look_alike / "Train.json").read_text())
    index = open_ltdv2(look_alike / "Train.json", index_root)
    assert sum(len(index.labels(position)) for position in range(len(index))) == len(content["annotations"]) > 0
    for position, image in enumerate(content["images"]):
        annotations = [entry for entry in content["annotations"] if entry["image_id"] == image["id"]]
        x, y, width, height = np.array([entry["bbox"] for entry in annotations]).reshape(-1, 4).T
        np.testing.assert_allclose(index.boxes(position), np.stack((x, y, x + width, y + height), 1), atol=1e-4)
        assert index.labels(position).tolist() == [entry["category_id"] - 1 for entry in annotations]


def test_boxes_are_copies_that_may_be_changed(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    index = open_ltdv2(write_json(coco(BOXES)), tmp_path / "index")
    index.boxes(0)[:] = 0
    index.labels(0)[:] = 3
    assert index.boxes(0).tolist() == [[1, 2, 11, 22], [3, 4, 8, 10]]
    assert index.labels(0).tolist() == [0, 1]


def test_arrays_of_all_frames_have_the_documented_content(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    content = coco([*BOXES, [[1, 1, 5, 5]]])
    first, second, third, last = content["images"]
    second.update(id=7, date_captured="2021-02-03T04:05:06", meta={"Humidity": 80})
    last.update(file_name="frames/20200503/clip_2_0000/image_0009.jpg", id=8, date_captured=None)
    third["file_name"], first["file_name"] = first["file_name"], third["file_name"]
    content["annotations"] = [entry for entry in content["annotations"] if entry["image_id"] == first["id"]]
    index = open_ltdv2(write_json(content), tmp_path / "index")
    expected = {
        "months": ([202005, 202102, 202005, 0], np.int32),
        "clips": ([0, 0, 0, 1], np.int32),
        "positions_in_clip": ([2, 1, 0, 0], np.int32),
        "box_offsets": ([0, 2, 2, 2, 2], np.int64),
        "all_labels": ([0, 1], np.int8),
    }
    for name, (values, dtype) in expected.items():
        array = getattr(index, name)()
        assert (array.tolist(), array.dtype) == (values, dtype), name
    assert [index.clip_name(0), index.clip_name(1)] == ["frames/20200502/clip_1_1142", "frames/20200503/clip_2_0000"]


@pytest.mark.parametrize("method", ["months", "clips", "positions_in_clip", "box_offsets", "all_labels"])
def test_arrays_of_all_frames_are_mapped_and_read_only(
    coco: Coco, write_json: WriteJson, tmp_path: Path, method: str
) -> None:
    index = open_ltdv2(write_json(coco(BOXES)), tmp_path / "index")
    array, same = (getattr(index, method)() for _ in range(2))
    assert np.shares_memory(array, same)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_second_open_does_not_rebuild(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    path = write_json(coco(BOXES))
    built = identities(open_ltdv2(path, tmp_path / "index").folder)
    assert identities(open_ltdv2(path, tmp_path / "index").folder) == built
    assert built.keys() == {"manifest.json", *(f"{name}.npy" for name in ARRAYS)}


@pytest.mark.parametrize("stem", ["a" * 250, "港" * 80], ids=["ASCII", "CJK"])
def test_annotation_file_may_have_the_longest_name(
    stem: str, coco: Coco, write_json: WriteJson, tmp_path: Path
) -> None:
    path = write_json(coco())
    path = path.rename(path.with_name(f"{stem}.json"))
    open_and_describe(path, tmp_path)
    assert folders(tmp_path)


def test_current_index_is_opened_without_writing_anything(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    path = write_json(coco(BOXES))
    index = open_ltdv2(path, tmp_path / "index")
    for lock in (tmp_path / "index").glob("*.lock"):
        lock.unlink()
    open_ltdv2(path, tmp_path / "index")
    assert list((tmp_path / "index").iterdir()) == [index.folder]


def test_newer_modification_time_alone_is_packed_again(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    path = write_json(coco(BOXES))
    built = identities(open_ltdv2(path, tmp_path / "index").folder)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert identities(open_ltdv2(path, tmp_path / "index").folder) != built


@pytest.mark.parametrize("text", ["", "[]", '{"source": {"format": 0}}'], ids=["torn", "list", "older-format"])
def test_index_with_another_manifest_is_packed_again(
    coco: Coco, write_json: WriteJson, tmp_path: Path, text: str
) -> None:
    path = write_json(coco(BOXES))
    folder = open_ltdv2(path, tmp_path / "index").folder
    (folder / "manifest.json").write_text(text)
    assert open_ltdv2(path, tmp_path / "index").fingerprint
    assert len(open_ltdv2(path, tmp_path / "index")) == 3


def test_equal_content_in_other_files_has_the_same_fingerprint(
    coco: Coco, write_json: WriteJson, tmp_path: Path
) -> None:
    content, renamed = coco(BOXES), coco(BOXES)
    for image in renamed["images"]:
        image["id"] = str(image["id"])
    for annotation in renamed["annotations"]:
        annotation["image_id"] = str(annotation["image_id"])
    first = open_ltdv2(write_json(content, "a.json"), tmp_path / "index")
    second = open_ltdv2(write_json(renamed, "b.json"), tmp_path / "other")
    assert first.fingerprint == second.fingerprint


def test_weather_and_date_leave_the_fingerprint_alone(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    content, changed = coco(BOXES), coco(BOXES)
    changed["images"][0].update(meta={"Temperature": -40}, date_captured="2021-01-01T00:00:00")
    first = open_ltdv2(write_json(content, "a.json"), tmp_path / "index")
    second = open_ltdv2(write_json(changed, "b.json"), tmp_path / "index")
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize(
    ("records", "key", "value"),
    [
        ("annotations", "bbox", [1.5, 2, 10, 20]),
        ("annotations", "category_id", 4),
        ("annotations", "image_id", FIRST_ID + 1),
        ("images", "file_name", "frames/other.jpg"),
        ("images", "width", 65),
        ("images", "order", None),
    ],
)
def test_any_difference_changes_the_fingerprint(
    coco: Coco, write_json: WriteJson, tmp_path: Path, records: str, key: str, value: Any
) -> None:
    content, changed = coco(BOXES), coco(BOXES)
    if key == "order":
        changed[records].reverse()
    else:
        changed[records][0][key] = value
    first = open_ltdv2(write_json(content, "a.json"), tmp_path / "index")
    second = open_ltdv2(write_json(changed, "b.json"), tmp_path / "index")
    assert first.fingerprint != second.fingerprint


def test_index_root_that_cannot_be_written_is_refused(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    path = write_json(coco(BOXES))
    with pytest.raises(ValueError, match=r"the index of .*Train\.json under .*index.* Set data\.storage"):
        open_ltdv2(path, path / "index")


def test_folder_whose_name_is_not_utf8_has_an_index(coco: Coco, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "Train.json").write_text(json.dumps(coco(BOXES)))
    index = open_ltdv2(folder / "Train.json", tmp_path / "index")
    assert index.boxes(0).tolist() == [[1, 2, 11, 22], [3, 4, 8, 10]]
    assert open_ltdv2(folder / "Train.json", tmp_path / "index").folder == index.folder
    assert len(folders(tmp_path / "index")) == 1


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
        patch.setattr(index_folder.np, "save", stop)
        with pytest.raises(error):
            open_ltdv2(path, tmp_path / "index")
    assert folders(tmp_path / "index") == []
    assert len(open_ltdv2(path, tmp_path / "index")) == 3


def kill_yourself(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def open_and_die_half_way(annotation_file: Path, index_root: Path) -> None:
    index_folder.flush = kill_yourself
    open_ltdv2(annotation_file, index_root)


@pytest.mark.whole_run
def test_killed_build_is_cleared_away_by_the_next(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    path = write_json(coco(BOXES), "Train[1].json")
    process = multiprocessing.get_context("spawn").Process(
        target=open_and_die_half_way, args=(path, tmp_path / "index")
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert len(list(folders(tmp_path / "index")[0].iterdir())) > 1
    index = open_ltdv2(path, tmp_path / "index")
    assert folders(tmp_path / "index") == [index.folder]


@pytest.mark.parametrize("name", ["boxes.npy", "months.npy", "manifest.json"])
def test_torn_file_is_packed_again(coco: Coco, write_json: WriteJson, tmp_path: Path, name: str) -> None:
    path = write_json(coco(BOXES))
    file = open_ltdv2(path, tmp_path / "index").folder / name
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    assert open_ltdv2(path, tmp_path / "index").boxes(0).tolist() == [[1, 2, 11, 22], [3, 4, 8, 10]]
    assert file.read_bytes() == whole
    assert folders(tmp_path / "index") == [file.parent]


def test_lost_array_is_packed_again(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    path = write_json(coco(BOXES))
    (open_ltdv2(path, tmp_path / "index").folder / "labels.npy").unlink()
    assert open_ltdv2(path, tmp_path / "index").labels(0).tolist() == [0, 1]


def test_opened_index_survives_changes_of_its_source(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    running = open_ltdv2(write_json(coco(BOXES)), tmp_path / "index")
    expected = describe(running)
    open_ltdv2(write_json(coco([[[1, 2, 3, 4]]] * 4)), tmp_path / "index")
    assert describe(running) == describe(pickle.loads(pickle.dumps(running))) == expected


def test_pickles_as_its_path_even_after_use(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    index = open_ltdv2(write_json(coco([[[1, 2, 10, 20]]] * 500)), tmp_path / "index")
    expected = describe(index)
    pickled = pickle.dumps(index)
    assert len(pickled) - len(str(index.folder)) < 500
    assert describe(pickle.loads(pickled)) == expected


@pytest.mark.whole_run
def test_two_spawned_processes_open_at_once_and_see_the_same(coco: Coco, write_json: WriteJson, tmp_path: Path) -> None:
    path = write_json(coco([[[1, 2, 10, 20]]] * 500))
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        openers = [pool.submit(open_and_describe, path, tmp_path / "index") for _ in range(2)]
        seen = [opener.result() for opener in openers]
        index = open_ltdv2(path, tmp_path / "index")
        unpickled = pool.submit(describe, index).result()
    assert seen == [describe(index)] * 2
    assert unpickled == describe(index)
    assert folders(tmp_path / "index") == [index.folder]
