"""Pictures of the best and worst frames of an evaluation, for the report."""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from lightning.pytorch import Callback, LightningModule, Trainer

from yolo_lightning.data.array_types import UInt8Array
from yolo_lightning.data.batch import Batch, Prediction, Target
from yolo_lightning.data.formats.image_ids import clip_of_id
from yolo_lightning.errors import UserError
from yolo_lightning.evaluation.drawing import encode, original_frame, prediction_sheet, side_by_side
from yolo_lightning.evaluation.gallery import FrameScore, Gallery, GalleryFrame, frame_scores, shown_detections
from yolo_lightning.utils.choices import checked_arguments
from yolo_lightning.utils.files import write_bytes, write_json
from yolo_lightning.utils.loop_position import ends_after_batch, is_last_epoch, is_validation_of_fit, steps_begun
from yolo_lightning.utils.optional_file import OptionalFile
from yolo_lightning.utils.run_files import EPOCHS, FRAMES

STAGES = {"fit": "val", "validate": "val", "test": "test"}
"""Prefix of the file names, by Trainer function."""

MOST_SHEETS = 12

MIDDLE = 0.5
"""If a small split puts a frame in both groups, scores from this one on count as best."""


@dataclass(frozen=True, slots=True, order=True)
class KeptFrame:
    """Frame with its targets and predictions; compared by `key` alone."""

    key: tuple[float, int, str]
    score: FrameScore = field(compare=False)
    pixels: UInt8Array = field(compare=False)
    prediction: Prediction = field(compare=False)
    target: Target = field(compare=False)


