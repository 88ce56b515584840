"""Detections in one image, as `Detector` returns them: numbers, picture, and the formats of other packages."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from yolo_lightning.data.batch import Prediction
from yolo_lightning.data.input_images import InputImage
from yolo_lightning.evaluation.class_colours import CLASS_COLOURS
from yolo_lightning.evaluation.coco_results import Detection, coco_detections
from yolo_lightning.utils.plain_text import one_line

if TYPE_CHECKING:
    import supervision as sv

SMALLEST_TEXT = 0.4  # smallest legible font scale of OpenCV


@dataclass(frozen=True, eq=False, slots=True)
class DetectionResult:
    """Detections in one image or video frame, highest score first."""

    image: npt.NDArray[np.uint8]  # `(H, W, 3)` uint8, RGB
    boxes: npt.NDArray[np.float32]  # `(N, 4)` float32, xyxy, pixels of the image
    scores: npt.NDArray[np.float32]  # `(N,)` float32, 0 to 1
    labels: npt.NDArray[np.int64]  # `(N,)` int64, class index from 0
    class_names: tuple[str, ...]  # names of all classes, index 0 first
    source: Path | None = None  # image or video file; None for an array
    frame: int | None = None  # frame number in the video, from 0; None for an image

    @classmethod
    def of(cls, image: InputImage, prediction: Prediction, class_names: Sequence[str]) -> Self:
        numbers = (prediction.boxes.numpy(), prediction.scores.numpy(), prediction.labels.numpy())
        return cls(image.pixels, *numbers, tuple(class_names), image.source, image.frame)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def names(self) -> list[str]:
        """Class name of each detection."""
        return [self.class_names[label] for label in self.labels.tolist()]

    def plot(self) -> npt.NDArray[np.uint8]:
        """Return a copy of the image, `(H, W, 3)` uint8 RGB, with boxes, class names and scores."""
        import supervision as sv  # takes longer to import than the detector's other packages

        scene = self.image[..., ::-1].copy()  # supervision's colours are those of BGR images
        size = (scene.shape[1], scene.shape[0])
        found = self.to_supervision()
        texts = [f"{one_line(name)} {score:.2f}" for name, score in zip(self.names, self.scores, strict=True)]
        thickness = max(1, min(size) // 300)
        scale = max(SMALLEST_TEXT, 0.8 * sv.calculate_optimal_text_scale(size))
        palette = sv.ColorPalette.from_hex(list(CLASS_COLOURS))
        boxed = sv.BoxAnnotator(palette, thickness=thickness).annotate(scene, found)
        labels = sv.LabelAnnotator(
            palette, text_scale=scale, text_padding=2, text_color=sv.Color.BLACK, smart_position=True
        )
        return np.asarray(labels.annotate(boxed, found, texts)[..., ::-1], np.uint8, order="C")

    def to_supervision(self) -> "sv.Detections":
        """Return `supervision.Detections` with the class names in `data["class_name"]`."""
        import supervision as sv

        return sv.Detections(
            xyxy=self.boxes, confidence=self.scores, class_id=self.labels, data={"class_name": np.array(self.names)}
        )

    def to_coco(self, image_id: int | str = 0, category_ids: Sequence[int] | None = None) -> list[Detection]:
        """Return the detections as entries of a COCO result file: `bbox` is x, y, width, height in pixels.

        Args:
            image_id: Id of the image in the dataset's file.
            category_ids: Category id of each class in the dataset's file; None for 1, 2, ...

        Raises:
            ValueError: If `category_ids` has another length than `class_names`.
        """
        ids = range(1, len(self.class_names) + 1) if category_ids is None else category_ids
        if len(ids) != len(self.class_names):
            raise ValueError(f"category_ids must contain {len(self.class_names)} ids, one per class, got {len(ids)}.")
        found = [ids[label] for label in self.labels.tolist()]
        return coco_detections(image_id, self.boxes.tolist(), self.scores.tolist(), found)
