"""Detection in images and videos with trained weights: `Detector`."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import Any, overload

import numpy as np
import PIL.Image
import PIL.ImageOps
import torch
from torch import Tensor

from yolo_lightning.checkpoints.resume import weights_file
from yolo_lightning.data.array_types import UInt8Array, UInt16Array
from yolo_lightning.data.batch import Prediction, Sample, collate, without_equal_boxes
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.data.clip_backgrounds import with_difference
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.data.input_clips import ClipReader, gray, pair_of
from yolo_lightning.data.input_images import InputImage, find_files, from_array, is_video
from yolo_lightning.data.transforms.augmentation_settings import Image
from yolo_lightning.data.transforms.letterbox import Labelled, letterbox
from yolo_lightning.data.transforms.pixel_range import PixelRange
from yolo_lightning.errors import UserError
from yolo_lightning.evaluation.detection_result import DetectionResult
from yolo_lightning.model.conv_backend import plan_of_backend
from yolo_lightning.model.convolution_settings import Convolution, ConvolutionSettings
from yolo_lightning.model.graph import check_one_to_one, network_input, read_network
from yolo_lightning.model.layers import FoldedGraph, arrange
from yolo_lightning.model.native_probe import choose_convolution
from yolo_lightning.model.network_settings import read_settings
from yolo_lightning.model.postprocess import predictions
from yolo_lightning.model.tta import tta_predictions
from yolo_lightning.model.variants import HEADS
from yolo_lightning.utils.accelerator import chosen_device
from yolo_lightning.utils.choices import check_range, checked_arguments
from yolo_lightning.utils.paths import user_path
from yolo_lightning.utils.rank_zero import hide_harmless_lines

METHODS_OF_YOLO = {
    "predict": "call the detector itself, detector(source)",
    **dict.fromkeys(("train", "val"), "use YOLOModule with Lightning's Trainer.fit and Trainer.validate"),
    "export": "use the command export",
}
"""Methods of Ultralytics' `YOLO`, and what to do instead."""

Pixels = UInt8Array | UInt16Array
"""`(H, W)` gray or `(H, W, 3)` RGB of uint8, or `(H, W)` gray of uint16."""


