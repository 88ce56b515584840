"""Types shared by data, model and evaluation: samples, batches, predictions and targets."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, Self

import msgspec
import numpy as np
import torch
from torch import Tensor

from yolo_lightning.data.array_types import Float32Array, Int64Array
from yolo_lightning.data.boxes import (
    Letterbox,
    clip_to_frame,
    corners_to_centres,
    first_of_equal_boxes,
    input_to_frame,
    xywh_to_xyxy,
)
from yolo_lightning.data.image_size import ImageSize, Resize
from yolo_lightning.data.transforms.augmentation_settings import Image
from yolo_lightning.data.transforms.pixel_range import PixelRange
from yolo_lightning.errors import UserError
from yolo_lightning.utils.activity import Activity, during

IMAGE_FIELDS = ("image_ids", "frame_shapes", "letterboxes", "readable", "months")
"""Tuples of a `Batch` with one value per image; `months` may be empty."""

BOX_FIELDS = ("boxes", "labels", "sample_index")
"""Tensors of a `Batch` with one value per box."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Letterboxed frame with its boxes."""

    # `(H, W)`, gray, `(H, W, 3)`, RGB, or `(H, W, C)`, neighbouring frames; uint8, or float32 from 0 to 255
    image: Image
    boxes: Float32Array  # `(N, 4)` float32, xyxy, pixels of `image`
    labels: Int64Array  # `(N,)` int64, class index from 0
    image_id: str  # Id of the frame in the annotation file
    frame_shape: tuple[int, int]  # `(height, width)` of the original frame, pixels
    letterbox: Letterbox  # Position of the frame in `image`; undefined after mosaic or affine augmentation
    readable: bool = True  # Whether the frame could be used; if not, `image` is gray and has no boxes
    bad_frames: tuple[str, ...] = ()  # Bad files of this sample, each with the reason
    month: int = 0  # YYYYMM of the frame, 0 if unknown and in training
    absent: tuple[str, ...] = ()  # Names of those of the bad files that may be readable later
    key: Any = None  # Argument of `__getitem__` that gave the sample


