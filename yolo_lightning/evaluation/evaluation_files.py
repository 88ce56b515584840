"""Writes what an evaluation leaves behind; a full disk does not end the run."""

from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only, rank_zero_warn

from yolo_lightning.evaluation.record import EvaluationRecord, Stage
from yolo_lightning.evaluation.score_pictures import draw_evaluation
from yolo_lightning.evaluation.ultralytics_metrics import UltralyticsScores
from yolo_lightning.utils.optional_file import OptionalFile
from yolo_lightning.utils.run_files import EVALUATIONS, evaluation_record

RECORD, PICTURES = OptionalFile(), OptionalFile()
"""Of this process: an evaluation follows another."""


def write_record(trainer: Trainer, record: EvaluationRecord) -> bool:
    """Write a record into the run folder; whether that went well. Call it in the first process alone."""
    path = Path(trainer.default_root_dir) / evaluation_record(record.stage)
    with RECORD.attempt(path, "the run goes on"):
        record.save(path)
    return not RECORD.failed


@rank_zero_only
def draw_record(trainer: Trainer, stage: Stage, scores: UltralyticsScores) -> None:
    """Draw curves and confusion matrices of the record in the run folder, which has these scores."""
    folder = Path(trainer.default_root_dir)
    try:
        with PICTURES.attempt(f"pictures of the evaluation into {folder / EVALUATIONS}", "the run goes on"):
            record = EvaluationRecord.load(folder / evaluation_record(stage))
            paths = draw_evaluation(record, scores, folder / EVALUATIONS)
    except ValueError as error:
        rank_zero_warn(f"could not draw the evaluation ({error}); the run goes on")
        return
    if not PICTURES.failed:
        rank_zero_info(f"pictures: {len(paths)} of precision, recall and confusion in {folder / EVALUATIONS}")