class FrameGallery(Callback):
    """Writes the best and worst frames, targets beside predictions, and an index file to `evaluations/frames`.

    Of each clip of LTDv2, at most one frame is among the best and one among the worst.

    Frames are taken from the validation of the last epoch of `fit`, from `validate` and from `test`. The score of a
    frame is F1 at IoU 0.5 over all classes, of the detections with a score of at least `score_threshold`, with one
    class per box as in `predict PICTURES`; frames with neither objects nor such detections are skipped. At most
    `best + worst` frames are kept in memory. With several ranks only frames of the first rank are used. A full disk
    does not end the run.

    After each validation of `fit`, a sheet with annotations and detections of the same frames is written to
    `evaluations/frames/epochs`. There are at most 12 sheets: then every second one is deleted, except the first and
    the last.

    Args:
        best: Number of best frames, >= 0.
        worst: Number of worst frames, >= 0; `best` and `worst` must not both be 0.
        score_threshold: Smallest score of a detection that counts and is drawn, 0 to 1.
        sheet_frames: Number of frames of a sheet, the first ones with objects, each of another clip; 0 writes none.
    """

    @checked_arguments(best=">= 0", worst=">= 0", score_threshold=">= 0, <= 1", sheet_frames=">= 0")
    def __init__(self, best: int = 6, worst: int = 6, score_threshold: float = 0.25, sheet_frames: int = 4) -> None:
        if best + worst == 0:
            raise UserError("best and worst must not both be 0")
        self.best = best
        self.worst = worst
        self.score_threshold = score_threshold
        self.sheet_frames = sheet_frames
        self._sheet: dict[str, tuple[UInt8Array, Target, Prediction]] = {}
        """Frames of the sheet with their targets and detections, by clip."""
        self._best: list[KeptFrame] = []
        self._worst: list[KeptFrame] = []
        self._file = OptionalFile()

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if "class_names" not in pl_module.hparams:
            raise UserError(f"FrameGallery needs a YOLOModule, got {type(pl_module).__name__}")
        self._best = []
        self._worst = []
        self._sheet = {}

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, *_: Any
    ) -> None:
        if is_validation_of_fit(trainer) and trainer.is_global_zero:
            self._add_to_sheet(batch, outputs)
        if not _is_used(trainer):
            return
        classes = len(pl_module.hparams["class_names"])
        predictions = [shown_detections(prediction, self.score_threshold) for prediction in outputs["preds"]]
        scores = frame_scores(predictions, outputs["targets"], classes)
        frames = zip(batch.readable_positions(), predictions, outputs["targets"], scores, strict=True)
        for position, prediction, target, score in frames:
            if score is not None:
                self._consider(score, batch, position, prediction, target)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = Path(trainer.default_root_dir) / FRAMES
        if self._sheet:
            path = folder / EPOCHS / f"epoch-{trainer.current_epoch + 1:04d}-step-{steps_begun(trainer):09d}.jpg"
            with self._file.attempt(path, "the run continues"):
                self._write_sheet(path, pl_module.hparams["class_names"])
        if not _is_used(trainer):
            return
        assert trainer.state.fn is not None
        with self._file.attempt(f"pictures to {folder}", "the run continues"):
            self._write(folder, STAGES[trainer.state.fn.value], list(pl_module.hparams["class_names"]))
        self.on_validation_epoch_start(trainer, pl_module)  # frees the frames

    on_test_epoch_start = on_validation_epoch_start
    on_test_batch_end = on_validation_batch_end  # type: ignore[assignment]
    on_test_epoch_end = on_validation_epoch_end

    def _add_to_sheet(self, batch: Batch, outputs: Any) -> None:
        """Keep frames with objects until the sheet is full."""
        for position, prediction, target in zip(
            batch.readable_positions(), outputs["preds"], outputs["targets"], strict=True
        ):
            clip = clip_of_id(target.image_id)
            if len(self._sheet) < self.sheet_frames and len(target.labels) and clip not in self._sheet:
                detections = shown_detections(prediction, self.score_threshold)
                self._sheet[clip] = (original_frame(batch, position), target, detections)

    def _write_sheet(self, path: Path, class_names: Sequence[str]) -> None:
        """Write the sheet of a validation, and delete sheets between earlier validations if there are too many."""
        write_bytes(path, encode(prediction_sheet(list(self._sheet.values()), class_names)))
        sheets = sorted(path.parent.glob("*.jpg"))
        if len(sheets) > MOST_SHEETS:
            for sheet in sheets[1:-1:2]:
                sheet.unlink()

    def _consider(self, score: FrameScore, batch: Batch, position: int, prediction: Prediction, target: Target) -> None:
        best = (self._best, self.best, score.from_best(), score.score > 0)
        worst = (self._worst, self.worst, score.from_worst(), score.score < 1)
        for frames, count, key, may_enter in (best, worst):
            of_clip = [frame for frame in frames if clip_of_id(frame.score.image_id) == clip_of_id(score.image_id)]
            if not may_enter or count == 0 or any(frame.key <= key for frame in of_clip):
                continue
            if of_clip:
                frames.remove(of_clip[0])
            if len(frames) < count or key < frames[-1].key:
                insort(frames, KeptFrame(key, score, original_frame(batch, position), prediction, target))
                del frames[count:]

    def _write(self, folder: Path, stage: str, class_names: list[str]) -> None:
        """Write pictures and index file; the old index is deleted first and never lists pictures of another run."""
        in_both = {frame.score.image_id for frame in self._best} & {frame.score.image_id for frame in self._worst}
        best = [frame for frame in self._best if frame.score.image_id not in in_both or frame.score.score >= MIDDLE]
        worst = [frame for frame in self._worst if frame.score.image_id not in in_both or frame.score.score < MIDDLE]
        folder.mkdir(parents=True, exist_ok=True)
        index = folder / f"{stage}.json"
        index.unlink(missing_ok=True)
        for stale in folder.glob(f"{stage}-*.jpg"):
            stale.unlink()
        listed = []
        for group, frames in (("best", best), ("worst", worst)):
            for number, frame in enumerate(frames, 1):
                path = folder / f"{stage}-{group}-{number}.jpg"
                write_bytes(path, encode(side_by_side(frame.pixels, frame.target, frame.prediction, class_names)))
                listed.append(GalleryFrame(**msgspec.structs.asdict(frame.score), group=group, file=path.name))
        gallery = Gallery(self.score_threshold, tuple(class_names), tuple(listed))
        write_json(index, msgspec.to_builtins(gallery))


def _is_used(trainer: Trainer) -> bool:
    """Return whether this rank uses the frames of this validation: in a fit, only those of the last epoch.

    The last epoch is also the one that `trainer.max_steps` or `trainer.max_time` ends.
    """
    is_final = trainer.state.fn != "fit" or is_last_epoch(trainer) or ends_after_batch(trainer)
    return trainer.is_global_zero and not trainer.sanity_checking and is_final
