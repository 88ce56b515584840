"""Neighbouring frames of a clip: which frames they are, in every storage."""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.annotations import open_ltdv2
from tests.helpers.archives import drawn_frames, write_annotations, write_zip
from yolo_lightning.commands.prepare.command import prepare
from yolo_lightning.data.index.neighbours import Neighbours, numbered
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.input_settings import LARGEST_OFFSET, MOST_NEIGHBOURS, check_neighbours
from yolo_lightning.data.storage.folder_frames import FolderFrames
from yolo_lightning.data.storage.packed_frames import PackedFrames
from yolo_lightning.data.storage.storage import Storage
from yolo_lightning.data.storage.zip_frames import ZipFrames

FIRST, SECOND = "frames/20200502/clip_1_1142", "frames/20200502/clip_10_1142"
FRAMES = {**drawn_frames(12, FIRST), **drawn_frames(3, SECOND)}
LISTED = [*(f"{FIRST}/image_{number:04d}.jpg" for number in (9, 0, 3, 4)), f"{SECOND}/image_0001.jpg"]
"""Frames of the annotation file, not in order; the others of their clips are in the storage only."""
OTHER_FILES = (
    f"{FIRST}/thumbnail_0005.jpg",
    f"{FIRST}/image_0005.txt",
    f"{FIRST}/image_4.jpg",
    f"{FIRST}1/image_0.jpg",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, content in {**FRAMES, **dict.fromkeys(OTHER_FILES, FRAMES[LISTED[0]])}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    write_annotations(tmp_path / "Train.json", LISTED)
    return tmp_path


@pytest.fixture
def index(root: Path) -> SplitIndex:
    return open_ltdv2(root / "Train.json", root / "index")


def open_storage(kind: str, root: Path) -> Storage:
    if kind == "zip":
        write_zip(root / "frames.zip", {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.*g")})
        return ZipFrames(root / "frames.zip", root / "index")
    if kind == "packed":
        prepare(str(root), index_root=str(root / "index"), workers=1, whole_clips=True)
        return PackedFrames(root / "packed")
    return FolderFrames(root)


def names(neighbours: Neighbours, position: int) -> list[str]:
    return [neighbours.file_name(place) for place in neighbours.places(position)]


def short(neighbours: Neighbours, position: int) -> list[int]:
    return [numbered(name)[1] for name in names(neighbours, position)]


@pytest.mark.parametrize("kind", ["folder", "zip", "packed"])
def test_frames_of_the_storage_are_neighbours_too(kind: str, root: Path, index: SplitIndex) -> None:
    neighbours = Neighbours.find(index, open_storage(kind, root), (-2, 0, 1))
    assert [short(neighbours, position) for position in range(5)] == [
        [7, 9, 10],
        [0, 0, 1],
        [1, 3, 4],
        [2, 4, 5],
        [0, 1, 2],
    ]
    assert all(name.rpartition("/")[0] == FIRST for position in range(4) for name in names(neighbours, position))
    assert {name for position in range(5) for name in names(neighbours, position)} <= FRAMES.keys()
    assert set(neighbours.unlisted.file_names()) == FRAMES.keys() - set(LISTED)


def test_frames_of_the_annotation_file_suffice(root: Path, index: SplitIndex) -> None:
    for name in FRAMES.keys() - set(LISTED):
        (root / name).unlink()
    neighbours = Neighbours.find(index, FolderFrames(root), (-1, 0, 2))
    found = [short(neighbours, position) for position in range(5)]
    assert found == [[4, 9, 9], [0, 0, 4], [0, 3, 9], [3, 4, 9], [1, 1, 1]]
    assert "further" not in neighbours.describe()


def test_part_of_a_file_has_the_neighbours_of_the_whole(root: Path, index: SplitIndex) -> None:
    part = index.of_clips(np.array([1]))
    neighbours = Neighbours.find(part, FolderFrames(root), (-5, 0, 1))
    assert names(neighbours, 0) == [f"{SECOND}/image_000{number}.jpg" for number in (0, 1, 2)]
    assert len(neighbours.unlisted) == 2


def test_worker_gets_no_table(root: Path, index: SplitIndex) -> None:
    neighbours = Neighbours.find(index, FolderFrames(root), (-1, 0, 1))
    expected = [names(neighbours, position) for position in range(5)]
    received = pickle.loads(pickle.dumps(neighbours))
    assert "_table" in vars(neighbours)
    assert "_table" not in vars(received)
    assert [names(received, position) for position in range(5)] == expected


def test_table_agrees_with_a_slow_search(
    coco: Callable[..., Any], write_json: Callable[..., Path], tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    content = coco([()] * 60)
    for image in content["images"]:
        image["file_name"] = f"frames/clip_{generator.integers(5)}/image_{generator.integers(10**6)}.jpg"
    index = open_ltdv2(write_json(content), tmp_path / "index")
    (tmp_path / "frames").mkdir()
    offsets = (-3, -1, 0, 4)
    neighbours = Neighbours.find(index, FolderFrames(tmp_path), offsets)
    for position in range(len(index)):
        own = index.file_name(position)
        clip = [name for name in index.file_names() if name.rpartition("/")[0] == own.rpartition("/")[0]]
        clip.sort(key=lambda name: numbered(name)[1])
        places = [min(max(clip.index(own) + offset, 0), len(clip) - 1) for offset in offsets]
        assert names(neighbours, position) == [clip[place] for place in places]


def test_storage_without_the_clips_has_no_further_frames(root: Path, index: SplitIndex) -> None:
    shutil.rmtree(root / FIRST)
    assert len(Neighbours.find(index, FolderFrames(root), (0, 1)).unlisted) == 2


@pytest.mark.parametrize(
    "offsets",
    [
        [1, 2],
        [0, -1],
        [-1, 0, 0],
        [0, LARGEST_OFFSET + 1],
        [0, 1.0],
        [False, 1],
        list(range(MOST_NEIGHBOURS + 1)),
    ],
)
def test_other_offsets_are_refused(offsets: list[Any]) -> None:
    with pytest.raises(
        ValueError, match=r"^data\.input\.neighbours must be \[\] or at most 16 different offsets .* got \["
    ):
        check_neighbours(offsets)


@pytest.mark.parametrize("offsets", [None, [], (), [0], (0,)])
def test_the_frame_alone_needs_no_neighbours(offsets: Any) -> None:
    assert check_neighbours(offsets) == ()
