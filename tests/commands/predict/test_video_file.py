"""Codec, frames and colours of annotated videos."""

import warnings
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from yolo_lightning.commands.predict.results import VideoFile

COLOURS = ((200, 40, 30), (30, 180, 60), (40, 30, 190))  # BGR, one per frame


def write(path: Path, width: int, height: int) -> None:
    file = VideoFile(path, width, height, frames_per_s=29.97)
    for colour in COLOURS:
        file.write(np.full((height, width, 3), colour, np.uint8))
    file.close()


def codec_of(path: Path) -> str:
    with av.open(str(path)) as container:
        return container.streams.video[0].codec_context.name


def check_frames(path: Path, width: int, height: int) -> None:
    video = cv2.VideoCapture(str(path))
    assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(29.97, abs=1e-3)
    for colour in COLOURS:
        read, pixels = video.read()
        assert read
        assert pixels.shape == (height, width, 3)
        assert pixels[0, 0].tolist() == pytest.approx(colour, abs=12)
        assert pixels[-1, -1].tolist() == pytest.approx(colour, abs=12)
    assert not video.read()[0]
    video.release()


@pytest.mark.parametrize("size", [(64, 48), (63, 47)], ids=["even", "odd"])
def test_videos_are_h264_and_complete(tmp_path: Path, caplog: pytest.LogCaptureFixture, size: tuple[int, int]) -> None:
    path = tmp_path / "film.mp4"
    with caplog.at_level("INFO"):
        write(path, *size)
    assert codec_of(path) == "h264"
    check_frames(path, 64, 48)
    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.pix_fmt == "yuv420p"  # the only format of many players
    assert f"video: {path}, H.264 (libx264)" in caplog.text


def test_videos_without_the_encoder_are_mpeg_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(av, "codecs_available", frozenset({"mpeg4"}))
    path = tmp_path / "film.mp4"
    with pytest.warns(UserWarning, match=r"film\.mp4, MPEG-4 Part 2, which browsers do not play; PyAV has no libx264"):
        write(path, 64, 48)
    assert codec_of(path) == "mpeg4"
    check_frames(path, 64, 48)


def test_frames_of_another_size_keep_their_shape(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    file = VideoFile(path, 96, 64, frames_per_s=25)
    file.write(np.full((64, 96, 3), COLOURS[0], np.uint8))
    narrow = np.full((64, 32, 3), COLOURS[1], np.uint8)
    with pytest.warns(UserWarning, match=r"change from 96 x 64 to 32 x 64 pixels at 0\.0 s; .* are scaled and padded"):
        file.write(narrow)
    with warnings.catch_warnings(action="error"):
        file.write(narrow)
    file.close()
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="bgr24") for frame in container.decode(video=0)]
    assert [frame.shape for frame in frames] == [(64, 96, 3)] * 3
    assert frames[2][32, 48].tolist() == pytest.approx(COLOURS[1], abs=12)
    assert frames[2][32, [8, 88]].tolist() == [pytest.approx([114] * 3, abs=12)] * 2
