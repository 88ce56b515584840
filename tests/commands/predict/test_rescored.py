"""`predict --rescore`: the scores of a clip change as those of a submission do."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from tests.challenge.test_rescoring import watched
from tests.helpers.networks import lively_checkpoint
from yolo_lightning.challenge.content import Content
from yolo_lightning.challenge.rescoring import (
    LabelledDetections,
    Models,
    read_models,
    rescore,
    write_models,
)
from yolo_lightning.commands.predict.command import predict
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.detector import Detector
from yolo_lightning.evaluation.detection_result import DetectionResult

SIZE = (384, 288)
FRAMES = 4


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lively_checkpoint(tmp_path_factory.mktemp("weights"), class_names=CLASS_NAMES)


@pytest.fixture(scope="module")
def models() -> Models:
    content, truth = watched(0)
    return LabelledDetections(content, truth, SIZE).learn(np.ones(len(content.image_ids), np.bool_))


def test_models_are_read_as_they_were_written(models: Models, tmp_path: Path) -> None:
    write_models(models, tmp_path / "models.json")
    content = watched(1)[0]
    expected = rescore(content, models, SIZE).scores
    assert np.array_equal(rescore(content, read_models(tmp_path / "models.json"), SIZE).scores, expected)
    assert not np.array_equal(content.scores, expected), "the case shows nothing"


@pytest.mark.parametrize("change", [{"weights": [1, 2]}, {"stays": [0.5, 1]}, {"prior": None}, {"alone": [1, 2, "a"]}])
def test_other_files_are_refused_in_one_line(models: Models, tmp_path: Path, change: dict[str, Any]) -> None:
    file = tmp_path / "models.json"
    write_models(models, file)
    content = json.loads(file.read_text())
    content["1"] |= change
    for text in (json.dumps(content), "{}", "[]", '{"9": {}}', "torn"):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"models\.json must be a file that `submission rescore --models`"):
            read_models(file)


def predicted(clip: Path, weights: Path, output: Path, **options: Any) -> list[dict[str, Any]]:
    predict([str(clip)], weights=str(weights), output=str(output), image_size=64, batch_size=3, **options)
    entries: list[dict[str, Any]] = json.loads((output / "predictions.json").read_text())
    return entries


def scored_detections(clip: Path, weights: Path) -> list[DetectionResult]:
    """Return the detections of each frame as in a validation, with several classes per box."""
    detector = Detector(weights, image_size=64, score_threshold=0.0005, batch_size=3)
    detections = replace(detector.settings.detections, multi_label=True)
    detector.settings = replace(detector.settings, detections=detections)
    return list(detector(clip))


@pytest.mark.parametrize("kind", ["folder", "video"])
def test_a_clip_is_rescored_like_a_submission(models: Models, weights: Path, tmp_path: Path, kind: str) -> None:
    write_models(models, tmp_path / "models.json")
    coarse = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    image = cv2.resize(coarse, SIZE, interpolation=cv2.INTER_CUBIC)
    source = tmp_path / ("clip" if kind == "folder" else "clip.avi")
    if kind == "folder":
        source.mkdir()
        for number in range(FRAMES):
            cv2.imwrite(str(source / f"20200500101{number:06d}.png"), image)
    else:
        writer = cv2.VideoWriter(str(source), cv2.VideoWriter.fourcc(*"MJPG"), 5, SIZE)
        for _ in range(FRAMES):
            writer.write(image)
        writer.release()
    before = scored_detections(source, weights)
    options = {"rescore": str(tmp_path / "models.json")}
    all_entries = predicted(source, weights, tmp_path / "every", save="json", score_threshold=0.0, **options)
    content = Content(
        tuple(f"20200500101{number:06d}" for number in range(FRAMES)),
        np.repeat(np.arange(FRAMES), [len(result) for result in before]),
        np.concatenate([result.boxes for result in before]).astype(np.float64),
        np.concatenate([result.scores for result in before]).astype(np.float64),
        np.concatenate([result.labels for result in before]) + 1.0,
    )
    expected = rescore(content, models, SIZE).scores
    for number, entry in enumerate(all_entries):
        scores = [detection["score"] for detection in entry["detections"]]
        assert scores == sorted(scores, reverse=True)
        best: dict[tuple[float, ...], float] = {}
        of_frame = content.owners == number
        boxes = (content.boxes[of_frame].astype(np.float32).round(1) + 0.0).tolist()
        for box, score in zip(boxes, expected[of_frame].tolist(), strict=True):
            best[tuple(box)] = max(score, best.get(tuple(box), 0.0))
        assert scores == pytest.approx(sorted(best.values(), reverse=True), abs=2e-3)
    assert np.abs(expected - content.scores).max() > 0.1, "the case shows nothing"
    ranked = np.sort(expected)
    gap = int(np.diff(ranked).argmax())  # far from every score, because scores of the file are rounded
    threshold = float(ranked[gap : gap + 2].mean())
    kinds: tuple[Any, ...] = ("json", "txt", "pictures")
    few = predicted(source, weights, tmp_path / "few", save=kinds, score_threshold=threshold, **options)
    for entry, complete in zip(few, all_entries, strict=True):
        assert entry["detections"] == [
            detection for detection in complete["detections"] if detection["score"] >= threshold
        ]
    assert len(list((tmp_path / "few" / "labels").rglob("*.txt"))) == FRAMES
    pictures = [path for path in (tmp_path / "few" / "pictures").rglob("*") if path.is_file()]
    assert len(pictures) == (FRAMES if kind == "folder" else 1)
    if kind == "folder":  # the drawn picture is that of the frame, not an empty one
        assert cv2.imread(str(pictures[0])).std() > image.std() / 2


def test_images_of_a_folder_are_a_clip_in_the_order_of_their_names(
    models: Models, weights: Path, tmp_path: Path
) -> None:
    """Neither a folder between the images nor the order of the inputs changes the scores."""
    write_models(models, tmp_path / "models.json")
    coarse = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    image = cv2.resize(coarse, SIZE, interpolation=cv2.INTER_CUBIC)
    clip = tmp_path / "clip"
    files = [clip / f"f{number}.png" for number in range(3)]
    (clip / "f1b").mkdir(parents=True)
    for number, file in enumerate([*files, clip / "f1b" / "other.png"]):
        cv2.imwrite(str(file), np.roll(image, 40 * number, axis=1))
    scored = []
    for sources in (files, [files[0], files[2], files[1]], [clip]):
        output = tmp_path / f"out{len(scored)}"
        options = {"image_size": 64, "batch_size": 3, "rescore": str(tmp_path / "models.json")}
        predict(list(map(str, sources)), weights=str(weights), output=str(output), save="json", **options)
        entries = json.loads((output / "predictions.json").read_text())
        scored.append({entry["source"]: entry["detections"] for entry in entries})
    assert scored[0].keys() == set(map(str, files))
    assert scored[1] == scored[0]
    assert {source: scored[2][source] for source in scored[0]} == scored[0]


def test_a_network_of_other_classes_is_refused(models: Models, tmp_path: Path) -> None:
    write_models(models, tmp_path / "models.json")
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((64, 64, 3), np.uint8))
    weights = lively_checkpoint(tmp_path, class_names=("cat", "dog"))
    with pytest.raises(ValueError, match=r"^rescore needs a network with the classes \['person'.*got \['cat', 'dog'\]"):
        predicted(tmp_path / "a.png", weights, tmp_path / "out", save="json", rescore=str(tmp_path / "models.json"))