class Detector:
    """Detects objects in arrays, PIL images, image files, lists of these, and videos.

    The weights record the image size, thresholds and class names of their training; keywords replace them. Images of
    any size are letterboxed to the input of the network, and boxes are returned in pixels of the original image. A box
    has one class; a validation scores several (`model.detections.multi_label`).

    Calling a detector returns

    - one `DetectionResult` for an array, a PIL image or an image file,
    - a list of them for a list of these, which is detected in batches,
    - an iterator for a video, a folder or a glob pattern. It reads and detects `batch_size` images at a time, so that
      the memory does not depend on the length of the video.

    Arrays are `(H, W)` gray or `(H, W, 3)` RGB of uint8. OpenCV reads BGR: use `cv2.cvtColor(image,
    cv2.COLOR_BGR2RGB)`. Gray images with 16 bits, in files and in arrays of uint16, are mapped to 8 bits by
    `pixel_range`.

    Tensors are `(C, H, W)`, one image, or `(N, C, H, W)`, a list of images, with 1 gray or 3 RGB channels, of uint8 or
    of floating point numbers from 0 to 1.

    If the network was trained with `data.input.background`, the background of a video, and of the numbered images in
    the folder of an image file, is computed first. An array is `(H, W, 2)`, a gray frame and its background, or
    `(H, W)`, a frame without a known background, from which it does not differ.

    Examples:
        >>> import numpy as np
        >>> from yolo_lightning import Detector
        >>> detector = Detector("best.ckpt", image_size=160, score_threshold=0.5)
        >>> result = detector(np.zeros((120, 160, 3), np.uint8))
        >>> result.boxes.shape == (len(result), 4) and result.scores.shape == (len(result),)
        True
        >>> result.plot().shape
        (120, 160, 3)
        >>> [len(result) == len(result.names) for result in detector(["frame.png", "frame.png"])]
        [True, True]
        >>> for result in detector("video.mp4"):
        ...     print(result.frame, result.image.shape)
        0 (48, 48, 3)
        1 (48, 48, 3)

    Args:
        weights: A `.ckpt` file or its address, an Ultralytics `.pt` file, or a run folder, whose best checkpoint is
            used.
        image_size: Size of the input in pixels, multiples of 32: the side of a square, or `[height, width]`; None: as
            in training, or the square around that rectangle for images that would be smaller in the rectangle.
        score_threshold: Minimum score of a detection, 0 to 1; None: as in training if that is above 0.001, the
            threshold for computing mAP, else 0.25.
        iou_threshold: IoU above which NMS removes the lower-scoring box of a class, 0 to 1; None: as in training.
        max_detections: Maximum detections per image, >= 1; None: as in training.
        class_agnostic: Apply NMS across classes; None: as in training.
        one_to_one: Use the one-to-one branch of the head (yolov10, yolo26), which needs no NMS; None: as in training.
        pixel_range: Mapping of 16-bit images; None: as in training.
        tta: Test-time augmentation: weighted boxes fusion of the detections of six scaled and mirrored copies of each
            image; 4.3 times the computation.
        batch_size: Images per batch, >= 1.
        device: `cpu`, `cuda`, `cuda:1`, ...; `auto` uses a GPU if there is one. The attribute is a `torch.device`.
        conv_backend: As `model.convolution.backend` of `YOLOModule`.
        allow_pickle: Open a `.pt` file even if it contains arbitrary pickled code.

    Attributes:
        file: The file of the weights.
        settings: Settings of the network, with the keywords applied.
        names: Names of all classes, index 0 first; a list that can be changed.

    Raises:
        UserError: If the weights cannot be used, or an option is invalid.
    """

    @checked_arguments(unchecked=("weights", "image_size"))
    def __init__(
        self,
        weights: str | PathLike[str],
        *,
        image_size: int | Sequence[int] | None = None,
        score_threshold: float | None = None,
        iou_threshold: float | None = None,
        max_detections: int | None = None,
        class_agnostic: bool | None = None,
        one_to_one: bool | None = None,
        pixel_range: PixelRange | None = None,
        tta: bool = False,
        batch_size: int = 8,
        device: str | torch.device = "auto",
        conv_backend: Convolution = "auto",
        allow_pickle: bool = False,
    ) -> None:
        hide_harmless_lines()
        check_range("batch_size", batch_size, ">= 1")
        self.file = weights_file(weights)
        settings = read_settings(self.file, allow_pickle=allow_pickle).for_pictures(
            image_size=image_size,
            score_threshold=score_threshold,
            iou_threshold=iou_threshold,
            max_detections=max_detections,
            class_agnostic=class_agnostic,
            one_to_one=one_to_one,
            tta=tta,
            pixel_range=pixel_range,
        )
        # One class per box: an object of two similar classes must not be drawn twice at the same place.
        self.settings = replace(settings, detections=replace(settings.detections, multi_label=False))
        self._has_given_size = image_size is not None
        if self.settings.input_channels not in ((2,) if self.settings.background else (1, 3)):
            raise UserError(
                f"weights {self.file} must be of a network with 1 or 3 channels, or 2 with data.input.background, got "
                f"{self.settings.input_channels}: call YOLOModule.load_from_checkpoint({str(self.file)!r}) with tensors"
            )
        assert self.settings.image_size is not None
        self.settings.image_size.check("image_size")
        self.device = chosen_device(str(device))
        graph = arranged_network(self.file, self.device, conv_backend, allow_pickle=allow_pickle)
        one_to_one = self.settings.detections.one_to_one
        if one_to_one:
            check_one_to_one(graph, str(self.file))
        self._graph = FoldedGraph(graph, one_to_one=one_to_one, with_loss=False)
        self.names = list(graph.names.values())
        self.settings.image_size.check("image_size", stride=self._graph.stride)
        self._batch_size = batch_size
        self._classes = len(self.names)

    def __getattr__(self, name: str) -> Any:
        """Name what replaces a method of Ultralytics' `YOLO`."""
        if name in METHODS_OF_YOLO:
            raise AttributeError(f"Detector has no {name}(): {METHODS_OF_YOLO[name]}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @overload
    def __call__(self, source: Pixels | PIL.Image.Image) -> DetectionResult: ...

    # A tensor means one image, or a batch of images (a list).
    @overload
    def __call__(self, source: Tensor) -> Any: ...

    @overload
    def __call__(
        self, source: Sequence[Pixels | PIL.Image.Image | Tensor | str | PathLike[str]]
    ) -> list[DetectionResult]: ...

    # A path means an image (one result) or a video, folder or pattern (an iterator): its type cannot tell.
    @overload
    def __call__(self, source: str | PathLike[str]) -> Any: ...

    def __call__(self, source: Any) -> Any:
        """Return the detections of a source; see the class for the types of `source` and of the result.

        Raises:
            UserError: If dtype or shape of an array is not supported, or a path is not an image or video.
            FrameError: If an image file is damaged or has a bit depth that is not supported.
        """
        reader = ClipReader(self.settings.background, self.settings.pixel_range)
        if isinstance(source, torch.Tensor) and source.ndim == 4:
            source = list(source)
        if isinstance(source, list | tuple):
            return list(self.detect(chain.from_iterable(_single_image(element, reader) for element in source)))
        if isinstance(source, str | PathLike) and not _is_single(source):
            return self.detect(chain.from_iterable(map(reader.read, find_files([str(source)]))))
        (result,) = self.detect(_single_image(source, reader))
        return result

    @torch.inference_mode()
    def detect(self, images: Iterable[InputImage]) -> Iterator[DetectionResult]:
        """Yield the detections of each image in order; read and process `batch_size` images at a time."""
        if not isinstance(self.names, list | tuple) or len(self.names) != self._classes:
            raise UserError(f"names must be a list of the names of {self._classes} classes, got {self.names!r}")
        remaining = iter(images)
        while group := list(islice(remaining, self._batch_size)):
            if not all(isinstance(image, InputImage) for image in group):
                raise UserError("detect takes InputImages; call the detector itself with arrays, images and paths")
            for image, prediction in zip(group, self._predict(group), strict=True):
                yield DetectionResult.of(image, prediction, self.names, self.settings.category_ids)

    def _predict(self, pictures: Sequence[InputImage]) -> list[Prediction]:
        # Pictures that need different inputs are computed apart: an object can have another score at another place of
        # the input, so that the detections in a picture would depend on the other pictures of the batch.
        sizes = [self._input_size(*picture.pixels.shape[:2]) for picture in pictures]
        detections: dict[int, Prediction] = {}
        for size in dict.fromkeys(sizes):
            positions = [position for position, other in enumerate(sizes) if other == size]
            of_size = self._predict_at(size, [pictures[position] for position in positions])
            detections |= zip(positions, of_size, strict=True)
        return [detections[position] for position in range(len(pictures))]

    def _predict_at(self, size: ImageSize, pictures: Sequence[InputImage]) -> list[Prediction]:
        is_gray = not self.settings.background and all(picture.is_gray() for picture in pictures)
        arrays = [self._pixels(picture, is_gray=is_gray) for picture in pictures]
        batch = collate([self._sample(picture, pixels, size) for picture, pixels in zip(pictures, arrays, strict=True)])
        images = network_input(batch.images.to(self.device))
        raw = self._graph(images)
        settings = self.settings.detections
        if settings.tta:
            detections = tta_predictions(self._graph, images, raw[0], batch, settings, self._graph.stride)
        else:
            detections = predictions(raw, batch, settings)
        if settings.multi_label:
            return detections
        return [without_equal_boxes(prediction) for prediction in detections]

    def _input_size(self, height: int, width: int) -> ImageSize:
        """Return the size of the input for a picture.

        A picture of another shape than the recorded rectangle would be smaller in it than the training frames were.
        """
        size = self.settings.image_size
        assert size is not None
        square = ImageSize(max(size), max(size))
        is_smaller = Letterbox.fit(height, width, size).gain < Letterbox.fit(height, width, square).gain
        if is_smaller and not self._has_given_size and size != ImageSize.following(max(size), height, width):
            return square
        return size

    def _sample(self, picture: InputImage, pixels: Image, size: ImageSize) -> Sample:
        height, width = pixels.shape[:2]
        shrinks_by_area = self.settings.resize == "area"
        placed, placement = letterbox(Labelled.without_boxes(pixels), size, shrink_by_area=shrinks_by_area)
        image = with_difference(placed.image) if self.settings.background else placed.image
        return Sample(image, placed.boxes, placed.labels, str(picture.source or ""), (height, width), placement)

    def _pixels(self, picture: InputImage, *, is_gray: bool) -> Image:
        """Return the pixels with the channels of the network; gray ones if all images of the batch are gray."""
        if self.settings.background:
            return pair_of(picture)
        if is_gray or self.settings.channels == 1:
            return gray(picture)
        if picture.full is not None:
            return np.repeat(picture.full[..., None], 3, axis=2)
        return picture.pixels


def _is_single(source: str | PathLike[str]) -> bool:
    """Return whether a path is one image, not a video, folder or glob pattern."""
    path = user_path(source)
    return os.path.isfile(path) and not is_video(path)


def _single_image(source: Any, reader: ClipReader) -> Iterator[InputImage]:
    """Yield the image of an array, of a PIL image, or of a path of one image file."""
    if isinstance(source, str | PathLike):
        if os.path.exists(user_path(source)) and not _is_single(source):
            raise UserError(f"{source} must be an image: lists contain arrays and image files only.")
        yield from chain.from_iterable(map(reader.read, find_files([str(source)])))
        return
    if isinstance(source, torch.Tensor):
        source = _pixels_of_tensor(source)
    if isinstance(source, PIL.Image.Image):
        upright = PIL.ImageOps.exif_transpose(source)  # as OpenCV reads the file
        keeps_values = upright.mode == "L" or upright.mode.startswith("I;16")
        if upright.mode in ("I", "F", "LAB", "La"):
            raise UserError(f"a PIL image must have 8 bits, or 16 with the mode I;16, got the mode {upright.mode}.")
        source = np.array(upright if keeps_values else upright.convert("RGB"))
    if not isinstance(source, np.ndarray):
        raise UserError(
            f"an image must be a path, a PIL image, a tensor or an array of uint8, got {type(source).__name__}."
        )
    pixels = np.asarray(source, source.dtype.newbyteorder("="))
    yield from_array(pixels, reader.ranges, has_background=reader.background)


def _pixels_of_tensor(image: Tensor) -> UInt8Array:
    """Return an array `(H, W)` or `(H, W, C)` of uint8 for a tensor `(C, H, W)` of uint8 or values from 0 to 1."""
    is_floating_point = image.is_floating_point()
    if image.ndim != 3 or len(image) > 3 or not (is_floating_point or image.dtype == torch.uint8):
        raise UserError(
            "a tensor must be (C, H, W) or (N, C, H, W) with 1 gray or 3 RGB channels, of uint8 or of floating point "
            f"numbers from 0 to 1, got {tuple(image.shape)} of {image.dtype}."
        )
    values = image.detach().cpu()
    if is_floating_point:
        if not ((values >= 0) & (values <= 1)).all():
            raise UserError(
                "a tensor of floating point numbers must contain values from 0 to 1, got "
                f"{values.min():g} to {values.max():g}."
            )
        values = (values.float() * 255).round().to(torch.uint8)
    pixels: UInt8Array = values.permute(1, 2, 0).contiguous().numpy()
    if len(image) == 1:
        return pixels[..., 0]
    return pixels


def arranged_network(file: Path, device: torch.device, convolution: Convolution, *, allow_pickle: bool = False) -> Any:
    """Return the network of a file on a device, without gradients.

    The file is a checkpoint of this package or an Ultralytics `.pt` file, which is opened with `allow_pickle` even if
    it contains arbitrary pickled code. `convolution` is a `ConvolutionSettings.backend`.
    """
    graph = read_network(file, allow_pickle=allow_pickle)
    head = type(graph.model[-1]).__name__
    if head not in HEADS:
        raise UserError(f"weights {file} must be of a network for detection ({' or '.join(HEADS)}), got {head}")
    graph.to(device).requires_grad_(False)
    settings = choose_convolution(device, ConvolutionSettings(backend=convolution))
    plan = plan_of_backend(settings.backend, settings)
    return arrange(graph, settings.backend, plan=plan, memory_format=settings.memory_format)
