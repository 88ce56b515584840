"""The HTML page of a run. The template escapes all text from files."""

import base64
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib import rc_context

from yolo_lightning.commands.console import gigabytes
from yolo_lightning.commands.monitor.run_state import finding_line
from yolo_lightning.commands.report import figures
from yolo_lightning.commands.report.read_report import Contents, Evaluation
from yolo_lightning.evaluation.average_precision import AT_50
from yolo_lightning.evaluation.drawing import class_colour
from yolo_lightning.evaluation.drift import month_name
from yolo_lightning.evaluation.oracles import oracles
from yolo_lightning.evaluation.record import EvaluationRecord
from yolo_lightning.evaluation.score_table import (
    SCORE_LABELS,
    class_rows,
    drift_summary,
    is_defined,
    month_rows,
    oracle_cells,
    scores_text,
    ultralytics_text,
)
from yolo_lightning.evaluation.ultralytics_matching import CONFUSION_SCORE_THRESHOLD
from yolo_lightning.evaluation.ultralytics_metrics import ultralytics_scores
from yolo_lightning.supervision.fallback_levels import AS_CONFIGURED
from yolo_lightning.utils.moment import duration
from yolo_lightning.utils.run_files import BEST_CHECKPOINT, TRAINING_IMAGES

STAGE_NAMES = {"val": "Validation", "test": "Test"}
MISSING = "–"  # noqa: RUF001 - an en dash


class Chart(NamedTuple):
    """A figure of a page."""

    title: str
    svg: str | None  # an `<svg>` element; None if there is nothing to draw
    missing: str = ""  # why there is nothing to draw


