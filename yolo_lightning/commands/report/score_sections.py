"""Pieces of HTML about an evaluation: tables of scores, confusion, frames; what comes from a file is escaped."""

import base64
from collections.abc import Mapping
from html import escape

from yolo_lightning.commands.report.contents import Evaluation, Gallery, GalleryFrame
from yolo_lightning.commands.report.detections import Confusion
from yolo_lightning.commands.report.sections import note, score
from yolo_lightning.evaluation.average_precision import NO_GROUND_TRUTH
from yolo_lightning.evaluation.drift import month_name
from yolo_lightning.evaluation.plots import COLOURS

ALL = "all"
HEADINGS = {"best": "Best frames", "worst": "Worst frames"}


def score_rows(evaluation: Evaluation) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table: all frames and each month; frames, objects, mAP, mAP50, and mAP50 of each class."""
    scores = evaluation.scores
    months = sorted(name.removeprefix("map_50/") for name in scores if is_month(name, "map_50"))
    classes = [n.removeprefix("map_50/") for n in scores if n.startswith("map_50/") and n.count("/") == 1]
    classes = [name for name in classes if name not in months]
    sizes = counts(evaluation)
    rows = [
        [
            ALL,
            *sizes.get(ALL, []),
            *(score(scores.get(n)) for n in ("map", "map_50", *(f"map_50/{c}" for c in classes))),
        ]
    ]
    for month in months:
        names = (f"map/{month}", f"map_50/{month}", *(f"map_50/{month}/{name}" for name in classes))
        rows.append([month, *sizes.get(month, []), *(score(scores.get(name)) for name in names)])
    return ["", *(("frames", "objects") if sizes else ()), "map", "map_50", *classes], rows


def counts(evaluation: Evaluation) -> dict[str, list[str]]:
    """Frames and objects of all, and of each month; empty where that is not known."""
    if evaluation.detections is None:
        return {}
    drift = evaluation.detections.drift
    parts = {ALL: drift.overall} | {month_name(month): part for month, part in drift.monthly.items()}
    return {name: [f"{part.frames:,}", f"{part.annotated.sum():,}"] for name, part in parts.items()}


def monthly_scores(scores: Mapping[str, float]) -> dict[str, float]:
    """Score mAP50 by month, of those that were annotated."""
    found = {name.removeprefix("map_50/"): value for name, value in scores.items() if is_month(name, "map_50")}
    return {month: value for month, value in found.items() if value != NO_GROUND_TRUTH}


def is_month(name: str, score_name: str) -> bool:
    """Whether a logged name is that score of a month: map_50/2020-05."""
    month = name.removeprefix(f"{score_name}/")
    return name.startswith(f"{score_name}/") and len(month) == 7 and month[:4].isdecimal() and month[4] == "-"


def confusion_table(confusion: Confusion) -> str:
    """Annotated classes down, detected ones across; the darker, the larger the share of the row."""
    names = [*confusion.class_names, "nothing"]
    head = "".join(f'<th class="number">{escape(name)}</th>' for name in names)
    lines = []
    for name, counts in zip(names, confusion.counts.tolist(), strict=True):
        total = sum(counts)
        cells = "".join(
            f'<td class="number" style="--share:{count / total if total else 0:.3f}">{count:,}</td>' for count in counts
        )
        lines.append(f"<tr><th>{escape(name)}</th>{cells}</tr>\n")
    corner = "annotated ↓ detected →"
    return (
        f'<div class="wide"><table class="confusion"><thead><tr><th>{corner}</th>{head}</tr></thead>'
        f"<tbody>\n{''.join(lines)}</tbody></table></div>\n"
    )


def gallery(found: Gallery) -> str:
    """The frames by group, and what the colours mean."""
    colours = "".join(
        f'<span><i style="background:{COLOURS[at % len(COLOURS)]}"></i>{escape(name)}</span>'
        for at, name in enumerate(found.class_names)
    )
    parts = [
        note(f"Left: annotated. Right: detected with a score of at least {found.score_threshold:g}. F1 at IoU 0.5."),
        f'<p class="key">{colours}</p>\n',
    ]
    for group, heading in HEADINGS.items():
        frames = [one for one in found.frames if one.group == group]
        if not frames:
            parts.append(note(f"{heading}: none."))
            continue
        pictures = "".join(gallery_frame(one) for one in frames)
        parts.append(f'<h3>{heading}</h3>\n<div class="grid">{pictures}</div>\n')
    return "".join(parts)


def gallery_frame(one: GalleryFrame) -> str:
    """A picture and its numbers."""
    data = base64.b64encode(one.jpeg).decode("ascii")
    words = f"F1 {one.score:.2f}; objects {one.objects}, missed {one.misses}, false alarms {one.false_alarms}"
    return (
        f'<figure class="frame"><img alt="annotated and detected boxes of frame {escape(one.image_id)}" '
        f'src="data:image/jpeg;base64,{data}"><figcaption>{escape(one.image_id)}<br>{words}</figcaption></figure>\n'
    )
