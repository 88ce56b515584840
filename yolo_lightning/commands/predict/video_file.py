"""Annotated videos: H.264, which browsers play, or MPEG-4 Part 2 where FFmpeg has no encoder for it."""

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final

import av
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


class VideoFile:
    """An MP4 file with 4:2:0 pixels, which have even sides: odd frames repeat their last row or column.

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
