"""Checks of the frames before training, the count of bad frames during training, and the quarantine."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from urllib.parse import unquote

import numpy as np

from yolo_lightning.data.index.sampled_names import sampled_positions
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.index.splits import Split
from yolo_lightning.data.input_settings import Channels
from yolo_lightning.data.limit_settings import Limits
from yolo_lightning.data.storage.folder_frames import FilesInFolders
from yolo_lightning.data.storage.frames import BitDepthError, Frame, FrameError, file_of
from yolo_lightning.data.storage.image_header import is_turned, unread_parts
from yolo_lightning.data.storage.storage import EncodedStorage, Storage
from yolo_lightning.data.transforms.pixel_range import PixelRange, value_counts
from yolo_lightning.errors import UserError
from yolo_lightning.utils.plain_text import name_some
from yolo_lightning.utils.rank_zero import rank_warn, rank_zero_warn

SAMPLED_FRAMES = 64  # Number of frames of a split that are decoded before training starts
FEWEST_OTHER_DEPTHS = 4
"""Number of sampled frames with another bit depth from which their number in the whole split is estimated."""
PERCENT_ENCODED = "the names in the annotation file are percent-encoded (%20 is a space), so decode them in the file"


def other_size(index: SplitIndex, position: int, storage: Storage, shape: tuple[int, ...]) -> str:
    """Return a text about a frame whose shape, height and width, differs from its annotation, with the likely cause."""
    name = index.file_name(position)
    annotated = index.shape(position)
    text = (
        f"{name}: the file has {shape[1]} x {shape[0]} pixels, the annotation of image {index.image_id(position)} has "
        f"{annotated[1]} x {annotated[0]}"
    )
    if shape != annotated[::-1]:
        return f"{text}; does the file belong to this annotation?"
    if isinstance(storage, EncodedStorage) and is_turned(storage.content(name)):
        return (
            f"{text}, the size before the EXIF orientation of the file is applied. Boxes must refer to the upright "
            "image: correct size and boxes, or remove the EXIF orientation from the file if the boxes refer to the "
            "stored pixels"
        )
    return f"{text}; width and height are exchanged"


class BadFrames:
    """Files of the bad frames, which are missing or damaged; each is counted and named once.

    `limit` is `data.limits.max_bad_frames`; files in `quarantined` are not counted.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.names: set[str] = set()
        self.quarantined: set[str] = set()

    def unknown(self, files: Iterable[str]) -> set[str]:
        """Return the files that are neither counted nor in quarantine."""
        return set(files) - self.names - self.quarantined

    def add(self, problems: Iterable[str]) -> None:
        """Count new frames and log them; each problem is `<file name>: <reason>`."""
        reasons = {file_of(problem): problem for problem in problems}
        unknown = self.unknown(reasons)
        if not unknown:
            return
        self.names |= unknown
        shown = name_some([reasons[name] for name in sorted(unknown)])
        if len(self.names) > self.limit:
            raise UserError(
                f"{len(self.names):,} frames cannot be used, more than data.limits.max_bad_frames {self.limit}: {shown}"
            )
        rank_warn(f"left out {len(self.names):,} of at most {self.limit} bad frames: {shown}")


