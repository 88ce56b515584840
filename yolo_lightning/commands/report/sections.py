"""Pieces of HTML; whatever comes from a file is escaped."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape

from yolo_lightning.commands.monitor.run_state import Checkpoint
from yolo_lightning.commands.monitor.wording import duration, size
from yolo_lightning.commands.report.contents import Contents, IncidentSummary
from yolo_lightning.evaluation.average_precision import NO_GROUND_TRUTH

DASH = "-"


def section(name: str, title: str, *parts: str) -> str:
    """A part of the page under a heading; `name` is where links lead to."""
    return f'<section id="{name}"><h2>{escape(title)}</h2>\n{"".join(parts)}</section>\n'


def figure(element: str | None, title: str, missing: str) -> str:
    """A drawn figure under its title, or one line that says why there is none."""
    return note(f"{title}: {missing}") if element is None else titled(title, element)


def titled(title: str, element: str) -> str:
    """What is drawn, under its title."""
    return f'<figure class="chart"><figcaption>{escape(title)}</figcaption>{element}</figure>\n'


def grid(*parts: str) -> str:
    """Figures beside each other where there is room; what there is a line about instead comes below them."""
    shown = [part for part in parts if part.startswith("<figure")]
    missing = "".join(part for part in parts if not part.startswith("<figure"))
    return (f'<div class="grid">{"".join(shown)}</div>\n' if shown else "") + missing


def note(text: str) -> str:
    """One line."""
    return f'<p class="note">{escape(text)}</p>\n'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int = 1) -> str:
    """Cells as plain text; those from column `numbers_from` on stand to the right."""

    def line(cells: Sequence[str], tag: str) -> str:
        marks = ("" if at < numbers_from else ' class="number"' for at in range(len(cells)))
        return "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for mark, cell in zip(marks, cells, strict=True))

    body = "".join(f"<tr>{line(cells, 'td')}</tr>\n" for cells in rows)
    top = f"<thead><tr>{line(head, 'th')}</tr></thead>"
    return f'<div class="wide"><table>{top}<tbody>\n{body}</tbody></table></div>\n'


def folded(title: str, *parts: str) -> str:
    """Shown when asked for."""
    return f"<details><summary>{escape(title)}</summary>{''.join(parts)}</details>\n"


def text_block(text: str) -> str:
    """As it is, letter by letter."""
    return f"<pre>{escape(text)}</pre>"


def facts(pairs: Mapping[str, str]) -> str:
    """Names and what belongs to them."""
    return (
        "<dl>" + "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in pairs.items()) + "</dl>\n"
    )


def summary(contents: Contents) -> str:
    """What one wants to know first."""
    pairs = {"state": contents.state}
    metrics = contents.metrics
    if len(metrics):
        pairs["trained"] = f"{metrics.columns['step'].max():,.0f} batches, {duration(metrics.columns['time_s'].max())}"
    for evaluation in contents.evaluations:
        known = [
            (key, evaluation.scores[key]) for key in ("map_50", "map", "balanced", "cov") if key in evaluation.scores
        ]
        if known:
            pairs[evaluation.stage] = ", ".join(f"{key} {score(value)}" for key, value in known)
    if len(pace := metrics.pace()):
        rate = sorted(pace.values.tolist())[len(pace) // 2]
        frames = f", {rate * contents.batch_size:,.1f} frames/s" if contents.batch_size else ""
        pairs["pace"] = f"{rate:.3g} batches/s{frames} (median)"
    pairs["incidents"] = str(len(contents.incidents))
    return facts(pairs)


def score(value: float | None) -> str:
    """Four digits, or a dash where nothing was annotated."""
    return DASH if value is None or value == NO_GROUND_TRUTH else f"{value:.4f}"


def incident_list(incidents: Sequence[IncidentSummary]) -> str:
    """Numbered as in the figures."""
    return f"<ol>{''.join(map(incident_item, incidents))}</ol>\n"


def incident_item(incident: IncidentSummary) -> str:
    """When, what, what was done, and where the rest lies."""
    when = "at an unknown time" if incident.time_s is None else moment(incident.time_s)
    step = "" if incident.step is None else f", step {incident.step:,.0f}"
    known = incident.sentence.startswith(incident.kind)
    sentence = incident.sentence if known else f"{incident.kind}: {incident.sentence}"
    outcome = f" <b>→ {escape(incident.outcome)}</b>" if incident.outcome else ""
    place = f"incidents/{incident.folder}/"
    return f'<li><b>{when}{step}</b> {escape(sentence)}{outcome} <span class="note">{escape(place)}</span></li>\n'


def checkpoint_table(checkpoints: Sequence[Checkpoint], read_s: float) -> str:
    """Newest first."""
    rows = (
        [one.name, moment(read_s - one.age_s), DASH if one.steps is None else f"{one.steps:,}", size(one.size_bytes)]
        for one in checkpoints
    )
    return table(["file", "written", "batches trained", "size"], rows, numbers_from=2)


def moment(time_s: float) -> str:
    """Date and time of day, local."""
    return datetime.fromtimestamp(time_s).strftime("%Y-%m-%d %H:%M:%S")