class Batch(msgspec.Struct, frozen=True, eq=False):
    """Samples stacked for the network. Not a dataclass: Lightning's precision plugins refuse frozen dataclasses."""

    # `(B, C, H, W)`; C is 1 for thermal frames, also on the device, 3 for RGB frames, and 2 for a gray frame and its
    # difference from the background; uint8, or float32 from 0 to 255 for 16-bit frames with full depth
    images: Tensor
    boxes: Tensor  # `(N, 4)` float32, centre-x, centre-y, width, height, as fractions of the letterboxed input (0 to 1)
    labels: Tensor  # `(N,)` int64, class index from 0
    sample_index: Tensor  # `(N,)` int64, ascending: position in the batch of the image of each box
    image_ids: tuple[str, ...]
    frame_shapes: tuple[tuple[int, int], ...]  # B times `(height, width)` of the original frame, pixels
    letterboxes: tuple[Letterbox, ...]  # B positions of the frames in the input
    readable: tuple[bool, ...]  # B flags; if False, the image is gray and the frame is left out of the evaluation
    bad_frames: tuple[str, ...] = ()  # Bad files of this batch, each with the reason
    months: tuple[int, ...] = ()  # B times YYYYMM, 0 if unknown; or empty
    absent: tuple[str, ...] = ()  # Names of those of the bad files that may be readable later
    keys: tuple[Any, ...] = ()  # B keys with which the dataset gives the samples again; empty without `absent`

    def __len__(self) -> int:
        return len(self.image_ids)

    def readable_positions(self) -> list[int]:
        """Return the positions of the images whose frame could be read."""
        return [position for position, readable in enumerate(self.readable) if readable]

    def to(self, device: torch.device | str) -> Self:
        """Return the batch with its tensors on `device`; called by Lightning.

        Copies from page-locked memory do not block the host: later work on the device waits for them, and the host
        allocator does not reuse the memory earlier. All other copies block.
        """
        with during(Activity.DEVICE_WAIT):
            return self._map(lambda tensor: tensor.to(device, non_blocking=tensor.is_pinned()))

    def pin_memory(self) -> Self:
        """Return the batch with its tensors in page-locked memory; called by the pinning thread of the DataLoader."""
        return self._map(lambda tensor: tensor.pin_memory())

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how the batch is pickled: the images in shared memory in a loader worker, the boxes as bytes.

        The process of the training opens a connection for each tensor in shared memory.
        """
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        for name in BOX_FIELDS:
            if fields[name].is_cpu:
                fields[name] = fields[name].numpy()
        return _batch_of_fields, (fields,)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        tensors = {name: function(getattr(self, name)) for name in ("images", *BOX_FIELDS)}
        return msgspec.structs.replace(self, **tensors)


def _batch_of_fields(fields: dict[str, Any]) -> Batch:
    """Return the batch with these fields; those of boxes may be arrays."""
    for name in BOX_FIELDS:
        fields[name] = torch.as_tensor(fields[name])
    return Batch(**fields)


class Prediction(msgspec.Struct, frozen=True, eq=False):
    """Detections in one frame, highest score first; on the CPU.

    Not a dataclass: `Trainer.predict` moves the predictions to the CPU and refuses frozen dataclasses.
    """

    image_id: str
    boxes: Tensor  # `(N, 4)` float32, xyxy, pixels of the original frame, clipped to the frame
    scores: Tensor  # `(N,)` float32, 0 to 1
    labels: Tensor  # `(N,)` int64, class index from 0
    # `boxes` before clipping, from which Ultralytics' scores are computed; None if `boxes` were not clipped
    unclipped: Tensor | None = None

    @property
    def boxes_before_clipping(self) -> Tensor:
        """`boxes` that may extend beyond the frame."""
        return self.boxes if self.unclipped is None else self.unclipped


def without_equal_boxes(prediction: Prediction) -> Prediction:
    """Return the detections of which no earlier one has the same box, on the CPU; pictures show a box once.

    A box detected as several classes keeps the best one. Boxes are also equal if both were clipped to the frame.
    """
    kept = torch.from_numpy(first_of_equal_boxes(prediction.boxes.cpu().numpy()))
    unclipped = prediction.unclipped
    if unclipped is not None:
        unclipped = unclipped.cpu()[kept]
    return Prediction(
        prediction.image_id,
        prediction.boxes.cpu()[kept],
        prediction.scores.cpu()[kept],
        prediction.labels.cpu()[kept],
        unclipped,
    )


@dataclass(frozen=True, slots=True)
class Target:
    """Annotated objects of one frame."""

    image_id: str
    boxes: Tensor  # `(N, 4)` float32, xyxy, pixels of the original frame, clipped to the frame
    labels: Tensor  # `(N,)` int64, class index from 0
    month: int = 0  # YYYYMM of the frame, 0 if unknown


@dataclass(frozen=True, slots=True)
class TrainingFacts:
    """Facts about the training data that the model needs; returned by `training_facts()` of a data module."""

    batch_size: int  # Images per batch and rank
    seed: int = 0  # Seed of the run; the input sizes of `model.recipe.multi_scale` derive from it
    # Number of training boxes of each class, index 0 first; None if unknown
    class_counts: tuple[int, ...] | None = None
    image_size: ImageSize | None = None  # Size of the training images; None if unknown
    background: bool = False  # Whether images have the channel of `data.input.background`; recorded
    pixel_range: PixelRange = field(default_factory=PixelRange)  # Mapping of 16-bit frames to 8 bits
    channels: int | None = None  # 1 for gray frames, 3 for RGB; None if unknown
    resize: Resize = "area"  # Interpolation of `data.input.resize`; recorded
    category_ids: tuple[int, ...] = ()  # Of the classes in the dataset's files, index 0 first; recorded
    has_auto_batch_size: bool = False  # Whether `batch_size` follows the number of frames; printed
    epoch_batches: int | None = None  # Batches per epoch and rank; None if unknown before the loader is made

    @classmethod
    def from_trainer(cls, trainer: Any) -> Self:
        """Return the facts of the Trainer's data module, or else the batch size of its training DataLoader.

        Raises:
            UserError: If the batch size is unknown.
        """
        if hasattr(trainer.datamodule, "training_facts"):
            facts: Self = trainer.datamodule.training_facts()
            if not isinstance(facts, cls) or not isinstance(facts.batch_size, int) or facts.batch_size < 1:
                raise UserError(f"training_facts() must return TrainingFacts with a batch_size >= 1, got {facts!r}")
            return facts
        batch_size = getattr(trainer.train_dataloader, "batch_size", None)
        if batch_size is None:
            raise UserError(
                "the model needs the batch size: set batch_size of the training DataLoader, or give the data module a "
                "method training_facts() that returns yolo_lightning.data.batch.TrainingFacts"
            )
        return cls(batch_size)


def collate(samples: Sequence[Sample]) -> Batch:
    """Stack samples of the same image size."""
    if not samples or not isinstance(samples[0], Sample):
        raise UserError(f"collate needs a list of Samples, got {samples!r:.100}")

    def values(name: str) -> tuple[Any, ...]:
        return tuple(getattr(sample, name) for sample in samples)

    height, width = samples[0].image.shape[:2]
    images = torch.from_numpy(np.stack(values("image")))
    images = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
    boxes = np.concatenate(values("boxes")).astype(np.float32, copy=False)
    labels = values("labels")
    absent = tuple(chain.from_iterable(values("absent")))
    return Batch(
        images=images,
        boxes=torch.from_numpy(corners_to_centres(boxes) / np.array([width, height] * 2, dtype=np.float32)),
        labels=torch.from_numpy(np.concatenate(labels).astype(np.int64, copy=False)),
        sample_index=torch.arange(len(samples)).repeat_interleave(torch.tensor(list(map(len, labels)))),
        image_ids=values("image_id"),
        frame_shapes=values("frame_shape"),
        letterboxes=values("letterbox"),
        readable=values("readable"),
        bad_frames=tuple(chain.from_iterable(values("bad_frames"))),
        months=values("month"),
        absent=absent,
        keys=values("key") if absent else (),
    )


def is_scaled(images: Tensor) -> bool:
    """Return whether the largest value is above 0 and at most 1, or not a number; waits for the device."""
    return bool(images.numel()) and not bool((images.max() > 1) | (images.max() == 0))


def check_is_batch(batch: Any) -> None:
    if not isinstance(batch, Batch):
        got = type(batch).__name__
        raise UserError(f"a DataLoader must yield yolo_lightning.data.batch.Batch, as `collate` there does, got {got}")


def check_batch(batch: Any, classes: int | None) -> None:
    """Raise a UserError unless the value is a `Batch` with labels below `classes`; a loader can be foreign.

    None accepts the labels of any number of classes.
    """
    check_is_batch(batch)
    images = batch.images
    boxes = len(batch.labels)
    count = len(batch)
    for name, shape in (("images", (count, *images.shape[1:])), ("boxes", (boxes, 4)), ("sample_index", (boxes,))):
        value = getattr(batch, name)
        if not isinstance(value, Tensor) or value.shape != shape:
            got = f"{type(value).__name__} {tuple(getattr(value, 'shape', ()))}"
            raise UserError(f"Batch.{name} must be a tensor of shape {shape}, got {got}")
    for name in IMAGE_FIELDS:
        values = len(getattr(batch, name))
        if values != count and (values or name != "months"):
            raise UserError(f"Batch.{name} must have one value for each of the {count} image_ids, got {values}")
    if images.dtype is not torch.uint8 and (images.dtype is not torch.float32 or is_scaled(images)):
        raise UserError(f"Batch.images must be uint8, or float32 from 0 to 255, got {images.dtype} to {images.max()}")
    if (batch.sample_index.diff() < 0).any():
        raise UserError(f"Batch.sample_index must be ascending, got {batch.sample_index.tolist()}")
    limits: dict[str, float] = {"boxes": 1.01, "sample_index": count - 1}
    if classes is not None:
        limits["labels"] = classes - 1
    for name, most in limits.items():
        tensor = getattr(batch, name)
        if tensor.numel() and not 0 <= tensor.min() <= tensor.max() <= most:
            raise UserError(f"Batch.{name} must be from 0 to {int(most)}, got {tensor.min():g} to {tensor.max():g}")


def in_parts(batch: Batch, images_at_once: int) -> list[Batch]:
    """Split a batch into the fewest parts of nearly equal size with at most `images_at_once` images each."""
    if images_at_once >= len(batch):
        return [batch]  # without the masks below, whose size a GPU has to be asked for
    count = -(-len(batch) // images_at_once)
    edges = [part * len(batch) // count for part in range(count + 1)]
    return [_slice(batch, first, stop) for first, stop in pairwise(edges)]


def _slice(batch: Batch, first: int, stop: int) -> Batch:
    is_inside = (batch.sample_index >= first) & (batch.sample_index < stop)
    parts: dict[str, Any] = {name: getattr(batch, name)[first:stop] for name in ("images", *IMAGE_FIELDS)}
    for name in BOX_FIELDS:
        parts[name] = getattr(batch, name)[is_inside]
    parts["sample_index"] = parts["sample_index"] - first
    return Batch(**parts, bad_frames=batch.bad_frames if first == 0 else ())


def targets(batch: Batch) -> list[Target]:
    """Return the annotated boxes of the readable frames of a batch, on the CPU, in pixels of the original frames.

    Valid for letterboxed batches (validation, test), not for augmented batches.
    """
    height, width = batch.images.shape[-2:]
    with during(Activity.DEVICE_WAIT):
        corners = xywh_to_xyxy(batch.boxes.cpu()) * torch.tensor([width, height, width, height])
        labels = batch.labels.cpu()
        sample_index = batch.sample_index.cpu()
    result = []
    for position in batch.readable_positions():
        in_frame = sample_index == position
        boxes = input_to_frame(corners[in_frame], batch.letterboxes[position])
        boxes = clip_to_frame(boxes, batch.frame_shapes[position])
        month = batch.months[position] if batch.months else 0
        result.append(Target(batch.image_ids[position], boxes, labels[in_frame], month))
    return result


def by_image(predictions: Iterable[Prediction], image_ids: Sequence[str]) -> dict[str, Prediction | None]:
    """Return the prediction of each image, or None, in the order of `image_ids`."""
    by_id: dict[str, Prediction | None] = dict.fromkeys(image_ids)
    for prediction in predictions:
        if by_id.get(prediction.image_id, prediction) is not None:
            raise UserError(f"prediction for image id {prediction.image_id}: unknown id or second prediction")
        by_id[prediction.image_id] = prediction
    return by_id
