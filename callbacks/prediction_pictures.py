"""Pictures of the predictions on some frames of `test` and `predict`."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from yolo_lightning.data.batch import Batch, Prediction, Target
from yolo_lightning.data.boxes import scaled_shape
from yolo_lightning.evaluation.plots import LabelledImage, draw_pictures, false_colour
from yolo_lightning.utils.choices import check_range
from yolo_lightning.utils.logged_pictures import log_picture
from yolo_lightning.utils.optional_file import OptionalFile
from yolo_lightning.utils.run_files import picture_name


class PredictionPictures(Callback):
    """Draws predictions, and in a test the targets, on frames spread over the split.

    Writes `test.png` or `predict.png` in the run folder, and gives the picture to the loggers. A full disk does not
    end the run.

    Args:
        frames: Number of frames, >= 1.
    """

    def __init__(self, frames: int = 9) -> None:
        check_range("frames", frames, ">= 1")
        self.frames = frames
        self._pictures: list[LabelledImage] = []

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int, *_: Any
    ) -> None:
        self._collect((batch_idx + 1) / sum(trainer.num_test_batches), batch, outputs["preds"], outputs["targets"])

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int, *_: Any
    ) -> None:
        self._collect((batch_idx + 1) / sum(trainer.num_predict_batches), batch, outputs, None)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._draw(trainer, pl_module, "test")

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._draw(trainer, pl_module, "predict")

    def _collect(self, seen: float, batch: Batch, predictions: list[Prediction], targets: list[Target] | None) -> None:
        """Add frames of a batch, with which the share `seen` of all batches is processed."""
        due = round(self.frames * seen) - len(self._pictures)
        for number, position in enumerate(batch.readable_positions()[: max(0, due)]):
            target = targets[number] if targets else None
            self._pictures.append(LabelledImage(original_frame(batch, position), predictions[number], target))

    def _draw(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not self._pictures or not trainer.is_global_zero:
            return
        path = Path(trainer.default_root_dir) / picture_name(stage)
        pictures, self._pictures = self._pictures, []
        with OptionalFile().attempt(path, "the run continues"):
            draw_pictures(pictures, pl_module.hparams["class_names"], path)
            log_picture(trainer, path)
            rank_zero_info(f"picture: {len(pictures)} frames with predictions in {path}")


def original_frame(batch: Batch, position: int) -> npt.NDArray[np.uint8]:
    """Return a frame in its original size, cropped from the letterboxed image.

    The frame is `(H, W)` or `(H, W, 3)` uint8; neighbouring frames are in false colour.
    """
    height, width = batch.frame_shapes[position]
    placement = batch.letterboxes[position]
    channels = batch.images[position].cpu().numpy()
    image = channels[0] if len(channels) == 1 else np.ascontiguousarray(false_colour(np.moveaxis(channels, 0, -1)))
    rows, columns = scaled_shape(height, width, placement.gain)
    inside = image[placement.top : placement.top + rows, placement.left : placement.left + columns]
    return np.asarray(cv2.resize(inside, (width, height)), dtype=np.uint8)
