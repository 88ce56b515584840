"""Result files of `predict`: annotated images and videos, JSON, YOLO text files."""

import json
import os
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

import av
import cv2
import numpy as np
import numpy.typing as npt
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from yolo_lightning.data.boxes import corners_to_centres
from yolo_lightning.data.input_images import absolute, frames_per_second
from yolo_lightning.evaluation.detection_result import DetectionResult
from yolo_lightning.utils.files import first_free

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.stream import VideoStream

Result = Literal["pictures", "json", "txt"]
"""Annotated images and videos; one `predictions.json`; a text file per image."""

ENCODER: Final = "libx264"
ENCODER_OPTIONS = {"crf": "23", "preset": "veryfast"}  # x264's default quality; a preset that uses less time
MAX_DENOMINATOR = 1001  # of frame rates such as 30000/1001

PICTURES_FOLDER = "pictures"
LABELS_FOLDER = "labels"
LONGEST_STEM = 200  # bytes of a file name, to which a number and a suffix are added; file systems accept 255


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


class VideoFile:
    """An MP4 file with H.264, which browsers play, or MPEG-4 Part 2 where FFmpeg has no encoder for it.

    Pixels are 4:2:0, which have even sides: odd frames repeat their last row or column.

    Args:
        path: MP4 file.
        width: Width of the frames in pixels.
        height: Height of the frames in pixels.
        frames_per_s: Frame rate.

    Raises:
        OSError: If the file cannot be written.
    """

    def __init__(self, path: Path, width: int, height: int, frames_per_s: float) -> None:
        self._right, self._bottom = width % 2, height % 2
        try:
            self._container: OutputContainer = av.open(str(path), "w", format="mp4", options={"movflags": "faststart"})
            rate = Fraction(frames_per_s).limit_denominator(MAX_DENOMINATOR)
            self._stream: VideoStream
            if ENCODER in av.codecs_available:
                self._stream = self._container.add_stream(ENCODER, rate=rate, options=ENCODER_OPTIONS)
                rank_zero_info(f"video: {path}, H.264 ({ENCODER})")
            else:
                self._stream = self._container.add_stream("mpeg4", rate=rate)
                rank_zero_warn(f"video: {path}, MPEG-4 Part 2, which browsers do not play; PyAV has no {ENCODER}")
            self._stream.width, self._stream.height = width + self._right, height + self._bottom
            self._stream.pix_fmt = "yuv420p"
            self._container.start_encoding()
        except OSError as error:  # the folder is missing or the disk full
            raise OSError(f"{path} cannot be written: {error.strerror}") from error
        self._frames = 0

    def write(self, pixels: npt.NDArray[np.uint8]) -> None:
        """Append a frame, `(H, W, 3)` uint8, BGR, of the size of the video."""
        even = cv2.copyMakeBorder(pixels, 0, self._bottom, 0, self._right, cv2.BORDER_REPLICATE)
        frame = av.VideoFrame.from_ndarray(np.asarray(even, dtype=np.uint8), format="bgr24")
        frame.pts = self._frames
        frame.time_base = 1 / Fraction(self._stream.codec_context.framerate)
        self._frames += 1
        self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        self._container.mux(self._stream.encode(None))
        self._container.close()


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


WRITERS: dict[Result, type[Pictures | JsonFile | TextFiles]] = {
    "pictures": Pictures,
    "json": JsonFile,
    "txt": TextFiles,
}
"""Writers of the kinds of results, for a folder and the common parent folder of all inputs; close them at the end."""


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