class FrameSample:
    """Result of decoding frames of a split; `problems` contains `<file name>: <reason>` by name for missing frames.

    Attributes:
        count: Number of frames.
        failures: Errors of the frames that cannot be decoded.
        other_sizes: A text about each frame whose size differs from its annotation.
        partly_read: A text about each frame with bands or pages that are not read.
    """

    def __init__(
        self, index: SplitIndex, storage: Storage, positions: Iterable[int], problems: Mapping[str, str]
    ) -> None:
        self.storage = storage
        self.count = 0
        self.failures: list[FrameError] = []
        self.other_sizes: list[str] = []
        self.partly_read: list[str] = []
        for position in positions:
            self.count += 1
            name = index.file_name(position)
            try:
                if name in problems:
                    raise FrameError(problems[name])
                shape = storage.read(name).shape[:2]
            except FrameError as error:
                self.failures.append(error)
                continue
            unread = unread_parts(storage.content(name)) if isinstance(storage, EncodedStorage) else ""
            if unread:
                self.partly_read.append(f"{name} has {unread}")
            if shape != index.shape(position):
                self.other_sizes.append(other_size(index, position, storage, shape))

    @property
    def usable(self) -> int:
        """Number of decoded frames."""
        return self.count - len(self.failures)

    @property
    def depth_errors(self) -> list[BitDepthError]:
        return [error for error in self.failures if isinstance(error, BitDepthError)]

    def refuse(self) -> None:
        """Raise a UserError for another size of a frame, another bit depth of many frames, or no readable frame."""
        if self.other_sizes:
            raise UserError(
                f"{len(self.other_sizes)} of {self.count} sampled frames do not have the size in the annotation file: "
                f"{self.other_sizes[0]}"
            )
        refuse_other_depth(self.depth_errors, self.usable)
        if self.failures and not self.usable:
            shown = name_some([str(error) for error in self.failures[:2]])
            raise UserError(f"none of {self.count} sampled frames can be read: {shown}; searched in {self.storage}")


def check_frames(index: SplitIndex, storage: Storage, bad_frames: BadFrames) -> None:
    """Search for frames by name, and decode a sample to check size and bit depth."""
    names = index.file_names()
    problems = missing_frames(names, storage)
    if isinstance(storage, FilesInFolders):
        remark = storage.describe_further_folders(names, problems)
        if remark:
            rank_zero_warn(remark)
    sample = FrameSample(index, storage, _sample(names, bad_frames.quarantined), problems)
    sample.refuse()
    depth_errors = sample.depth_errors
    expected = len(depth_errors) * len(index) // max(1, sample.count)
    if len(depth_errors) >= FEWEST_OTHER_DEPTHS and expected > bad_frames.limit:
        raise UserError(
            f"about {expected:,} of {len(index):,} frames cannot be used, more than data.limits.max_bad_frames "
            f"{bad_frames.limit}: {_describe_depths(depth_errors, sample.count, 'sampled frames')}"
        )
    problems |= {error.file: str(error) for error in sample.failures}
    bad_frames.add(problems.values())
    if sample.partly_read:
        rank_zero_warn(
            f"{len(sample.partly_read)} of {sample.usable} sampled frames are not read as a whole, such as: "
            f"{sample.partly_read[0]}"
        )


def _sample(names: Sequence[str], left_out: Collection[str]) -> list[int]:
    """Return the positions of the sampled frames except those with the names `left_out`."""
    return [position for position in sampled_positions(names, SAMPLED_FRAMES) if names[position] not in left_out]


def refuse_frames(index: SplitIndex, storage: Storage, left_out: Collection[int], *, is_depth_known: bool) -> None:
    """Raise a UserError as `check_frames` for frames that cannot be used; one frame is decoded if it can be used.

    Args:
        index: Index of the split.
        storage: Frames of the split.
        left_out: Positions of the frames in quarantine.
        is_depth_known: Whether the settings determine the bit depth of the frames. Weights may contain another one.
    """
    first = next((position for position in range(len(index)) if position not in left_out), None)
    if first is None:
        return
    probe = FrameSample(index, storage, [first], {})
    if not (probe.failures or probe.other_sizes):
        return
    if probe.depth_errors and not is_depth_known:
        return
    names = index.file_names()
    positions = _sample(names, {names[position] for position in left_out})
    problems = missing_frames([names[position] for position in positions], storage)
    FrameSample(index, storage, positions, problems).refuse()


def missing_frames(names: Sequence[str], storage: Storage) -> dict[str, str]:
    """Return `<file name>: <reason>` by name for the frames that are not in the storage."""
    problems = {name: f"{name}: no such file" for name in storage.missing(names)}
    decoded = {name: unquote(name) for name in problems if "%" in name}
    absent = set(storage.missing(decoded.values()))
    for name, decoded_name in decoded.items():
        if decoded_name not in absent:
            problems[name] = f"{name}: no such file, but {decoded_name!r} exists: {PERCENT_ENCODED}"
    return problems


