"""Looks at the frames before training starts, and keeps count of the bad ones while it runs."""

from collections.abc import Iterable

from lightning.pytorch.utilities import rank_zero_warn

from yolo_lightning.data.frames import Channels, FrameError, FrameSource
from yolo_lightning.data.index import SplitIndex

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
        shown = "; ".join(fresh[:NAMED_FRAMES]) + (
            f"; and {len(fresh) - NAMED_FRAMES:,} more" if len(fresh) > NAMED_FRAMES else ""
        )
        if len(self.names) > self.limit:
            raise ValueError(f"{len(self.names):,} frames cannot be used, data.max_bad_frames is {self.limit}: {shown}")
        rank_zero_warn(f"left out, {len(self.names):,} of {self.limit} tolerated: {shown}")


def check_frames(index: SplitIndex, source: FrameSource, bad_frames: BadFrames) -> None:
    """Look for missing frames by name and compare the size of a few with the annotations.

    Raises:
        ValueError: If a size disagrees, or more frames are bad than tolerated.
    """
    missing = source.missing(index.file_names())
    problems = [f"{name}: no such file" for name in missing]
    absent = set(missing)
    step = max(1, len(index) // SAMPLED_FRAMES)
    for position in range(0, len(index), step):
        name = index.file_name(position)
        if name in absent or name in bad_frames.quarantined:
            continue
        try:
            shape = source.read(name).shape[:2]
        except FrameError as error:
            problems.append(str(error))
            continue
        if shape != index.shape(position):
            height, width = index.shape(position)
            raise ValueError(
                f"{name} is {shape[1]} x {shape[0]} pixels, the annotation of image {index.image_id(position)} says "
                f"{width} x {height}: these are not the frames of this annotation file"
            )
    bad_frames.add(problems)


def needed_channels(index: SplitIndex, source: FrameSource) -> Channels:
    """3 if one of some frames, spread evenly over the split, has a coloured pixel, else 1.

    Args:
        index: Names of the frames.
        source: Must give frames in colour.
    """
    for position in range(0, len(index), max(1, len(index) // SAMPLED_FRAMES)):
        try:
            frame = source.read(index.file_name(position))
        except FrameError:
            continue
        if (frame != frame[..., :1]).any():
            return 3
    return 1
