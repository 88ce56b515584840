"""The HTML page of a report. All text from files is escaped."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from importlib.resources import files
from string import Template

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context

from yolo_lightning.commands.console import duration, gigabytes
from yolo_lightning.commands.monitor.run_state import finding_line
from yolo_lightning.commands.report import figures
from yolo_lightning.commands.report.read_report import Contents, Evaluation, GalleryFrame
from yolo_lightning.evaluation.drawing import class_colour
from yolo_lightning.evaluation.drift import month_name
from yolo_lightning.evaluation.oracles import oracles
from yolo_lightning.evaluation.score_table import (
    SCORE_LABELS,
    drift_summary,
    is_defined,
    oracle_cells,
    score_text,
    scores_text,
)
from yolo_lightning.evaluation.ultralytics_matching import CONFUSION_SCORE_THRESHOLD
from yolo_lightning.supervision.fallback_levels import AS_CONFIGURED
from yolo_lightning.supervision.incident import IncidentReport

STAGE_NAMES = {"val": "Validation", "test": "Test"}
SCORE_COLUMNS = (SCORE_LABELS["map_50"], SCORE_LABELS["map"])
MISSING = "–"  # noqa: RUF001 - an en dash


@rc_context(figures.STYLE)
def render(contents: Contents) -> str:
    """Return the report as one HTML file without external references."""
    parts = [
        section("summary", "Summary", summary(contents)),
        section("curves", "Training", training(contents)),
        *(_split_section(evaluation) for evaluation in contents.evaluations),
    ]
    if not contents.evaluations:
        parts.append(section("evaluation", "Evaluation", note("No validation and no test yet.")))
    parts += [
        section("events", "Incidents", events(contents)),
        section("checkpoints", "Checkpoints", _checkpoint_table(contents)),
        section("setup", "Environment and configuration", setup(contents)),
    ]
    links = {"curves": "training"} | {one.stage: STAGE_NAMES[one.stage].lower() for one in contents.evaluations}
    links |= {"events": "incidents", "checkpoints": "checkpoints", "setup": "environment and configuration"}
    template = Template(files("yolo_lightning.commands.report").joinpath("template.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=f"Run {escape(contents.name)}",
        links=" ".join(f'<a href="#{name}">{escape(word)}</a>' for name, word in links.items()),
        body="".join(parts),
        made=timestamp(contents.read_s),
    )


def summary(contents: Contents) -> str:
    """Return state, training time, scores, number of incidents, and the damaged files."""
    pairs, metrics = {"state": contents.state}, contents.metrics
    if contents.fallback != AS_CONFIGURED:
        pairs["fallback level"] = contents.fallback
    if not metrics.is_empty:
        steps, times_s = metrics.columns["step"], metrics.columns["time_s"]
        pairs["trained"] = f"{steps.max():,.0f} batches, {duration(times_s.max())}"
    for evaluation in contents.evaluations:
        # The scores of the challenge need two months to compare.
        of_challenge = ("balanced", "cov") if is_defined(evaluation.scores.get("cov")) else ()
        if text := scores_text(evaluation.scores, ("map_50", "map", *of_challenge)):
            pairs[STAGE_NAMES[evaluation.stage].lower()] = text
    lines = "".join(f"<li>{escape(problem)}</li>\n" for problem in contents.problems)
    damaged = f'<h3>Damaged files</h3><ul class="problems">{lines}</ul>\n' if lines else ""
    return facts(pairs | {"incidents": str(len(contents.incidents))}) + damaged


def training(contents: Contents) -> str:
    metrics, incidents = contents.metrics, contents.incidents
    if metrics.is_empty:
        return note("Nothing was logged yet.")
    return grid(
        figure("Loss", figures.loss_figure(metrics, incidents), "not logged."),
        figure("Validation scores", figures.score_figure(metrics, incidents), "no validation yet."),
        figure("Learning rate", figures.rate_figure(metrics, incidents), "not logged."),
    ) + (note("Numbered dashed lines: incidents, listed below.") if incidents else "")


def _split_section(evaluation: Evaluation) -> str:
    """Return scores, figures and frames of one split."""
    stage, record, scores = evaluation.stage, evaluation.record, evaluation.scores
    named = {name: scores[f"map_50/{name}"] for name in _months(evaluation)}
    months = {name: value for name, value in named.items() if is_defined(value)}
    by_month = ""
    if months:
        monthly = figures.month_figure(stage, months, scores.get("map_50"))
        by_month = figure("mAP50 by month", monthly, f"only {next(iter(months))} has a score.")
    curves = figures.class_curves_figure(stage, record)
    confusion = _confusion_table(record.class_names, record.ultralytics.confusion())
    charts = grid(
        by_month,
        figure("Precision and recall at IoU 0.5", curves, "there are no annotated objects."),
        figure(f"Confusion matrix, detections with a score > {CONFUSION_SCORE_THRESHOLD:g}", confusion, ""),
    )
    rows, oracle = oracles(record.matches, record.class_names), ""
    if rows:
        oracle = folded("Where points can be gained: the scores without one kind of error", table(*oracle_cells(rows)))
    return section(stage, STAGE_NAMES[stage], _score_section(evaluation), oracle, charts, frame_gallery(evaluation))


def _months(evaluation: Evaluation) -> list[str]:
    """Return the names of the months with annotated objects."""
    return [month_name(month) for month, part in evaluation.drift.monthly.items() if part.annotated.any()]


def _score_section(evaluation: Evaluation) -> str:
    """Return the table of scores, and the scores without a column.

    The table has a row for all frames and each month; without months, with a row for each class.
    """
    scores, record, drift = evaluation.scores, evaluation.record, evaluation.drift
    weights = ""
    if record.steps is not None:
        epoch = f", in epoch {record.epoch + 1}" if record.epoch is not None else ""
        weights = note(f"Weights after {record.steps:,} batches{epoch}.")
    months = _months(evaluation)
    objects = dict(zip(record.class_names, drift.overall.annotated.tolist(), strict=True))
    classes = [name for name, count in objects.items() if count]
    if months:
        parts = {"all": drift.overall} | {month_name(month): part for month, part in drift.monthly.items()}
        head, further = ["month", "frames", "objects"], classes
        counts = {name: [f"{part.frames:,}", f"{part.annotated.sum():,}"] for name, part in parts.items()}
    else:
        head, further = ["class", "objects"], []
        counts = {name: [f"{count:,}"] for name, count in {"all": sum(objects.values()), **objects}.items()}
    rows = []
    for row in ("all", *(months or classes)):
        part = "" if row == "all" else f"/{row}"
        names = (f"map_50{part}", f"map{part}", *(f"map_50{part}/{name}" for name in further))
        rows.append([row, *counts[row], *(score_text(scores.get(name), MISSING) for name in names)])
    of_classes = note("Columns of classes: mAP50.") if further else ""
    others = "".join(note(line) for line in drift_summary(drift).splitlines())
    return weights + table([*head, *SCORE_COLUMNS, *further], rows) + of_classes + others


def frame_gallery(evaluation: Evaluation) -> str:
    """Return the best and worst frames, and the colours of the classes."""
    gallery = evaluation.gallery
    if gallery is None:
        return note("Best and worst frames: not stored.")
    colours = "".join(
        f'<span><i style="background:{class_colour(at)}"></i>{escape(name)}</span>'
        for at, name in enumerate(gallery.class_names)
    )
    page = note(f"Left: annotated. Right: detected with a score >= {gallery.score_threshold:g}. F1 at IoU 0.5.")
    page += f'<p class="key">{colours}</p>\n'
    for group, heading in {"best": "Best frames", "worst": "Worst frames"}.items():
        shown = [one for one in gallery.frames if one.group == group and one.file in evaluation.pictures]
        pictures = "".join(_frame_picture(one, evaluation.pictures[one.file]) for one in shown)
        page += f'<h3>{heading}</h3>\n<div class="grid">{pictures}</div>\n' if shown else note(f"{heading}: none.")
    return page


def _frame_picture(frame: GalleryFrame, jpeg: bytes) -> str:
    counts = f"objects {frame.objects}, missed {frame.misses}, false alarms {frame.false_alarms}"
    return (
        f'<figure class="frame"><img alt="annotated and detected boxes of frame {escape(frame.image_id)}" '
        f'src="data:image/jpeg;base64,{base64.b64encode(jpeg).decode("ascii")}">'
        f"<figcaption>{escape(frame.image_id)}<br>F1 {frame.score:.2f}; {counts}</figcaption></figure>\n"
    )


def events(contents: Contents) -> str:
    items = "".join(map(_incident_item, contents.incidents))
    findings = "".join(f"<li>{escape(finding_line(one, contents.read_s))}</li>\n" for one in contents.findings)
    found = f"<h3>Watches</h3><ul>{findings}</ul>\n" if findings else note("The watches have found nothing.")
    return (f"<ol>{items}</ol>\n" if items else note("No incidents.")) + found


def _incident_item(incident: IncidentReport) -> str:
    step = "" if incident.step is None else f", step {incident.step:,.0f}"
    is_named = incident.sentence.startswith(incident.kind)
    sentence = escape(incident.sentence if is_named else f"{incident.kind}: {incident.sentence}")
    outcome = f" <b>→ {escape(incident.outcome)}</b>" if incident.outcome else ""
    place = f'<span class="note">incidents/{escape(incident.folder)}/</span>'
    return f"<li><b>{timestamp(incident.time_s)}{step}</b> {sentence}{outcome} {place}</li>\n"


def _checkpoint_table(contents: Contents) -> str:
    if not contents.checkpoints:
        return note("There is no checkpoint.")
    rows = []
    for one in contents.checkpoints:
        steps = MISSING if one.steps is None else f"{one.steps:,}"
        rows.append((one.name, timestamp(contents.read_s - one.age_s), steps, gigabytes(one.size_bytes)))
    return table(["file", "written", "batches trained", "size"], rows, numbers_from=2)


def setup(contents: Contents) -> str:
    environment, configurations = contents.environment, contents.configurations
    return (
        (folded("Environment", facts(environment)) if environment else note("Environment: not recorded."))
        + "".join(folded(name, f"<pre>{escape(text)}</pre>") for name, text in configurations.items())
        + ("" if configurations else note("Configuration: not recorded."))
    )


def section(name: str, title: str, *parts: str) -> str:
    return f'<section id="{name}"><h2>{escape(title)}</h2>\n{"".join(parts)}</section>\n'


def figure(title: str, element: str | None, missing: str) -> str:
    """Return an element under its title, or a note with the reason if there is no element."""
    if element is None:
        return note(f"{title}: {missing}")
    return f'<figure class="chart"><figcaption>{escape(title)}</figcaption>{element}</figure>\n'


def grid(*parts: str) -> str:
    """Return figures side by side, followed by the notes among `parts`."""
    shown = [part for part in parts if part.startswith("<figure")]
    notes = "".join(part for part in parts if not part.startswith("<figure"))
    return (f'<div class="grid">{"".join(shown)}</div>\n' if shown else "") + notes


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>\n'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int = 1) -> str:
    """Return a table; the columns from `numbers_from` on are aligned to the right."""

    def line(cells: Sequence[str], tag: str) -> str:
        marks = ("" if at < numbers_from else ' class="number"' for at in range(len(cells)))
        return "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for mark, cell in zip(marks, cells, strict=True))

    body = "".join(f"<tr>{line(cells, 'td')}</tr>\n" for cells in rows)
    top = f"<thead><tr>{line(head, 'th')}</tr></thead>"
    return f'<div class="wide"><table>{top}<tbody>\n{body}</tbody></table></div>\n'


def _confusion_table(class_names: Sequence[str], counts: npt.NDArray[np.int64]) -> str:
    """Return a confusion matrix, coloured by the shares of the annotated objects.

    Rows are detected classes and columns annotated ones; the last row contains missed objects, the last column false
    alarms.
    """
    names = [*class_names, "background"]
    head = "".join(f'<th class="number">{escape(name)}</th>' for name in names)
    lines = []
    shares = counts / np.maximum(counts.sum(axis=0), 1)
    for name, row, parts in zip(names, counts.tolist(), shares.tolist(), strict=True):
        cells = (
            f'<td class="number" style="--share:{share:.3f}">{count:,}</td>'
            for count, share in zip(row, parts, strict=True)
        )
        lines.append(f"<tr><th>{escape(name)}</th>{''.join(cells)}</tr>\n")
    top = f"<thead><tr><th>detected ↓<br>annotated →</th>{head}</tr></thead>"
    return f'<div class="wide"><table class="confusion">{top}<tbody>\n{"".join(lines)}</tbody></table></div>\n'


def folded(title: str, element: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{element}</details>\n"


def facts(pairs: Mapping[str, str]) -> str:
    items = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs.items())
    return f"<dl>{''.join(items)}</dl>\n"


def timestamp(time_s: float) -> str:
    return datetime.fromtimestamp(time_s).strftime("%Y-%m-%d %H:%M:%S")
