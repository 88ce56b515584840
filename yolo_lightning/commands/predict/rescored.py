"""`predict --rescore`: new scores of the detections of each clip, by `challenge/rescoring.py`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np

from yolo_lightning.challenge.content import Content
from yolo_lightning.challenge.rescoring import Models, rescore
from yolo_lightning.challenge.tracks import places_in_time
from yolo_lightning.commands.predict.results import file_of
from yolo_lightning.data.array_types import Int64Array
from yolo_lightning.data.boxes import first_of_equal_boxes
from yolo_lightning.data.formats.image_ids import month_of_id
from yolo_lightning.data.input_images import absolute, is_video, read_pictures
from yolo_lightning.data.transforms.pixel_range import PixelRange
from yolo_lightning.errors import UserError
from yolo_lightning.evaluation.detection_result import DetectionResult


def in_clips(files: Iterable[Path]) -> list[Path]:
    """Return the files with the images of each folder together, in the order of their names."""
    clips: dict[Path, list[Path]] = {}
    for file in files:
        clips.setdefault(_clip(file), []).append(file)
    return [file for clip in clips.values() for file in sorted(clip, key=lambda file: file.name)]


def rescored(
    results: Iterable[DetectionResult], models: Models, files: Sequence[Path], ranges: PixelRange, threshold: float
) -> Iterator[DetectionResult]:
    """Yield results with new scores, at least `threshold`, when their clip is complete; a box has one class.

    The models were learned from a validation, so that `results` may contain several classes per box.
    A clip is a video, or the images of one folder. Images are read a second time instead of kept in memory.
    Frames with LTDv2's ids are ordered by these ids; other images are consecutive in the order of `files`, which is
    that of `in_clips`, as is the order of `results`.
    """
    places = {path: place for place, path in enumerate(files)}
    for folder_or_video, group in groupby(results, key=lambda result: _clip(file_of(result))):
        clip = [replace(result, image=np.broadcast_to(np.uint8(0), result.image.shape)) for result in group]
        sizes = sorted({(result.image.shape[1], result.image.shape[0]) for result in clip})
        if len(sizes) > 1:
            raise UserError(f"rescore needs frames of one size in {folder_or_video}, got {sizes[0]} and {sizes[1]}.")
        scores = rescore(_content(clip), models, sizes[0], _numbers(clip, places)).scores.astype(np.float32)
        sources = dict.fromkeys(map(file_of, clip))
        images = (image.pixels for source in sources for image in read_pictures(source, ranges))
        ends = np.cumsum(list(map(len, clip)))[:-1]
        for result, new_scores, image in zip(clip, np.split(scores, ends), images, strict=False):
            order = np.argsort(-new_scores, kind="stable")
            order = order[first_of_equal_boxes(result.boxes[order])]
            order = order[new_scores[order] >= threshold]
            boxes = result.boxes[order]
            yield replace(result, image=image, boxes=boxes, scores=new_scores[order], labels=result.labels[order])


def _content(clip: Sequence[DetectionResult]) -> Content:
    """Return the detections of a clip as those of a submission, whose labels begin with 1."""
    return Content(
        tuple(file_of(result).stem for result in clip),
        np.repeat(np.arange(len(clip)), list(map(len, clip))),
        np.concatenate([result.boxes for result in clip]).astype(np.float64),
        np.concatenate([result.scores for result in clip]).astype(np.float64),
        np.concatenate([result.labels for result in clip]).astype(np.float64) + 1,
    )


def _numbers(clip: Sequence[DetectionResult], places: Mapping[Path, int]) -> Int64Array:
    """Return the place in time of each frame of a clip: by LTDv2's id, the number of the frame, or the input order."""
    names = tuple(file_of(result).stem for result in clip)
    if clip[0].frame is None and all(map(month_of_id, names)):
        return places_in_time(names)
    if clip[0].frame is None:
        return np.array([places[file_of(result)] for result in clip])
    return np.array([result.frame for result in clip])


def _clip(file: Path) -> Path:
    """Return a video, or the folder of an image."""
    path = absolute(file)
    return path if is_video(path) else path.parent
