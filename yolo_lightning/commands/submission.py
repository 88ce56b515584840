"""`submission check`, `score`, `fuse` and `rescore`: errors and score of a submission, fusion, rescoring."""

import math
from collections.abc import Sequence
from pathlib import Path

import rich

from yolo_lightning.challenge.check import check_submission
from yolo_lightning.challenge.content import Content, SubmissionReport, Template
from yolo_lightning.challenge.truth import read_truth
from yolo_lightning.commands.console import check_writable, writing
from yolo_lightning.data.box_fusion import FUSION_IOU
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.errors import UserError
from yolo_lightning.utils.choices import check_range
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.paths import real_path, user_path
from yolo_lightning.utils.plain_text import printable


def check(file: str, template: str | None = None) -> None:
    """Report the errors of a submission. Exit code 1 if there are any.

    Args:
        file: Submission, .json or .zip.
        template: The organisers' template, or the JSON of the split; null omits the check for missing and foreign ids.
    """
    report = check_submission(user_path(file), _read_template(template))
    show(user_path(file), report)
    if template is None:
        print("note: missing and foreign ids cannot be detected without a template")
    if report.problems:
        raise SystemExit(1)


def score(file: str, truth: str, json: str | None = None) -> None:
    """Score a submission like the organisers' server. Exit code 1 if it cannot be scored.

    Errors that the server accepts are reported, and the file is scored unchanged.

    Args:
        file: Submission, .json or .zip.
        truth: JSON of a labelled split, or the organisers' file of targets.
        json: Write the organisers' `scores.json` here.
    """
    check_writable(json, ".json")
    try:
        expected, objects = read_truth(user_path(truth))
    except UserError as error:
        raise UserError(f"truth: {error}; the order is submission score SUBMISSION ANNOTATIONS") from error
    if not len(objects.labels):
        raise UserError(f"{truth} has no annotated box: use a labelled split")
    report = check_submission(user_path(file), expected)
    if report.problems:
        show(user_path(file), report)
    if report.content is None or not all(problem.tolerated for problem in report.problems):
        print("not scored: correct the file first, see `submission check`")
        raise SystemExit(1)
    if report.problems:
        print("scored unchanged, like the organisers' server does in spite of these errors")
    from yolo_lightning.challenge.score import match_submission  # imports torch
    from yolo_lightning.evaluation.drift import drift_scores, organisers_scores
    from yolo_lightning.evaluation.score_table import score_table

    scores = drift_scores(match_submission(report.content, objects))
    rich.print(score_table(scores, CLASS_NAMES))
    if json is not None:
        with writing(user_path(json)):
            write_json(user_path(json), organisers_scores(scores), indent=4)


def fuse(
    files: list[str],
    *,
    output: str = "fused.zip",
    weights: list[float] | None = None,
    iou_threshold: float = FUSION_IOU,
    score_threshold: float = 0.0,
    template: str | None = None,
) -> None:
    """Fuse submissions of several networks for the same split by weighted boxes fusion.

    Args:
        files: Two or more submissions, .json or .zip, with the same images.
        output: Submission to write, .json or .zip.
        weights: Weight of each file, > 0, such as `2 1 1`; they are divided by their sum. null: equal.
        iou_threshold: Boxes of a class with a larger IoU are fused, > 0 and < 1.
        score_threshold: Detections with a score up to this one are left out before fusion, >= 0 and < 1.
        template: The organisers' template, or the JSON of the split, whose images and frame size the files must have;
            null: any images, and LTDv2's frame size.
    """
    check_range("iou_threshold", iou_threshold, "> 0", "< 1")
    check_range("score_threshold", score_threshold, ">= 0", "< 1")
    target = _target(output, files)
    if len(files) < 2:
        raise UserError(f"files must name 2 or more submissions, got {len(files)}")
    if weights is None:
        weights = [1.0] * len(files)
    shares = _shares(weights, len(files))
    submissions = _contents_of(files, _read_template(template))
    from yolo_lightning.challenge.fusion import fuse as fused  # imports torch
    from yolo_lightning.challenge.submission_file import entries, write_submission

    result = fused(submissions, shares, iou_threshold, score_threshold)
    with writing(target):
        write_submission(entries(result), target)
    parts = " + ".join(f"{share:.4g} x {file}" for share, file in zip(shares, files, strict=True))
    print(f"{target}: {_counts(result)}; {parts}")


