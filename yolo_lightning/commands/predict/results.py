"""Result files of `predict`: annotated images and videos, JSON, CSV, YOLO text files."""

import csv
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from fractions import Fraction
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TextIO

import av
import cv2
import numpy as np
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from yolo_lightning.data.array_types import UInt8Array
from yolo_lightning.data.boxes import corners_to_centres
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.data.input_images import absolute
from yolo_lightning.data.input_videos import video_timing
from yolo_lightning.data.transforms.letterbox import Labelled, letterbox
from yolo_lightning.evaluation.detection_result import DetectionResult
from yolo_lightning.utils.files import first_free
from yolo_lightning.utils.paths import shortened
from yolo_lightning.utils.plain_text import csv_text

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.stream import VideoStream

Result = Literal["pictures", "json", "csv", "txt"]
"""Annotated images and videos; one `predictions.json`; one `predictions.csv`; a text file per image."""

ENCODER: Final = "libx264"
# x264's default quality; a preset that uses less time. No reordered frames (B-frames): if the time between frames
# varies, they end after the duration that the MP4 file states, and FFmpeg 7 does not show them.
ENCODER_OPTIONS = {"crf": "23", "preset": "veryfast", "bf": "0"}
MAX_DENOMINATOR = 100_000  # of frame rates such as 30000/1001, and of one frame a day
MPEG4_TIME_BASE = Fraction(1, 65_535)  # MPEG-4 Part 2 has no finer one
LARGEST_JPEG_SIDE = 65_500  # pixels

PICTURES_FOLDER = "pictures"
LABELS_FOLDER = "labels"
LONGEST_STEM = 200  # bytes of a file name, to which a number and a suffix are added; file systems accept 255
WRITE_ERRORS = (OSError, av.FFmpegError, cv2.error)


class ResultWriter(ABC):
    """Writer of one kind of results.

    A result that cannot be written does not end the command.

    Args:
        folder: Folder of all results.
        base: Common parent folder of all inputs.

    Attributes:
        failures: Reason for each input whose result cannot be written.
    """

    def __init__(self, folder: Path, base: Path) -> None:
        self._folder = folder
        self._base = base
        self.failures: dict[str, str] = {}

    def write(self, result: DetectionResult) -> None:
        """Write a result, or record why it cannot be written."""
        try:
            self._write(result)
        except WRITE_ERRORS as error:
            self._fail(file_of(result), error)

    def close(self) -> None:  # noqa: B027 - separate files are complete
        """Complete the files."""

    @abstractmethod
    def _write(self, result: DetectionResult) -> None:
        """Write a result; `WRITE_ERRORS` are recorded."""

    def _fail(self, source: Path, error: Exception) -> None:
        self.failures.setdefault(str(source), str(error))


class Pictures(ResultWriter):
    """`pictures/<name>.jpg` for each image, `<name>.mp4` for each video, with boxes, class names and scores.

    Images wider or higher than `LARGEST_JPEG_SIDE` are PNG files.
    """

    def __init__(self, folder: Path, base: Path) -> None:
        super().__init__(folder / PICTURES_FOLDER, base)
        self._video: VideoFile | None = None
        self._source: Path | None = None

    def _write(self, result: DetectionResult) -> None:
        if result.frame is None:
            self._write_image(result)
            return
        scene = np.ascontiguousarray(result.plot(result.legible_scale)[..., ::-1])
        if result.source != self._source:
            self.close()
            self._source = file_of(result)
            self._video = self._video_for(self._source, scene)
        if self._video is not None:
            self._video.write(scene, result.time_s)

    def _write_image(self, result: DetectionResult) -> None:
        is_jpeg = max(result.image.shape) <= LARGEST_JPEG_SIDE
        path = place(file_of(result), self._base, self._folder, ".jpg" if is_jpeg else ".png")
        if not is_jpeg:
            rank_zero_info(f"{path}: PNG, because JPEG has at most {LARGEST_JPEG_SIDE:,} pixels per side")
        result.save(path)

    def _video_for(self, source: Path, scene: UInt8Array) -> "VideoFile":
        timing = video_timing(source)
        height, width = scene.shape[:2]
        path = place(source, self._base, self._folder, ".mp4")
        return VideoFile(path, width, height, timing.frames_per_s, timing.time_base)

    def _fail(self, source: Path, error: Exception) -> None:
        super()._fail(source, error)
        self.close()  # the remaining frames of a video are skipped

    def close(self) -> None:
        video = self._video
        self._video = None
        if video is None or self._source is None:
            return
        try:
            video.close()
        except WRITE_ERRORS as error:
            super()._fail(self._source, error)


