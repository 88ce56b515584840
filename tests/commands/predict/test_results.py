"""Names, times and failures of result files."""

import json
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from tests.helpers.films import number_of, write_film
from tests.helpers.networks import lively_checkpoint
from yolo_lightning.commands.predict.command import predict
from yolo_lightning.commands.predict.results import JsonFile, Pictures, TextFiles
from yolo_lightning.data.batch import Prediction
from yolo_lightning.data.input_images import InputImage, read_pictures
from yolo_lightning.data.input_videos import read_frames
from yolo_lightning.evaluation.detection_result import DetectionResult

LATIN_1 = os.fsdecode(b"caf\xe9")
TIMES = [Fraction(ms, 1000) for ms in (0, 39, 74, 2500, 2533, 9_000_000)]


def result_of(image: InputImage) -> DetectionResult:
    prediction = Prediction("a", torch.tensor([[2.0, 0.0, 62.0, 4.0]]), torch.tensor([0.75]), torch.tensor([1]))
    return DetectionResult.of(image, prediction, ("cat", "dog"))


def still(name: str, width: int = 32) -> DetectionResult:
    return result_of(InputImage(Path("/in") / name, None, np.full((16, width, 3), 90, np.uint8)))


@pytest.mark.parametrize(
    "stem", [LATIN_1, "人" * 70, "2026-11-26T19:55", "a%03d"], ids=["latin", "long", "colon", "percent"]
)
def test_names_of_any_bytes_are_kept(stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out:1").mkdir()
    monkeypatch.chdir(tmp_path)
    write_film(tmp_path / "film.mkv", TIMES[:2])
    film = (tmp_path / "film.mkv").rename(tmp_path / f"{stem}.mkv")
    with closing(Pictures(Path("out:1"), tmp_path)) as pictures:
        pictures.write(replace(still("a.png"), source=tmp_path / f"{stem}.png"))
        for result in detected(Path(film.name)):
            pictures.write(result)
    assert not pictures.failures
    kept = stem[:66]  # 200 bytes of characters with 3 bytes each
    files = sorted((tmp_path / "out:1" / "pictures").iterdir())
    assert [path.name for path in files] == [f"{kept}.jpg", f"{kept}.mp4"]
    assert [number_of(pixels) for pixels, _ in read_frames(files[1])] == [0, 1]


def detected(film: Path) -> Iterator[DetectionResult]:
    return map(result_of, read_pictures(film))


def test_annotated_video_and_json_have_the_times_of_the_input(tmp_path: Path) -> None:
    write_film(tmp_path / "film.mkv", TIMES)
    with closing(Pictures(tmp_path, tmp_path)) as pictures, closing(JsonFile(tmp_path, tmp_path)) as numbers:
        for result in detected(tmp_path / "film.mkv"):
            pictures.write(result)
            numbers.write(result)
    frames = list(read_frames(tmp_path / "pictures" / "film.mp4"))
    assert [number_of(pixels) for pixels, _ in frames] == list(range(len(TIMES)))
    assert [time_s for _, time_s in frames] == list(map(float, TIMES))
    entries = json.loads((tmp_path / "predictions.json").read_text())
    assert [entry["time_s"] for entry in entries] == list(map(float, TIMES))


def test_text_files_of_two_videos_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """The second video is longer, and its frame 3 has the name of a picture."""
    frames = [("a/film.mkv", 0), ("a/film.mkv", 1), ("a/film_3.png", None), *(("a/film.mp4", n) for n in range(4))]
    frames += [("b/film_3.png", None), *(("b/film.mp4", number) for number in range(4))]
    writer = TextFiles(tmp_path, Path("/in"))
    for name, number in frames:
        image = InputImage(Path("/in") / name, number, np.full((16, 32, 3), 90, np.uint8))
        writer.write(result_of(image))
    assert not writer.failures
    files = sorted(path.relative_to(tmp_path / "labels").as_posix() for path in tmp_path.rglob("*.txt"))
    second = [f"film-2_{number}.txt" for number in range(4)]
    assert files == [
        *(f"a/{name}" for name in (*second, "film_0.txt", "film_1.txt", "film_3.txt")),
        *(f"b/{name}" for name in (*second, "film_3.txt")),
    ]


def test_pictures_too_wide_for_jpeg_are_png(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pictures = Pictures(tmp_path, Path("/in"))
    with caplog.at_level("INFO"):
        pictures.write(still("wide.png", 66_000))
    assert cv2.imread(str(tmp_path / "pictures" / "wide.png")).shape == (16, 66_000, 3)
    assert "wide.png: PNG, because JPEG has at most 65,500 pixels per side" in caplog.text
    assert not pictures.failures


def test_other_results_follow_those_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "predictions.json").symlink_to("/dev/full")
    pictures, numbers = Pictures(tmp_path, Path("/in")), JsonFile(tmp_path, Path("/in"))
    for number in range(2):  # frames that are too wide for H.264
        wide = np.zeros((16, 20_000, 3), np.uint8)
        pictures.write(result_of(InputImage(Path("/in/film.mp4"), number, wide, time_s=number / 25)))
    pictures.write(still("a.png"))
    pictures.write(still("a.jpg/b.png"))  # `pictures/a.jpg` is a file
    pictures.write(still("c.png"))
    numbers.write(still("c.png"))
    pictures.close()
    numbers.close()
    assert list(pictures.failures) == ["/in/film.mp4", "/in/a.jpg/b.png"]
    assert (tmp_path / "pictures" / "c.jpg").is_file()
    assert "No space left on device" in numbers.failures[str(tmp_path / "predictions.json")]


def test_command_names_results_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = lively_checkpoint(tmp_path, class_names=("cat", "dog"))
    names = ("a.png", "a.jpg/b.png", "c.png")
    (tmp_path / "a.jpg").mkdir()
    for name in names:
        cv2.imwrite(str(tmp_path / name), np.full((32, 32, 3), 90, np.uint8))
    with pytest.raises(SystemExit) as ended:
        predict(
            [str(tmp_path / name) for name in names],
            weights=str(weights),
            output=str(tmp_path / "out"),
            image_size=64,
            score_threshold=1.0,
        )
    assert ended.value.code == 1
    output = capsys.readouterr().out
    assert f"results of 1 files cannot be written: {tmp_path / 'a.jpg' / 'b.png'}: " in output
    assert "no box has a score >= 1; --score_threshold 0.1 shows boxes with lower scores" in output
    assert (tmp_path / "out" / "pictures" / "c.jpg").is_file()
    assert len(json.loads((tmp_path / "out" / "predictions.json").read_text())) == 3
