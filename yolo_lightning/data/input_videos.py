"""Frames of video files with their times, read by PyAV.

OpenCV's reader gives no reliable times: recordings of browsers state 1000 frames per second, and the time between two
frames can vary from milliseconds to hours.
"""

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import av
import numpy as np
from av.video.stream import VideoStream

from yolo_lightning.data.array_types import UInt8Array
from yolo_lightning.data.storage.frames import FrameError
from yolo_lightning.data.storage.image_header import FrameLimits
from yolo_lightning.errors import UserError
from yolo_lightning.utils.plain_text import first_look, one_line
from yolo_lightning.utils.rank_zero import rank_zero_warn
from yolo_lightning.utils.regular_files import open_regular

if TYPE_CHECKING:
    from av import Packet, VideoFrame
    from av.container import InputContainer

USUAL_RATE = Fraction(25)
"""Frames per second of a video that states none."""
HIGHEST_RATE = 240
"""A file without a number of frames and with a higher rate states the ticks of its clock, often 1000 per second."""
FINEST_TIME_BASE = Fraction(1, 90_000)
"""Of MPEG; a clock of nanoseconds would exceed the 32 bits that an MP4 file has for the time between two frames."""
WITHOUT_PRESENTATION_TIMES = "avi"
"""Container whose packets have the times of decoding only: FFmpeg's times of reordered frames are wrong."""

MP4_START = b"ftyp"  # of an MP4 or MOV file, after the length of its first part

JUMP_S = 1.0
JUMP_FRAMES = 8
"""Times that go back by more than one of these begin anew, as in joined recordings; smaller steps back are rounding, or
times of decoding of reordered frames."""
COMPLETE_SHARE = 0.95  # of the stated frames or duration; both are estimates in some files


@dataclass(frozen=True, slots=True)
class VideoTiming:
    """Frame rate, unit of time and length of a video file."""

    frames_per_s: Fraction  # average, `USUAL_RATE` if unknown
    time_base: Fraction  # unit of the times of frames in seconds
    frames: int  # number of frames, >= 1; an estimate in containers that state a duration only


def video_timing(path: Path) -> VideoTiming:
    """Return the timing that a video file states.

    Raises:
        UserError: If the file is not a video.
    """
    with opened_video(path) as (container, stream):
        rate = frame_rate(stream)
        frames = stream.frames or round((_stated_duration_s(container, stream) or 0.0) * rate)
        return VideoTiming(rate, max(_time_base(stream), FINEST_TIME_BASE), max(1, frames))


def read_frames(path: Path) -> Iterator[tuple[UInt8Array, float]]:
    """Yield pixels, `(H, W, 3)` uint8 RGB, and the time in seconds after the beginning of each frame of a video.

    Frames are rotated as the file states. Frames that cannot be decoded are left out with one warning.

    Raises:
        UserError: If the file is not a video, or none of its frames can be decoded.
        FrameError: If the frames are too large, or gray with more than 8 bits per pixel.
    """
    with opened_video(path) as (container, stream):
        limit = FrameLimits().max_pixels
        if stream.width * stream.height > limit:
            claimed = f"{stream.width:,} x {stream.height:,}"
            raise FrameError(f"{path}: the header claims {claimed} pixels, more than {limit:,}")
        decoder = _Decoder(container, stream)
        clock = _Clock(stream, path)
        for frame, ticks in decoder.frames():
            _refuse_raw_gray(frame, path)
            yield _upright(frame), clock.time_s(ticks)
        if clock.last_s is None:
            raise UserError(f"{path}: contains no frames that can be decoded{decoder.reason()}")
        for damage in (decoder.damage(), clock.missing_end(_stated_duration_s(container, stream))):
            if damage is not None:
                rank_zero_warn(f"{path} {damage}")
                break


@contextmanager
def opened_video(path: Path) -> Iterator[tuple["InputContainer", VideoStream]]:
    """Open a video file for reading; yield its container and its main video stream.

    Raises:
        UserError: If the file is not a video.
    """
    try:
        # The absolute path, because FFmpeg takes the part of a relative path before a colon for a protocol. A playlist
        # in place of a video opens local files only, which is FFmpeg's default for playlists in local files.
        container = av.open(os.path.abspath(path), metadata_errors="replace")
    except av.FFmpegError as error:
        with open_regular(path) as file:
            head = file.read(64)
        look = first_look(head)
        if head[4:8] == MP4_START:
            look = "is a damaged MP4 or MOV file; one whose recording or copy was not finished has no index (moov)"
        raise UserError(f"{path}: cannot be opened as a video: it {look}") from error
    with container:
        stream = container.streams.best("video")
        if not isinstance(stream, VideoStream) or stream.codec_context is None:
            raise UserError(f"{path}: contains no video that FFmpeg can decode")
        yield container, stream


def frame_rate(stream: VideoStream) -> Fraction:
    """Return the average number of frames per second, `USUAL_RATE` if it is unknown."""
    rate = stream.average_rate or stream.guessed_rate or USUAL_RATE
    if rate > HIGHEST_RATE and not stream.frames:
        return USUAL_RATE
    return rate


def _time_base(stream: VideoStream) -> Fraction:
    assert stream.time_base is not None, "streams of files have a time base"
    return stream.time_base


def _stated_duration_s(container: "InputContainer", stream: VideoStream) -> float | None:
    """Return the duration of a video stream in seconds, None if the file states only that of several streams."""
    if stream.duration is not None:
        return float(stream.duration * _time_base(stream))
    if container.duration is None or len(container.streams) > 1:
        return None
    return container.duration / av.time_base


