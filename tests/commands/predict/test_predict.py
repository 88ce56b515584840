"""The command `predict`, from a checkpoint and pictures to result files."""

import csv
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from tests.helpers.networks import lively_checkpoint
from yolo_lightning.checkpoints.checkpoint_file import write_checkpoint
from yolo_lightning.cli import main
from yolo_lightning.commands.predict.command import predict
from yolo_lightning.commands.predict.results import CsvFile, JsonFile, TextFiles
from yolo_lightning.data.batch import Prediction
from yolo_lightning.data.input_images import InputImage
from yolo_lightning.evaluation.detection_result import DetectionResult

NAMES = ("cat", "dog")
SIDE = 64


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that finds something everywhere."""
    return lively_checkpoint(tmp_path_factory.mktemp("weights"), class_names=NAMES)


@pytest.fixture
def album(tmp_path: Path) -> Path:
    root = tmp_path / "album"
    (root / "day").mkdir(parents=True)
    for number, name in enumerate(("day/x.png", "x.png")):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 60 + 20 * number, 3), dtype=np.uint8)
        cv2.imwrite(str(root / name), pixels)
    writer = cv2.VideoWriter(str(root / "film.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 5, (48, 48))
    for number in range(3):
        writer.write(np.random.default_rng(number).integers(0, 256, (48, 48, 3), dtype=np.uint8))
    writer.release()
    return root


def detections(folder: Path) -> list[list[dict[str, Any]]]:
    return [entry["detections"] for entry in json.loads((folder / "predictions.json").read_text())]


def test_all_results_of_images_and_videos(
    album: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (album / "torn.jpg").write_bytes(b"\xff\xd8 torn")
    output = tmp_path / "out"
    words = ["predict", str(album), "--weights", str(weights), "--output", str(output), "--image_size", str(SIDE)]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--save", "[pictures,json,csv,txt]", "--score_threshold", "0.4", "--batch_size", "2"])
    assert ended.value.code == 1
    assert f"skipped 1 unreadable files: {album / 'torn.jpg'}: the JPEG is truncated" in capsys.readouterr().out
    entries = json.loads((output / "predictions.json").read_text())
    seen = [(Path(entry["source"]).relative_to(album).as_posix(), entry["frame"], entry["time_s"]) for entry in entries]
    film_frames = [("film.mp4", 0, 0.0), ("film.mp4", 1, 0.2), ("film.mp4", 2, 0.4)]
    assert seen == [("day/x.png", None, None), *film_frames, ("x.png", None, None)]
    assert sum(len(entry["detections"]) for entry in entries) > 0, "the case shows nothing"
    files = sorted(path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file())
    assert files == [
        *("labels/day/x.txt", "labels/film_0.txt", "labels/film_1.txt", "labels/film_2.txt", "labels/x.txt"),
        *("pictures/day/x.jpg", "pictures/film.mp4", "pictures/x.jpg", "predictions.csv", "predictions.json"),
    ]
    with (output / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    corners = ("x1", "y1", "x2", "y2")
    assert [[float(row[corner]) for corner in corners] for row in rows] == [
        detection["box"] for entry in entries for detection in entry["detections"]
    ]
    assert {(row["frame"], row["time_s"]) for row in rows} <= {("", ""), ("0", "0.0"), ("1", "0.2"), ("2", "0.4")}
    film = cv2.VideoCapture(str(output / "pictures" / "film.mp4"))
    assert (film.get(cv2.CAP_PROP_FRAME_COUNT), film.get(cv2.CAP_PROP_FPS)) == (3, 5)


def test_nothing_readable_is_an_error_in_one_line(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.jpg", "b.png", "c.mp4"):
        (tmp_path / name).write_bytes(b"torn")
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(tmp_path), "--weights", str(weights), "--output", str(tmp_path / "out")])
    assert ended.value.code == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert errors[0].startswith(f"error: no file can be read: {tmp_path / 'a.jpg'}: not an image")
    assert str(tmp_path / "c.mp4") in errors[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("extension", ["png", "tif"])
def test_pictures_of_16_bits_are_refused_with_range_and_remedy(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], extension: str
) -> None:
    for number in range(7):
        raw = np.full((40, 60), 7000, np.uint16)
        raw[10:20] = 9000 + number
        cv2.imwrite(str(tmp_path / f"{number}.{extension}"), raw)
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(tmp_path), "--weights", str(weights), "--output", str(tmp_path / "out")])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"error: 7 of 7 files are not 8-bit images, such as {tmp_path / f'0.{extension}'}: the pixels" in said
    assert "values 7000 to 9006; to read 16-bit gray images, add: " in said
    assert "(predict PICTURES: --pixel_range.mode and so on" in said


def test_results_do_not_depend_on_the_batch(album: Path, weights: Path, tmp_path: Path) -> None:
    results = []
    for batch_size in (1, 5):
        output = tmp_path / str(batch_size)
        options: dict[str, Any] = {"save": "json", "image_size": SIDE, "batch_size": batch_size}
        predict([str(album)], weights=str(weights), output=str(output), **options)
        results.append(detections(output))
    assert len(results[0]) == len(results[1]) == 5
    for single, batched in zip(*results, strict=True):
        assert [entry["label"] for entry in single] == [entry["label"] for entry in batched]
        assert [entry["score"] for entry in single] == pytest.approx([entry["score"] for entry in batched], abs=1e-4)


@pytest.mark.parametrize("tta", [False, True])
def test_augmented_detections_of_a_mirrored_picture_are_the_mirrored_ones(
    weights: Path, tmp_path: Path, tta: bool
) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    for name, image in (("plain", pixels), ("mirrored", pixels[:, ::-1])):
        cv2.imwrite(str(tmp_path / f"{name}.png"), image)
    words = ["predict", str(tmp_path / "plain.png"), str(tmp_path / "mirrored.png"), "--weights", str(weights)]
    words += ["--output", str(tmp_path / "out"), *f"--image_size {SIDE} --save json --conv_backend native".split()]
    main([*words, "--tta", str(tta).lower()])
    plain, mirrored = (entry["detections"] for entry in json.loads((tmp_path / "out" / "predictions.json").read_text()))
    assert plain, "the case shows nothing"
    boxes = [[SIDE - x2, y1, SIDE - x1, y2] for x1, y1, x2, y2 in (entry["box"] for entry in mirrored)]
    is_same = len(plain) == len(mirrored) and np.allclose([entry["box"] for entry in plain], boxes, atol=0.05)
    assert is_same == tta


def test_settings_of_the_training_are_the_default(album: Path, weights: Path, tmp_path: Path) -> None:
    typed = {
        "image_size": SIDE,
        "score_threshold": 0.1,
        "iou_threshold": 0.6,
        "max_detections": 40,
        "class_agnostic": True,
    }
    content = torch.load(weights, weights_only=True)
    content["hyper_parameters"]["detections"] = {name: typed[name] for name in typed if name != "image_size"}
    write_checkpoint(content | {"input": {"image_size": SIDE, "channels": 3}}, tmp_path / "trained.ckpt")
    results = []
    for file, options in (("trained.ckpt", {}), (weights, typed), (weights, typed | {"class_agnostic": False})):
        output = tmp_path / f"out-{len(results)}"
        call: Callable[..., None] = predict
        call([str(album / "x.png")], weights=str(tmp_path / file), output=str(output), save="json", **options)
        results.append(detections(output))
    assert 0 < len(results[0][0]) <= 40, "the case shows nothing"
    assert results[0] == results[1] != results[2]


def test_network_trained_on_gray_frames_gets_gray_pictures(weights: Path, tmp_path: Path) -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    cv2.imwrite(str(tmp_path / "colour.png"), pixels)
    cv2.imwrite(str(tmp_path / "gray.png"), cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY))
    results = {}
    for channels in (1, 3):
        content = torch.load(weights, weights_only=True) | {"input": {"image_size": SIDE, "channels": channels}}
        write_checkpoint(content, tmp_path / "trained.ckpt")
        for name in ("colour", "gray"):
            output = tmp_path / f"{name}-{channels}"
            predict(
                [str(tmp_path / f"{name}.png")], weights=str(tmp_path / "trained.ckpt"), output=str(output), save="json"
            )
            results[name, channels] = detections(output)
    assert results["colour", 1] == results["gray", 1] == results["gray", 3] != results["colour", 3]


def test_run_folder_in_place_of_pictures_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match=r"is a run folder; write predict PICTURES --run .*"):
        predict([str(tmp_path)])


def test_earlier_results_stay(album: Path, weights: Path, tmp_path: Path) -> None:
    for _ in range(2):
        predict([str(album / "x.png")], weights=str(weights), output=str(tmp_path / "out"), image_size=SIDE)
    assert (tmp_path / "out-2" / "pictures" / "x.jpg").is_file()


def test_run_in_the_home_folder(album: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    checkpoints = tmp_path / "runs" / "a" / "checkpoints"
    checkpoints.mkdir(parents=True)
    for file in weights.parent.iterdir():  # and its checksum
        (checkpoints / file.name).symlink_to(file)
    predict([str(album / "x.png")], run="~/runs/a", output=str(tmp_path / "out"), save="json", image_size=SIDE)
    assert len(detections(tmp_path / "out")) == 1


def test_results_of_an_earlier_prediction_among_the_pictures_are_named(
    album: Path, weights: Path, recwarn: pytest.WarningsRecorder
) -> None:
    for _ in range(2):
        predict([str(album)], weights=str(weights), output=str(album / "out"), image_size=SIDE)
    texts = [str(warning.message) for warning in recwarn if "earlier prediction" in str(warning.message)]
    assert texts == [
        f"3 of the 6 inputs are results of an earlier prediction, such as {album / 'out/pictures/day/x.jpg'}; --output "
        "outside of the folders of the inputs avoids this"
    ]


@pytest.fixture
def one() -> DetectionResult:
    pixels = np.full((100, 200, 3), 90, np.uint8)
    boxes = torch.tensor([[20.0, 10.0, 120.0, 60.0]])
    prediction = Prediction("a", boxes, torch.tensor([0.75]), torch.tensor([1]))
    return DetectionResult.of(InputImage(Path("/in/a.png"), None, pixels), prediction, NAMES)


def test_text_file_holds_shares_of_the_picture(one: DetectionResult, tmp_path: Path) -> None:
    TextFiles(tmp_path, Path("/in")).write(one)
    text = (tmp_path / "labels" / "a.txt").read_text()
    assert text == "1 0.350000 0.350000 0.500000 0.500000 0.750000\n"


def test_csv_file_has_a_row_per_detection(one: DetectionResult, tmp_path: Path) -> None:
    with closing(CsvFile(tmp_path, Path("/in"))) as file:
        file.write(replace(one, class_names=("cat", "=dog"), frame=3, time_s=0.12))
    header, row = (tmp_path / "predictions.csv").read_text().splitlines()
    assert header == "source,frame,time_s,x1,y1,x2,y2,score,label,name"
    assert row == "/in/a.png,3,0.12,20.0,10.0,120.0,60.0,0.75,1,'=dog"


def test_json_file_holds_boxes_in_pixels(one: DetectionResult, tmp_path: Path) -> None:
    with closing(JsonFile(tmp_path, Path("/in"))) as file:
        file.write(one)
    (entry,) = json.loads((tmp_path / "predictions.json").read_text())
    assert entry["detections"] == [{"box": [20.0, 10.0, 120.0, 60.0], "score": 0.75, "label": 1, "name": "dog"}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "no.ckpt"}, "no.ckpt cannot be used: it does not exist"),
        ({"weights": "no.pt"}, "no.pt cannot be used: it does not exist"),
        ({"score_threshold": -1.0}, "score_threshold must be >= 0 and <= 1, got -1.0"),
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"device": "tpu9"}, "device must be one of auto, cpu, got 'tpu9'"),
        ({"conv_backend": "magic"}, "conv_backend must be auto, gemm or native, got 'magic'"),
    ],
)
def test_bad_option_is_named(
    album: Path, weights: Path, tmp_path: Path, options: dict[str, object], message: str
) -> None:
    call: Callable[..., None] = predict
    with pytest.raises(ValueError, match=message):
        call([str(album)], **({"weights": str(weights), "output": str(tmp_path / "out")} | options))
    assert not (tmp_path / "out").exists()