class VideoFile:
    """An MP4 file with H.264, which browsers play, or MPEG-4 Part 2 where FFmpeg has no encoder for it.

    Pixels are 4:2:0, which have even sides: odd frames repeat their last row or column.

    Args:
        path: MP4 file.
        width: Width of the frames in pixels.
        height: Height of the frames in pixels.
        frames_per_s: Average frame rate; the last frame is shown for the time between two frames.
        time_base: Unit of the times of the frames in seconds; None: the time between two frames.

    Raises:
        OSError: If the file cannot be written.
    """

    def __init__(
        self,
        path: Path,
        width: int,
        height: int,
        frames_per_s: float | Fraction,
        time_base: Fraction | None = None,
    ) -> None:
        self._path = path
        self._size = ImageSize(height, width)
        self._has_other_sizes = False
        self._right = width % 2
        self._bottom = height % 2
        self._rate = Fraction(frames_per_s).limit_denominator(MAX_DENOMINATOR)
        self._time_base = time_base or 1 / self._rate
        is_h264 = ENCODER in av.codecs_available
        if not is_h264:
            self._time_base = max(self._time_base, MPEG4_TIME_BASE)
        options = {"movflags": "faststart", "video_track_timescale": str(self._time_base.denominator)}
        try:
            # The absolute path, because FFmpeg takes the part of a relative path before a colon for a protocol.
            self._container: OutputContainer = av.open(os.path.abspath(path), "w", format="mp4", options=options)
            self._stream: VideoStream
            if is_h264:
                self._stream = self._container.add_stream(ENCODER, rate=self._rate, options=ENCODER_OPTIONS)
                rank_zero_info(f"video: {path}, H.264 ({ENCODER})")
            else:
                self._stream = self._container.add_stream("mpeg4", rate=self._rate)
                rank_zero_warn(f"video: {path}, MPEG-4 Part 2, which browsers do not play; PyAV has no {ENCODER}")
            self._stream.width = width + self._right
            self._stream.height = height + self._bottom
            self._stream.pix_fmt = "yuv420p"
            self._stream.codec_context.time_base = self._time_base
            self._container.start_encoding()
        except OSError as error:  # the folder is missing or the disk full
            raise OSError(f"{path} cannot be written: {error.strerror}") from error
        self._frames = 0
        self._next_ticks = 0

    def write(self, pixels: UInt8Array, time_s: float | None = None) -> None:
        """Append a frame.

        Args:
            pixels: `(H, W, 3)` uint8, BGR; a frame of another size than the video is scaled and padded.
            time_s: Time of the frame in seconds, later than that of the frame before; None: at the frame rate.
        """
        if time_s is None:
            time_s = float(self._frames / self._rate)
        if pixels.shape[:2] != self._size:
            pixels = self._fitted(pixels, time_s)
        even = cv2.copyMakeBorder(pixels, 0, self._bottom, 0, self._right, cv2.BORDER_REPLICATE)
        frame = av.VideoFrame.from_ndarray(np.asarray(even, dtype=np.uint8), format="bgr24")
        frame.pts = max(self._next_ticks, round(time_s / self._time_base))  # equal times would be an error
        frame.time_base = self._time_base
        self._frames += 1
        self._next_ticks = frame.pts + 1
        self._container.mux(self._stream.encode(frame))

    def _fitted(self, pixels: UInt8Array, time_s: float) -> UInt8Array:
        """Return a frame of another size, scaled and padded to the size of the video; the first one is reported."""
        if not self._has_other_sizes:
            self._has_other_sizes = True
            height, width = pixels.shape[:2]
            rank_zero_warn(
                f"{self._path}: the frames change from {self._size.width} x {self._size.height} to {width} x {height} "
                f"pixels at {time_s:,.1f} s; frames of another size than the first are scaled and padded in this "
                "video. In other results, boxes refer to the size of their frame"
            )
        fitted, _ = letterbox(Labelled.without_boxes(pixels), self._size, shrink_by_area=True)
        return np.asarray(fitted.image, dtype=np.uint8)

    def close(self) -> None:
        self._container.mux(self._stream.encode(None))
        self._container.close()


class SingleFile(ResultWriter):
    """Writer of one text file with all results, named by the attribute `name` of the class."""

    name: ClassVar[str]

    def __init__(self, folder: Path, base: Path) -> None:
        super().__init__(folder, base)
        self._path = folder / self.name
        self._file: TextIO = self._path.open("w", encoding="utf-8", newline="")

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            self._fail(self._path, error)

    def _append(self, text: str) -> None:
        """Write a text; after an error, such as of a full disk, the rest of the file is left out."""
        if str(self._path) in self.failures:
            return
        try:
            self._file.write(text)
        except OSError as error:
            self._fail(self._path, error)


