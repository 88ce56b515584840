"""The HTML page that compares several runs. The template escapes all text from files."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context

from yolo_lightning.checkpoints.resume import NOT_COMPARED
from yolo_lightning.commands.report import figures
from yolo_lightning.commands.report.page import MISSING, STAGE_NAMES, Chart, run_facts, whole_page
from yolo_lightning.commands.report.read_report import Contents, Evaluation, read_contents
from yolo_lightning.data.formats.image_ids import clip_of_id
from yolo_lightning.errors import UserError
from yolo_lightning.evaluation.drift import month_name
from yolo_lightning.evaluation.record import EvaluationRecord
from yolo_lightning.evaluation.score_intervals import BootstrapScores, bootstrap
from yolo_lightning.evaluation.score_table import SCORE_LABELS, is_defined, score_text
from yolo_lightning.utils.nested_keys import flatten
from yolo_lightning.utils.paths import real_path
from yolo_lightning.utils.run_files import TRAINING_IMAGES

SAMPLES = 1000
"""Samples of the bootstrap; all runs have the same samples, because the seed is the same."""

NOT_COMPARED_ENTRIES = ("started", "precision reason")
DATA_ENTRIES = ("data.root", "data.format", "data.files.", "data.split.", "data.sampling.", TRAINING_IMAGES)
"""Beginnings of the options and entries of the environment that determine the training data."""

LONG_TRAINING_S = 7200.0  # the time axis has hours from here on, else minutes

Runs = Mapping[str, Contents]


def by_name(folders: Sequence[Path]) -> dict[str, Contents]:
    """Return the contents of runs by the name of the folder, or by the part of the path that distinguishes the runs.

    Raises:
        UserError: If a run folder is given twice.
    """
    paths = [real_path(folder) for folder in folders]
    for folder, path in zip(folders, paths, strict=True):
        if paths.count(path) > 1:
            raise UserError(f"runs must be different run folders, got {folder} twice.")
    base = os.path.commonpath([path.parent for path in paths])
    return {str(path.relative_to(base)): read_contents(path) for path in paths}


@rc_context(figures.STYLE)
def render_comparison(runs: Runs) -> str:
    """Return a page that compares two or more runs with the first one, as one HTML file."""
    facts_by_run = {run: run_facts(contents) for run, contents in runs.items()}
    differences = _differences(runs)
    different_entries = [row[0] for part in differences for row in part["rows"]]
    return whole_page(
        "comparison.html",
        title=f"Comparison of {len(runs)} runs",
        read_s=min(contents.read_s for contents in runs.values()),
        runs=list(runs),
        summary=entry_rows(facts_by_run, different=False),
        problems=[f"{run}: {problem}" for run, contents in runs.items() for problem in contents.problems],
        differences=differences,
        data_entries=[entry for entry in different_entries if entry.startswith(DATA_ENTRIES)],
        splits=[_split(runs, stage) for stage in STAGE_NAMES],
        curves=_curves(runs),
    )


def _differences(runs: Runs) -> list[dict[str, Any]]:
    """Return the options and the entries of the environment that are not equal in all runs that record them."""
    recorded: dict[str, dict[str, Mapping[str, Any]]] = {
        "option": {run: options_by_name(contents.settings) for run, contents in runs.items() if contents.settings},
        "environment": {run: contents.environment for run, contents in runs.items() if contents.environment},
    }
    differences = []
    for heading, tables in recorded.items():
        rows = [row for row in entry_rows(tables, different=True) if row[0] not in NOT_COMPARED_ENTRIES]
        unrecorded = [run for run in runs if run not in tables]
        differences.append({"heading": heading, "runs": list(tables), "rows": rows, "unrecorded": unrecorded})
    return differences


def options_by_name(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by full name, with those of callbacks and loggers by class: `trainer.callbacks.EMA.decay`."""
    options: dict[str, Any] = {}
    for name, value in settings.items():
        classes = {}
        if isinstance(value, list):
            elements = [element for element in value if isinstance(element, dict) and "class_path" in element]
            classes = {str(element["class_path"]).rpartition(".")[2]: element for element in elements}
        if classes and len(classes) == len(value):
            by_class = {key: {"used": True} | (element.get("init_args") or {}) for key, element in classes.items()}
            options |= flatten(by_class, f"{name}.")
        elif name not in NOT_COMPARED:
            options[name] = value
    return options


def entry_rows(tables: Mapping[str, Mapping[str, Any]], *, different: bool) -> list[list[str]]:
    """Return name and values of each entry of the tables, or only of the entries that are not equal in all tables."""
    rows = []
    for entry in dict.fromkeys(chain.from_iterable(tables.values())):
        texts = [_as_text(values.get(entry, MISSING)) for values in tables.values()]
        if not different or len(set(texts)) > 1:
            rows.append([entry, *texts])
    return rows


