"""`predict --rescore`: new scores of the detections of each clip, by `challenge/rescoring.py`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np

from yolo_lightning.challenge.content import Content
from yolo_lightning.challenge.rescoring import Models, rescore
from yolo_lightning.challenge.tracks import places_in_time
from yolo_lightning.data.boxes import first_of_equal_boxes
from yolo_lightning.data.input_images import read_pictures
from yolo_lightning.data.transforms.pixel_range import PixelRange
from yolo_lightning.errors import UserError
from yolo_lightning.evaluation.detection_result import DetectionResult
from yolo_lightning.evaluation.drift import month_of_id


def rescored(
    results: Iterable[DetectionResult], models: Models, files: Sequence[Path], ranges: PixelRange, threshold: float
) -> Iterator[DetectionResult]:
    """Yield results with new scores, at least `threshold`, when their clip is complete; a box has one class.

    The models were learned from a validation, so that `results` may contain several classes per box.
    A clip is a video, or consecutive images of one folder. Images are read a second time instead of kept in memory.
    Frames with LTDv2's ids are ordered by these ids; other images are consecutive in the order of `files`.
    """
    places = {path: place for place, path in enumerate(files)}
    for _, group in groupby(results, key=_clip):
        clip = [replace(one, image=np.broadcast_to(np.uint8(0), one.image.shape)) for one in group]
        sizes = sorted({(one.image.shape[1], one.image.shape[0]) for one in clip})
        if len(sizes) > 1:
            raise UserError(f"rescore needs frames of one size in {_clip(clip[0])}, got {sizes[0]} and {sizes[1]}.")
        names = tuple(_file(one).stem for one in clip)
        if all(map(month_of_id, names)) and clip[0].frame is None:
            numbers = places_in_time(names)
        else:
            numbers = np.array([places[_file(one)] if one.frame is None else one.frame for one in clip])
        content = Content(
            names,
            np.repeat(np.arange(len(clip)), [len(one) for one in clip]),
            np.concatenate([one.boxes for one in clip]).astype(np.float64),
            np.concatenate([one.scores for one in clip]).astype(np.float64),
            np.concatenate([one.labels for one in clip]).astype(np.float64) + 1,
        )
        scores = rescore(content, models, sizes[0], numbers).scores.astype(np.float32)
        sources = dict.fromkeys(_file(one) for one in clip)
        images = (image.pixels for source in sources for image in read_pictures(source, ranges))
        ends = np.cumsum([len(one) for one in clip])[:-1]
        for one, own, image in zip(clip, np.split(scores, ends), images, strict=False):
            order = np.argsort(-own, kind="stable")
            order = order[first_of_equal_boxes(one.boxes[order])]
            order = order[own[order] >= threshold]
            yield replace(one, image=image, boxes=one.boxes[order], scores=own[order], labels=one.labels[order])


def _clip(result: DetectionResult) -> Path:
    return _file(result).parent if result.frame is None else _file(result)


def _file(result: DetectionResult) -> Path:
    assert result.source is not None, "the inputs of the command are files"
    return result.source
