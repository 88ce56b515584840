"""Reads a run folder for the report. Damaged files are listed and skipped."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from yolo_lightning.commands.monitor.read_run import check_holds_run, checkpoints
from yolo_lightning.commands.monitor.run_state import Checkpoint
from yolo_lightning.commands.report.metrics_curves import Metrics, read_metrics
from yolo_lightning.errors import UserError
from yolo_lightning.evaluation.drift import DriftScores, drift_scores, named_scores
from yolo_lightning.evaluation.gallery import Gallery
from yolo_lightning.evaluation.record import EvaluationRecord
from yolo_lightning.evaluation.ultralytics_metrics import ThresholdCurves, threshold_curves
from yolo_lightning.supervision.fallback_levels import FallbackState
from yolo_lightning.supervision.incident import IncidentReport, read_incident
from yolo_lightning.supervision.run_status import Status, SupervisorStatus, read_status
from yolo_lightning.supervision.watches import WatchFinding
from yolo_lightning.utils import run_files
from yolo_lightning.utils.addresses import SECRET, redacted
from yolo_lightning.utils.moment import moment
from yolo_lightning.utils.nested_keys import flatten
from yolo_lightning.utils.paths import real_path
from yolo_lightning.utils.regular_files import read_regular
from yolo_lightning.utils.yaml_file import read_yaml

HIDDEN = "(not shown)"
MAX_INCIDENTS = 200
MAX_SHEETS = 20
Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results of one split."""

    stage: str  # `val` or `test`
    record: EvaluationRecord  # all matched detections
    drift: DriftScores  # scores computed from `record`
    scores: Mapping[str, float]  # the same by logged name without the stage (`map_50/2020-05`)
    curves: ThresholdCurves  # precision, recall and F1, computed from `record`
    gallery: Gallery | None  # best and worst frames; None if not stored
    pictures: Mapping[str, bytes]  # JPEG content by file name of the gallery


@dataclass(frozen=True, slots=True)
class Contents:
    """A run, read from its folder."""

    name: str  # of the folder
    read_s: float  # time of reading, seconds since 1970
    state: str
    fallback: str  # lowered fallback levels with their reasons
    metrics: Metrics
    evaluations: tuple[Evaluation, ...]  # those with a readable record
    sheets: Mapping[str, bytes]  # JPEG content by name (`epoch-0003-step-000000240`), oldest first
    incidents: tuple[IncidentReport, ...]  # oldest first
    findings: tuple[WatchFinding, ...]  # of the watches, oldest first
    checkpoints: tuple[Checkpoint, ...]  # newest first
    epochs: int | None  # to train in total; None if unknown or without a limit
    environment: Mapping[str, str]  # versions and machine by name
    settings: Mapping[str, Any]  # options of the fit by full name, without secrets
    configurations: Mapping[str, str]  # YAML text by file name, without secrets
    problems: tuple[str, ...]  # one sentence per damaged file