def _shares(weights: Sequence[float], count: int) -> list[float]:
    """Return `count` weights divided by their sum.

    Raises:
        UserError: If the number of weights differs from `count`, or a weight is not positive and finite.
    """
    if len(weights) != count or not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise UserError(f"weights must contain one number > 0 per file, here {count}, got {list(weights)}")
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def rescore(
    file: str,
    *,
    known: str,
    truth: str,
    output: str = "rescored.zip",
    models: str | None = None,
    template: str | None = None,
) -> None:
    """Rescore the detections of a camera that does not move by their clip and place.

    What raises a score is learned from predictions of the same network for a labelled split of the same camera. Half
    of these clips judges what the other half teaches. The output is written only if the balanced score is higher on
    all frames and both halves. Exit code 1 if it is not.

    Args:
        file: Submission to rescore, .json or .zip.
        known: Submission of the same network for a labelled split of the same camera, .json or .zip.
        truth: JSON of that split, or the organisers' file of targets.
        output: Submission to write, .json or .zip.
        models: JSON file to write, with what was learned, for `predict PICTURES --rescore`.
        template: As in `fuse`, for `file`.
    """
    target = _target(output, [file, known])
    expected, objects = read_truth(user_path(truth))
    if not len(objects.labels):
        raise UserError(f"truth must have annotated boxes, got none in {truth}: use a labelled split")
    if expected.frame_size is None:
        raise UserError(f"truth must have frames of one size, got several in {truth}: places are not comparable")
    size = expected.frame_size
    (content,) = _contents_of([file], _read_template(template))
    learned = _contents_of([known], expected)[0].with_frames(objects.image_ids)
    from yolo_lightning.challenge.rescoring import LabelledDetections, in_first_half, rescore as rescored, write_models
    from yolo_lightning.challenge.score import match_submission
    from yolo_lightning.challenge.submission_file import entries, write_submission
    from yolo_lightning.commands.half_scores import Comparison  # imports torch

    half = in_first_half(objects.image_ids)
    labelled = LabelledDetections(learned, objects, size)
    before = match_submission(learned, objects)
    after = match_submission(labelled.cross_rescored(half), objects)
    comparison = Comparison.of(before, after, half)
    comparison.show("rescored")
    if not comparison.is_better:
        print(f"not better on {comparison.where}: {target} is not written, use {file}")
        raise SystemExit(1)
    taught = labelled.learn(half | True)  # all frames
    result = rescored(content, taught, size)
    with writing(target):
        write_submission(entries(result), target)
    if models is not None:
        with writing(user_path(models)):
            write_models(taught, user_path(models))
    print(f"better on {comparison.where}; {target}: {_counts(result)}")


def _read_template(file: str | None) -> Template | None:
    """Return the images and the frame size that submissions must have, or None without a template."""
    if file is None:
        return None
    template, _ = read_truth(user_path(file))
    return template


def _target(output: str, files: Sequence[str]) -> Path:
    target = user_path(output)
    if target.suffix not in (".json", ".zip") or real_path(target) in [real_path(user_path(file)) for file in files]:
        raise UserError(f"output must be another file than those to read and end in .json or .zip, got {output}")
    return target


def _contents_of(files: Sequence[str], template: Template | None) -> list[Content]:
    """Return the contents of submissions without errors that have the images of `template`, if any, or equal ones."""
    contents: list[Content] = []
    for file in files:
        report = check_submission(user_path(file), template)
        if report.content is None or report.problems:
            raise UserError(f"{file} has errors, see `submission check {file}`: {report.problems[0].what}")
        contents.append(report.content)
        different = set(contents[0].image_ids) ^ set(report.content.image_ids)
        if different:
            raise UserError(
                f"{files[0]} and {file} must have the same images, but {len(different):,} images are in one of them "
                f"only, such as {min(different)}"
            )
    return contents


def _counts(content: Content) -> str:
    return f"{len(content.image_ids):,} images, {len(content.scores):,} detections"


def show(path: Path, report: SubmissionReport) -> None:
    """Print the problems of a submission."""
    if report.content is not None:
        print(f"{path}: {_counts(report.content)}")
    for problem in report.problems:
        print(printable(f"error: {problem.what}: {problem.count:,}"))
        if problem.example:
            print(printable(f"    first: {problem.example}"))
    if not report.problems:
        print("no errors found")


submission = {"check": check, "score": score, "fuse": fuse, "rescore": rescore}
"""The commands by name."""
