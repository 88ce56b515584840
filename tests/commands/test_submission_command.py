"""The commands `submission check` and `submission score`: output and exit codes."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faster_coco_eval import COCO, COCOeval_faster

from tests.challenge.test_rescoring import watched
from yolo_lightning.challenge.rescoring import read_models
from yolo_lightning.challenge.submission_file import entries, write_submission
from yolo_lightning.cli import main
from yolo_lightning.evaluation.drift import CHALLENGE_MONTHS

IDS = [f"{month}00{clip}0114{clip}030" for month in CHALLENGE_MONTHS.values() for clip in (1, 2)]
BOXES = [[10.0, 20.0, 50.5, 80.0], [300.0, 5.0, 384.0, 50.0], [5.0, 200.0, 30.0, 280.0]]
LABELS = [1, 2, 4]
CATEGORIES = ("background", "person", "bicycle", "motorcycle", "vehicle")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a template, the truth in both forms, and an answer that is perfect in half the frames."""
    monkeypatch.chdir(tmp_path)
    truth = {image_id: {"boxes": BOXES, "labels": LABELS} for image_id in IDS}
    predictions = {
        image_id: {"boxes": BOXES if number % 2 else [], "scores": [0.9, 0.8, 0.7] if number % 2 else [], "labels": []}
        for number, image_id in enumerate(IDS)
    }
    for entry in predictions.values():
        entry["labels"] = LABELS[: len(entry["boxes"])]
    empty: dict[str, list[Any]] = {"boxes": [], "scores": [], "labels": []}
    split = {
        "images": [
            {"id": int(image_id), "file_name": f"frames/{image_id}.jpg", "width": 384, "height": 288}
            for image_id in IDS
        ],
        "annotations": [
            {"image_id": int(image_id), "category_id": label, "bbox": [x, y, right - x, bottom - y]}
            for image_id in IDS
            for (x, y, right, bottom), label in zip(BOXES, LABELS, strict=True)
        ],
        "categories": [{"id": number, "name": name} for number, name in enumerate(CATEGORIES)],
    }
    for name, content in {
        "predictions": predictions,
        "targets": truth,
        "template": dict.fromkeys(IDS, empty),
        "Valid": split,
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


@pytest.fixture
def call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the command line and returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["yolo_lightning"])

    def run(*words: str) -> int:
        try:
            main(["submission", *words])
        except SystemExit as error:
            return int(error.code or 0)
        return 0

    return run


@contextmanager
def changed(path: Path, target: Path | None = None) -> Iterator[Any]:
    """Provide the content of a JSON file, which is written again, or to another file."""
    content = json.loads(path.read_text())
    yield content
    (target or path).write_text(json.dumps(content))


@pytest.mark.parametrize("template", ["template.json", "Valid.json", "targets.json"])
def test_right_file_passes(call: Callable[..., int], capsys: pytest.CaptureFixture[str], template: str) -> None:
    assert call("check", "predictions.json", "--template", template) == 0
    assert "16 images, 24 detections\nno errors found" in capsys.readouterr().out
    assert call("check", "predictions.json") == 0
    assert "missing and foreign ids cannot be detected without a template" in capsys.readouterr().out