def whole_page(template: str, **content: Any) -> str:
    """Return an HTML page without external references from a template of this folder and its variables."""
    environment = Environment(
        loader=PackageLoader("yolo_lightning.commands.report", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["base64"] = lambda jpeg: base64.b64encode(jpeg).decode("ascii")
    environment.filters["class_colour"] = class_colour
    environment.filters["timestamp"] = timestamp
    return environment.get_template(template).render(**content)


@rc_context(figures.STYLE)
def render(contents: Contents) -> str:
    """Return the report as one HTML file."""
    metrics = contents.metrics
    incidents = contents.incidents
    return whole_page(
        "run.html",
        title=f"Run {contents.name}",
        read_s=contents.read_s,
        contents=contents,
        summary=run_facts(contents),
        curves=[
            Chart("Loss", figures.loss_figure(metrics, incidents), "not logged."),
            Chart("Validation scores", figures.score_figure(metrics, incidents), "no validation yet."),
            Chart("Learning rate", figures.rate_figure(metrics, incidents), "not logged."),
        ],
        evaluations=[evaluation_parts(evaluation) for evaluation in contents.evaluations],
        confusion_title=f"Confusion matrix as in Ultralytics, detections with a score > {CONFUSION_SCORE_THRESHOLD:g}",
        findings=[finding_line(finding, contents.read_s) for finding in contents.findings],
        checkpoints=_checkpoint_rows(contents),
    )


def run_facts(contents: Contents) -> dict[str, str]:
    """Return state, network, images, training time, scores and number of incidents."""
    pairs = {"state": contents.state}
    if contents.fallback != AS_CONFIGURED:
        pairs["fallback level"] = contents.fallback
    pairs |= _network_and_images(contents)
    pairs |= training_facts(contents)
    for evaluation in contents.evaluations:
        names = ["map_50", "map"]
        if is_defined(evaluation.scores.get("cov")):
            names += ["balanced", "cov"]  # the scores of the challenge need two months to compare
        scores = scores_text(evaluation.scores, names)
        if scores:
            pairs[STAGE_NAMES[evaluation.stage].lower()] = scores
    pairs["incidents"] = str(len(contents.incidents))
    return pairs


def _network_and_images(contents: Contents) -> dict[str, str]:
    """Return the network with its image size, and the numbers of images, as far as they are known."""
    pairs = {}
    variant = contents.settings.get("model.variant")
    if variant is not None:
        pairs["network"] = str(variant)
        weights = contents.settings.get("model.weights")
        pairs["initial weights"] = "random"
        if weights:
            pairs["initial weights"] = Path(str(weights)).name
    size = contents.settings.get("data.image_size")
    if size is not None:
        sides = size if isinstance(size, list) else [size]
        pairs["image size"] = " x ".join(map(str, sides))
    images = [f"{len(evaluation.record.image_ids):,} {evaluation.stage}" for evaluation in contents.evaluations]
    if TRAINING_IMAGES in contents.environment:
        images.insert(0, f"{contents.environment[TRAINING_IMAGES]} train")
    if images:
        pairs["images"] = ", ".join(images)
    return pairs


def training_facts(contents: Contents) -> dict[str, str]:
    """Return the trained epochs, batches and time, the time per epoch, and the best epoch; empty before the first."""
    if contents.metrics.is_empty:
        return {}
    columns = contents.metrics.columns
    trained_s = float(columns["time_s"].max())
    epochs = float(columns["epoch"].max()) + contents.metrics.last_epoch_share
    planned = "" if contents.epochs is None else f" of {contents.epochs:,}"
    pairs = {
        "epochs": f"{epochs:,.1f}".removesuffix(".0") + planned,
        "trained": f"{columns['step'].max():,.0f} batches, {duration(trained_s)}",
        "time per epoch": duration(trained_s / epochs),
    }
    best = best_validation(contents)
    if best is not None:
        pairs["best epoch"] = best
    return pairs


def best_validation(contents: Contents) -> str | None:
    """Return the epoch of the best checkpoint with its mAP50; None without a validation of these weights."""
    steps = [checkpoint.steps for checkpoint in contents.checkpoints if checkpoint.name == BEST_CHECKPOINT]
    series = contents.metrics.series("val/map_50")
    if not steps or steps[0] not in series.positions:
        return None
    columns = contents.metrics.columns
    epoch = int(columns["epoch"][columns["step"] == steps[0]].max()) + 1
    return f"{epoch:,} ({SCORE_LABELS['map_50']} {series.values[series.positions == steps[0]][-1]:.4f})"


def evaluation_parts(evaluation: Evaluation) -> dict[str, Any]:
    """Return what the page shows of a split, by the names in the template."""
    stage = evaluation.stage
    record = evaluation.record
    curves = evaluation.curves
    counts = record.ultralytics.confusion()
    shares = counts / np.maximum(counts.sum(axis=0), 1)
    notes = drift_summary(evaluation.drift).splitlines()
    comparison = ultralytics_text(ultralytics_scores(record.ultralytics))
    if comparison:
        notes.append(comparison)
    by_recall = figures.class_curves_figure(stage, record.class_names, curves, evaluation.drift.overall)
    by_threshold = figures.threshold_figure(stage, record.class_names, curves)
    conditions = oracles(record.matches, record.class_names)
    return {
        "stage": stage,
        "title": STAGE_NAMES[stage],
        "weights": _weights(record),
        "class_rows": class_rows(evaluation.drift, curves, record.class_names, MISSING),
        "threshold": curves.best_threshold(),
        "classes": [record.class_names[label] for label in curves.labels],
        "month_rows": month_rows(evaluation.drift, curves.labels.tolist(), MISSING) if evaluation.drift.monthly else [],
        "notes": notes,
        "oracles": oracle_cells(conditions) if conditions else None,
        "charts": [
            *_month_charts(evaluation),
            Chart("Precision and recall at IoU 0.5", by_recall, "there are no annotated objects."),
            Chart("Precision, recall and F1 over the score threshold at IoU 0.5", by_threshold, "as above."),
        ],
        "confusion_names": [*record.class_names, "background"],
        "confusion": [zip(*row, strict=True) for row in zip(counts.tolist(), shares.tolist(), strict=True)],
        "gallery": evaluation.gallery,
        "pictures": evaluation.pictures,
    }


def _weights(record: EvaluationRecord) -> str:
    """Return a note about the evaluated weights; empty if they are unknown."""
    if record.steps is None:
        return ""
    text = f"Weights after {record.steps:,} batches"
    if record.epoch is not None:
        text += f", in epoch {record.epoch + 1}"
    return f"{text}."


def _month_charts(evaluation: Evaluation) -> list[Chart]:
    """Return the figure of the scores by month; empty without a month that has annotated objects."""
    monthly = {}
    for month, part in evaluation.drift.monthly.items():
        if part.annotated.any():
            monthly[month_name(month)] = part.map(AT_50)
    if not monthly:
        return []
    bars = figures.month_figure(evaluation.stage, monthly, evaluation.scores.get("map_50"))
    return [Chart("mAP50 by month", bars, f"only {next(iter(monthly))} has a score.")]


def _checkpoint_rows(contents: Contents) -> list[list[str]]:
    rows = []
    for checkpoint in contents.checkpoints:
        steps = MISSING if checkpoint.steps is None else f"{checkpoint.steps:,}"
        written = timestamp(contents.read_s - checkpoint.age_s)
        rows.append([checkpoint.name, written, steps, gigabytes(checkpoint.size_bytes)])
    return rows


def timestamp(time_s: float) -> str:
    return datetime.fromtimestamp(time_s).strftime("%Y-%m-%d %H:%M:%S")
