"""Detections in one image, as `Detector` returns them: numbers, picture, and the formats of other packages."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Self

import cv2
import numpy as np
import PIL.Image

from yolo_lightning.data.array_types import Float32Array, Int64Array, UInt8Array
from yolo_lightning.data.batch import Prediction
from yolo_lightning.data.input_images import InputImage
from yolo_lightning.errors import UserError
from yolo_lightning.evaluation.coco_results import Detection, coco_detections
from yolo_lightning.evaluation.drawing import detection_texts, with_boxes
from yolo_lightning.utils.choices import checked_arguments
from yolo_lightning.utils.files import write_bytes
from yolo_lightning.utils.paths import user_path

if TYPE_CHECKING:
    import pandas
    import supervision as sv

LEGIBLE_SIDE = 240  # pixels of the longer side, about three texts of the smallest size
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
        return self._encoded(".png")

    def _encoded(self, suffix: str) -> bytes:
        """Return the content of an image file with the picture."""
        is_encoded, content = cv2.imencode(suffix, self.plot(self.legible_scale)[..., ::-1])
        if not is_encoded:
            raise OSError(f"OpenCV cannot encode an image of the shape {self.image.shape} as {suffix}")
        return content.tobytes()

    @property
    def names(self) -> list[str]:
        """Class name of each detection."""
        return [self.class_names[label] for label in self.labels.tolist()]

    @property
    def normalized_boxes(self) -> Float32Array:
        """Boxes `(N, 4)` float32, xyxy, relative to width and height of the image."""
        height, width = self.image.shape[:2]
        return np.asarray(self.boxes / (width, height, width, height), np.float32)

    @property
    def legible_scale(self) -> int:
        """Factor by which pictures of images below 240 pixels are enlarged, so that the texts fit; else 1."""
        longer_side: int = max(self.image.shape[:2])
        return max(1, math.ceil(LEGIBLE_SIDE / longer_side))

    @checked_arguments(scale=">= 1")
    def plot(self, scale: int = 1) -> UInt8Array:
        """Return a copy of the image, `(H, W, 3)` uint8 RGB, with boxes, class names and scores.

        Texts do not cover each other. A box without a free place for class name and score has the score only, or no
        text.

        Args:
            scale: Factor by which height and width are enlarged.
        """
        image = self.image.repeat(scale, axis=0).repeat(scale, axis=1)
        side = min(image.shape[:2])
        texts = detection_texts(self.names, self.scores.tolist())
        style = {"width": max(1, side // 300), "font_scale": max(SMALLEST_TEXT, side / 1250)}
        drawn = with_boxes(image[..., ::-1], self.boxes * scale, self.labels.tolist(), texts, **style)
        return np.ascontiguousarray(drawn[..., ::-1])

    @checked_arguments(unchecked=("path",))
    def save(self, path: str | PathLike[str]) -> None:
        """Write the picture to a file. Images with sides below 240 pixels are enlarged by `legible_scale`.

        Args:
            path: Image file; its suffix, such as `.jpg` or `.png`, is the format. Missing folders are created.

        Raises:
            UserError: If OpenCV does not write the format.
            OSError: If the file cannot be written.
        """
        file = user_path(path)
        if not cv2.haveImageWriter(f"picture{file.suffix}"):
            raise UserError(f"path must end in an image format such as .jpg or .png, got {file}.")
        write_bytes(file, self._encoded(file.suffix), durable=False)

    def show(self) -> None:
        """Open the picture in the image viewer of the system. Notebooks show a result without this call.

        Raises:
            UserError: If the system has no image viewer.
        """
        from PIL import ImageShow

        if not ImageShow.show(PIL.Image.fromarray(self.plot(self.legible_scale))):
            raise UserError("this system has no image viewer; save(path) writes the picture.")

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a table with a row per detection: name, label, score, and the corners x1, y1, x2, y2 in pixels.

        Raises:
            UserError: If pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise UserError("to_pandas needs the package pandas: pip install pandas") from error
        columns = {"name": self.names, "label": self.labels, "score": self.scores}
        corners = dict(zip(("x1", "y1", "x2", "y2"), self.boxes.T, strict=True))
        return pandas.DataFrame(columns | corners)

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
        return coco_detections(image_id, self.boxes.tolist(), self.scores.tolist(), categories)
