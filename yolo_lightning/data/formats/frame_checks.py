"""Looks at the frames before training starts, and keeps count of the bad ones while it runs."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn

from yolo_lightning.data.index.annotation_index import SplitIndex
from yolo_lightning.data.storage.frames import BitDepthError, Channels, FrameError, FrameSource, conversion_to_8_bits

SAMPLED_FRAMES = 32
"""Frames decoded before training starts, evenly spread over the split, to compare their size with the annotations."""

NAMED_FRAMES = 5
"""Bad frames named in one message."""


class BadFrames:
    """Frames that cannot be used, each counted and named once.

    Args:
        limit: So many are tolerated.

    Attributes:
        names: Files seen so far.
        quarantined: Files that are left out on purpose; they do not count.
    """

    def __init__(self, limit: int) -> None:
        if limit < 0:
            raise ValueError(f"data.max_bad_frames is {limit}, allowed are 0 and more")
        self.limit = limit
        self.names: set[str] = set()
        self.quarantined: set[str] = set()

    def add(self, problems: Iterable[str]) -> None:
        """Count and name the frames not seen before; each problem is `<file name>: <reason>`.

        Raises:
            ValueError: If more than the limit have been seen.
        """
        reasons = {problem.partition(": ")[0]: problem for problem in problems}
        unknown = reasons.keys() - self.names - self.quarantined
        fresh = [reasons[name] for name in sorted(unknown)]
        if not fresh:
            return
        self.names |= unknown
        shown = named(fresh)
        if len(self.names) > self.limit:
            raise ValueError(f"{len(self.names):,} frames cannot be used, data.max_bad_frames is {self.limit}: {shown}")
        rank_zero_warn(f"left out, {len(self.names):,} of {self.limit} tolerated: {shown}")


def check_frames(index: SplitIndex, source: FrameSource, bad_frames: BadFrames) -> None:
    """Look for missing frames by name, and decode some to compare their size and type with what is expected.

    Raises:
        ValueError: If a size disagrees, most of the decoded frames do not have 8 bits, none can be read, or more frames
            are bad than tolerated.
    """
    missing = source.missing(index.file_names())
    problems = [f"{name}: no such file" for name in missing]
    absent = set(missing)
    unreadable: list[str] = []
    other_depth: list[BitDepthError] = []
    usable = 0
    for position in spread(len(index)):
        name = index.file_name(position)
        if name in bad_frames.quarantined:
            continue
        if name in absent:
            unreadable.append(f"{name}: no such file")
            continue
        try:
            shape = source.read(name).shape[:2]
        except FrameError as error:
            problems.append(str(error))
            unreadable.append(str(error))
            other_depth += [error] if isinstance(error, BitDepthError) else []
            continue
        if shape != index.shape(position):
            height, width = index.shape(position)
            raise ValueError(
                f"{name} is {shape[1]} x {shape[0]} pixels, the annotation of image {index.image_id(position)} says "
                f"{width} x {height}: these are not the frames of this annotation file"
            )
        usable += 1
    refuse_other_depth(other_depth, usable)
    if unreadable and not usable:
        raise ValueError(f"none of {len(unreadable)} sampled frames can be read: {named(unreadable)}")
    bad_frames.add(problems)


def check_labels(index: SplitIndex, left_out: Collection[int], origin: str) -> None:
    """Refuse a split without a single box in the frames that are used.

    Args:
        index: The part of the split that is used.
        left_out: Positions of the frames in quarantine.
        origin: Option and file that the split is taken from.

    Raises:
        ValueError: If no frame in use has a box.
    """
    boxes = np.diff(index.box_offsets())
    boxes[list(left_out)] = 0
    if boxes.any():
        return
    notes = f" ({'; '.join(index.notes)})" if index.notes else ""
    in_use = len(index) - len(left_out)
    raise ValueError(
        f"{origin}: none of the {in_use:,} frames in use has a box{notes}: name a file with labels, "
        "or set data.allow_unlabelled true to train and score on background alone"
    )


def check_depth(names: Sequence[str], source: FrameSource) -> None:
    """Decode some of the frames to see whether they have 8 bits; damaged ones are passed over.

    Raises:
        ValueError: If most of them do not.
    """
    other_depth: list[BitDepthError] = []
    usable = 0
    for position in spread(len(names)):
        try:
            source.read(names[position])
        except FrameError as error:
            other_depth += [error] if isinstance(error, BitDepthError) else []
        else:
            usable += 1
    refuse_other_depth(other_depth, usable)


def refuse_other_depth(found: Sequence[BitDepthError], usable: int, what: str = "sampled frames") -> None:
    """Refuse images of which more are unlike 8-bit images than like them.

    Args:
        found: Of the images that do not have 8 bits.
        usable: How many do.
        what: The images in a word, for the message.

    Raises:
        ValueError: Names the first file, and the range of the values of all that were sampled.
    """
    if len(found) <= usable:
        return
    lowest, highest = min(one.lowest for one in found), max(one.highest for one in found)
    raise ValueError(
        f"{len(found)} of {len(found) + usable} {what} are not 8-bit images: {found[0].name} is "
        f"{found[0].dtype}, all have values {lowest:.7g} to {highest:.7g}; {conversion_to_8_bits(lowest, highest)}"
    )


def spread(count: int) -> range:
    """Return the positions of the frames that are sampled of `count`, evenly spread."""
    return range(0, count, max(1, count // SAMPLED_FRAMES))


def named(problems: Sequence[str]) -> str:
    """Return the first few problems in one line, and the number of the others."""
    more = f"; and {len(problems) - NAMED_FRAMES:,} more" if len(problems) > NAMED_FRAMES else ""
    return "; ".join(problems[:NAMED_FRAMES]) + more


def needed_channels(index: SplitIndex, source: FrameSource) -> Channels:
    """3 if one of some frames, spread evenly over the split, has a coloured pixel, else 1.

    Args:
        index: Names of the frames.
        source: Must give frames in colour.
    """
    for position in spread(len(index)):
        try:
            frame = source.read(index.file_name(position))
        except FrameError:
            continue
        if (frame != frame[..., :1]).any():
            return 3
    return 1