class JsonFile(SingleFile):
    """`predictions.json`: a list with one object per image; boxes are xyxy in pixels of the image."""

    name = "predictions.json"

    def __init__(self, folder: Path, base: Path) -> None:
        super().__init__(folder, base)
        self._separator = "[\n"

    def _write(self, result: DetectionResult) -> None:
        height, width = result.image.shape[:2]
        entry: dict[str, Any] = {"source": str(result.source), "frame": result.frame, "time_s": _time_s(result)}
        entry |= {"width": width, "height": height, "detections": _detections(result)}
        self._append(self._separator + json.dumps(entry))
        self._separator = ",\n"

    def close(self) -> None:
        self._append("[]\n" if self._separator == "[\n" else "\n]\n")
        super().close()


class CsvFile(SingleFile):
    """`predictions.csv`: one row per detection; boxes are xyxy in pixels of the image."""

    name = "predictions.csv"

    def __init__(self, folder: Path, base: Path) -> None:
        super().__init__(folder, base)
        self._append("source,frame,time_s,x1,y1,x2,y2,score,label,name\n")

    def _write(self, result: DetectionResult) -> None:
        rows = StringIO()
        writer = csv.writer(rows, lineterminator="\n")
        place = [csv_text(str(result.source)), result.frame, _time_s(result)]
        for detection in _detections(result):
            name = csv_text(detection["name"])
            writer.writerow([*place, *detection["box"], detection["score"], detection["label"], name])
        self._append(rows.getvalue())


class TextFiles(ResultWriter):
    """`labels/<name>.txt`: class, centre x, centre y, width, height (relative to the image), score; may be empty.

    A frame of a video has `<name>_<frame>.txt`.
    """

    def __init__(self, folder: Path, base: Path) -> None:
        super().__init__(folder / LABELS_FOLDER, base)
        self._video: Path | None = None
        self._frames = Path()  # path of the frames of this video, without their numbers

    def _write(self, result: DetectionResult) -> None:
        shares = corners_to_centres(result.normalized_boxes)
        lines = [
            f"{label} " + " ".join(f"{value:.6f}" for value in (*box, score)) + "\n"
            for box, score, label in zip(shares.tolist(), result.scores.tolist(), result.labels.tolist(), strict=True)
        ]
        self._path_of(result).write_text("".join(lines))

    def _path_of(self, result: DetectionResult) -> Path:
        source = file_of(result)
        if result.frame is None:
            return place(source, self._base, self._folder, ".txt")
        if source != self._video:
            # One name for all frames: the videos one.mp4 and one.avi can have different lengths.
            self._frames = place(source, self._base, self._folder, "", _has_frames)
            self._video = source
        return self._frames.with_name(f"{self._frames.name}_{result.frame}.txt")


def _has_frames(path: Path) -> bool:
    """Return whether the folder contains text files with the name of a path and numbers of frames."""
    name = re.compile(rf"{re.escape(path.name)}_\d+\.txt")
    return any(name.fullmatch(file.name) for file in path.parent.iterdir())


WRITERS: dict[Result, type[Pictures | JsonFile | CsvFile | TextFiles]] = {
    "pictures": Pictures,
    "json": JsonFile,
    "csv": CsvFile,
    "txt": TextFiles,
}
"""Writers of the kinds of results, for a folder and the common parent folder of all inputs; close them at the end."""


def _detections(result: DetectionResult) -> list[dict[str, Any]]:
    """Return box, score, label and class name of each detection, rounded for a file."""
    return [
        {"box": [round(value, 2) for value in box], "score": round(score, 5), "label": label, "name": name}
        for box, score, label, name in zip(
            result.boxes.tolist(), result.scores.tolist(), result.labels.tolist(), result.names, strict=True
        )
    ]


def _time_s(result: DetectionResult) -> float | None:
    """Return the time of a video frame in seconds with the digits of a file, None for an image."""
    if result.time_s is None:
        return None
    return round(result.time_s, 6)


def file_of(result: DetectionResult) -> Path:
    assert result.source is not None, "the inputs of the command are files"
    return result.source


def place(source: Path, base: Path, folder: Path, ending: str, is_taken: Callable[[Path], bool] = Path.exists) -> Path:
    """Return the result path of `source`: the path relative to `base`, in `folder`; numbered if the name is taken.

    `base` is absolute and contains no `..`; the result is therefore always below `folder`.
    """
    path = folder / absolute(source).relative_to(base).with_suffix("")
    path = path.with_name(shortened(path.name, LONGEST_STEM))
    path.parent.mkdir(parents=True, exist_ok=True)
    return first_free(path, ending, is_taken)  # the inputs one.jpg and one.png have the same result name