def test_wrong_file_is_told_with_counts_and_examples_and_is_not_scored(
    call: Callable[..., int], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with changed(folder / "predictions.json") as content:  # labels count from 0, and a frame is lost
        for entry in content.values():
            entry["labels"] = [label - 1 for label in entry["labels"]]
        del content[IDS[1]]
    assert call("check", "predictions.json", "--template", "template.json") == 1
    out = capsys.readouterr().out
    assert f"error: ids of the split are missing: 1\n    first: {IDS[1]}\n" in out
    assert "labels must be 1, 2, 3, 4, got 0, 1, 3, which count from 0" in out
    assert call("score", "predictions.json", "targets.json", "--json", "scores.json") == 1
    assert "not scored" in capsys.readouterr().out
    assert not (folder / "scores.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check"], "FILE is missing"),
        (["check", "nowhere.json"], "nowhere.json cannot be read"),
        (["check", "predictions.json", "--template", "nowhere.json"], "nowhere.json cannot be read"),
        (["score", "predictions.json"], "TRUTH is missing"),
        (["score", "predictions.json", "template.json"], "no annotated box"),
        (["score", "Valid.json", "predictions.json"], "truth: predictions.json contains detections with scores"),
        (["score", "targets.json", "fused.zip"], "the order is submission score SUBMISSION ANNOTATIONS"),
        (["polish"], "one of check, score, fuse, rescore, got polish"),
    ],
)
def test_wrong_usage_has_exit_code_2(
    call: Callable[..., int], folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    (folder / "fused.zip").write_bytes(b"PK\3\4")
    assert call(*words) == 2
    assert message in capsys.readouterr().err


def test_annotations_are_no_submission(call: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("check", "Valid.json") == 1
    assert "error: the file is the JSON of a split with its annotations, not a submission" in capsys.readouterr().out


@pytest.mark.parametrize("truth", ["Valid.json", "targets.json"])
def test_score_writes_what_the_organisers_write(
    call: Callable[..., int], folder: Path, capsys: pytest.CaptureFixture[str], truth: str
) -> None:
    """Of two frames in each month one is perfect and the other empty: 51 of 101 recalls everywhere."""
    assert call("score", "predictions.json", truth, "--json", "out/scores.json") == 0
    scores = json.loads((folder / "out/scores.json").read_text())
    assert scores["global_map_50"] == pytest.approx(51 / 101)
    assert scores["jul_map_per_class"] == pytest.approx([51 / 101] * 3)
    assert scores["global_map_con"] == pytest.approx(0)
    assert scores["global_map_bal"] == pytest.approx(51 / 101)
    out = capsys.readouterr().out
    assert "balanced 0.5050" in out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_tilde_is_the_home_folder(
    call: Callable[..., int], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert call("score", "~/predictions.json", "~/Valid.json", "--json", "~/scores.json") == 0
    assert (folder / "scores.json").is_file()
    assert not list(Path().iterdir())


def test_missing_frames_count_as_empty(call: Callable[..., int], folder: Path) -> None:
    with changed(folder / "predictions.json") as content:
        for image_id in IDS[:4:2]:
            del content[image_id]  # they were empty
    assert call("score", "predictions.json", "targets.json", "--json", "scores.json") == 0
    assert json.loads((folder / "scores.json").read_text())["global_map_50"] == pytest.approx(51 / 101)


INVERTED = {
    "x": [50.5, 20.0, 10.0, 80.0],
    "y": [10.0, 80.0, 50.5, 20.0],
    "both": [50.5, 80.0, 10.0, 20.0],
    "width 0": [10.0, 20.0, 10.0, 80.0],
    "a point": [30.0, 40.0, 30.0, 40.0],
}


@pytest.fixture
def degenerate(folder: Path) -> Path:
    """An answer with 600 detections of which five are degenerate, each the best of its frame and class."""
    generator = np.random.default_rng(5)
    content = {}
    for number, image_id in enumerate(IDS):
        boxes, labels = [*BOXES, *BOXES], [*LABELS, *LABELS]
        for _ in range(30):
            x = generator.integers(0, 300)
            y = generator.integers(0, 220)
            boxes.append([float(x), float(y), float(x + generator.integers(5, 60)), float(y + 40)])
            labels.append(int(generator.integers(1, 5)))
        scores = generator.random(len(boxes))  # no ties, whose order would depend on that of the frames
        if number < len(INVERTED):
            boxes[0], scores[0] = list(INVERTED.values())[number], 0.99 + number / 1000
        content[image_id] = {"boxes": boxes, "scores": scores.tolist(), "labels": labels}
    (folder / "predictions.json").write_text(json.dumps(content))
    return folder


def as_cocos_evaluation(folder: Path, month: int | None = None) -> tuple[float, float]:
    """Mean average precision over ten thresholds and at 0.5, by COCO's code in C++, of a month or of all frames."""
    answers = json.loads((folder / "predictions.json").read_text())
    results = [
        {"image_id": int(image_id), "category_id": label, "bbox": [x, y, right - x, bottom - y], "score": score}
        for image_id, entry in answers.items()
        for (x, y, right, bottom), score, label in zip(entry["boxes"], entry["scores"], entry["labels"], strict=True)
    ]
    split = json.loads((folder / "Valid.json").read_text())
    for number, annotation in enumerate(split["annotations"], start=1):
        annotation |= {"id": number, "iscrowd": 0, "area": annotation["bbox"][2] * annotation["bbox"][3]}
    truth = COCO(split)
    evaluation = COCOeval_faster(truth, truth.loadRes(results), "bbox", print_function=lambda *_: None)
    evaluation.params.imgIds = [int(image_id) for image_id in IDS if month is None or image_id.startswith(str(month))]
    for step in (evaluation.evaluate, evaluation.accumulate, evaluation.summarize):
        step()
    return float(evaluation.stats[0]), float(evaluation.stats[1])


def test_degenerate_boxes_are_scored_as_cocos_evaluation_scores_them(
    call: Callable[..., int], degenerate: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("score", "predictions.json", "Valid.json", "--json", "scores.json") == 0
    scores = json.loads((degenerate / "scores.json").read_text())
    assert (scores["global_map"], scores["global_map_50"]) == pytest.approx(as_cocos_evaluation(degenerate), abs=1e-6)
    assert 0.1 < scores["global_map"] < 0.9, "the case shows nothing"
    monthly = [as_cocos_evaluation(degenerate, month)[1] for month in CHALLENGE_MONTHS.values()]
    assert [scores[f"{name}_map_50"] for name in CHALLENGE_MONTHS] == pytest.approx(monthly, abs=1e-6)
    assert len(set(monthly)) > 1, "the degenerate boxes change nothing"
    out = capsys.readouterr().out
    assert "but have x2 < x1 or y2 < y1: 3\n" in out
    assert "boxes have no area: 2\n" in out
    first = ", ".join(f"{side:g}" for side in next(iter(INVERTED.values())))
    assert f"image {IDS[0]}, detection 0: box [{first}]" in out
    assert "scored unchanged" in out
    assert call("check", "predictions.json", "--template", "template.json") == 1
    assert "error: boxes must be corners" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("factor", "problem", "map_50"),
    [(100, "scores are not between 0 and 1: 24", 51 / 101), (None, "no image has a detection: 16", 0)],
    ids=["percent", "no detections"],
)
def test_scores_in_percent_and_a_file_without_detections_are_scored(
    call: Callable[..., int],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    factor: int | None,
    problem: str,
    map_50: float,
) -> None:
    """As torchmetrics accepts both."""
    with changed(folder / "predictions.json") as content:
        for entry in content.values():
            entry["scores"] = [factor * score for score in entry["scores"]] if factor else []
            if not factor:
                entry |= {"boxes": [], "labels": []}
    assert call("score", "predictions.json", "targets.json", "--json", "scores.json") == 0
    assert json.loads((folder / "scores.json").read_text())["global_map_50"] == pytest.approx(map_50)
    assert problem in capsys.readouterr().out
    assert call("check", "predictions.json", "--template", "template.json") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [0, 1, 2]}, "must be 1, 2, 3 or 4, got 0"),
        ({"labels": [1, 2]}, "has 3 boxes and 2 labels"),
        ({"boxes": [[1, 2, 3]]}, "must have boxes and labels"),
    ],
)
def test_wrong_truth_is_refused_with_its_record(
    call: Callable[..., int], folder: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], message: str
) -> None:
    with changed(folder / "targets.json") as content:
        content[IDS[3]] |= change
    assert call("score", "predictions.json", "targets.json") == 2
    err = capsys.readouterr().err
    assert message in err
    assert IDS[3] in err


