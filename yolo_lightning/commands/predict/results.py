"""Result files of `predict`: annotated images and videos, JSON, YOLO text files."""

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Self, TextIO

import cv2
import numpy as np

from yolo_lightning.commands.predict.video_file import VideoFile
from yolo_lightning.data.boxes import corners_to_centres
from yolo_lightning.data.input_images import absolute, frames_per_second
from yolo_lightning.evaluation.detection_result import DetectionResult
from yolo_lightning.utils.files import first_free

Result = Literal["pictures", "json", "txt"]
"""Annotated images and videos; one `predictions.json`; a text file per image."""

PICTURES_FOLDER = "pictures"
LABELS_FOLDER = "labels"
LONGEST_STEM = 200  # bytes of a file name, to which a number and a suffix are added; file systems accept 255


class Results:
    """Writers of all chosen kinds of results in one folder; `base` is the common parent folder of all inputs.

    Frames of a video are written in order.
    """

    def __init__(self, folder: Path, kinds: Sequence[Result], base: Path) -> None:
        writers = {"pictures": Pictures, "json": JsonFile, "txt": TextFiles}
        self._writers: list[Any] = [writers[kind](folder, base) for kind in dict.fromkeys(kinds)]

    def write(self, result: DetectionResult) -> None:
        for writer in self._writers:
            writer.write(result)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:  # closes every writer even if closing one of them fails
            for writer in self._writers:
                stack.callback(writer.close)


class Pictures:
    """`pictures/<name>.jpg` for each image, `<name>.mp4` for each video, with boxes, class names and scores."""

    def __init__(self, folder: Path, base: Path) -> None:
        self._folder, self._base = folder / PICTURES_FOLDER, base
        self._video: VideoFile | None = None
        self._source: Path | None = None

    def write(self, result: DetectionResult) -> None:
        scene = np.ascontiguousarray(result.plot()[..., ::-1])
        if result.frame is None:
            path = place(_file_of(result), self._base, self._folder, ".jpg")
            if not cv2.imwrite(str(path), scene):
                raise OSError(f"{path} cannot be written")
            return
        if result.source != self._source:
            self.close()
            path = place(_file_of(result), self._base, self._folder, ".mp4")
            self._video = VideoFile(path, scene.shape[1], scene.shape[0], frames_per_second(_file_of(result)))
            self._source = result.source
        assert self._video is not None
        self._video.write(scene)

    def close(self) -> None:
        if self._video is not None:
            self._video.close()
        self._video = self._source = None


class JsonFile:
    """`predictions.json`: a list with one object per image; boxes are xyxy in pixels of the image."""

    def __init__(self, folder: Path, base: Path) -> None:
        self._file: TextIO = (folder / "predictions.json").open("w")
        self._separator = "[\n"

    def write(self, result: DetectionResult) -> None:
        height, width = result.image.shape[:2]
        detections = [
            {"box": [round(value, 2) for value in box], "score": round(score, 5), "label": label, "name": name}
            for box, score, label, name in zip(
                result.boxes.tolist(), result.scores.tolist(), result.labels.tolist(), result.names, strict=True
            )
        ]
        entry: dict[str, Any] = {"source": str(result.source), "frame": result.frame}
        entry |= {"width": width, "height": height, "detections": detections}
        self._file.write(self._separator + json.dumps(entry))
        self._separator = ",\n"

    def close(self) -> None:
        self._file.write("[]\n" if self._separator == "[\n" else "\n]\n")
        self._file.close()


class TextFiles:
    """`labels/<name>.txt`: class, centre x, centre y, width, height (relative to the image), score; may be empty."""

    def __init__(self, folder: Path, base: Path) -> None:
        self._folder, self._base = folder / LABELS_FOLDER, base

    def write(self, result: DetectionResult) -> None:
        height, width = result.image.shape[:2]
        shares = corners_to_centres(result.boxes) / np.array([width, height, width, height], np.float32)
        ending = ".txt" if result.frame is None else f"_{result.frame}.txt"
        lines = [
            f"{label} " + " ".join(f"{value:.6f}" for value in (*box, score)) + "\n"
            for box, score, label in zip(shares.tolist(), result.scores.tolist(), result.labels.tolist(), strict=True)
        ]
        place(_file_of(result), self._base, self._folder, ending).write_text("".join(lines))

    def close(self) -> None:
        pass


def _file_of(result: DetectionResult) -> Path:
    assert result.source is not None, "the inputs of the command are files"
    return result.source


def place(source: Path, base: Path, folder: Path, ending: str) -> Path:
    """Return the result path of `source`: the path relative to `base`, in `folder`; numbered if the name exists.

    `base` is absolute and contains no `..`; the result is therefore always below `folder`.
    """
    path = folder / absolute(source).relative_to(base).with_suffix("")
    path = path.with_name(os.fsdecode(os.fsencode(path.name)[:LONGEST_STEM]))
    path.parent.mkdir(parents=True, exist_ok=True)
    return first_free(path, ending)  # the inputs one.jpg and one.png have the same result name
