"""Paths of input images: accepted forms, and the images that result."""

import os
from pathlib import Path

import cv2
import numpy as np
import PIL.Image
import pytest

from yolo_lightning.commands.predict.results import place
from yolo_lightning.data.input_clips import ClipReader
from yolo_lightning.data.input_images import absolute, find_files, read_pictures
from yolo_lightning.data.storage.frames import FrameError
from yolo_lightning.utils.paths import shortened


@pytest.fixture
def album(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    colour = np.zeros((6, 8, 3), np.uint8)
    colour[..., 2] = 200  # red, in OpenCV's order
    for name in ("b.png", "a.PNG", "deep/c.png"):
        cv2.imwrite(str(tmp_path / name), colour)
    cv2.imwrite(str(tmp_path / "gray.png"), colour[..., 2])
    (tmp_path / "notes.txt").write_text("no picture")
    writer = cv2.VideoWriter(str(tmp_path / "film.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 5, (32, 32))
    for number in range(4):
        writer.write(np.full((32, 32, 3), 60 * number, np.uint8))
    writer.release()
    return tmp_path


def test_folder_counts_with_all_below_it(album: Path) -> None:
    with pytest.warns(UserWarning, match=r"left out 1 files with other suffixes \(1 \.txt\), such as .*notes\.txt"):
        files = find_files([str(album)])
    assert [path.relative_to(album).as_posix() for path in files] == [
        "a.PNG",
        "b.png",
        "deep/c.png",
        "film.mp4",
        "gray.png",
    ]


def test_sources_keep_their_order_and_count_once(album: Path) -> None:
    files = find_files([str(album / "gray.png"), str(album / "*.png"), str(album / "**" / "c.png")])
    assert [path.name for path in files] == ["gray.png", "b.png", "c.png"]


def test_matches_of_a_pattern_that_are_no_pictures_are_counted(album: Path) -> None:
    with pytest.warns(UserWarning, match=r"1 files with other suffixes \(1 \.txt\).*1 folders \(name the folder"):
        files = find_files([str(album / "*")])
    assert [path.name for path in files] == ["a.PNG", "b.png", "film.mp4", "gray.png"]


def test_links_are_pictures_and_spellings_are_not(album: Path) -> None:
    (album / "deep" / "link.png").symlink_to("c.png")
    files = find_files([str(album / "deep"), str(album / "deep" / ".." / "deep" / "c.png")])
    assert [path.name for path in files] == ["c.png", "link.png"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("absent.png", "does not exist"),
        ("notes.txt", r"must end in one of \.3gp, \.avi"),
        ("*.bmp", r"contains no file that ends in \.3gp, \.avi"),
    ],
)
def test_source_without_pictures_is_named(album: Path, source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_files([str(album / "b.png"), str(album / source)])


def test_colours_are_rgb_and_gray_is_known(album: Path) -> None:
    (colour,) = read_pictures(album / "b.png")
    (gray,) = read_pictures(album / "gray.png")
    assert colour.pixels[0, 0].tolist() == [200, 0, 0]
    assert not colour.is_gray()
    assert gray.is_gray()


def test_video_gives_its_frames_in_order(album: Path) -> None:
    frames = list(read_pictures(album / "film.mp4"))
    assert [frame.frame for frame in frames] == [0, 1, 2, 3]
    levels = [float(frame.pixels.mean()) for frame in frames]
    assert levels == pytest.approx([0, 60, 120, 180], abs=6)
    assert [frame.time_s for frame in frames] == pytest.approx([0, 0.2, 0.4, 0.6])


def write_gray_film(path: Path, pixels: np.ndarray) -> None:
    depth = cv2.CV_16U if pixels.dtype == np.uint16 else cv2.CV_8U
    options = [cv2.VIDEOWRITER_PROP_DEPTH, depth, cv2.VIDEOWRITER_PROP_IS_COLOR, 0]
    size = (pixels.shape[1], pixels.shape[0])
    writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*"FFV1"), 5, size, options)
    writer.write(pixels)
    writer.release()


def test_gray_video_of_16_bits_is_refused(tmp_path: Path) -> None:
    write_gray_film(tmp_path / "raw.mkv", np.full((48, 64), 7000, np.uint16))
    with pytest.raises(FrameError, match=r"raw\.mkv: gray videos must have 8 bits per pixel, got 16"):
        list(read_pictures(tmp_path / "raw.mkv"))


def test_gray_video_of_8_bits_is_read(tmp_path: Path) -> None:
    write_gray_film(tmp_path / "gray.mkv", np.full((48, 64), 90, np.uint8))
    (picture,) = read_pictures(tmp_path / "gray.mkv")
    assert (picture.is_gray(), int(picture.pixels[0, 0, 0])) == (True, 90)


@pytest.mark.parametrize(("name", "error"), [("bad.png", FrameError), ("bad.mp4", ValueError)])
def test_damaged_file_is_named(album: Path, name: str, error: type[Exception]) -> None:
    (album / name).write_bytes(b"torn")
    with pytest.raises(error, match=name):
        list(read_pictures(album / name))


def result_paths(sources: list[str], output: Path) -> list[Path]:
    files = find_files(sources)
    base = Path(os.path.commonpath([absolute(file).parent for file in files]))
    return [place(file, base, output, ".jpg") for file in files]


def test_results_stay_below_the_output_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / "in" / name).mkdir(parents=True)
    for path in ("in/b/x.jpg", "in/c/y.jpg", "in/a/z.jpg"):
        cv2.imwrite(str(tmp_path / path), np.zeros((8, 8), np.uint8))
    monkeypatch.chdir(tmp_path / "in")
    output = tmp_path / "out"
    for sources in (
        ["b/x.jpg", str(tmp_path / "in/c/y.jpg")],
        ["a/../b/x.jpg"],
        ["a/../b/x.jpg", "a/../../in/c/y.jpg", "a"],
        ["../in/b/x.jpg", "b/x.jpg"],
    ):
        for path in result_paths(sources, output):
            assert path.resolve().is_relative_to(output)


