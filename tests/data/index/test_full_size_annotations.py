"""The generator of a full-size annotation file, at small sizes."""

import json
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from scripts.full_size_annotations import CLASS_SHARES, CLIP_FRAMES, LARGEST, main, plan, write_full_size
from yolo_lightning.commands.prepare.summary import monthly_counts
from yolo_lightning.data.formats.annotations import WEATHER
from yolo_lightning.data.index.split_index import open_index


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


@pytest.mark.parametrize(("images", "boxes"), [(1, 0), (1, 5), (120, 1), (121, 0), (2500, 20_000)])
def test_file_holds_what_was_asked_for(tmp_path: Path, images: int, boxes: int) -> None:
    write_full_size(tmp_path / "Train.json", images, boxes)
    content = read(tmp_path / "Train.json")
    assert (len(content["images"]), len(content["annotations"])) == (images, boxes)
    index = open_index(tmp_path / "Train.json", tmp_path / "index")
    assert (len(index), index.counts.kept, index.counts.clipped, index.counts.dropped) == (images, boxes, 0, 0)


def test_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_full_size(tmp_path / name, 300, 900, seed)
    first, again, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == again != other


def test_images_read_as_the_real_ones(tmp_path: Path) -> None:
    write_full_size(tmp_path / "Train.json", 2 * CLIP_FRAMES, 10)
    images = read(tmp_path / "Train.json")["images"]
    assert len({image["id"] for image in images}) == len(images)
    for image in images:
        date, clip, name = image["file_name"].split("/")[1:]
        number, start = clip.split("_")[1:]
        identifier, moment = str(image["id"]), "".join(filter(str.isdigit, image["date_captured"]))
        assert identifier == moment[:6] + f"{int(number):03d}" + moment[6:]
        assert date == moment[:8]
        assert name == f"image_{image['meta']['Image Number']:04d}.jpg"
        assert 0 <= int(moment[8:10]) * 60 + int(moment[10:12]) - int(start[:2]) * 60 - int(start[2:]) <= 2
        assert set(WEATHER) <= image["meta"].keys()


def test_months_have_equal_shares_and_september_a_few_clips() -> None:
    clips = Counter(f"{clip.start:%Y%m}" for clip in plan(1000 * CLIP_FRAMES, 0))
    assert clips.pop("202009") == 2
    assert sorted(clips) == [*map(str, range(202005, 202009)), *map(str, range(202101, 202105))]
    assert max(clips.values()) - min(clips.values()) <= 2


def test_classes_have_the_real_shares(tmp_path: Path) -> None:
    write_full_size(tmp_path / "Train.json", 3000, 30_000)
    counts = monthly_counts(open_index(tmp_path / "Train.json", tmp_path / "index"))
    shares = counts.boxes.sum(axis=0) / counts.boxes.sum()
    assert shares.tolist() == pytest.approx(CLASS_SHARES, abs=0.006)


def test_bytes_per_record_are_those_of_the_real_files(tmp_path: Path) -> None:
    write_full_size(tmp_path / "none.json", 1200, 0)
    write_full_size(tmp_path / "some.json", 1200, 12_000)
    none, some = ((tmp_path / name).stat().st_size for name in ("none.json", "some.json"))
    assert 600 < none / 1200 < 800
    assert 200 < (some - none) / 12_000 < 320


def test_clips_of_a_full_calendar_do_not_meet() -> None:
    clips = plan(LARGEST, 0)
    assert len({(clip.start.date(), clip.number) for clip in clips}) == len(clips)
    for clip, following in pairwise(clips):
        assert clip.start + timedelta(seconds=clip.frames) < following.start
        assert (clip.start + timedelta(seconds=clip.frames)).date() == clip.start.date()


@pytest.mark.parametrize(("images", "boxes"), [(0, 1), (-1, 1), (LARGEST + 1, 1), (1, -1)])
def test_numbers_out_of_range_are_refused(tmp_path: Path, images: int, boxes: int) -> None:
    with pytest.raises(ValueError, match=r"(images|boxes) must be .*, got -?\d+"):
        write_full_size(tmp_path / "Train.json", images, boxes)
    assert list(tmp_path.iterdir()) == []


def test_script_writes_the_file_and_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "Train.json"
    assert main([str(path), "--images", "130", "--boxes", "7", "--seed", "2"]) == 0
    assert capsys.readouterr().out == f"{path}: {path.stat().st_size:,} bytes, 130 images, 7 boxes\n"
    write_full_size(tmp_path / "same.json", 130, 7, 2)
    assert path.read_bytes() == (tmp_path / "same.json").read_bytes()


@pytest.mark.parametrize("arguments", [["Train.json", "--images", "0"], ["/dev/null/Train.json"]])
def test_script_refuses_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1
