"""What a report shows, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from yolo_lightning.commands.monitor.run_state import Checkpoint
from yolo_lightning.commands.report.detections import Detections
from yolo_lightning.commands.report.metrics_curves import Metrics


@dataclass(frozen=True, slots=True)
class IncidentSummary:
    """What went wrong, and what was done about it.

    Attributes:
        time_s: Wall clock, seconds since 1970; None where the report does not say.
        kind: Class of the stall, or of the end.
        sentence: What was found.
        outcome: What was done; empty where nobody has said.
        step: Batches trained by then; None where the report does not say.
        folder: Name of the folder that holds stacks and the rest.
    """

    time_s: float | None
    kind: str
    sentence: str
    outcome: str
    step: float | None
    folder: str


@dataclass(frozen=True, slots=True)
class GalleryFrame:
    """A picture of one frame, truth beside prediction.

    Attributes:
        group: `best` or `worst`.
        image_id: Id of the frame.
        score: F1, 0 to 1.
        objects: Annotated ones.
        misses: Objects that were not found.
        false_alarms: Detections that are not right.
        jpeg: The picture.
    """

    group: str
    image_id: str
    score: float
    objects: int
    misses: int
    false_alarms: int
    jpeg: bytes


@dataclass(frozen=True, slots=True)
class BoxSizes:
    """How many boxes there are of each size; a size is the square root of the area, in frame pixels.

    Attributes:
        edges_px: Lower edge of each bin, ascending; the last bin has no upper edge.
        objects: Annotated boxes per bin.
        detections: Detections per bin, of those that score enough.
        frames: Of how many frames.
    """

    edges_px: tuple[float, ...]
    objects: tuple[int, ...]
    detections: tuple[int, ...]
    frames: int


@dataclass(frozen=True, slots=True)
class Gallery:
    """The best and the worst frames of an evaluation, and the sizes of all boxes.

    Attributes:
        score_threshold: Least score of a detection that counts and is drawn, 0 to 1.
        class_names: Index 0 first.
        frames: In the order of the list.
        sizes: Of the boxes of all frames.
    """

    score_threshold: float
    class_names: tuple[str, ...]
    frames: tuple[GalleryFrame, ...]
    sizes: BoxSizes


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one split has shown.

    Attributes:
        stage: `val` or `test`.
        scores: By logged name without the stage, as `map_50/2020-05`; the last ones.
        detections: Every matched detection; None where nobody has kept them.
        gallery: Frames; None where nobody has kept any.
    """

    stage: str
    scores: Mapping[str, float]
    detections: Detections | None = None
    gallery: Gallery | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """A run, read from its folder.

    Attributes:
        name: Of the folder.
        read_s: When it was read, wall clock, seconds since 1970.
        state: How the run stands, in a few words.
        metrics: Curves.
        evaluations: Those of which anything is known.
        starts_s: When training was started, wall clock, ascending.
        last_sign_s: When the run wrote last; None where that is not known.
        incidents: Oldest first.
        checkpoints: Newest first.
        environment: By name.
        configurations: Text by file name; what is secret is left out.
        batch_size: Frames of a step; None where it is not known.
        problems: What is damaged, a sentence each.
    """

    name: str
    read_s: float
    state: str
    metrics: Metrics
    evaluations: tuple[Evaluation, ...] = ()
    starts_s: tuple[float, ...] = ()
    last_sign_s: float | None = None
    incidents: tuple[IncidentSummary, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    configurations: Mapping[str, str] = field(default_factory=dict)
    batch_size: int | None = None
    problems: tuple[str, ...] = ()
