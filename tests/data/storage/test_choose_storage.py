"""Selection of the storage; all storages return the same pixels."""

import shutil
from pathlib import Path
from typing import get_args

import pytest

from tests.helpers.archives import drawn_frames, pack, put, write_zip
from yolo_lightning.data.storage.choose_storage import STORAGES, open_frames
from yolo_lightning.data.storage.folder_frames import FolderFrames
from yolo_lightning.data.storage.packed_frames import PackedFrames
from yolo_lightning.data.storage.storage import Storage
from yolo_lightning.data.storage.storage_settings import StorageKind, StorageSettings
from yolo_lightning.data.storage.zip_frames import ZipFrames

FRAMES = drawn_frames(5)
NAMES = sorted(FRAMES)
KINDS = {"folder": FolderFrames, "zip": ZipFrames, "packed": PackedFrames}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Dataset root with the same frames in three storages."""
    put(tmp_path, FRAMES)
    write_zip(tmp_path / "frames.zip", FRAMES)
    pack(tmp_path / "packed", FolderFrames(tmp_path), NAMES)
    return tmp_path


def open_(root: Path, storage: StorageKind = "auto", store: Path | None = None) -> Storage:
    where = None if store is None else str(store)
    return open_frames(root, StorageSettings(kind=storage, store=where, index_root=str(root / "index")))


def test_every_storage_has_a_name_of_the_option() -> None:
    assert get_args(StorageKind) == ("auto", *(storage.kind for storage in STORAGES))


def test_auto_takes_the_packed_store_then_the_folder_then_the_archive(root: Path) -> None:
    assert isinstance(open_(root), PackedFrames)
    (root / "packed" / "manifest.json").unlink()
    assert isinstance(open_(root), FolderFrames)
    shutil.rmtree(root / "frames")
    assert isinstance(open_(root), ZipFrames)


def test_store_may_lie_elsewhere(root: Path) -> None:
    moved = (root / "packed").rename(root / "elsewhere")
    assert isinstance(open_(root), FolderFrames)
    source = open_(root, store=moved)
    assert isinstance(source, PackedFrames)
    assert source.store == moved


def test_nothing_found_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"has no frames: found neither .*manifest\.json.*archive .*frames\.zip.*frames does not"
    ):
        open_(tmp_path)


def test_unknown_storage_is_refused(root: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.storage\.kind must be auto, packed, folder or zip, got 'tar'"):
        open_(root, "tar")  # type: ignore[arg-type]


@pytest.mark.parametrize("original", ["folder", "zip"])
def test_store_of_other_frames_with_the_same_names_is_refused(root: Path, original: str) -> None:
    other_frames = dict(zip(NAMES, (FRAMES[name] for name in reversed(NAMES)), strict=True))
    if original == "folder":
        put(root, other_frames)
    else:
        shutil.rmtree(root / "frames")
        write_zip(root / "frames.zip", other_frames)
    with pytest.raises(ValueError, match=r"differs from the frame in .*: the store was packed from other frames"):
        open_(root)


def test_original_may_be_deleted_in_part_or_be_damaged(root: Path) -> None:
    for name in NAMES[:-1]:
        (root / name).unlink()
    assert isinstance(open_(root), PackedFrames)
    shutil.rmtree(root / "frames")
    (root / "frames.zip").write_bytes(b"PK")
    assert isinstance(open_(root), PackedFrames)
    (root / "frames.zip").unlink()
    assert isinstance(open_(root), PackedFrames)
