"""`prepare --check`: duplicates across splits, boxes, unreadable files, exit code and picture."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from yolo_lightning.commands.prepare.command import pack_frames
from yolo_lightning.commands.prepare.dataset_check import NEAR_LEVELS, CheckedSplit, twins

CLEAN = "0 0.5 0.5 0.4 0.4\n1 0.3 0.3 0.2 0.2\n"


def noise(seed: int) -> Any:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8), dtype=np.uint8)
    return cv2.resize(coarse, (64, 48), interpolation=cv2.INTER_CUBIC)


@pytest.fixture
def check(tmp_path: Path, index_root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Write a dataset of three training and two validation images, replace some files, and check the dataset."""
    monkeypatch.setenv("COLUMNS", "200")  # every finding in one line

    def run(images: dict[str, Any] | None = None, labels: dict[str, str] | None = None) -> None:
        names = [f"train/{number}" for number in range(3)] + [f"val/{number}" for number in range(2)]
        for seed, name in enumerate(names):
            for kind in ("images", "labels"):
                (tmp_path / kind / name).parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(tmp_path / f"images/{name}.png"), (images or {}).get(name, noise(seed)))
            (tmp_path / f"labels/{name}.txt").write_text((labels or {}).get(name, CLEAN))
        description = tmp_path / "data.yaml"
        description.write_text(f"path: {tmp_path}\ntrain: images/train\nval: images/val\nnames: [cat, dog]\n")
        picture = str(tmp_path / "check.png")
        pack_frames(format=str(description), index_root=str(index_root), check=True, picture=picture)

    return run


def test_clean_dataset_passes_without_a_picture(
    check: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check()
    output = capsys.readouterr().out
    assert "all 5 frames can be read" in output
    assert "0 of 2 frames of valid are also in train" in output
    assert "cat 50.0%, dog 50.0%" in output
    assert not (tmp_path / "check.png").exists()


def test_frames_in_two_splits_are_bad_and_drawn(
    check: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        check({"val/0": noise(1), "val/1": np.clip(noise(2).astype(int) + 1, 0, 255).astype(np.uint8)})
    assert end.value.code == 1
    output = " ".join(capsys.readouterr().out.split())
    assert "1 of 2 frames of valid are also in train" in output
    assert "1 of 2 frames of valid differ from a frame of train by at most 2 gray levels" in output
    assert cv2.imread(str(tmp_path / "check.png")) is not None


def test_boxes_and_classes_are_judged(check: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    check(
        labels={"train/0": "0 0.5 0.5 0.4 0.4\n0 0.5 0.5 0.4 0.41\n", "train/1": "0 0.5 0.5 0.03 0.4\n", "train/2": ""}
    )
    output = " ".join(capsys.readouterr().out.split())
    assert "1 of 3 frames have boxes whose shorter side is below 4 pixels" in output
    assert "1 of 3 frames have boxes of one class whose IoU is at least 0.9" in output
    assert "less than 1% of the training boxes: dog" in output
    assert "train 33.3%, valid 0.0%" in output


def test_unreadable_file_is_bad(check: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check()
    file = tmp_path / "images" / "train" / "1.png"
    file.write_bytes(file.read_bytes()[:-60])
    with pytest.raises(SystemExit):
        pack_frames(format=str(tmp_path / "data.yaml"), check=True, picture=str(tmp_path / "check.png"))
    assert "1 unreadable frames: " in capsys.readouterr().out


def test_damaged_jpeg_data_are_bad(
    check: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check()
    folder = tmp_path / "images" / "train"
    for number in range(3):
        image = folder / f"{number}.png"
        cv2.imwrite(str(image.with_suffix(".jpg")), cv2.imread(str(image)))
        image.unlink()
    content = bytearray((folder / "1.jpg").read_bytes())
    middle = len(content) // 2
    content[middle:-2] = np.random.default_rng(0).bytes(len(content) - middle - 2)
    (folder / "1.jpg").write_bytes(content)
    with pytest.raises(SystemExit):
        pack_frames(format=str(tmp_path / "data.yaml"), check=True, picture=str(tmp_path / "check.png"))
    output = " ".join(capsys.readouterr().out.split())
    assert "1 of 3 frames of train have damaged JPEG data" in output
    assert "images/train/1.jpg" in output


def test_frames_per_month_are_counted(look_alike: Path, index_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):  # the drawn frames of two splits are similar
        pack_frames(str(look_alike), index_root=str(index_root), check=True, picture=str(index_root / "check.png"))
    shown = " ".join(capsys.readouterr().out.split())
    assert "train 2020-05: " in shown
    assert "2021-04: " in shown


def test_damaged_jpeg_data_are_found_beside_a_packed_store(
    look_alike: Path, tmp_path: Path, index_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    shutil.copytree(look_alike, root)
    name = json.loads((root / "Train.json").read_text())["images"][3]["file_name"]
    content = (root / name).read_bytes()
    (root / name).write_bytes(content[: len(content) * 2 // 3] + content[-2:])
    pack_frames(str(root), index_root=str(index_root), workers=1)
    with pytest.raises(SystemExit):
        pack_frames(str(root), index_root=str(index_root), check=True, picture=str(tmp_path / "check.png"))
    assert "have damaged JPEG data" in " ".join(capsys.readouterr().out.split())


def test_frames_with_16_bits_are_read(
    check: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check()
    for file in tmp_path.glob("images/*/*.png"):
        gray = cv2.imread(str(file), cv2.IMREAD_GRAYSCALE)
        assert gray is not None
        cv2.imwrite(str(file), 7000 + 8 * gray.astype(np.uint16))
    options: dict[str, Any] = {"format": str(tmp_path / "data.yaml"), "check": True}
    options["picture"] = str(tmp_path / "check.png")
    with pytest.raises(SystemExit):
        pack_frames(**options)
    assert "prepare: --bits 16" in " ".join(capsys.readouterr().out.split())
    pack_frames(**options, bits=16)
    output = " ".join(capsys.readouterr().out.split())
    assert "all 5 frames can be read" in output
    assert "0 of 2 frames of valid differ from a frame of train" in output


def test_nearest_frame_is_found_in_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yolo_lightning.commands.prepare.dataset_check.BLOCK", 2)
    thumbnails = np.random.default_rng(0).integers(0, 250, (5, 256)).astype(np.uint8)
    frames: Any = None
    first = CheckedSplit(frames, thumbnails, [bytes([place]) for place in range(5)], {}, [], [])
    moved = thumbnails[::-1] + np.array([0, 1, 2, 3, 4], np.uint8)[:, None]
    second = CheckedSplit(frames, moved, [b"\4", b"b", b"c", b"d", b""], {}, [], [])
    assert NEAR_LEVELS == 2
    assert twins(first, second) == ([(4, 0)], [(3, 1), (2, 2)])


def test_what_is_left_out_of_a_file_is_shown(check: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    check(labels={"train/1": 2 * CLEAN})
    assert "boxes, train 2 duplicate label lines note" in " ".join(capsys.readouterr().out.split())
