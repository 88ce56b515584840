"""Detections in one image, as `Detector` returns them: numbers, picture, and the formats of other packages."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import cv2
import numpy as np

from yolo_lightning.data.array_types import Float32Array, Int64Array, UInt8Array
from yolo_lightning.data.batch import Prediction
from yolo_lightning.data.input_images import InputImage
from yolo_lightning.evaluation.coco_results import Detection, coco_detections
from yolo_lightning.evaluation.drawing import with_boxes
from yolo_lightning.utils.choices import checked_arguments, plain

if TYPE_CHECKING:
    import supervision as sv

SMALLEST_TEXT = 0.4  # smallest legible font scale of OpenCV


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class DetectionResult:
    """Detections in one image or video frame, highest score first.

    Iteration yields class name, score and box `(4,)` of each detection. Notebooks show the picture.
    """

    image: UInt8Array  # `(H, W, 3)` uint8, RGB
    boxes: Float32Array  # `(N, 4)` float32, xyxy, pixels of the image
    scores: Float32Array  # `(N,)` float32, 0 to 1
    labels: Int64Array  # `(N,)` int64, class index from 0
    class_names: tuple[str, ...]  # names of all classes, index 0 first
    source: Path | None = None  # image or video file; None for an array
    frame: int | None = None  # frame number in the video, from 0; None for an image
    time_s: float | None = None  # seconds after the beginning of the video; None for an image
    category_ids: tuple[int, ...] = ()  # of all classes in the files of the training data; empty if unknown

    @classmethod
    def of(
        cls, image: InputImage, prediction: Prediction, class_names: Sequence[str], category_ids: tuple[int, ...] = ()
    ) -> Self:
        return cls(
            image=image.pixels,
            boxes=prediction.boxes.numpy(),
            scores=prediction.scores.numpy(),
            labels=prediction.labels.numpy(),
            class_names=tuple(class_names),
            source=image.source,
            frame=image.frame,
            time_s=image.time_s,
            category_ids=category_ids,
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[tuple[str, float, Float32Array]]:
        return zip(self.names, self.scores.tolist(), self.boxes, strict=True)

    def __repr__(self) -> str:
        height, width = self.image.shape[:2]
        counts = ", ".join(f"{count} {name}" for name, count in Counter(self.names).items()) or "no detections"
        place = "" if self.source is None else f", {self.source}"
        if self.frame is not None:
            place += f" frame {self.frame}"
        return f"DetectionResult({counts}; {width} x {height} pixels{place})"

    def _repr_png_(self) -> bytes:
        return cv2.imencode(".png", self.plot()[..., ::-1])[1].tobytes()

    @property
    def names(self) -> list[str]:
        """Class name of each detection."""
        return [self.class_names[label] for label in self.labels.tolist()]

    def plot(self) -> UInt8Array:
        """Return a copy of the image, `(H, W, 3)` uint8 RGB, with boxes, class names and scores."""
        side = min(self.image.shape[:2])
        texts = [f"{name} {score:.2f}" for name, score in zip(self.names, self.scores, strict=True)]
        style = {"width": max(1, side // 300), "font_scale": max(SMALLEST_TEXT, side / 1250)}
        drawn = with_boxes(self.image[..., ::-1], self.boxes, self.labels.tolist(), texts, **style)
        return np.ascontiguousarray(drawn[..., ::-1])

    def to_supervision(self) -> "sv.Detections":
        """Return `supervision.Detections` with the class names in `data["class_name"]`."""
        import supervision as sv

        return sv.Detections(
            xyxy=self.boxes, confidence=self.scores, class_id=self.labels, data={"class_name": np.array(self.names)}
        )

    @checked_arguments()
    def to_coco(self, image_id: int | str = 0) -> list[Detection]:
        """Return the detections as entries of a COCO result file: `bbox` is x, y, width, height in pixels.

        The category ids are those of the training data, which `predict` writes, too, or 1, 2, ... if the weights do not
        record them. `image_id` is the id of the image in the dataset's file.
        """
        ids = self.category_ids or range(1, len(self.class_names) + 1)
        categories = [ids[label] for label in self.labels.tolist()]
        return coco_detections(plain(image_id), self.boxes.tolist(), self.scores.tolist(), categories)
