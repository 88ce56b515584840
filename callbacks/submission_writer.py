"""Result file of `predict`: the submission of the challenge for LTDv2, COCO results for other data."""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from yolo_lightning.challenge.submission_file import build_submission, write_submission
from yolo_lightning.data.batch import Prediction
from yolo_lightning.errors import UserError
from yolo_lightning.evaluation.coco_results import coco_results, write_coco_results
from yolo_lightning.utils.distributed import gather
from yolo_lightning.utils.run_files import PREDICTIONS, PREDICTIONS_ARCHIVE


class SubmissionWriter(Callback):
    """Collects the predictions and writes `predictions.json` to the run folder; for LTDv2 also its zip.

    The data module must have `predict_image_ids`, `predict_original_ids`, `has_submission` and `category_ids`. For
    LTDv2 the file is in the format of the challenge, with a key for every image; otherwise it is COCO's list of
    results, with the ids of images and categories in the files of the dataset.
    """

    def __init__(self) -> None:
        self._predictions: list[Prediction] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "predict" and "predict_image_ids" not in dir(trainer.datamodule):  # type: ignore[attr-defined]
            raise UserError("SubmissionWriter needs a DetectionDataModule: use Trainer.predict(model, data)")

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the predictions of a call that an error has ended."""
        self._predictions = []

    def on_predict_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
        self._predictions.extend(outputs)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather the predictions of all ranks, and write the files in the first rank."""
        predictions = [prediction for share in gather(self._predictions) for prediction in share]
        self._predictions = []
        if not trainer.is_global_zero:
            return
        path = Path(trainer.default_root_dir) / PREDICTIONS
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        images = f"{len(data.predict_image_ids):,} images"
        if data.has_submission:
            content = build_submission(predictions, data.predict_image_ids)
            for target in (path, path.with_name(PREDICTIONS_ARCHIVE)):
                write_submission(content.items(), target)
            boxes = sum(len(entry["labels"]) for entry in content.values())
            rank_zero_info(f"submission: {images}, {boxes:,} boxes in {path} and its zip")
        else:
            results = coco_results(predictions, data.predict_original_ids, data.category_ids)
            write_coco_results(results, path)
            rank_zero_info(f"predictions: {images}, {len(results):,} boxes in {path}")
