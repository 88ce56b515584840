"""Annotated videos: H.264, which browsers play, where PyAV has the encoder, else MPEG-4 Part 2 through OpenCV."""

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import cv2
import numpy as np
import numpy.typing as npt
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.stream import VideoStream

ENCODER: Final = "libx264"
ENCODER_OPTIONS = {"crf": "23", "preset": "veryfast"}  # x264's default quality; a preset that uses less time
MAX_DENOMINATOR = 1001  # of frame rates such as 30000/1001

Pixels = npt.NDArray[np.uint8]


class EncoderUnavailableError(Exception):
    """PyAV is not installed, or its encoder is missing or does not accept the size or frame rate of a video."""


class VideoFile(Protocol):
    """An open video file."""

    codec: str

    def write(self, pixels: Pixels) -> None:
        """Append a frame, `(H, W, 3)` uint8, BGR, of the size of the video."""

    def close(self) -> None: ...


class H264File:
    """An MP4 file with H.264 and 4:2:0 pixels, which have even sides: odd frames repeat their last row or column."""

    codec = f"H.264 ({ENCODER})"

    def __init__(self, path: Path, width: int, height: int, frames_per_s: float) -> None:
        try:
            import av
        except ImportError as error:
            raise EncoderUnavailableError(f"PyAV: {error}") from error
        if ENCODER not in av.codecs_available:
            raise EncoderUnavailableError(f"PyAV has no encoder {ENCODER}")
        self._right, self._bottom = width % 2, height % 2
        self._container: OutputContainer = av.open(str(path), "w", format="mp4", options={"movflags": "faststart"})
        try:
            rate = Fraction(frames_per_s).limit_denominator(MAX_DENOMINATOR)
            self._stream: VideoStream = self._container.add_stream(ENCODER, rate=rate, options=ENCODER_OPTIONS)
            self._stream.width, self._stream.height = width + self._right, height + self._bottom
            self._stream.pix_fmt = "yuv420p"
            self._container.start_encoding()
        except OSError as error:  # the folder is missing or the disk full
            raise OSError(f"{path} cannot be written: {error.strerror}") from error
        except (av.FFmpegError, ValueError, OverflowError) as error:
            self._container.close()
            raise EncoderUnavailableError(f"{ENCODER}: {error}") from error
        self._frames = 0

    def write(self, pixels: Pixels) -> None:
        from av import VideoFrame

        even = cv2.copyMakeBorder(pixels, 0, self._bottom, 0, self._right, cv2.BORDER_REPLICATE)
        frame = VideoFrame.from_ndarray(np.asarray(even, dtype=np.uint8), format="bgr24")
        frame.pts = self._frames
        frame.time_base = 1 / Fraction(self._stream.codec_context.framerate)
        self._frames += 1
        self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        self._container.mux(self._stream.encode(None))
        self._container.close()


class Mpeg4File:
    """An MP4 file with MPEG-4 Part 2, which OpenCV's wheels can write."""

    codec = "MPEG-4 Part 2 (mp4v), which browsers do not play"

    def __init__(self, path: Path, width: int, height: int, frames_per_s: float) -> None:
        self._writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), frames_per_s, (width, height))
        if not self._writer.isOpened():
            raise OSError(f"{path} cannot be written")

    def write(self, pixels: Pixels) -> None:
        self._writer.write(pixels)

    def close(self) -> None:
        self._writer.release()


def open_video(path: Path, width: int, height: int, frames_per_s: float) -> VideoFile:
    """Create a video file and log its codec.

    Args:
        path: MP4 file.
        width: Width of the frames in pixels.
        height: Height of the frames in pixels.
        frames_per_s: Frame rate.

    Raises:
        OSError: If the file cannot be written.
    """
    file: VideoFile
    try:
        file = H264File(path, width, height, frames_per_s)
    except EncoderUnavailableError as error:
        file = Mpeg4File(path, width, height, frames_per_s)
        rank_zero_warn(f"video: {path}, {file.codec}; {error}")
    else:
        rank_zero_info(f"video: {path}, {file.codec}")
    return file
