"""The whole page."""

from html import escape
from importlib.resources import files
from string import Template

from yolo_lightning.commands.report import score_sections, sections
from yolo_lightning.commands.report.contents import Contents, Evaluation
from yolo_lightning.commands.report.curves import loss_figure, pace_figure, rate_figure, score_figure, timeline_figure
from yolo_lightning.commands.report.detections import Detections
from yolo_lightning.commands.report.score_charts import month_figure, precision_recall_figure, size_figure

STAGE_NAMES = {"val": "Validation", "test": "Test"}
NO_RECORD = "the run folder keeps no matched detections of this split."


def render(contents: Contents) -> str:
    """The report as one HTML file that refers to nothing outside itself."""
    parts = [
        sections.section("summary", "Summary", sections.summary(contents), damaged(contents)),
        sections.section("curves", "Training", training(contents)),
        *(of_split(evaluation) for evaluation in contents.evaluations),
    ]
    if not contents.evaluations:
        parts.append(sections.section("evaluation", "Evaluation", sections.note("No validation and no test yet.")))
    parts.append(sections.section("events", "Incidents and restarts", events(contents)))
    parts.append(sections.section("checkpoints", "Checkpoints", saved(contents)))
    parts.append(sections.section("setup", "Environment and configuration", setup(contents)))
    links = {"curves": "training"} | {one.stage: STAGE_NAMES[one.stage].lower() for one in contents.evaluations}
    links |= {"events": "incidents", "checkpoints": "checkpoints", "setup": "environment and configuration"}
    template = Template(files("yolo_lightning.commands.report").joinpath("template.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=f"Run {escape(contents.name)}",
        links=" ".join(f'<a href="#{name}">{escape(word)}</a>' for name, word in links.items()),
        body="".join(parts),
        made=sections.moment(contents.read_s),
    )


def damaged(contents: Contents) -> str:
    """What could not be read, a line each; nothing where all is well."""
    if not contents.problems:
        return ""
    lines = "".join(f"<li>{escape(problem)}</li>\n" for problem in contents.problems)
    return f'<h3>Damaged files</h3><ul class="problems">{lines}</ul>\n'


def training(contents: Contents) -> str:
    """The curves."""
    metrics, incidents = contents.metrics, contents.incidents
    if not len(metrics):
        return sections.note("Nothing was logged yet.")
    marked = [incident for incident in incidents if incident.step is not None]
    return sections.grid(
        sections.figure(loss_figure(metrics, incidents), "Loss", "none was logged."),
        sections.figure(score_figure(metrics, incidents), "Scores of the validations", "no validation yet."),
        sections.figure(rate_figure(metrics, incidents), "Learning rate", "none was logged."),
        sections.figure(pace_figure(metrics, incidents), "Pace", "too few rows were logged."),
    ) + (sections.note("Dashed and numbered: incidents, listed below.") if marked else "")


def of_split(evaluation: Evaluation) -> str:
    """Scores, figures and frames of one split."""
    frames = (
        sections.note("Best and worst frames: none are kept.")
        if evaluation.gallery is None
        else score_sections.gallery(evaluation.gallery)
    )
    return sections.section(
        evaluation.stage, STAGE_NAMES[evaluation.stage], scores_of(evaluation), figures_of(evaluation), frames
    )


def scores_of(evaluation: Evaluation) -> str:
    """The table, and what has no column."""
    scores = evaluation.scores
    parts = [sections.note(trained_until(evaluation.detections))] if evaluation.detections is not None else []
    if not scores:
        return sections.note("Scores: none are written down.")
    parts.append(sections.table(*score_sections.score_rows(evaluation)))
    if "mar_100" in scores:
        names = ("map_75", "mar_1", "mar_10", "mar_100")
        parts.append(sections.note(", ".join(f"{name} {sections.score(scores.get(name))}" for name in names)))
    return "".join([*parts, sections.note(drift_sentence(evaluation))])


def figures_of(evaluation: Evaluation) -> str:
    """Months, precision and recall, confusion, sizes."""
    stage, detections, gallery = evaluation.stage, evaluation.detections, evaluation.gallery
    months = score_sections.monthly_scores(evaluation.scores)
    confusion = "Confusion matrix"
    return sections.grid(
        sections.figure(
            month_figure(stage, months, evaluation.scores.get("map_50")), "mAP50 by month", too_few_months(months)
        ),
        sections.figure(
            precision_recall_figure(stage, detections) if detections is not None else None,
            "Precision and recall at IoU 0.5",
            NO_RECORD if detections is None else "nothing was annotated.",
        ),
        sections.figure(
            size_figure(stage, gallery.sizes, gallery.score_threshold) if gallery is not None else None,
            "Sizes of objects and of detections",
            "none were kept." if gallery is None else "there are neither objects nor detections.",
        ),
        sections.figure(None, confusion, NO_RECORD)
        if detections is None
        else sections.titled(
            f"{confusion}, detections that score more than {detections.confusion.score_threshold:g}",
            score_sections.confusion_table(detections.confusion),
        ),
    )


def trained_until(detections: Detections) -> str:
    """Which weights were looked at."""
    if detections.steps is None:
        return "How long the weights had been trained is not known."
    epoch = f", in epoch {detections.epoch + 1}" if detections.epoch is not None else ""
    return f"Of the weights after {detections.steps:,} batches{epoch}."


def too_few_months(months: dict[str, float]) -> str:
    """Why there are no bars."""
    return f"only {next(iter(months))} is known." if months else "no month is known."


def drift_sentence(evaluation: Evaluation) -> str:
    """How the months vary."""
    scores = evaluation.scores
    if "cov" not in scores:
        return "CoV and balanced score: fewer than two of the challenge's months were annotated."
    compared = len(evaluation.detections.drift.compared()) if evaluation.detections is not None else None
    over = f" over {compared} months" if compared is not None else ""
    return (
        f"CoV of map_50{over} {sections.score(scores['cov'])}, balanced score {sections.score(scores.get('balanced'))}."
    )


def events(contents: Contents) -> str:
    """By the clock, and as a list."""
    starts = len(contents.starts_s)
    words = f"Starts of training: {starts}." if starts else "No start is recorded."
    listed = sections.incident_list(contents.incidents) if contents.incidents else sections.note("No incidents.")
    missing = "nothing has a time."
    return sections.note(words) + sections.figure(timeline_figure(contents), "By the clock", missing) + listed


def saved(contents: Contents) -> str:
    """The files."""
    if not contents.checkpoints:
        return sections.note("There is no checkpoint.")
    return sections.checkpoint_table(contents.checkpoints, contents.read_s)


def setup(contents: Contents) -> str:
    """Environment, and the configuration files to unfold."""
    environment = contents.environment
    parts = [
        sections.folded("Environment", sections.facts(environment))
        if environment
        else sections.note("Environment: it is not written down.")
    ]
    parts += [sections.folded(name, sections.text_block(text)) for name, text in contents.configurations.items()]
    if not contents.configurations:
        parts.append(sections.note("Configuration: it is not written down."))
    return "".join(parts)
