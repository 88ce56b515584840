"""Detection in single images with trained weights."""

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import torch

from yolo_lightning.commands.predict.inputs import InputImage
from yolo_lightning.data.batch import Prediction, Sample, collate
from yolo_lightning.data.boxes import check_image_size
from yolo_lightning.data.transforms.letterbox import Labelled, letterbox
from yolo_lightning.model.graph import check_one_to_one, network_input, read_network
from yolo_lightning.model.layers import Convolution, FoldedGraph, arrange, choose_convolution
from yolo_lightning.model.network_settings import NetworkSettings
from yolo_lightning.model.postprocess import predictions
from yolo_lightning.model.tta import tta_candidates

PROBE_TIMEOUT_S = 60.0


class Detector:
    """Letterbox, network and non-maximum suppression for images of any size.

    `settings` have an image size. A network trained on gray images receives gray images. `file` and the options of the
    network are as in `folded_network`; `tta` is test-time augmentation.
    """

    def __init__(
        self,
        file: Path,
        settings: NetworkSettings,
        *,
        device: torch.device,
        convolution: Convolution = "auto",
        allow_pickle: bool = False,
        tta: bool = False,
    ) -> None:
        self._graph, self.names = folded_network(
            file, device, convolution, allow_pickle=allow_pickle, one_to_one=settings.one_to_one
        )
        check_image_size("image_size", settings.image_size or 0, stride=self._graph.stride)
        self.settings = settings
        self.device = device
        self._augment = tta

    def __call__(self, pictures: Sequence[InputImage]) -> list[Prediction]:
        """Return the detections of each image, boxes xyxy in pixels of the image, sorted by descending score."""
        gray = all(picture.is_gray() for picture in pictures)
        batch = collate([self._sample(picture, gray=gray) for picture in pictures])
        images = network_input(batch.images.to(self.device))
        raw = self._graph(images)
        if self._augment:
            raw = (tta_candidates(self._graph, images, raw[0], self._graph.stride),)
        return predictions(
            raw,
            batch,
            score_threshold=self.settings.score_threshold,
            iou_threshold=self.settings.iou_threshold,
            max_detections=self.settings.max_detections,
            class_agnostic=self.settings.class_agnostic,
            one_to_one=self.settings.one_to_one and not self._augment,  # every view detects the same objects
        )

    def _sample(self, picture: InputImage, *, gray: bool) -> Sample:
        pixels = picture.pixels
        if gray:
            pixels = np.ascontiguousarray(pixels[..., 0])
        elif self.settings.channels == 1:
            pixels = np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), np.uint8)
        assert self.settings.image_size is not None
        nothing = Labelled(pixels, np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
        placed, placement = letterbox(nothing, self.settings.image_size, shrink_by_area=True)
        height, width = pixels.shape[:2]
        return Sample(placed.image, placed.boxes, placed.labels, str(picture.source), (height, width), placement)


def folded_network(
    file: Path,
    device: torch.device,
    convolution: Convolution,
    *,
    allow_pickle: bool = False,
    one_to_one: bool = False,
) -> tuple[FoldedGraph, list[str]]:
    """Return the network of a file with folded normalization, and its class names by index.

    The file is a checkpoint of this package or an Ultralytics `.pt` file, which is opened with `allow_pickle` even if
    it contains arbitrary pickled code. `convolution` is as `model.conv_backend`, `one_to_one` as `model.one_to_one`.
    """
    graph = read_network(file, allow_pickle=allow_pickle)
    graph.to(device).requires_grad_(False)
    chosen = choose_convolution(device, PROBE_TIMEOUT_S) if convolution == "auto" else convolution
    arrange(graph, chosen)
    if one_to_one:
        check_one_to_one(graph, str(file))
    folded = FoldedGraph(graph, one_to_one=one_to_one, with_loss=False)
    return folded, [str(graph.names[number]) for number in range(len(graph.names))]
