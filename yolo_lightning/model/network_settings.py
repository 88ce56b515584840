"""Settings that belong to the weights. Checkpoints and exported files store them, and all commands read them.

A network detects less on images of another size or with another preprocessing than in training, without any error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from yolo_lightning.checkpoints.checkpoint_file import INPUT
from yolo_lightning.checkpoints.resume import differences
from yolo_lightning.checkpoints.torch_archive import load_checkpoint
from yolo_lightning.data.image_size import STRIDE, ImageSize, Resize
from yolo_lightning.data.transforms.pixel_range import PixelRange
from yolo_lightning.errors import UserError
from yolo_lightning.model.detection_settings import SCORING_THRESHOLD, DetectionSettings
from yolo_lightning.model.graph import ultralytics_description
from yolo_lightning.utils.choices import check_choices
from yolo_lightning.utils.rank_zero import rank_zero_info

USUAL_IMAGE_SIZE = ImageSize(640, 640)
"""Pixels; used for weights that do not record their image size."""

SHOWN_THRESHOLD = 0.25  # score threshold for drawn detections if the recorded threshold is meant for evaluation
OF_DATA = {
    "image_size": "data.image_size",
    "channels": "data.input.channels",
    "background": "data.input.background",
    "resize": "data.input.resize",
}
"""Options of the data by their name in a record."""
PIXEL_RANGE = "pixel_range"
OF_PREPROCESSING = ("image_size", "channels", PIXEL_RANGE)
"""Settings besides those of the detections that a command can replace."""
OF_MODEL = ("variant", "class_width", "single_class")


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Settings recorded in a file of weights."""

    image_size: ImageSize | None = None  # of the input, pixels; None if unknown
    channels: int | None = None  # 1 for gray frames, 3 for RGB; None if unknown
    class_names: tuple[str, ...] = ()  # index 0 first; empty if unknown
    single_class: bool = False  # whether all classes of the data count as one
    detections: DetectionSettings = field(default_factory=DetectionSettings)
    background: bool = False  # whether a gray frame and its difference from the background of its clip are the input
    pixel_range: PixelRange = field(default_factory=PixelRange)  # how 16-bit frames are mapped to 8 bits
    resize: Resize = "area"  # how frames larger than the input are reduced
    category_ids: tuple[int, ...] = ()  # of the classes in the training data's files; empty if unknown
    input_channels: int = 3  # of the network, which computes gray frames as three equal channels if these are 3

    def __post_init__(self) -> None:
        check_choices("resize of the weights", [self.resize], Resize)

    @classmethod
    def of(cls, recorded: Mapping[str, Any]) -> Self:
        """Return the settings in a record; missing ones have their defaults, other keys are ignored."""
        settings = {name: recorded[name] for name in cls.__slots__ if recorded.get(name) is not None}
        if "image_size" in settings:
            settings["image_size"] = ImageSize.of("image_size of the weights", settings["image_size"])
        class_names = tuple(map(str, settings.get("class_names", ())))
        category_ids = tuple(map(int, settings.get("category_ids", ())))
        settings["class_names"] = class_names
        settings["category_ids"] = category_ids if len(category_ids) == len(class_names) else ()
        settings["detections"] = DetectionSettings.of_weights(settings.get("detections", {}))
        settings[PIXEL_RANGE] = PixelRange.of(recorded.get(PIXEL_RANGE))
        if settings.get("input_channels") == 1:
            settings["channels"] = 1
        return cls(**settings)

    @property
    def exported_channels(self) -> int:
        """Channels of the input of an exported network: those of the frames if the network is one for RGB."""
        if self.input_channels != 3:
            return self.input_channels
        return self.channels or 3

    def plain(self) -> dict[str, Any]:
        content = asdict(self)
        content["detections"] = self.detections.recorded()
        content["class_names"] = list(self.class_names)
        content["category_ids"] = list(self.category_ids)
        if self.image_size is not None:
            content |= _placement(self.image_size)
        return content

    def for_pictures(
        self,
        *,
        image_size: int | Sequence[int] | None = None,
        channels: int | None = None,
        pixel_range: PixelRange | None = None,
        **detections: Any,
    ) -> Self:
        """Return the settings for drawn detections: given values replace recorded ones, and differences are logged.

        A recorded score threshold for evaluation would draw hundreds of weak boxes and is replaced by
        `SHOWN_THRESHOLD`. An unknown image size becomes `USUAL_IMAGE_SIZE`. None keeps the recorded value.

        Args:
            image_size: Size of the input.
            channels: 1 for gray frames, 3 for RGB.
            pixel_range: Mapping of 16-bit images.
            detections: Fields of `DetectionSettings`.

        Raises:
            UserError: If a value is out of range.
        """
        changed = {name: value for name, value in detections.items() if value is not None}
        recorded = self.detections.recorded() | {name: getattr(self, name) for name in OF_PREPROCESSING}
        if self.detections.score_threshold <= SCORING_THRESHOLD:
            changed.setdefault("score_threshold", SHOWN_THRESHOLD)
            del recorded["score_threshold"]
        try:
            detection_settings = replace(self.detections, **changed)
        except UserError as error:  # the option of a command or of `Detector` has no prefix
            raise UserError(str(error).removeprefix("model.detections.")) from error
        size = self.image_size if image_size is None else ImageSize.of("image_size", image_size)
        for line in changes(recorded, changed | {"image_size": size, "channels": channels, PIXEL_RANGE: pixel_range}):
            rank_zero_info(line)
        if self.pixel_range.mode is not None and pixel_range is None:
            rank_zero_info(f"taken from the checkpoint: pixel_range {self.pixel_range} for 16-bit images")
        if size is None:
            rank_zero_info(f"the weights do not record their image size: {USUAL_IMAGE_SIZE} is used")
            size = USUAL_IMAGE_SIZE
        return replace(
            self,
            detections=detection_settings,
            channels=channels or self.channels,
            pixel_range=pixel_range or self.pixel_range,
            image_size=size,
        )