class Reader:
    """Reads files of a run folder and collects a sentence about each damaged one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []

    def read(self, path: Path, read: Callable[[Path], Content]) -> Content | None:
        """Return the content of a file, or None if the file is missing or damaged."""
        try:
            return read(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError, yaml.YAMLError) as error:
            reason = str(error).removeprefix(f"{path} ")
            if isinstance(error, OSError):
                reason = str(error.strerror)
            self.add(path, f"cannot be read: {type(error).__name__}: {reason}")
            return None

    def read_json(self, path: Path, content_type: type[Content]) -> Content | None:
        return self.read(path, lambda path: msgspec.json.decode(read_regular(path), type=content_type))

    def add(self, path: Path, sentence: str) -> None:
        self.problems.append(f"{path.relative_to(self.folder)} {sentence}")


def read_contents(folder: Path) -> Contents:
    """Read everything that the report shows. A folder without a run raises a `ValueError`."""
    check_holds_run(folder)
    folder = real_path(folder)
    now_s = time.time()
    reader = Reader(folder)
    metrics = reader.read(folder / run_files.METRICS, read_metrics) or Metrics()
    if metrics.unreadable:
        reader.add(folder / run_files.METRICS, f"has {metrics.unreadable} lines that cannot be parsed")
    environment = reader.read_json(folder / run_files.ENVIRONMENT, dict[str, Any]) or {}
    configurations = _read_configurations(folder, reader)
    settings = configurations.get(run_files.config_name("fit"))
    reports = sorted((folder / run_files.INCIDENTS).glob(f"*/{run_files.INCIDENT_FILE}"))[-MAX_INCIDENTS:]
    incidents = [reader.read(path, read_incident) for path in reports]
    evaluations = [_read_evaluation(folder, stage, reader) for stage in ("val", "test")]
    status = read_status(folder / run_files.STATUS_FILE)
    if status is not None:
        metrics = replace(metrics, last_epoch_share=share_of_last_epoch(metrics, status))
    if not isinstance(settings, dict):
        settings = {}
    return Contents(
        name=folder.name,
        read_s=now_s,
        state=state(folder),
        fallback=FallbackState.read(folder / run_files.STATE_FILE).line,
        metrics=metrics,
        evaluations=tuple(evaluation for evaluation in evaluations if evaluation is not None),
        sheets=_read_sheets(folder / run_files.FRAMES / run_files.EPOCHS, reader),
        incidents=tuple(incident for incident in incidents if incident is not None),
        findings=() if status is None else status.findings,
        checkpoints=tuple(checkpoints(folder / run_files.CHECKPOINTS, now_s)),
        epochs=None if status is None else status.epochs,
        environment={name: str(value) for name, value in environment.items()},
        settings=flatten(settings),
        configurations={name: as_text(options) for name, options in configurations.items()},
        problems=tuple(reader.problems),
    )


def share_of_last_epoch(metrics: Metrics, status: Status) -> float:
    """Return the part of the last epoch that was trained up to the last row of the metrics; 1 if it is unknown.

    A fit that runs, was interrupted or ends by a deadline has trained a part of its last epoch.
    """
    if metrics.is_empty or not status.batches_per_epoch or status.epoch != metrics.columns["epoch"].max():
        return 1.0
    began_at_step = status.step - status.batch
    share = float(metrics.columns["step"].max() - began_at_step) / status.batches_per_epoch
    return share if 0 < share < 1 else 1.0


def state(folder: Path) -> str:
    """Return the state of the run according to its files, without looking for its processes, and its deadline."""
    status = read_status(folder / run_files.STATUS_FILE)
    standing = SupervisorStatus.read(folder / run_files.SUPERVISOR_FILE)
    text = "not finished"
    if (folder / run_files.FINISHED_FILE).exists() or (folder / run_files.TRAINED_FILE).exists():
        text = "finished"
    elif standing is not None:
        text = ": ".join(filter(None, [standing.state, standing.sentence]))
    if status is None or status.deadline_s is None:
        return text
    return "; ".join(filter(None, [text, f"deadline {moment(status.deadline_s, 0)}", status.deadline_problem]))


def as_text(options: Any) -> str:
    """Return a configuration as YAML, without passwords in addresses."""
    return redacted(yaml.safe_dump(options, sort_keys=False, allow_unicode=True, width=100))


def without_secrets(content: Any, is_secret: bool = False) -> Any:
    """Replace strings in the section `notify` and in options for secrets, except names of environment variables."""
    if isinstance(content, dict):
        hidden = {name for name in content if is_secret or name == "notify" or SECRET.search(str(name))}
        return {name: without_secrets(value, name in hidden) for name, value in content.items()}
    if isinstance(content, list):
        return [without_secrets(value, is_secret) for value in content]
    if is_secret and isinstance(content, str) and not content.startswith("$"):
        return HIDDEN
    return content


def _read_configurations(folder: Path, reader: Reader) -> dict[str, Any]:
    """Return the configurations by file name, without secrets."""
    configurations = {}
    for path in sorted(folder.glob("config*.yaml")):
        options = reader.read(path, lambda path: without_secrets(read_yaml(path)))
        if options is not None:
            configurations[path.name] = options
    return configurations


def _read_sheets(folder: Path, reader: Reader) -> dict[str, bytes]:
    """Return the newest pictures of validations by name, oldest first."""
    sheets = {}
    for path in sorted(folder.glob("*.jpg"))[-MAX_SHEETS:]:
        jpeg = reader.read(path, _read_picture)
        if jpeg is not None:
            sheets[path.stem] = jpeg
    return sheets


def _read_evaluation(folder: Path, stage: str, reader: Reader) -> Evaluation | None:
    """Return the results of a split, or None without a readable record of its matched detections."""
    record = reader.read(folder / run_files.evaluation_record(stage), EvaluationRecord.load)
    if record is None:
        return None
    gallery = reader.read_json(folder / run_files.FRAMES / f"{stage}.json", Gallery)
    pictures = {}
    if gallery is not None:
        for frame in gallery.frames:
            path = folder / run_files.FRAMES / Path(frame.file).name  # never outside the folder
            jpeg = reader.read(path, _read_picture)
            if jpeg is not None:
                pictures[frame.file] = jpeg
            elif not path.exists():
                reader.add(path, "is listed but missing")
    drift = drift_scores(record.matches)
    return Evaluation(
        stage=stage,
        record=record,
        drift=drift,
        scores=named_scores(drift, record.class_names),
        curves=threshold_curves(record.matches),
        gallery=gallery,
        pictures=pictures,
    )


def _read_picture(path: Path) -> bytes:
    content = read_regular(path)
    if not content.startswith(b"\xff\xd8\xff") or not content.rstrip(b"\0").endswith(b"\xff\xd9"):
        raise UserError("not a complete JPEG")
    return content