def test_long_names_and_other_files_than_regular_ones(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / ("x" * 250 + ".jpg")), np.zeros((8, 8), np.uint8))
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.warns(UserWarning, match=r"left out 2 pipes, devices or sockets, such as .*pipe\.jpg; 1 links to"):
        assert [file.name for file in find_files([str(tmp_path)])] == ["x" * 250 + ".jpg"]
    (path,) = result_paths([str(tmp_path)], tmp_path / "out")
    path.touch()
    assert shortened("人" * 70, 200) == "人" * 66
    assert shortened(os.fsdecode(b"caf\xe9" * 2), 7) == os.fsdecode(b"caf\xe9caf")
    with pytest.raises(ValueError, match="does not exist"):
        find_files(["y" * 300 + ".jpg"])
    with pytest.raises(ValueError, match=r"pipe\.jpg is a pipe, a device or a broken link"):
        find_files([str(tmp_path / "pipe.jpg")])


@pytest.mark.parametrize("source", ["https://example.org/a.jpg", "rtsp://camera/1", "0"])
def test_addresses_and_cameras_are_named(source: str) -> None:
    with pytest.raises(ValueError, match="must be local files; addresses and cameras are not read"):
        find_files([source])


def test_incomplete_video_is_named(tmp_path: Path) -> None:
    path = tmp_path / "film.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 5, (32, 32))
    for _ in range(8):
        writer.write(np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8))
    writer.release()
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with pytest.warns(UserWarning, match=r"film\.avi is damaged: only \d of 8 frames can be decoded"):
        assert 0 < len(list(read_pictures(path))) < 8


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jpg", b"<!DOCTYPE html>", r"a\.jpg: not an image that can be decoded .15 bytes.: it is a web page"),
        ("a.png", b"version https://git-lfs.github.com/spec/v1", "it is a pointer of Git LFS; run git lfs pull"),
        ("a.mp4", b"", r"a\.mp4: cannot be opened as a video: it is empty"),
        ("a.mp4", b"<html>", r"a\.mp4: cannot be opened as a video: it is a web page"),
    ],
)
def test_other_files_are_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises((ValueError, FrameError), match=message):
        list(read_pictures(tmp_path / name))


def test_first_file_that_is_not_read_as_a_whole_is_reported(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    reader = ClipReader()
    for name in ("a.png", "b.png"):
        PIL.Image.new("RGBA", (8, 6), (10, 20, 30, 128)).save(tmp_path / name)
        (picture,) = reader.read(tmp_path / name)
        assert picture.pixels[0, 0].tolist() == [10, 20, 30]
    assert [str(warning.message) for warning in recwarn] == [
        f"{tmp_path / 'a.png'} has 4 bands, of which the first 3 are read; other files like this are not reported"
    ]


def test_tiff_of_several_pages_is_named(tmp_path: Path) -> None:
    pages = [np.full((6, 8), level, np.uint8) for level in (10, 20)]
    assert cv2.imwritemulti(str(tmp_path / "two.tif"), pages)
    (picture,) = read_pictures(tmp_path / "two.tif")
    assert (picture.pixels == 10).all()
    assert picture.unread == "2 pages, of which the first one is read"


def test_pattern_below_a_folder_with_brackets_finds_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "shots [take 1]" / "a*b"
    folder.mkdir(parents=True)
    for name in ("1.jpg", "2.jpg", "3.png"):
        (folder / name).touch()
    assert [file.name for file in find_files([str(folder / "*.jpg")])] == ["1.jpg", "2.jpg"]
    assert [file.name for file in find_files([str(folder.parent / "**" / "[23].*")])] == ["2.jpg", "3.png"]


def test_pattern_with_links_in_a_circle_finds_each_file_once(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").touch()
    (tmp_path / "again").symlink_to(".")
    with pytest.warns(UserWarning, match="1 links to folders that contain the link"):
        files = find_files([str(tmp_path / "**" / "*.jpg")])
    assert files == [tmp_path / "1.jpg"]