def refuse_annotations(index: SplitIndex, split: Split, limits: Limits, origin: str) -> None:
    """Raise a UserError for a split without a box, or with boxes that cannot be right, unless `limits` allow it.

    `origin` is the option that names the annotations, and its value.
    """
    if split != "predict" and not limits.allow_unlabelled:
        left_out = list(limits.quarantined(index, split))
        boxes = np.diff(index.box_offsets())
        boxes[left_out] = 0
        if not boxes.any():
            notes = f" ({'; '.join(index.facts.notes)})" if index.facts.notes else ""
            raise UserError(
                f"{origin}: none of the {len(index) - len(left_out):,} used frames has a box{notes}; use a file with "
                "labels, or set data.limits.allow_unlabelled true to train and score on background alone"
            )
    impossible = index.facts.impossible
    if impossible and not limits.allow_suspicious_boxes:
        raise UserError(f"{origin}: {impossible} Correct the file, or set data.limits.allow_suspicious_boxes true.")


def warn_of_boxes(index: SplitIndex, origin: str) -> None:
    """Warn of boxes that are unlikely, or are used although they cannot be right; `origin` as above."""
    facts = index.facts
    if facts.impossible or facts.unlikely:
        rank_zero_warn(f"{origin}: {facts.impossible or facts.unlikely}")


def check_depth(names: Sequence[str], storage: Storage) -> None:
    """Decode a sample of the frames to check their bit depth; damaged frames are skipped."""
    errors: list[FrameError] = []
    usable = sum(1 for _ in _decode_sample(names, storage, errors))
    refuse_other_depth([error for error in errors if isinstance(error, BitDepthError)], usable)


def describe_values(names: Sequence[str], storage: Storage) -> str:
    """Return percentiles of the pixel values of a sample of the frames, which have 16 bits, in one line."""
    counts = [value_counts(np.asarray(frame, dtype=np.uint16)) for frame in _decode_sample(names, storage, [])]
    if not counts:
        return "pixel values: no sampled frame can be read"
    total = np.sum(counts, axis=0)
    spans = []
    for low, high in ((0, 100), (0.5, 99.5), (5, 95)):
        span = PixelRange("frame", low, high).percentiles(total)
        spans.append(f"{low:g} to {high:g} %: {span.low:.0f} to {span.high:.0f}")
    return f"pixel values of {len(counts)} sampled frames: {', '.join(spans)}"


def refuse_other_depth(errors: Sequence[BitDepthError], usable: int, what: str = "sampled frames") -> None:
    """Refuse images, half of which or more have another bit depth, given their errors and the number of the others."""
    if errors and len(errors) >= usable:
        raise UserError(_describe_depths(errors, len(errors) + usable, what))


def _describe_depths(errors: Sequence[BitDepthError], count: int, what: str) -> str:
    """Return the range of the values of images with another bit depth, and the remedy."""
    lowest = min(error.lowest for error in errors)
    highest = max(error.highest for error in errors)
    first = errors[0]
    example = BitDepthError(first.name, first.dtype, lowest, highest, first.bits, first.channels)
    return f"{len(errors)} of {count} {what} are not {first.bits}-bit images, such as {example}"


def needed_channels(index: SplitIndex, storage: Storage) -> Channels:
    """Return 1 if all sampled frames of `storage`, which must return RGB frames, are gray, and 3 otherwise.

    If no sampled frame can be read, the result is 3.
    """
    channels: Channels = 3
    for frame in _decode_sample(index.file_names(), storage, []):
        if (frame != frame[..., :1]).any():
            return 3
        channels = 1
    return channels


def _decode_sample(names: Sequence[str], storage: Storage, errors: list[FrameError]) -> Iterator[Frame]:
    """Yield the pixels of each sampled frame; the error of a frame that cannot be read is appended to `errors`."""
    for position in sampled_positions(names, SAMPLED_FRAMES):
        try:
            yield storage.read(names[position])
        except FrameError as error:
            errors.append(error)
