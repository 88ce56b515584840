"""`python -m yolo_lightning bootstrap RUN`: intervals of the monthly scores and the balanced score of an evaluation."""

from typing import Literal

import rich

from yolo_lightning.commands.console import count_text
from yolo_lightning.commands.monitor.read_run import check_holds_run
from yolo_lightning.errors import UserError
from yolo_lightning.evaluation.bootstrap_limits import MIN_BOOTSTRAP_SAMPLES
from yolo_lightning.utils.choices import check_range
from yolo_lightning.utils.paths import user_path
from yolo_lightning.utils.run_files import evaluation_record

Evaluated = Literal["val", "test"]
COLUMNS = ("score", "low", "median", "high")


def bootstrap(
    run: str,
    *,
    stage: Evaluated = "val",
    samples: int = 1000,
    confidence: float = 0.95,
) -> None:
    """Show how much the scores of the last validation or test depend on the chance choice of the clips.

    Clips are drawn with replacement within each month from the stored evaluation; no network runs.

    Args:
        run: Run folder.
        stage: Evaluation, `val` or `test`.
        samples: Number of bootstrap samples, >= 100.
        confidence: Share of the samples inside an interval, > 0 and < 1.
    """
    check_range("samples", samples, f">= {MIN_BOOTSTRAP_SAMPLES}")
    check_range("confidence", confidence, "> 0", "< 1")
    folder = user_path(run)
    if not folder.is_dir():
        check_holds_run(folder)
    path = folder / evaluation_record(stage)
    if not path.exists():
        command = "validate" if stage == "val" else "test"
        raise UserError(f"{run} contains no {evaluation_record(stage)}: run `{command}` first")
    from yolo_lightning.evaluation.drift import drift_scores, month_name, named_scores  # imports torch
    from yolo_lightning.evaluation.record import EvaluationRecord
    from yolo_lightning.evaluation.score_intervals import bootstrap as sampled
    from yolo_lightning.evaluation.score_table import number_table, score_text

    record = EvaluationRecord.load(path)
    measured = named_scores(drift_scores(record.matches), record.class_names)
    scores = sampled(record.matches, record.image_ids, samples, seed=0)
    table = number_table(f"{stage}: {count_text(samples, 'sample')}, {100 * confidence:g} %", COLUMNS)
    for name, interval in scores.intervals(confidence).items():
        table.add_row(name, *map(score_text, (measured.get(name), *interval)))
    rich.print(table)
    if scores.single_clips:
        print(f"too narrow, because of one clip only: {', '.join(map(month_name, scores.single_clips))}")
