"""The synthetic data set: official layout, reproducibility, season drift, tight boxes and care for existing folders."""

import json
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from synthetic import draw_dataset, drawn_dataset
from synthetic.camera import draw_frame
from synthetic.clips import cast_actor
from synthetic.objects import Actor
from synthetic.scene import MONTHS, Scene, weather_at
from synthetic.surveillance import cast_surveillance, veiled

SPLIT_FILES = ("Train.json", "Valid.json", "TestNoLabels.json")
EIGHT_MONTHS = {"202005", "202006", "202007", "202008", "202101", "202102", "202103", "202104"}
SMALL: dict[str, Any] = {"train_frames": 160, "valid_frames": 24, "test_frames": 8, "width": 160, "height": 120}
TINY: dict[str, Any] = {"train_frames": 16, "valid_frames": 8, "test_frames": 4, "width": 96, "height": 64}


def read(root: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((root / name).read_text())
    return content


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_dataset(tmp_path_factory.mktemp("synthetic") / "small", **SMALL)


@pytest.mark.parametrize("name", SPLIT_FILES)
def test_names_and_ids_decode_to_date_and_clip(small: Path, name: str) -> None:
    for image in read(small, name)["images"]:
        top, day, clip, file_name = image["file_name"].split("/")
        _, number, time = clip.split("_")
        moment = datetime.fromisoformat(image["date_captured"])
        assert top == "frames"
        assert file_name.startswith("image_")
        assert file_name.endswith(".jpg")
        assert str(image["id"]) == f"{moment:%Y%m}{int(number):03d}{moment:%d%H%M%S}"
        assert day == f"{moment:%Y%m%d}"
        first_minute = datetime.strptime(day + time, "%Y%m%d%H%M")
        assert 0 <= (moment - first_minute).total_seconds() < 60 + 8
        assert {"Temperature", "Humidity", "Sun Radiation Intensity"} <= image["meta"].keys()
        frame = cv2.imread(str(small / image["file_name"]), cv2.IMREAD_UNCHANGED)
        assert frame is not None
        assert frame.dtype == np.uint8
        assert frame.shape == (image["height"], image["width"]) == (120, 160)


def test_background_is_the_first_category_and_the_test_split_has_no_labels(small: Path) -> None:
    for name in SPLIT_FILES:
        categories = read(small, name)["categories"]
        expected = ["background", "person", "bicycle", "motorcycle", "vehicle"]
        assert [(entry["id"], entry["name"]) for entry in categories] == list(enumerate(expected))
    assert "annotations" not in read(small, "TestNoLabels.json")


def test_same_seed_gives_the_same_bytes_and_another_seed_other_frames(tmp_path: Path) -> None:
    first, second, other = (
        files_of(draw_dataset(tmp_path / name, seed=seed, **TINY))
        for name, seed in (("first", 5), ("second", 5), ("other", 6))
    )
    assert first == second
    frames = {content for name, content in first.items() if name.endswith(".jpg")}
    assert len(frames) == 28
    assert not frames & set(other.values())


def test_splits_share_no_clip_and_see_all_months(small: Path) -> None:
    clips: Counter[str] = Counter()
    for name in SPLIT_FILES:
        images = read(small, name)["images"]
        clips.update({image["file_name"].rsplit("/", 1)[0] for image in images})
        assert {str(image["id"])[:6] for image in images} == EIGHT_MONTHS
    assert set(clips.values()) == {1}


@pytest.mark.parametrize("name", ["Train.json", "Valid.json"])
def test_boxes_are_inside_and_of_every_class(small: Path, name: str) -> None:
    content = read(small, name)
    for annotation in content["annotations"]:
        x, y, width, height = annotation["bbox"]
        assert x >= 0
        assert y >= 0
        assert x + width <= 160
        assert y + height <= 120
        assert min(width, height) >= 6
        assert annotation["area"] == width * height
    counts = Counter(annotation["category_id"] for annotation in content["annotations"])
    assert min(counts[number] for number in (1, 2, 3, 4)) > 0
    per_image = Counter(annotation["image_id"] for annotation in content["annotations"])
    empty = sum(1 for image in content["images"] if image["id"] not in per_image)
    assert 0.04 <= empty / len(content["images"]) <= 0.2
    assert max(per_image.values()) <= 7


JANUARY_NIGHT, JULY_NOON = (4, datetime(2021, 1, 5, 3)), (2, datetime(2020, 7, 5, 13))


def exposed(
    actors: list[Actor],
    scene: Scene,
    moment: tuple[int, datetime] = JANUARY_NIGHT,
) -> tuple[np.ndarray, list[Any]]:
    """One frame with the noise of a fixed generator."""
    weather = weather_at(MONTHS[moment[0]], moment[1], np.random.default_rng(0))
    background = scene.background(weather)
    return draw_frame(scene, background, actors, weather, 0, np.random.default_rng(1))


@pytest.mark.parametrize("class_index", range(4))
def test_box_is_tight_around_what_was_drawn(class_index: int) -> None:
    scene = Scene(384, 288, 0)
    actor = cast_actor(scene, class_index, 1, [], np.random.default_rng(class_index))
    frame, labels = exposed([actor], scene)
    empty, none = exposed([], scene)
    assert none == []
    # Same noise in both frames: what differs is the object, widened by the blur of the lens.
    changed = np.abs(frame.astype(int) - empty) > 4
    columns, rows = np.flatnonzero(changed.any(axis=0)), np.flatnonzero(changed.any(axis=1))
    ((label, (x, y, width, height)),) = labels
    assert label == class_index
    drawn = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
    np.testing.assert_allclose((x, y, x + width, y + height), drawn, atol=2.5)


def test_hidden_object_is_not_labelled_and_a_cut_one_is_clipped() -> None:
    scene = Scene(384, 288, 0)
    common: dict[str, Any] = {"velocity": 0.0, "heading": 1, "warmth": 0.0, "shape": 1}
    person = Actor(0, 150.0, 200.0, 12.0, 30.0, **common)
    vehicle = Actor(3, 150.0, 202.0, 80.0, 40.0, **common)
    cut = Actor(3, 380.0, 260.0, 80.0, 40.0, **common)
    _, labels = exposed([person, vehicle, cut], scene)
    assert [label for label, _ in labels] == [3, 3]
    x, _, width, _ = labels[1][1]
    assert x + width == 384
    assert 40 <= width <= 46


def test_a_summer_month_is_brighter_than_a_winter_month(small: Path) -> None:
    gray: dict[str, list[float]] = {month: [] for month in EIGHT_MONTHS}
    for image in read(small, "Train.json")["images"]:
        frame = cv2.imread(str(small / image["file_name"]), cv2.IMREAD_UNCHANGED)
        assert frame is not None
        gray[str(image["id"])[:6]].append(float(frame.mean()))
    assert np.mean(gray["202007"]) > np.mean(gray["202102"]) + 40


def test_finished_root_is_returned_without_drawing(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn_dataset, "_draw", lambda *_: pytest.fail("drawn again"))
    assert draw_dataset(small, **SMALL) == small


def test_interrupted_draw_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def stop_at_ten(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 10:
            raise KeyboardInterrupt
        return draw_frame(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(drawn_dataset, "draw_frame", stop_at_ten)
        with pytest.raises(KeyboardInterrupt):
            draw_dataset(tmp_path / "root", **TINY)
    assert not (tmp_path / "root").exists()
    draw_dataset(tmp_path / "root", **TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
    draw_dataset(tmp_path / "whole", **TINY)
    assert files_of(tmp_path / "root") == files_of(tmp_path / "whole")


def test_foreign_root_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "Train.json").write_text("mine")
    with pytest.raises(ValueError, match="new or empty folder"):
        draw_dataset(tmp_path, **TINY)
    assert files_of(tmp_path) == {"Train.json": b"mine"}
    with pytest.raises(ValueError, match="new or empty folder"):
        draw_dataset(tmp_path / "Train.json", **TINY)
    with pytest.raises(ValueError, match="cannot draw a dataset into"):
        draw_dataset(tmp_path / "Train.json" / "below", **TINY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_frames": 0}, "clip_frames must be >= 1 or null, got 0"),
        ({"train_frames": "16"}, r"draw_dataset\.train_frames must be an integer, got '16'"),
        ({"width": 0}, "width must be >= 1, got 0"),
    ],
)
def test_wrong_argument_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw_dataset("x", **options)


def test_clips_can_be_longer_faster_and_drift_in_gain(tmp_path: Path) -> None:
    options = {**TINY, "clip_frames": 15}
    usual, fast, drifting = (
        draw_dataset(tmp_path / name, **options, **changed)
        for name, changed in (("usual", {}), ("fast", {"speed": 4.0}), ("drifting", {"gain_drift": 0.3}))
    )
    images = read(usual, "Train.json")["images"]
    assert Counter(image["file_name"].rsplit("/", 1)[0] for image in images).most_common(1)[0][1] == 15
    assert read(drifting, "Train.json") == read(usual, "Train.json")
    changes = {root: frame_changes(root, images[:15]) for root in (usual, fast, drifting)}
    assert changes[fast][0] > 1.5 * changes[usual][0]
    assert changes[drifting][1] > 3 * changes[usual][1]
    with pytest.raises(ValueError, match="drawn with the same parameters"):
        draw_dataset(usual, **TINY)
    assert draw_dataset(usual, **options) == usual


def test_surveillance_clip_has_objects_that_enter_stop_stand_and_go(tmp_path: Path) -> None:
    frames, scene = 60, Scene(192, 144, 0)
    actors = [
        actor for seed in range(20) for actor in cast_surveillance(scene, frames, np.random.default_rng(seed), 2.0)
    ]
    moving = [actor for actor in actors if actor.velocity]
    standing = [actor for actor in actors if not actor.velocity]
    entering = [
        actor for actor in moving if not 0 <= actor.center_at(0) < scene.width and 0 <= actor.center_at(40) < 192
    ]
    stopping = [actor for actor in moving if actor.pause]
    assert min(len(moving), len(standing), len(entering), len(stopping)) >= 20
    assert {actor.class_index for actor in moving} == {0, 1, 2, 3}
    stopped = stopping[0]
    assert (
        stopped.center_at(stopped.stop)
        == stopped.center_at(stopped.stop + stopped.pause)
        != stopped.center_at(stopped.stop + stopped.pause + 1)
    )
    assert stopped.is_standing(stopped.stop + 1)
    # The same places in every clip: the standing objects of all clips are at eight places.
    assert len({round(actor.center) // 8 for actor in standing}) <= 16


def test_fog_and_rain_take_contrast_from_some_clips() -> None:
    clear = weather_at(MONTHS[0], datetime(2020, 5, 4, 12), np.random.default_rng(0))
    weathers = [veiled(clear, np.random.default_rng(seed)) for seed in range(100)]
    dim = [weather for weather in weathers if weather.gain < 0.75 * clear.gain]
    assert 15 <= len(dim) <= 45
    assert {weather.precipitation > 0 for weather in dim} == {True, False}
    assert all(weather == clear for weather in weathers if weather not in dim)


def frame_changes(root: Path, images: list[dict[str, Any]]) -> tuple[float, float]:
    """Return how much consecutive frames differ beyond noise, a fraction of their pixels, and the range of their means.

    The second is the range of the median level of the frames.
    """
    frames = np.array([cv2.imread(str(root / image["file_name"]), cv2.IMREAD_GRAYSCALE) for image in images], float)
    return float((np.abs(np.diff(frames, axis=0)) > 25).mean()), float(np.ptp(np.median(frames, axis=(1, 2))))