def changes(recorded: Mapping[str, Any], used: Mapping[str, Any], source: str = "the checkpoint") -> list[str]:
    """Return a line for each option whose value differs from the recorded one; None is not compared."""
    compared = {}
    for name in recorded.keys() & used.keys():
        is_known = recorded[name] is not None and used[name] is not None
        if is_known and not _has_longer_side(recorded[name], used[name]):
            compared[name] = recorded[name]
    return differences(compared, used, source)


def _has_longer_side(recorded: Any, option: Any) -> bool:
    """Return whether an option is the longer side of a recorded image size, whose shape the data determines."""
    return isinstance(recorded, list) and type(option) is int and max(recorded) == option


def _placement(image_size: ImageSize) -> dict[str, Any]:
    """Return the record of how a frame is placed in the input, and how its pixels are converted."""
    shape = "square" if image_size.height == image_size.width else "rectangle"
    letterbox = f"centred in a {shape}, padded with 114"
    return {"image_size": image_size.plain(), "letterbox": letterbox, "normalisation": "uint8 / 255"}


def input_record(
    channels: int,
    image_size: ImageSize,
    background: bool = False,
    pixel_range: PixelRange = PixelRange(),  # noqa: B008 - frozen
    resize: Resize = "area",
    category_ids: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Return the record of a checkpoint under `INPUT`: preprocessing of the training images.

    `channels` are those of the frames. The range of the pixels is recorded only if the frames have 16 bits, and the
    ids of the categories if they are known.
    """
    record = _placement(image_size)
    record |= {"channels": 1 if background else channels, "background": background, "resize": resize}
    if pixel_range.mode is not None:
        record[PIXEL_RANGE] = asdict(pixel_range)
    if category_ids:
        record["category_ids"] = list(category_ids)
    return record


def check_same_input(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise a UserError if the images of a resumed run mean something else than those of its record `before`."""
    for name in ("channels", "background", PIXEL_RANGE):
        recorded = before.get(name) or None
        value = now.get(name) or None
        if recorded != value:
            raise UserError(
                f"data.input.{name} must be {recorded}, as in the checkpoint, got {value}: the network was trained on "
                "other inputs. Start a new run from its weights with model.weights."
            )


def read_settings(file: Path, *, allow_pickle: bool = False) -> NetworkSettings:
    """Return the settings in a file of weights, see `read_record`; missing ones have their defaults."""
    return NetworkSettings.of(read_record(file, allow_pickle=allow_pickle))


def read_record(file: Path, *, allow_pickle: bool = False) -> dict[str, Any]:
    """Return everything that a file of weights records, including the names of `NetworkSettings`.

    An own `.ckpt` file must have been checked by `require_whole`; an Ultralytics `.pt` file may refer to any code with
    `allow_pickle`.
    """
    if file.suffix == ".ckpt":
        return checkpoint_record(load_checkpoint(file, "meta"))
    record = ultralytics_description(file, allow_pickle=allow_pickle)
    size = record.pop("image_size")
    try:
        sides = ImageSize.of("imgsz", size)
    except UserError:
        return record
    return record | {"image_size": ImageSize(*(-(-side // STRIDE) * STRIDE for side in sides)).plain()}


def checkpoint_record(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a loaded checkpoint; see `read_record`."""
    record = {**content.get("hyper_parameters", {}), **content.get(INPUT, {})}
    return {str(name): value for name, value in record.items()}


def bound_options(record: Mapping[str, Any], *, is_gray: bool) -> dict[str, Any]:
    """Return the options of a run, by full name, whose values follow from the record of the weights.

    `is_gray` is whether all frames of the dataset are gray, which a network for RGB also accepts.
    """
    options = {option: record.get(name) for name, option in OF_DATA.items()}
    if is_gray:
        del options["data.input.channels"]
    if record.get("image_size") is not None:
        size = ImageSize.of("image_size of the weights", record["image_size"])
        options["data.image_size"] = list(size)  # one number would follow the shape of the frames
    options |= {f"model.{name}": record.get(name) for name in OF_MODEL}
    pixel_range = asdict(PixelRange.of(record.get(PIXEL_RANGE)))
    options |= {f"data.input.{PIXEL_RANGE}.{name}": value for name, value in pixel_range.items()}
    detections = record.get("detections", {})
    options |= {f"model.detections.{name}": detections.get(name) for name in DetectionSettings().recorded()}
    return {option: value for option, value in options.items() if value is not None}


def _like(value: Any, other: Any) -> Any:
    """Return `other`, as a list if both values are sequences: files contain lists where the defaults are tuples."""
    if isinstance(value, list) and isinstance(other, tuple):
        return list(other)
    return other


def precedence(bound: Mapping[str, Any], before: Mapping[str, Any], used: Mapping[str, Any]) -> list[str]:
    """Return which values of `bound_options` replace configured ones (`before`), and which ones the user overrides."""
    lines = changes(bound, used)
    replaced = []
    for name, value in bound.items():
        is_replaced = used.get(name) == value and _like(value, before.get(name)) != value
        is_replaced = is_replaced and not _has_longer_side(value, before.get(name))
        can_be_null = name.startswith(f"data.input.{PIXEL_RANGE}.")  # of 8-bit frames
        if is_replaced and (before.get(name) is not None or can_be_null):
            replaced.append(f"{name} {value} (instead of {before[name]})")
    if replaced:
        lines.append(f"taken from the checkpoint: {', '.join(replaced)}")
    return lines
