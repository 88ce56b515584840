"""Detection of the errors that occur in answer files of public projects, and of further ones."""

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.challenge.answers import (
    APART,
    CONSECUTIVE,
    HEIGHT,
    WIDTH,
    Answers,
    answers,
    template,
    with_boxes,
    with_labels,
    write,
)
from yolo_lightning.challenge.check import check_submission
from yolo_lightning.challenge.content import SubmissionProblem, SubmissionReport, Template

SECOND = APART[1]


def the_one_problem(report: SubmissionReport) -> SubmissionProblem:
    """All that a report holds."""
    assert [problem.what for problem in report.problems] == [problem.what for problem in report.problems[:1]]
    return report.problems[0]


def edited(edit: Callable[[dict[str, list[Any]]], Any]) -> Answers:
    """The right answers with the entry of the second frame changed."""
    content = answers()
    edit(content[SECOND])
    return content


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
def test_right_file_has_no_problem(tmp_path: Path, mark: bytes) -> None:
    path = write(tmp_path, answers())
    path.write_bytes(mark + path.read_bytes())
    report = check_submission(path, template())
    assert report.problems == ()
    assert report.content is not None
    assert (len(report.content.image_ids), len(report.content.scores)) == (80, 288)


WRONG: dict[str, tuple[Any, str, int]] = {
    # What is in the file: words of the problem, count
    "xywh": (with_boxes(answers(), "xywh"), "not corner and size as in COCO", 216),
    "centre": (with_boxes(answers(), "cxcywh"), "must be corners x1, y1, x2, y2", 216),
    "shares": (with_boxes(answers(), "xyxy", (1 / WIDTH, 1 / HEIGHT)), "fractions of the frame", 288),
    "shares of centres": (with_boxes(answers(), "cxcywh", (1 / WIDTH, 1 / HEIGHT)), "fractions", 288),
    "labels from 0": (with_labels(answers(), -1), "count from 0 as in YOLO", 72),
    "labels from 2": (with_labels(answers(), +1), "got 2, 3, 4, 5", 72),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_of_all_records_are_named(tmp_path: Path, case: str) -> None:
    content, words, count = WRONG[case]
    report = check_submission(write(tmp_path, content), template())
    problem = the_one_problem(report)
    assert words in problem.what
    assert problem.count == count
    assert APART[0] in problem.example


def test_missing_frames_are_named(tmp_path: Path) -> None:
    """As where files of equal names in different clips replaced each other."""
    content = answers()
    removed = [content.pop(image_id) for image_id in APART[3:7]]
    report = check_submission(write(tmp_path, content), template())
    problem = the_one_problem(report)
    assert (problem.what, problem.count, problem.example) == ("ids of the split are missing", len(removed), APART[3])
    assert problem.tolerated


def test_foreign_frames_are_named(tmp_path: Path) -> None:
    """As with ids of the challenge's older templates."""
    foreign = ("20200900314101010", "20200900314101011")
    report = check_submission(write(tmp_path, answers((*APART, *foreign))), template())
    problem = the_one_problem(report)
    assert (problem.what, problem.count, problem.example) == ("ids do not belong to this split", 2, foreign[0])


@pytest.mark.parametrize(("image_ids", "missing"), [(CONSECUTIVE, 80), ((*APART[:39], *CONSECUTIVE), 41)])
def test_less_than_half_of_the_split_is_not_tolerated(tmp_path: Path, image_ids: tuple[str, ...], missing: int) -> None:
    report = check_submission(write(tmp_path, answers(image_ids)), template())
    assert [(problem.count, problem.tolerated) for problem in report.problems] == [(120, False), (missing, False)]


@pytest.mark.parametrize(
    ("name", "words"), [("1.2020052e16", "floating-point"), ("image_0015", "not ids of 17 digits")]
)
def test_damaged_ids_are_noticed_without_a_template(tmp_path: Path, name: str, words: str) -> None:
    content = answers()
    content[name] = content.pop(SECOND)
    report = check_submission(write(tmp_path, content))
    assert [words in problem.what for problem in report.problems] == [True]


def test_results_list_is_named(tmp_path: Path) -> None:
    report = check_submission(write(tmp_path, [{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}]))
    problem = the_one_problem(report)
    assert "COCO results list" in problem.what
    assert '"bbox"' in problem.example
    assert report.content is None


ENTRIES: dict[str, tuple[Callable[[dict[str, list[Any]]], Any], str]] = {
    "unequal lengths": (lambda e: e["scores"].pop(), "differ in length"),
    "no scores": (lambda e: e.pop("scores"), "not objects of boxes, scores and labels"),
    "names for labels": (lambda e: e["labels"].__setitem__(0, "person"), "not objects of boxes"),
    "a box of five": (lambda e: e["boxes"][0].append(1.0), "not objects of boxes"),
    "unknown labels": (lambda e: e["labels"].__setitem__(0, 7), "got 1, 2, 3, 4, 7"),
    "a fraction": (lambda e: e["labels"].__setitem__(0, 1.5), "got 1, 1.5"),
    "both 0 and 4": (lambda e: e["labels"].__setitem__(0, 0), "got 0, 1, 2, 3, 4"),
    "percent": (lambda e: e["scores"].__setitem__(0, 90.0), "scores are not between 0 and 1"),
    "negative score": (lambda e: e["scores"].__setitem__(0, -0.1), "scores are not between 0 and 1"),
    "one inverted box": (lambda e: e["boxes"].__setitem__(0, [50, 5, 20, 9]), "x2 < x1 or y2 < y1"),
    "another size": (lambda e: e["boxes"].__setitem__(0, [500, 5, 600, 90]), "are outside the frame"),
}


@pytest.mark.parametrize("case", ENTRIES)
def test_what_would_have_to_be_guessed_is_named_and_left(tmp_path: Path, case: str) -> None:
    edit, words = ENTRIES[case]
    report = check_submission(write(tmp_path, edited(edit)), template())
    problem = the_one_problem(report)
    assert words in problem.what
    assert problem.count == 1
    assert SECOND in problem.example


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "null"])
@pytest.mark.parametrize("key", ["boxes", "scores", "labels"])
def test_numbers_that_are_none_are_named(tmp_path: Path, key: str, number: str) -> None:
    content = answers()
    content[SECOND][key][1] = "HERE" if key != "boxes" else [1.0, 2.0, "HERE", 4.0]
    report = check_submission(write(tmp_path, json.dumps(content).replace('"HERE"', number)), template())
    problem = the_one_problem(report)
    assert "NaN, Infinity or null" in problem.what
    assert problem.count == 1
    assert f"image {SECOND}, detection 1" in problem.example


