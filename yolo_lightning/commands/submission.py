"""`submission check` and `submission score`: what is wrong with an answer file, and what it would score."""

from pathlib import Path

import rich

from yolo_lightning.challenge.check import SubmissionReport, check_submission, repaired
from yolo_lightning.challenge.content import Certainty, SubmissionProblem, Template
from yolo_lightning.challenge.score import score_submission
from yolo_lightning.challenge.split_truth import read_truth
from yolo_lightning.challenge.submission_file import entries, write_submission
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.evaluation.drift import organisers_scores
from yolo_lightning.evaluation.score_table import score_table
from yolo_lightning.utils.exit_codes import ExitCode
from yolo_lightning.utils.files import write_json


def check(file: str, template: str | None = None, fix: str | None = None) -> None:
    """Say what is wrong with an answer file, and mend what needs no guess. Exit code 1 if it is wrong and stays so.

    Args:
        file: The answer file, .json or .zip.
        template: The organisers' template, or the JSON of the split; null leaves missing and foreign ids unknown.
        fix: Write a mended copy here, .json or .zip; nothing is written where anything would have to be guessed.

    Raises:
        ValueError: If a file cannot be opened, or `fix` is the answer file itself.
    """
    path, copy = Path(file), Path(fix) if fix else None
    if copy and (copy.suffix not in (".json", ".zip") or copy.resolve() == path.resolve()):
        raise ValueError(f"fix is {copy}: it must be another file than {path} and end in .json or .zip")
    expected = read_truth(Path(template)).template if template else None
    report = check_submission(path, expected)
    show(path, report)
    if copy and report.wrong:
        mend(report, expected, copy)
    elif report.wrong:
        raise SystemExit(ExitCode.FAILED)
    elif copy:
        print(f"nothing to mend, {copy} was not written")


def score(file: str, truth: str, json: str | None = None) -> None:
    """Score an answer file as the organisers' server does. Exit code 1 if it cannot be scored.

    What the server accepts is scored, though `check` calls it wrong: such problems are printed before the scores.

    Args:
        file: The answer file, .json or .zip.
        truth: JSON of a labelled split, or the organisers' file of targets.
        json: Write the organisers' `scores.json` here.

    Raises:
        ValueError: If a file cannot be opened.
    """
    known = read_truth(Path(truth))
    if not len(known.labels):
        raise ValueError(f"{truth} has no annotated box: give a labelled split")
    report = check_submission(Path(file), known.template)
    if report.wrong:
        show(Path(file), report)
    if report.content is None or not all(problem.tolerated for problem in report.wrong):
        print("not scored: mend it first, see `submission check --fix`")
        raise SystemExit(ExitCode.FAILED)
    if report.wrong:
        print("scored as the file is, as the organisers' server does; `submission check` calls it wrong")
    scores = score_submission(report.content, known)
    rich.print(score_table(scores, CLASS_NAMES))
    if json:
        write_scores(organisers_scores(scores), Path(json))


def write_scores(content: dict[str, float | list[float] | None], path: Path) -> None:
    """Write the organisers' `scores.json`, whole or not at all.

    Raises:
        ValueError: If it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content, indent=4)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from error


def show(path: Path, report: SubmissionReport) -> None:
    """Print what was found."""
    if report.content is not None:
        detections = len(report.content.scores)
        print(f"{path}: {len(report.content.image_ids):,} images, {detections:,} detections")
    for problem in report.problems:
        print(lines_of(problem))
    if not report.wrong:
        print("nothing is wrong with it")


def lines_of(problem: SubmissionProblem) -> str:
    """A problem in words."""
    label = "note" if problem.certainty is Certainty.NOTE else f"wrong ({problem.certainty})"
    lines = [f"{label}: {problem.what}: {problem.count:,}" if problem.count else f"{label}: {problem.what}"]
    if problem.example:
        lines.append("    first: " + problem.example.replace("\n", "\n           "))
    if problem.is_wrong:
        lines.append(f"    --fix: {problem.remedy or 'nothing: it would have to be guessed'}")
    return "\n".join(lines)


def mend(report: SubmissionReport, template: Template | None, copy: Path) -> None:
    """Write the mended copy and say what was done, or say what stands in its way.

    Raises:
        ValueError: If the copy cannot be written.
    """
    content, mended = repaired(report, template)
    if content is None:
        print(f"{copy} was not written: not everything that is wrong can be mended without a guess")
        raise SystemExit(ExitCode.FAILED)
    try:
        write_submission(entries(content), copy)
    except OSError as error:
        raise ValueError(f"cannot write {copy}: {error.strerror}") from error
    print(f"{copy}: {len(content.image_ids):,} images, {len(content.scores):,} detections; what was done:")
    for problem in mended:
        print(f"    {problem.what}: {problem.count:,}: {problem.remedy}")


submission = {"check": check, "score": score}
"""The commands by name."""
