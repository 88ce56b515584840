"""What a run folder tells about its last validation and its last test."""

from pathlib import Path
from typing import Any

from yolo_lightning.commands.report.contents import BoxSizes, Evaluation, Gallery, GalleryFrame
from yolo_lightning.commands.report.detections import read_detections
from yolo_lightning.commands.report.metrics_curves import Metrics
from yolo_lightning.commands.report.problems import Problems, is_number, read_object
from yolo_lightning.evaluation.drift import named_scores
from yolo_lightning.utils.run_files import FRAMES, SCORES, evaluation_record

STAGES = ("val", "test")

MOST_PICTURE_BYTES = 1 << 20
"""Of one picture: what is larger was not written by a run."""


def evaluation(folder: Path, stage: str, metrics: Metrics, problems: Problems) -> Evaluation | None:
    """What is known of a split; None where nothing is. A record of all detections is scored, else scores are read."""
    detections = problems.attempt(folder / evaluation_record(stage), read_detections)
    listed = folder / FRAMES / f"{stage}.json"
    gallery = problems.attempt(listed, lambda path: read_gallery(path, problems))
    if detections is not None:
        scores = named_scores(detections.drift, detections.class_names)
    elif stage == "test":
        scores = problems.attempt(folder / SCORES, read_test_scores) or {}
    else:
        scores = metrics.last_scores(f"{stage}/")
    if not scores and gallery is None:
        return None
    return Evaluation(stage, scores, detections, gallery)


def read_test_scores(path: Path) -> dict[str, float]:
    """By logged name without the stage.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it holds something else.
    """
    return {name.removeprefix("test/"): float(value) for name, value in read_object(path).items() if is_number(value)}


def read_gallery(path: Path, problems: Problems) -> Gallery:
    """The listed frames whose pictures are there.

    Raises:
        OSError: If the list cannot be read.
        KeyError: If the list lacks something.
        ValueError: If it holds something else.
    """
    listed, found = read_object(path), []
    for one in listed["frames"]:
        picture = path.parent / Path(str(one["file"])).name  # never outside the folder
        jpeg = problems.attempt(picture, read_picture)
        if jpeg is None:
            if not picture.exists():
                problems.add(picture, "is listed but missing")
            continue
        found.append(
            GalleryFrame(
                group=str(one["group"]),
                image_id=str(one["image_id"]),
                score=float(one["score"]),
                objects=int(one["objects"]),
                misses=int(one["misses"]),
                false_alarms=int(one["false_alarms"]),
                jpeg=jpeg,
            )
        )
    class_names = tuple(map(str, listed["class_names"]))
    return Gallery(float(listed["score_threshold"]), class_names, tuple(found), sizes(listed["sizes"]))


def sizes(counted: dict[str, Any]) -> BoxSizes:
    """Counts of boxes by size.

    Raises:
        KeyError: If something lacks.
        ValueError: If the counts do not belong to each other.
    """
    edges = tuple(map(float, counted["edges_px"]))
    objects, detections = (tuple(map(int, counted[name])) for name in ("objects", "detections"))
    if not len(edges) == len(objects) == len(detections):
        raise ValueError(f"{len(edges)} sizes, {len(objects)} counts of objects, {len(detections)} of detections")
    return BoxSizes(edges, objects, detections, int(counted["frames"]))


def read_picture(path: Path) -> bytes:
    """The bytes of a JPEG.

    Raises:
        ValueError: If it is none, or too large.
    """
    content = path.read_bytes()
    if not content.startswith(b"\xff\xd8\xff") or not content.rstrip(b"\0").endswith(b"\xff\xd9"):
        raise ValueError("not a whole JPEG")
    if len(content) > MOST_PICTURE_BYTES:
        raise ValueError(f"{len(content)} bytes, allowed are {MOST_PICTURE_BYTES}")
    return content
