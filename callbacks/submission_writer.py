"""Writes what `predict` found: the challenge's answer file for LTDv2, COCO's list of results for other data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from yolo_lightning.challenge.submission_file import build_submission, write_submission
from yolo_lightning.data.batch import Prediction
from yolo_lightning.evaluation.coco_results import coco_results, write_coco_results
from yolo_lightning.utils.distributed import gather_on_first
from yolo_lightning.utils.run_files import PREDICTIONS, PREDICTIONS_ARCHIVE


class SubmissionWriter(Callback):
    """Collects the predictions and writes `predictions.json` into the run folder; for LTDv2 also its zip.

    The datamodule must offer `predict_image_ids`, `predict_original_ids`, `is_ltdv2` and `category_ids`. For LTDv2
    every image id becomes a key of the challenge's form; else the file is COCO's list of results with the ids of images
    and categories that the dataset's own files have.
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
        """Bring the predictions of all processes together, and write the files."""
        gathered = gather_on_first(compact(self._predictions))
        self._predictions = []
        if gathered is None:
            return
        predictions = [prediction for share in gathered for prediction in apart(share)]
        folder = Path(trainer.default_root_dir)
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        write = write_challenge if data.is_ltdv2 else write_results
        rank_zero_info(write(predictions, data, folder))


def write_challenge(predictions: Sequence[Prediction], data: Any, folder: Path) -> str:
    """The challenge's answer file and its zip; returns what to tell the user."""
    content = build_submission(predictions, data.predict_image_ids)
    for name in (PREDICTIONS, PREDICTIONS_ARCHIVE):
        write_submission(content.items(), folder / name)
    boxes = sum(len(entry["labels"]) for entry in content.values())
    return f"submission: {len(content):,} images, {boxes:,} boxes in {folder / PREDICTIONS} and its zip"


def write_results(predictions: Sequence[Prediction], data: Any, folder: Path) -> str:
    """COCO's list of results; returns what to tell the user."""
    results = coco_results(predictions, data.predict_original_ids, data.category_ids)
    write_coco_results(results, folder / PREDICTIONS)
    return f"predictions: {len(data.predict_image_ids):,} images, {len(results):,} boxes in {folder / PREDICTIONS}"


def compact(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Predictions as a few large tensors, which travel between processes faster than many small ones."""
    counts = [len(one.labels) for one in predictions]
    empty = Prediction("", torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    fields = ("boxes", "scores", "labels")
    joined = {name: torch.cat([getattr(one, name).cpu() for one in (empty, *predictions)]) for name in fields}
    return {"image_ids": [one.image_id for one in predictions], "counts": counts, **joined}


def apart(share: dict[str, Any]) -> list[Prediction]:
    """What `compact` has joined."""
    columns = [share[name].split(share["counts"]) for name in ("boxes", "scores", "labels")]
    return [Prediction(*parts) for parts in zip(share["image_ids"], *columns, strict=True)]
