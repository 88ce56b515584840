"""A trained network that takes pictures and gives boxes in their pixels."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from yolo_lightning.backend import Convolution, FoldedGraph, arrange, choose_convolution
from yolo_lightning.batch import Prediction, Sample, collate
from yolo_lightning.data.geometry import Labelled, letterbox
from yolo_lightning.detecting.pictures import Picture
from yolo_lightning.graph import read_network
from yolo_lightning.postprocess import predictions
from yolo_lightning.test_time_augmentation import augmented

PROBE_TIMEOUT_S = 60.0


class Detector:
    """Letterboxes, infers, suppresses.

    Args:
        file: One of our checkpoints, or an Ultralytics `.pt` file.
        image_size: Side of the square input, pixels, a multiple of 32.
        device: Where to compute.
        convolution: As `model.conv`.
        confidence: Detections must score more than this, 0 to 1.
        overlap: Intersection over union above which the weaker of two boxes of a class goes, 0 to 1.
        max_detections: Detections kept per picture.
        trust: Open a `.pt` file whatever code it refers to.
        augment: Show each picture six times, mirrored and scaled, and suppress what was found in all of them together.

    Raises:
        ValueError: If `file` cannot be used.
    """

    def __init__(
        self,
        file: Path,
        *,
        image_size: int,
        device: torch.device,
        convolution: Convolution = "auto",
        confidence: float = 0.25,
        overlap: float = 0.7,
        max_detections: int = 300,
        trust: bool = False,
        augment: bool = False,
    ) -> None:
        self._graph, self.names = folded_network(file, device, convolution, trust=trust)
        self.image_size = image_size
        self.device = device
        self.confidence, self.overlap, self.max_detections = confidence, overlap, max_detections
        self._augment = augment

    def __call__(self, pictures: Sequence[Picture]) -> list[Prediction]:
        """Detections of each picture, xyxy in its pixels, best first."""
        gray = all(picture.is_gray() for picture in pictures)
        batch = collate([self._sample(picture, gray=gray) for picture in pictures])
        images = batch.images.to(self.device).float() / 255
        raw = self._graph(images)
        if self._augment:
            raw = (augmented(self._graph, images, raw[0]),)
        return predictions(
            raw,
            batch,
            confidence=self.confidence,
            overlap=self.overlap,
            max_detections=self.max_detections,
        )

    def _sample(self, picture: Picture, *, gray: bool) -> Sample:
        pixels = np.ascontiguousarray(picture.pixels[..., 0]) if gray else picture.pixels
        nothing = Labelled(pixels, np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
        placed, placement = letterbox(nothing, self.image_size, shrink_by_area=True)
        height, width = pixels.shape[:2]
        return Sample(placed.image, placed.boxes, placed.labels, str(picture.source), (height, width), placement)


def folded_network(
    file: Path, device: torch.device, convolution: Convolution, *, trust: bool = False
) -> tuple[FoldedGraph, list[str]]:
    """The network of a file, ready to infer on a device, and the names of its classes, index 0 first.

    Args:
        file: One of our checkpoints, or an Ultralytics `.pt` file.
        device: Where to compute.
        convolution: As `model.conv`.
        trust: Open a `.pt` file whatever code it refers to.

    Raises:
        ValueError: If `file` cannot be used.
    """
    graph = read_network(file, trust=trust)
    graph.to(device).requires_grad_(False)
    chosen = choose_convolution(device, PROBE_TIMEOUT_S) if convolution == "auto" else convolution
    arrange(graph, chosen)
    return FoldedGraph(graph), [str(graph.names[number]) for number in range(len(graph.names))]
