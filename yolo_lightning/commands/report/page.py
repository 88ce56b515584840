"""The HTML page of a report. All text from files is escaped."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context

from yolo_lightning.commands.console import gigabytes
from yolo_lightning.commands.monitor.run_state import finding_line
from yolo_lightning.commands.report import figures
from yolo_lightning.commands.report.read_report import Contents, Evaluation, GalleryFrame
from yolo_lightning.evaluation.drawing import class_colour
from yolo_lightning.evaluation.drift import month_name
from yolo_lightning.evaluation.oracles import oracles
from yolo_lightning.evaluation.record import EvaluationRecord
from yolo_lightning.evaluation.score_table import (
    SCORE_LABELS,
    class_rows,
    drift_summary,
    is_defined,
    oracle_cells,
    score_text,
    scores_text,
    ultralytics_text,
)
from yolo_lightning.evaluation.ultralytics_matching import CONFUSION_SCORE_THRESHOLD
from yolo_lightning.evaluation.ultralytics_metrics import ultralytics_scores
from yolo_lightning.supervision.fallback_levels import AS_CONFIGURED
from yolo_lightning.supervision.incident import IncidentReport
from yolo_lightning.utils.moment import duration
from yolo_lightning.utils.run_files import BEST_CHECKPOINT, TRAINING_IMAGES

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
    links = {"curves": "training"}
    for evaluation in contents.evaluations:
        links[evaluation.stage] = STAGE_NAMES[evaluation.stage].lower()
    links |= {"events": "incidents", "checkpoints": "checkpoints", "setup": "environment and configuration"}
    return whole_page(f"Run {contents.name}", links, parts, contents.read_s)


def whole_page(title: str, links: Mapping[str, str], parts: Iterable[str], read_s: float) -> str:
    """Return an HTML page of sections, with links to them by id, and the time of reading in seconds since 1970."""
    template = Template(files("yolo_lightning.commands.report").joinpath("template.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(title),
        links=" ".join(f'<a href="#{name}">{escape(word)}</a>' for name, word in links.items()),
        body="".join(parts),
        made=timestamp(read_s),
    )


def summary(contents: Contents) -> str:
    """Return state, training time, scores, number of incidents, and the damaged files."""
    return facts(run_facts(contents)) + problem_list(contents.problems)


def problem_list(problems: Sequence[str]) -> str:
    """Return a list of the damaged files; empty without one."""
    if not problems:
        return ""
    items = "".join(f"<li>{escape(problem)}</li>\n" for problem in problems)
    return f'<h3>Damaged files</h3><ul class="problems">{items}</ul>\n'


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
    epochs = int(columns["epoch"].max()) + 1
    planned = "" if contents.epochs is None else f" of {contents.epochs:,}"
    pairs = {
        "epochs": f"{epochs:,}{planned}",
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


def training(contents: Contents) -> str:
    metrics = contents.metrics
    incidents = contents.incidents
    if metrics.is_empty:
        return note("Nothing was logged yet.")
    curves = grid(
        figure("Loss", figures.loss_figure(metrics, incidents), "not logged."),
        figure("Validation scores", figures.score_figure(metrics, incidents), "no validation yet."),
        figure("Learning rate", figures.rate_figure(metrics, incidents), "not logged."),
    )
    if incidents:
        curves += note("Numbered dashed lines: incidents, listed below.")
    return curves + sheets(contents)


def sheets(contents: Contents) -> str:
    """Return the pictures of the same frames after each validation, newest first; empty without pictures."""
    pictures = ""
    for name in sorted(contents.sheets, reverse=True):
        epoch = name.removeprefix("epoch-").partition("-")[0].lstrip("0")
        caption = f"<figcaption>epoch {escape(epoch)}</figcaption>"
        pictures += f'<figure class="frame wide">{picture(contents.sheets[name], name)}{caption}</figure>\n'
    if not pictures:
        return ""
    rows = note("Upper row: annotated. Lower row: detected.")
    return folded("Predictions after each validation", f'{rows}<div class="sheets">{pictures}</div>')


def _split_section(evaluation: Evaluation) -> str:
    """Return scores, figures and frames of one split."""
    stage = evaluation.stage
    record = evaluation.record
    monthly = {name: evaluation.scores[f"map_50/{name}"] for name in _months(evaluation)}
    monthly = {name: score for name, score in monthly.items() if is_defined(score)}
    by_month = ""
    if monthly:
        bars = figures.month_figure(stage, monthly, evaluation.scores.get("map_50"))
        by_month = figure("mAP50 by month", bars, f"only {next(iter(monthly))} has a score.")
    curves = evaluation.curves
    by_recall = figures.class_curves_figure(stage, record.class_names, curves, evaluation.drift.overall)
    by_score = figures.threshold_figure(stage, record.class_names, curves)
    confusion = _confusion_table(record.class_names, record.ultralytics.confusion())
    charts = grid(
        by_month,
        figure("Precision and recall at IoU 0.5", by_recall, "there are no annotated objects."),
        figure("Precision, recall and F1 over the score threshold at IoU 0.5", by_score, "as above."),
        figure(
            f"Confusion matrix as in Ultralytics, detections with a score > {CONFUSION_SCORE_THRESHOLD:g}",
            confusion,
            "",
        ),
    )
    parts = [_weights(record), _class_table(evaluation), _month_table(evaluation)]
    comparison = ultralytics_text(ultralytics_scores(record.ultralytics))
    parts += map(note, [*drift_summary(evaluation.drift).splitlines(), *filter(None, [comparison])])
    rows = oracles(record.matches, record.class_names)
    if rows:
        oracle_table = table(*oracle_cells(rows))
        parts.append(folded("Where points can be gained: the scores without one kind of error", oracle_table))
    return section(stage, STAGE_NAMES[stage], *parts, charts, frame_gallery(evaluation))


def _weights(record: EvaluationRecord) -> str:
    """Return a note about the evaluated weights; empty if they are unknown."""
    if record.steps is None:
        return ""
    text = f"Weights after {record.steps:,} batches"
    if record.epoch is not None:
        text += f", in epoch {record.epoch + 1}"
    return note(f"{text}.")


def _months(evaluation: Evaluation) -> list[str]:
    """Return the names of the months with annotated objects."""
    return [month_name(month) for month, part in evaluation.drift.monthly.items() if part.annotated.any()]


def _class_table(evaluation: Evaluation) -> str:
    """Return objects, precision, recall, F1 and scores of all classes and of each annotated class."""
    head = ["class", "objects", "precision", "recall", "F1", *SCORE_COLUMNS]
    rows = class_rows(evaluation.drift, evaluation.curves, evaluation.record.class_names, MISSING)
    threshold = evaluation.curves.best_threshold()
    return table(head, rows) + note(f"Precision, recall, F1: at IoU 0.5 and score threshold {threshold:.3f}.")


def _month_table(evaluation: Evaluation) -> str:
    """Return the scores of all frames and of each month; empty without months."""
    months = _months(evaluation)
    if not months:
        return ""
    scores = evaluation.scores
    drift = evaluation.drift
    classes = [evaluation.record.class_names[label] for label in evaluation.curves.labels]
    parts = {"all": drift.overall} | {month_name(month): part for month, part in drift.monthly.items()}
    rows = []
    for name in ("all", *months):
        suffix = "" if name == "all" else f"/{name}"
        logged = (f"map_50{suffix}", f"map{suffix}", *(f"map_50{suffix}/{class_name}" for class_name in classes))
        cells = [score_text(scores.get(score), MISSING) for score in logged]
        rows.append([name, f"{parts[name].frames:,}", f"{parts[name].annotated.sum():,}", *cells])
    return table(["month", "frames", "objects", *SCORE_COLUMNS, *classes], rows) + note("Columns of classes: mAP50.")


def frame_gallery(evaluation: Evaluation) -> str:
    """Return the best and worst frames, and the colours of the classes."""
    gallery = evaluation.gallery
    if gallery is None:
        return note("Best and worst frames: not stored.")
    colours = "".join(
        f'<span><i style="background:{class_colour(label)}"></i>{escape(name)}</span>'
        for label, name in enumerate(gallery.class_names)
    )
    page = note(f"Left: annotated. Right: detected with a score >= {gallery.score_threshold:g}. F1 at IoU 0.5.")
    page += f'<p class="key">{colours}</p>\n'
    for group, heading in {"best": "Best frames", "worst": "Worst frames"}.items():
        pictures = ""
        for frame in gallery.frames:
            if frame.group == group and frame.file in evaluation.pictures:
                pictures += _frame_picture(frame, evaluation.pictures[frame.file])
        if pictures:
            page += f'<h3>{heading}</h3>\n<div class="grid">{pictures}</div>\n'
        else:
            page += note(f"{heading}: none.")
    return page


def _frame_picture(frame: GalleryFrame, jpeg: bytes) -> str:
    counts = f"objects {frame.objects}, missed {frame.misses}, false alarms {frame.false_alarms}"
    return (
        f'<figure class="frame">{picture(jpeg, frame.image_id)}'
        f"<figcaption>{escape(frame.image_id)}<br>F1 {frame.score:.2f}; {counts}</figcaption></figure>\n"
    )


def picture(jpeg: bytes, name: str) -> str:
    """Return an image element of a frame or of the frames of an epoch."""
    content = base64.b64encode(jpeg).decode("ascii")
    return f'<img alt="annotated and detected boxes of {escape(name)}" src="data:image/jpeg;base64,{content}">'


def events(contents: Contents) -> str:
    page = note("No incidents.")
    if contents.incidents:
        page = f"<ol>{''.join(map(_incident_item, contents.incidents))}</ol>\n"
    if not contents.findings:
        return page + note("The watches have found nothing.")
    findings = "".join(f"<li>{escape(finding_line(finding, contents.read_s))}</li>\n" for finding in contents.findings)
    return f"{page}<h3>Watches</h3><ul>{findings}</ul>\n"


def _incident_item(incident: IncidentReport) -> str:
    heading = timestamp(incident.time_s)
    if incident.step is not None:
        heading += f", step {incident.step:,.0f}"
    sentence = incident.sentence
    if not sentence.startswith(incident.kind):
        sentence = f"{incident.kind}: {sentence}"
    text = f"<b>{heading}</b> {escape(sentence)}"
    if incident.outcome:
        text += f" <b>→ {escape(incident.outcome)}</b>"
    place = f'<span class="note">incidents/{escape(incident.folder)}/</span>'
    return f"<li>{text} {place}</li>\n"


def _checkpoint_table(contents: Contents) -> str:
    if not contents.checkpoints:
        return note("There is no checkpoint.")
    rows = []
    for checkpoint in contents.checkpoints:
        steps = MISSING if checkpoint.steps is None else f"{checkpoint.steps:,}"
        written = timestamp(contents.read_s - checkpoint.age_s)
        rows.append((checkpoint.name, written, steps, gigabytes(checkpoint.size_bytes)))
    return table(["file", "written", "batches trained", "size"], rows, numbers_from=2)


def setup(contents: Contents) -> str:
    page = note("Environment: not recorded.")
    if contents.environment:
        page = folded("Environment", facts(contents.environment))
    for name, configuration in contents.configurations.items():
        page += folded(name, f"<pre>{escape(configuration)}</pre>")
    if not contents.configurations:
        page += note("Configuration: not recorded.")
    return page


def section(name: str, title: str, *parts: str) -> str:
    return f'<section id="{name}"><h2>{escape(title)}</h2>\n{"".join(parts)}</section>\n'


def figure(title: str, element: str | None, missing: str) -> str:
    """Return an element under its title, or a note with the reason if there is no element."""
    if element is None:
        return note(f"{title}: {missing}")
    return f'<figure class="chart"><figcaption>{escape(title)}</figcaption>{element}</figure>\n'


def grid(*parts: str) -> str:
    """Return figures side by side, followed by the notes among `parts`."""
    shown = "".join(part for part in parts if part.startswith("<figure"))
    notes = "".join(part for part in parts if not part.startswith("<figure"))
    if shown:
        shown = f'<div class="grid">{shown}</div>\n'
    return shown + notes


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>\n'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int = 1) -> str:
    """Return a table; the columns from `numbers_from` on are aligned to the right."""

    def line(cells: Sequence[str], tag: str) -> str:
        words = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells[:numbers_from])
        return words + "".join(f'<{tag} class="number">{escape(cell)}</{tag}>' for cell in cells[numbers_from:])

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