def test_boxes_of_a_split_are_neither_clipped_nor_dropped(call: Callable[..., int], folder: Path) -> None:
    """The organisers take them as they are: a box beyond the frame is matched in full."""
    with changed(folder / "Valid.json") as content:
        content["annotations"][3]["bbox"] = [-80.0, 20.0, 130.5, 60.0]
    assert call("score", "predictions.json", "Valid.json", "--json", "scores.json") == 0
    person = json.loads((folder / "scores.json").read_text())["jan_map_per_class"][0]
    assert person == 0  # the answer's 40 pixels are less than half of 130


def test_fused_submission_passes_the_check(
    call: Callable[..., int], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(("b", "c")):
        with changed(folder / "predictions.json", folder / f"{name}.json") as predictions:
            for entry in predictions.values():
                entry["boxes"] = [[side + number for side in box] for box in entry["boxes"]]
    words = ["predictions.json", "b.json", "c.json", "--weights", "2", "1", "1", "--output", "fused.zip"]
    assert call("fuse", *words) == 0
    assert "0.5 x predictions.json + 0.25 x b.json + 0.25 x c.json" in capsys.readouterr().out
    assert call("check", "fused.zip", "--template", "template.json") == 0
    assert call("score", "fused.zip", "targets.json", "--json", "scores.json") == 0
    assert json.loads((folder / "scores.json").read_text())["global_map_50"] == pytest.approx(51 / 101)


def write_watched(folder: Path, name: str, seed: int) -> None:
    """Write detections, and objects of 16 clips of a drawn camera."""
    content, truth = watched(seed)
    write_submission(entries(content), folder / f"{name}.json")
    objects = {image_id: {"boxes": entry["boxes"], "labels": entry["labels"]} for image_id, entry in entries(truth)}
    (folder / f"{name}-targets.json").write_text(json.dumps(objects))


def test_rescored_submission_of_other_clips_is_fused_checked_and_scored(
    call: Callable[..., int], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seed in (("valid", 0), ("test", 1)):
        write_watched(folder, name, seed)
    learning = ["--known", "valid.json", "--truth", "valid-targets.json"]
    learning += ["--template", "test-targets.json", "--models", "models.json"]
    assert call("rescore", "test.json", *learning, "--output", "new.json") == 0
    assert "better on all frames and both halves; new.json: 192 images" in capsys.readouterr().out
    assert call("check", "new.json", "--template", "test-targets.json") == 0
    assert call("fuse", "new.json", "test.json", "--weights", "3", "1", "--output", "fused.zip") == 0
    balanced = {}
    for file in ("test.json", "new.json", "fused.zip"):
        assert call("score", file, "test-targets.json", "--json", "scores.json") == 0
        balanced[file] = json.loads((folder / "scores.json").read_text())["global_map_bal"]
    assert balanced["new.json"] > balanced["test.json"] + 0.2
    assert balanced["fused.zip"] > balanced["test.json"]
    assert set(read_models(folder / "models.json")) == {1, 4}


def test_rescoring_that_is_not_better_on_both_halves_writes_nothing(
    call: Callable[..., int], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["rescore", "predictions.json", "--known", "predictions.json", "--truth", "targets.json"]
    assert call(*words) == 1
    assert "not better on all frames and both halves: rescored.zip is not written" in capsys.readouterr().out
    assert not (folder / "rescored.zip").exists()
    assert call(*words, "--output", "predictions.json") == 2
    assert call(*words[:-1], "template.json") == 2
    assert "truth must have annotated boxes" in capsys.readouterr().err


def test_template_tells_fusion_the_size_of_the_frames(call: Callable[..., int], folder: Path) -> None:
    predictions = json.loads((folder / "predictions.json").read_text())
    for entry in predictions.values():
        entry["boxes"] = [[side + 250 for side in box] for box in entry["boxes"]]
    for name in ("a.json", "b.json"):
        (folder / name).write_text(json.dumps(predictions))
    with changed(folder / "Valid.json", folder / "large.json") as split:
        for image in split["images"]:
            image |= {"width": 640, "height": 512}
    assert call("fuse", "a.json", "b.json") == 2
    assert call("fuse", "a.json", "b.json", "--template", "large.json") == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predictions.json"], "files must name 2 or more submissions, got 1"),
        (["predictions.json", "b.json", "--iou_threshold", "1"], "iou_threshold must be > 0 and < 1, got 1.0"),
        (["predictions.json", "b.json", "--score_threshold", "-1"], "score_threshold must be >= 0 and < 1, got -1.0"),
        (["predictions.json", "b.json", "--weights", "1"], "one number > 0 per file, here 2, got [1.0]"),
        (["predictions.json", "b.json", "--output", "b.json"], "output must be another file"),
        (["predictions.json", "template.json"], "template.json has errors"),
        (["predictions.json", "gone.json"], "gone.json"),
        (["predictions.json", "b.json"], "must have the same images, but 1 images are in one of them only"),
    ],
)
def test_fusions_that_are_refused(
    words: list[str], message: str, call: Callable[..., int], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with changed(folder / "predictions.json", folder / "b.json") as predictions:
        del predictions[IDS[0]]
    assert call("fuse", *words) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1
