"""Writes the challenge's answer file after `predict`."""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from yolo_lightning.batch import Prediction
from yolo_lightning.evaluation.submission import build_submission, write_submission
from yolo_lightning.run_folder import PREDICTIONS, PREDICTIONS_ARCHIVE


class SubmissionWriter(Callback):
    """Collects the predictions and writes `predictions.json` and its zip into the run folder.

    The datamodule must offer `predict_image_ids`: every one of them becomes a key.
    """

    def __init__(self) -> None:
        self._predictions: list[Prediction] = []

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Collect."""
        self._predictions.extend(outputs)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the files."""
        folder = Path(trainer.default_root_dir)
        image_ids: list[str] = trainer.datamodule.predict_image_ids  # type: ignore[attr-defined]
        content = build_submission(self._predictions, image_ids)
        write_submission(content, folder / PREDICTIONS, folder / PREDICTIONS_ARCHIVE)
        boxes = sum(len(entry["labels"]) for entry in content.values())
        rank_zero_info(f"submission: {len(content):,} images, {boxes:,} boxes in {folder / PREDICTIONS} and its zip")
        self._predictions = []