def test_boxes_that_stand_for_empty_frames_are_named(tmp_path: Path) -> None:
    """As some fill frames without detections: one box of four zeros, with a class."""
    content = answers()
    content[APART[9]] = {"boxes": [[0.0, 0.0, 0.0, 0.0]], "scores": [1.0], "labels": [4]}
    report = check_submission(write(tmp_path, content), template())
    problem = the_one_problem(report)
    assert (problem.what, problem.count) == ("boxes have no area", 1)


def test_frame_size_of_the_template_counts(tmp_path: Path) -> None:
    large = with_boxes(answers(), "xyxy", (2, 2))
    assert check_submission(write(tmp_path, large), template()).problems
    assert not check_submission(write(tmp_path, large), Template(APART, (2 * WIDTH, 2 * HEIGHT))).problems


def test_no_detection_at_all_is_suspicious(tmp_path: Path) -> None:
    empty = {image_id: {"boxes": [], "scores": [], "labels": []} for image_id in APART}
    problem = the_one_problem(check_submission(write(tmp_path, empty), template()))
    assert problem.what == "no image has a detection"


def test_repeated_keys_are_named(tmp_path: Path) -> None:
    text = json.dumps(answers())
    again = f'"{SECOND}": {{"boxes": [], "scores": [], "labels": []}}'
    report = check_submission(write(tmp_path, text[:-1] + f", {again}}}"), template())
    problem = the_one_problem(report)
    assert "keys occur more than once" in problem.what
    assert (problem.count, problem.example) == (1, f"{SECOND} occurs 2 times")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "neither a JSON object keyed by image id nor a list: it is empty"),
        ('{"a": [1, 2}', "not JSON"),
        ("42", "neither a JSON object keyed by image id nor a list: it begins with '42'"),
        ("id,box,score", "it begins with 'id,box,score'"),
        ("<html>", "it is a web page, not the file to download"),
    ],
)
def test_what_is_no_json_object_is_named(tmp_path: Path, text: str, words: str) -> None:
    report = check_submission(write(tmp_path, text), template())
    assert words in the_one_problem(report).what
    assert report.content is None


def test_truncated_file_names_the_last_key(tmp_path: Path) -> None:
    report = check_submission(write(tmp_path, json.dumps(answers())[:-500]), template())
    problem = the_one_problem(report)
    assert "truncated" in problem.what
    assert "number 77" in problem.example


def test_binary_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "predictions.json"
    path.write_bytes(pickle.dumps({"a": 1}, 4))
    assert "the file is neither a JSON object" in the_one_problem(check_submission(path, template())).what


def archive(path: Path, members: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, text in members.items():
            file.writestr(name, text)
    return path


RIGHT = json.dumps(answers())


@pytest.mark.parametrize(
    "members",
    [{"submission.json": RIGHT}, {"run/predictions.json": RIGHT}, {"predictions.json": RIGHT, "readme.txt": "x"}],
    ids=["name", "folder", "another file"],
)
def test_archive_of_another_layout_is_named(tmp_path: Path, members: dict[str, str]) -> None:
    report = check_submission(archive(tmp_path / "p.zip", members), template())
    problem = the_one_problem(report)
    assert "only predictions.json" in problem.what


def test_files_that_macos_adds_to_an_archive_are_named(tmp_path: Path) -> None:
    members = {"predictions.json": RIGHT, "__MACOSX/._predictions.json": "x", ".DS_Store": "x"}
    problem = the_one_problem(check_submission(archive(tmp_path / "p.zip", members), template()))
    assert "macOS has added files: pack with `zip -X" in problem.what
    assert (problem.count, problem.example) == (2, "__MACOSX/._predictions.json")


@pytest.mark.parametrize("members", [{}, {"a.json": RIGHT, "b.json": RIGHT}], ids=["empty", "two"])
def test_archive_whose_answer_is_not_clear_is_not_guessed(tmp_path: Path, members: dict[str, str]) -> None:
    report = check_submission(archive(tmp_path / "p.zip", members), template())
    assert f"{len(members)} JSON files" in the_one_problem(report).what
    assert report.content is None


def test_damaged_archive_is_named(tmp_path: Path) -> None:
    path = archive(tmp_path / "p.zip", {"predictions.json": RIGHT})
    path.write_bytes(path.read_bytes()[:-100])
    assert "archive is damaged" in the_one_problem(check_submission(path, template())).what


def test_missing_file_is_an_error_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.json cannot be read"):
        check_submission(tmp_path / "nowhere.json")