def _as_text(value: Any) -> str:
    """Return a value of a configuration as in YAML: null, true, [480, 640]."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """An evaluation of a run with the scores of bootstrap samples."""

    run: str
    evaluation: Evaluation
    samples: BootstrapScores

    def row(self, name: str, first: "ScoredRun | None") -> list[str]:
        """Return a score with its interval, and its difference from a comparable run with the paired interval."""
        record = self.evaluation.record
        score = self.evaluation.scores.get(name)
        steps = MISSING
        if record.steps is not None:
            steps = f"{record.steps:,}"
        cells = [SCORE_LABELS[name], self.run, f"{len(record.image_ids):,}", steps, score_text(score, MISSING)]
        cells.append(_interval_text(self.samples.intervals().get(name)))
        if first is None or not is_defined(score):
            return [*cells, MISSING, MISSING]
        difference = score - first.evaluation.scores[name]
        interval = paired_intervals(self.samples, first.samples).get(name)
        return [*cells, f"{difference:+.4f}", _interval_text(interval, "+")]


def _split(runs: Runs, stage: str) -> dict[str, Any]:
    """Return the scores of a split with intervals, and their differences from the first run with paired intervals."""
    split = {"stage": stage, "title": STAGE_NAMES[stage]}
    scored = []
    for run, contents in runs.items():
        for evaluation in contents.evaluations:
            if evaluation.stage == stage:
                record = evaluation.record
                scored.append(ScoredRun(run, evaluation, bootstrap(record.matches, record.image_ids, SAMPLES)))
    if not scored:
        return split | {"rows": [], "notes": ["No run has this evaluation."]}
    first = scored[0]
    notes = []
    comparable = []
    for other in scored[1:]:
        problem = difference_of_evaluations(first.evaluation.record, other.evaluation.record)
        if problem:
            notes.append(f"{other.run} {problem}: its scores cannot be compared with those of {first.run}.")
        else:
            comparable.append(other.run)
    names = ["map_50", "map"]
    if is_defined(first.evaluation.scores.get("cov")):
        names.insert(0, "balanced")  # the score of the challenge needs two months to compare
    rows = [entry.row(name, first if entry.run in comparable else None) for name in names for entry in scored]
    missing = [run for run in runs if run not in [entry.run for entry in scored]]
    if missing:
        notes.append(f"Without this evaluation: {', '.join(missing)}.")
    clips = len({clip_of_id(image_id) for image_id in first.evaluation.record.image_ids})
    notes += [
        f"Differences are those from {first.run}. Intervals: {SAMPLES:,} samples of its {clips:,} clips with "
        "replacement, the same samples for all runs. Frames without a clip in their id are clips of their own.",
        "If the interval of a difference contains 0, these frames do not show which run is better. Intervals do not "
        "contain the variation between trainings with different seeds.",
    ]
    if first.samples.single_clips:
        months = ", ".join(map(month_name, first.samples.single_clips))
        notes.append(f"Intervals are too narrow, because these months have one clip only: {months}.")
    return split | {"rows": rows, "notes": notes}


def paired_intervals(samples: BootstrapScores, first_samples: BootstrapScores) -> dict[str, tuple[float, float, float]]:
    """Return low, median, high of the differences of each score in the same samples of the same frames."""
    differences = {name: values - first_samples.values[name] for name, values in samples.values.items()}
    return BootstrapScores(differences, ()).intervals()


def difference_of_evaluations(first: EvaluationRecord, record: EvaluationRecord) -> str:
    """Return why the scores of an evaluation cannot be compared with those of the first one, or an empty text."""
    if record.class_names != first.class_names:
        return "has other classes"
    if record.image_ids != first.image_ids:
        common = len(set(record.image_ids) & set(first.image_ids))
        return f"was evaluated on other frames, or in another order ({common:,} frames in common)"
    for name in ("annotated", "months"):
        if not np.array_equal(getattr(record.matches, name), getattr(first.matches, name)):
            return "was evaluated with other annotations"
    return ""


def _interval_text(interval: tuple[float, float, float] | None, sign: str = "") -> str:
    if interval is None:
        return MISSING
    low, _, high = interval
    return f"{low:{sign}.4f} to {high:{sign}.4f}"


def _curves(runs: Runs) -> list[list[Chart]]:
    """Return score and loss of all runs over epochs and over the training time."""
    times_s = [contents.metrics.columns["time_s"].max(initial=0.0) for contents in runs.values()]
    unit_s = 60.0
    unit = "minutes trained"
    if max(times_s) >= LONG_TRAINING_S:
        unit_s = 3600.0
        unit = "hours trained"
    shown: list[tuple[str, str, str, figures.Scale]] = [
        ("val/map_50", "Validation", SCORE_LABELS["map_50"], "scores"),
        ("train/loss", "Training", "loss", "logarithmic"),
    ]
    charts = []
    for name, title, label, scale in shown:
        over_epochs = {}
        over_time = {}
        for run, contents in runs.items():
            metrics = contents.metrics
            over_epochs[run] = metrics.series(name, metrics.trained_epochs())
            over_time[run] = metrics.series(name, metrics.columns["time_s"] / unit_s)
        by_epoch = figures.runs_figure(f"{label}-epochs", "epochs", label, over_epochs, scale)
        by_time = figures.runs_figure(f"{label}-time", unit, label, over_time, scale)
        pair = [
            Chart(f"{title}: {label} over epochs", by_epoch, "not logged."),
            Chart(f"{title}: {label} over the training time", by_time, "not logged."),
        ]
        charts.append(pair)
    return charts
