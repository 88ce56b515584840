"""`submission check` and `submission score`: errors of a submission, and its score."""

from pathlib import Path

import rich

from yolo_lightning.challenge.check import check_submission, repaired
from yolo_lightning.challenge.content import Certainty, SubmissionReport
from yolo_lightning.challenge.score import read_truth, score_submission
from yolo_lightning.challenge.submission_file import entries, write_submission
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.evaluation.drift import organisers_scores
from yolo_lightning.evaluation.score_table import score_table
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.plain_text import printable


def check(file: str, template: str | None = None, fix: str | None = None) -> None:
    """Report the errors of a submission, and optionally write a repaired copy. Exit code 1 if errors remain.

    Args:
        file: Submission, .json or .zip.
        template: The organisers' template, or the JSON of the split; null omits the check for missing and foreign ids.
        fix: Write a repaired copy here, .json or .zip, if all errors can be repaired without guessing.
    """
    path, copy = Path(file), Path(fix) if fix else None
    if copy and (copy.suffix not in (".json", ".zip") or copy.resolve() == path.resolve()):
        raise ValueError(f"fix must be another file than {path} and end in .json or .zip, got {copy}")
    expected = read_truth(Path(template))[0] if template else None
    report = check_submission(path, expected)
    show(path, report)
    if not report.errors:
        return
    if copy is None:
        raise SystemExit(1)
    content, fixed = repaired(report, expected)
    if content is None:
        print(f"{copy} was not written: not all errors can be repaired without guessing")
        raise SystemExit(1)
    try:
        write_submission(entries(content), copy)
    except OSError as error:
        raise ValueError(f"cannot write {copy}: {error.strerror}") from error
    print(f"{copy}: {len(content.image_ids):,} images, {len(content.scores):,} detections; repairs:")
    for problem in fixed:
        print(f"    {problem.what}: {problem.count:,}: {problem.remedy}")


def score(file: str, truth: str, json: str | None = None) -> None:
    """Score a submission like the organisers' server. Exit code 1 if it cannot be scored.

    Errors that the server accepts are reported, and the file is scored unchanged.

    Args:
        file: Submission, .json or .zip.
        truth: JSON of a labelled split, or the organisers' file of targets.
        json: Write the organisers' `scores.json` here.
    """
    expected, objects = read_truth(Path(truth))
    if not len(objects.labels):
        raise ValueError(f"{truth} has no annotated box: use a labelled split")
    report = check_submission(Path(file), expected)
    if report.errors:
        show(Path(file), report)
    if report.content is None or not all(problem.tolerated for problem in report.errors):
        print("not scored: repair the file first, see `submission check --fix`")
        raise SystemExit(1)
    if report.errors:
        print("scored unchanged, like the organisers' server does in spite of these errors")
    scores = score_submission(report.content, objects)
    rich.print(score_table(scores, CLASS_NAMES))
    if json:
        try:
            Path(json).parent.mkdir(parents=True, exist_ok=True)
            write_json(Path(json), organisers_scores(scores), indent=4)
        except OSError as error:
            raise ValueError(f"cannot write {json}: {error.strerror}") from error


def show(path: Path, report: SubmissionReport) -> None:
    """Print the problems of a submission."""
    if report.content is not None:
        print(f"{path}: {len(report.content.image_ids):,} images, {len(report.content.scores):,} detections")
    for problem in report.problems:
        is_note = problem.certainty is Certainty.NOTE
        kind = "note" if is_note else f"error ({problem.certainty})"
        print(printable(f"{kind}: {problem.what}: {problem.count:,}"))
        if problem.example:
            print(printable("    first: " + problem.example.replace("\n", "\n           ")))
        if not is_note:
            print(f"    --fix: {problem.remedy or 'not possible without guessing'}")
    if not report.errors:
        print("no errors found")


submission = {"check": check, "score": score}
"""The commands by name."""