class _Decoder:
    """Frames of a video stream and their times; counts what cannot be decoded.

    FFmpeg's threads for whole frames are not used: they hide packets that cannot be decoded (VP8, H.264).
    """

    def __init__(self, container: "InputContainer", stream: VideoStream) -> None:
        self._container = container
        self._stream = stream
        self._uses_packet_order = container.format.name == WITHOUT_PRESENTATION_TIMES
        self._packet_times: deque[int] = deque()  # times of decoding of the packets without a frame so far
        self._packets = 0
        self._damaged = 0  # packets without a frame, and frames with errors
        self._last_error: av.FFmpegError | None = None

    def frames(self) -> Iterator[tuple["VideoFrame", int | None]]:
        """Yield each frame and its time in units of the stream's time base, None if it is unknown."""
        try:
            for packet in self._container.demux(self._stream):
                yield from self._frames_of(packet)
        except av.FFmpegError as error:  # the container is damaged: its rest cannot be read
            self._last_error = error
            yield from self._frames_of(None)

    def _frames_of(self, packet: "Packet[VideoStream] | None") -> Iterator[tuple["VideoFrame", int | None]]:
        """Yield the frames that become complete with a packet; None and an empty packet complete all frames."""
        has_content = packet is not None and packet.size > 0
        self._packets += int(has_content)
        try:
            frames = self._stream.decode(packet)
        except av.FFmpegError as error:
            self._damaged += int(has_content)
            self._last_error = error
            return
        if self._uses_packet_order and packet is not None and has_content and packet.dts is not None:
            self._packet_times.append(packet.dts)
        for frame in frames:
            self._damaged += int(frame.is_corrupt)
            yield frame, self._ticks(frame)

    def _ticks(self, frame: "VideoFrame") -> int | None:
        if not self._uses_packet_order:
            return frame.dts if frame.pts is None else frame.pts
        # The decoder returns frames in the order of presentation: the n-th frame has the time of the n-th packet.
        return self._packet_times.popleft() if self._packet_times else None

    def reason(self) -> str:
        """Return the last error in brackets, an empty text without an error."""
        if self._last_error is None:
            return ""
        return f" ({one_line(str(self._last_error))})"

    def damage(self) -> str | None:
        """Return how many frames are missing or wrong, as the end of a sentence, None for a complete stream."""
        stated = self._stream.frames
        decodable = self._packets - self._damaged
        if decodable < COMPLETE_SHARE * stated:
            return f"is damaged: only {decodable:,} of {stated:,} frames can be decoded{self.reason()}"
        if self._damaged or self._last_error is not None:
            return f"is damaged: {self._damaged:,} of {self._packets:,} frames are missing or wrong{self.reason()}"
        return None


class _Clock:
    """Times of frames in seconds after the beginning of their video. Times that begin anew continue."""

    def __init__(self, stream: VideoStream, path: Path) -> None:
        self._time_base = _time_base(stream)
        self._interval_s = float(1 / frame_rate(stream))
        self._jump_s = min(JUMP_S, JUMP_FRAMES * self._interval_s)
        self._longest_interval_s = 0.0
        self._start: int | None = stream.start_time
        self._path = path
        self._shift_s = 0.0
        self.last_s: float | None = None
        """Time of the last frame, None before the first one."""

    def time_s(self, ticks: int | None) -> float:
        """Return the time of the next frame; one without a time follows the previous frame at the frame rate."""
        if self.last_s is None:
            self.last_s = self._after_start_s(ticks)
            return self.last_s
        expected_s = self.last_s + self._interval_s
        time_s = expected_s
        if ticks is not None:
            time_s = self._after_start_s(ticks) + self._shift_s
        if time_s < self.last_s - self._jump_s:
            if not self._shift_s:
                rank_zero_warn(f"{self._path}: the times begin anew after {self.last_s:,.1f} s and are continued")
            self._shift_s += expected_s - time_s
            time_s = expected_s
        self._longest_interval_s = max(self._longest_interval_s, time_s - self.last_s)
        self.last_s = time_s
        return time_s

    def _after_start_s(self, ticks: int | None) -> float:
        if ticks is None:
            return 0.0
        if self._start is None or ticks < self._start:
            self._start = ticks
        return float((ticks - self._start) * self._time_base)

    def missing_end(self, duration_s: float | None) -> str | None:
        """Return that the last frames of a stated duration are missing, as the end of a sentence, None if they exist.

        Matroska's duration includes the time before the first frame.
        """
        start_s = float((self._start or 0) * self._time_base)
        end_s = start_s + (self.last_s or 0.0) + max(self._interval_s, self._longest_interval_s)
        if duration_s is None or end_s >= COMPLETE_SHARE * duration_s:
            return None
        return f"may be incomplete: its frames end at {end_s:,.1f} s, and it states a duration of {duration_s:,.1f} s"


def _refuse_raw_gray(frame: "VideoFrame", path: Path) -> None:
    """Raise a `FrameError` for a gray video with more than 8 bits per pixel.

    The conversion would keep the upper 8 bits, which makes the frames nearly black. Colour videos with 10 and 12 bits
    use their whole range and are converted correctly.
    """
    bits = frame.format.components[0].bits
    if frame.format.name.startswith("gray") and bits > 8:
        raise FrameError(
            f"{path}: gray videos must have 8 bits per pixel, got {bits}. Convert the frames to 8 bits with one range "
            "for all frames (docs/dataset_formats.md)."
        )


def _upright(frame: "VideoFrame") -> UInt8Array:
    """Return the pixels of a frame as RGB, rotated as the file states."""
    pixels = np.asarray(frame.to_ndarray(format="rgb24"), dtype=np.uint8)
    quarters = round(frame.rotation / 90) % 4
    return np.ascontiguousarray(np.rot90(pixels, quarters))
