"""Times, order and orientation of the frames of videos, and videos that are damaged."""

import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from tests.helpers.films import SIDE, number_of, write_film
from yolo_lightning.data.input_videos import read_frames, video_timing
from yolo_lightning.data.storage.frames import FrameError
from yolo_lightning.data.storage.image_header import FrameLimits

MS = Fraction(1, 1000)
REGULAR = [Fraction(number, 25) for number in range(12)]
JITTERED = [time * MS for time in (0, 39, 74, 107, 136, 165, 201, 230, 262, 298)]
PAUSED = [*JITTERED, *(time * MS for time in (2500, 2533, 2900))]
HOURLY = [Fraction(3600 * number) for number in range(5)]

FILMS = {
    "browser.webm": (JITTERED, "libvpx", {"rate": 1000}),
    "live.webm": (JITTERED, "libvpx", {"rate": 1000, "live": "1"}),
    "paused.mkv": (PAUSED, "libx264", {}),
    "paused.mp4": (PAUSED, "libx264", {}),
    "hourly.mp4": (HOURLY, "libx264", {"rate": Fraction(1, 3600), "time_base": Fraction(1)}),
    "hourly.avi": (HOURLY, "mpeg4", {"rate": Fraction(1, 3600), "time_base": Fraction(3600)}),
    "reordered.avi": (REGULAR, "libx264", {"time_base": Fraction(1, 25)}),
    "late.mkv": ([time + 2 for time in REGULAR], "libx264", {}),
    "film.mpg": (REGULAR, "mpeg2video", {"time_base": Fraction(1, 25)}),
}


@pytest.mark.parametrize("name", FILMS)
def test_frames_have_the_times_of_the_file(name: str, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    times, codec, options = FILMS[name]
    write_film(tmp_path / name, times, codec, **options)
    frames = list(read_frames(tmp_path / name))
    assert [number_of(pixels) for pixels, _ in frames] == list(range(len(times)))
    assert [time_s for _, time_s in frames] == pytest.approx([float(time - times[0]) for time in times], abs=1e-6)
    assert not recwarn.list, "a complete video is not damaged"
    rate = 25 if "webm" in name else options.get("rate", 25)
    if "paused" not in name:
        assert video_timing(tmp_path / name).frames_per_s == rate


@pytest.mark.parametrize("count", [15, 40])
def test_times_of_joined_recordings_continue(count: int, tmp_path: Path) -> None:
    times = [Fraction(number, 25) for number in range(count)]
    write_film(tmp_path / "part.mpg", times, "mpeg2video", time_base=Fraction(1, 25))
    (tmp_path / "joined.mpg").write_bytes((tmp_path / "part.mpg").read_bytes() * 2)
    with pytest.warns(UserWarning, match=rf"joined\.mpg: the times begin anew after {count / 25:.1f} s and are"):
        frames = list(read_frames(tmp_path / "joined.mpg"))
    assert [number_of(pixels) for pixels, _ in frames] == [number % 16 for number in range(count)] * 2
    second = [count / 25 + float(time) for time in times]
    assert [time_s for _, time_s in frames] == pytest.approx([*map(float, times), *second], abs=1e-3)


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_frames_are_rotated_as_the_file_states(tmp_path: Path, quarters: int) -> None:
    write_film(tmp_path / "film.mp4", REGULAR[:3])
    upright = next(read_frames(tmp_path / "film.mp4"))[0]
    unit = 1 << 16
    matrix = {1: (0, -unit, 0, unit, 0), 2: (-unit, 0, 0, 0, -unit), 3: (0, unit, 0, -unit, 0)}[quarters]
    content = bytearray((tmp_path / "film.mp4").read_bytes())
    place = content.index(b"tkhd") + 44  # of the matrix in the track header
    content[place : place + 20] = struct.pack(">5i", *matrix)
    (tmp_path / "rotated.mp4").write_bytes(content)
    rotated = next(read_frames(tmp_path / "rotated.mp4"))[0]
    assert np.array_equal(rotated, np.rot90(upright, quarters))


def test_damaged_video_of_unknown_length_is_named_once(tmp_path: Path) -> None:
    write_film(tmp_path / "film.webm", JITTERED, "libvpx", live="1")
    with av.open(str(tmp_path / "film.webm")) as container:
        packets = [bytes(packet) for packet in container.demux() if packet.size]
    content = (tmp_path / "film.webm").read_bytes()
    (tmp_path / "film.webm").write_bytes(content.replace(packets[-1], b"\xff" * len(packets[-1])))
    with pytest.warns(UserWarning, match=r"film\.webm is damaged: 1 of 10 frames are missing or wrong") as caught:
        assert len(list(read_frames(tmp_path / "film.webm"))) == 9
    assert len(caught) == 1


def test_video_that_ends_before_its_duration_is_named(tmp_path: Path) -> None:
    write_film(tmp_path / "film.mkv", [10 * time for time in REGULAR])
    with av.open(str(tmp_path / "film.mkv")) as container:
        positions = [packet.pos for packet in container.demux() if packet.size]
    (tmp_path / "film.mkv").write_bytes((tmp_path / "film.mkv").read_bytes()[: positions[6]])
    with pytest.warns(UserWarning, match=r"film\.mkv may be incomplete: its frames end at .* a duration of 4\.\d s"):
        assert 0 < len(list(read_frames(tmp_path / "film.mkv"))) <= 6


def test_header_of_a_huge_video_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_film(tmp_path / "film.mp4", REGULAR[:2])
    monkeypatch.setattr(FrameLimits, "__init__", lambda limits: object.__setattr__(limits, "max_pixels", SIDE))
    with pytest.raises(FrameError, match=r"film\.mp4: the header claims 64 x 64 pixels, more than 64"):
        next(read_frames(tmp_path / "film.mp4"))


def test_file_with_sound_only_is_named(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "sound.mkv"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.rate = 8000
        container.mux([*stream.encode(frame), *stream.encode(None)])
    with pytest.raises(ValueError, match=r"sound\.mkv: contains no video that FFmpeg can decode"):
        next(read_frames(tmp_path / "sound.mkv"))


def test_recording_that_was_not_finished_is_explained(tmp_path: Path) -> None:
    write_film(tmp_path / "film.mp4", REGULAR[:2])
    content = (tmp_path / "film.mp4").read_bytes()
    (tmp_path / "film.mp4").write_bytes(content[: content.index(b"moov") - 4])
    with pytest.raises(ValueError, match=r"cannot be opened as a video: it is a damaged MP4 .* has no index \(moov\)"):
        next(read_frames(tmp_path / "film.mp4"))
