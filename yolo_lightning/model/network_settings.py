"""Settings that belong to weights: every checkpoint and exported file stores them, every command takes them from there.

A network detects less on images of another size or with another preparation than it was trained with, and nothing else
shows the mistake.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
import yaml
from lightning.pytorch.utilities import rank_zero_info

from yolo_lightning.checkpoints.checkpoint_file import INPUT
from yolo_lightning.checkpoints.run_folder import run_of
from yolo_lightning.data.boxes import STRIDE
from yolo_lightning.model.graph import ultralytics_description
from yolo_lightning.utils.run_files import config_name

LETTERBOX = "centred in a square, padded with 114"
NORMALISATION = "uint8 / 255"
USUAL_IMAGE_SIZE = 640
"""Pixels; of weights that do not record their image size."""

SCORING_CONFIDENCE = 0.001
"""Average precision needs nearly all boxes: a threshold up to this one is made for scores."""
SHOWN_CONFIDENCE = 0.25
"""Threshold for detections that are looked at, where the weights only have one for scores."""

OF_DATA = ("image_size", "channels")
OF_MODEL = ("single_class", "score_threshold", "iou_threshold", "max_detections", "class_agnostic")
OF_GRAPH = ("variant", "class_width")
"""Hyperparameters of a checkpoint without which its weights do not fit."""


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """What a file of weights records about their use.

    Attributes:
        image_size: Side of the square input, pixels; None if the file does not record it.
        channels: 1 for gray frames, 3 for RGB; None if the file does not record it.
        class_names: Index 0 first; empty if the file does not record them.
        single_class: Whether all classes of the data count as one.
        score_threshold: Detections must score more than this, 0 to 1.
        iou_threshold: Intersection over union above which the weaker of two boxes is suppressed, 0 to 1.
        max_detections: Detections kept per frame.
        class_agnostic: Whether boxes of different classes suppress each other, too.
        letterbox: How a frame is placed in the input.
        normalisation: How pixels become the network's input.

    Raises:
        ValueError: If the input is prepared by a rule that this version does not have.
    """

    image_size: int | None = None
    channels: int | None = None
    class_names: tuple[str, ...] = ()
    single_class: bool = False
    score_threshold: float = SCORING_CONFIDENCE
    iou_threshold: float = 0.7
    max_detections: int = 300
    class_agnostic: bool = False
    letterbox: str = LETTERBOX
    normalisation: str = NORMALISATION

    def __post_init__(self) -> None:
        for name, rule in (("letterbox", LETTERBOX), ("normalisation", NORMALISATION)):
            if getattr(self, name) != rule:
                raise ValueError(f"the weights need {name} {getattr(self, name)!r}, this version has {rule!r} only")

    @classmethod
    def of(cls, recorded: Mapping[str, Any]) -> Self:
        """Take over the recorded values that have a name of ours; the others keep their defaults."""
        known = {name: recorded[name] for name in cls.__slots__ if recorded.get(name) is not None}
        return cls(**known | {"class_names": tuple(map(str, known.get("class_names", ())))})

    def plain(self) -> dict[str, Any]:
        """All values as plain Python, for files."""
        return asdict(self) | {"class_names": list(self.class_names)}

    def for_pictures(self, **given: Any) -> Self:
        """The settings for pictures that are looked at: the user's values take the place of the recorded ones.

        Each difference is printed. A recorded threshold for scores would show hundreds of weak boxes, so
        `SHOWN_CONFIDENCE` replaces it. An image size that is not recorded becomes `USUAL_IMAGE_SIZE`.

        Args:
            given: Values of the user by name; None keeps the recorded one.
        """
        wanted = {name: value for name, value in given.items() if value is not None}
        if self.score_threshold <= SCORING_CONFIDENCE:
            wanted.setdefault("score_threshold", SHOWN_CONFIDENCE)
        compared = {name: getattr(self, name) for name in wanted if name != "score_threshold"}
        if self.score_threshold > SCORING_CONFIDENCE:
            compared["score_threshold"] = self.score_threshold
        report_changes(compared, wanted)
        if self.image_size is None and "image_size" not in wanted:
            rank_zero_info(f"the weights do not record their image size: {USUAL_IMAGE_SIZE} is used")
            wanted["image_size"] = USUAL_IMAGE_SIZE
        return replace(self, **wanted)


def report_changes(recorded: Mapping[str, Any], used: Mapping[str, Any], what: str = "the checkpoint") -> None:
    """Print the values that differ from the recorded ones; null means that neither was chosen, and is not compared.

    Args:
        recorded: Values by the name of the option.
        used: The values that are used, by the same names.
        what: The source of the recorded values.
    """
    for name in sorted(recorded.keys() & used.keys()):
        if None not in (recorded[name], used[name]) and recorded[name] != used[name]:
            rank_zero_info(f"changed since {what}: {name} was {recorded[name]}, now {used[name]} (used)")


def input_record(channels: int, image_size: int) -> dict[str, Any]:
    """What a checkpoint stores under `INPUT`: how the images were prepared that the network was trained on."""
    settings = NetworkSettings(image_size=image_size, channels=channels)
    return {name: getattr(settings, name) for name in (*OF_DATA, "letterbox", "normalisation")}


def read_settings(file: Path, *, allow_pickle: bool = False) -> NetworkSettings:
    """The settings in a file of weights, see `read_record`; those that it does not record have their defaults."""
    return NetworkSettings.of(read_record(file, allow_pickle=allow_pickle))


def read_record(file: Path, *, allow_pickle: bool = False) -> dict[str, Any]:
    """What a file of weights records under the names of `NetworkSettings`, and more.

    Args:
        file: One of our `.ckpt` files, see `require_whole`, or an Ultralytics `.pt`.
        allow_pickle: Open a `.pt` file whatever code it refers to.

    Raises:
        ValueError: If the file cannot be read.
    """
    if file.suffix == ".ckpt":
        return checkpoint_record(file, torch.load(file, map_location="meta", weights_only=True))
    record = ultralytics_description(file, allow_pickle=allow_pickle)
    side = record.pop("image_size")
    return record | ({"image_size": -(-side // STRIDE) * STRIDE} if isinstance(side, int) else {})


def checkpoint_record(file: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """As `read_record`, of a checkpoint whose content is loaded already."""
    record = {**content.get("hyper_parameters", {}), **content.get(INPUT, {})}
    if "image_size" not in record:  # written before checkpoints had it
        record["image_size"] = configured_image_size(file)
    return record


def configured_image_size(checkpoint: Path) -> int | None:
    """`data.image_size` in the configuration beside a checkpoint in a run folder; None where none can be read."""
    folder = run_of(checkpoint)
    try:
        config = yaml.safe_load((folder / config_name("fit")).read_text()) if folder else None
        return int(config["data"]["image_size"]) if config else None
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        return None


def bound_options(record: Mapping[str, Any], *, is_gray: bool) -> dict[str, Any]:
    """The options of a run, by their full name, whose values follow from the weights.

    Args:
        record: From `read_record`.
        is_gray: Whether the frames of the dataset are always gray: a network for RGB takes them as they are.
    """
    names = {f"data.{name}": name for name in OF_DATA} | {f"model.{name}": name for name in (*OF_GRAPH, *OF_MODEL)}
    if is_gray:
        del names["data.channels"]
    return {option: record[name] for option, name in names.items() if record.get(name) is not None}


def report_precedence(bound: Mapping[str, Any], before: Mapping[str, Any], used: Mapping[str, Any]) -> None:
    """Print which values of the weights took a configured value's place, and which ones the user replaced.

    Args:
        bound: From `bound_options`.
        before: The options without the weights.
        used: The options that are used.
    """
    report_changes(bound, used)
    replaced = [
        f"{name} {value} (instead of {before[name]})"
        for name, value in bound.items()
        if used.get(name) == value and before.get(name) is not None and before[name] != value
    ]
    if replaced:
        rank_zero_info(f"taken from the checkpoint: {', '.join(replaced)}")
