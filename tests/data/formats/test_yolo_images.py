"""Image sizes from file headers equal the sizes of the decoded images."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from yolo_lightning.data.formats import yolo
from yolo_lightning.data.formats.yolo import ORIENTATION, image_shape
from yolo_lightning.data.storage.frames import decode_frame

FORMATS = {"jpg": "JPEG", "png": "PNG", "bmp": "BMP", "tif": "TIFF", "webp": "WEBP", "jp2": "JPEG2000"}
TURNABLE = ("jpg", "png", "tif", "webp")
HEIGHT, WIDTH = 20, 30


def write(path: Path, orientation: int | None = None, mode: str = "RGB") -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    options = {}
    if orientation is not None:
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        options = {"exif": exif}
    image.save(path, FORMATS[path.suffix[1:]], **options)
    return path


@pytest.mark.parametrize("suffix", FORMATS)
def test_size_is_height_and_width(tmp_path: Path, suffix: str) -> None:
    assert image_shape(write(tmp_path / f"a.{suffix}")) == (HEIGHT, WIDTH)


@pytest.mark.parametrize("suffix", FORMATS)
def test_header_is_enough(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / f"a.{suffix}")
    monkeypatch.setattr(yolo, "decode_frame", lambda *_: pytest.fail("decoded"))
    monkeypatch.setattr(Image.Image, "load", lambda *_: pytest.fail("decoded"))
    assert image_shape(path) == (HEIGHT, WIDTH)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", TURNABLE)
def test_turned_image_has_the_size_it_is_decoded_to(tmp_path: Path, suffix: str, orientation: int) -> None:
    path = write(tmp_path / f"a.{suffix}", orientation)
    assert (
        image_shape(path)
        == decode_frame(path.read_bytes(), "a", 3).shape[:2]
        == decode_frame(path.read_bytes(), "a").shape
    )


def test_turned_jpeg_is_turned(tmp_path: Path) -> None:
    assert image_shape(write(tmp_path / "a.jpg", 6)) == (WIDTH, HEIGHT)
    assert image_shape(write(tmp_path / "a.jpg", 3)) == (HEIGHT, WIDTH)


@pytest.mark.parametrize("content", [b"", b"no image", b"\xff\xd8\xff\xe0"])
def test_damaged_image_has_no_size(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.jpg").write_bytes(content)
    assert image_shape(tmp_path / "a.jpg") is None


def test_image_with_damaged_exif_data_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Image.Image) -> Image.Exif:
        raise struct.error("unpack requires a buffer of 12 bytes")

    path = write(tmp_path / "a.jpg", 6)
    monkeypatch.setattr(Image.Image, "getexif", refuse)
    assert image_shape(path) == (WIDTH, HEIGHT)


def test_missing_image_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        image_shape(tmp_path / "absent.jpg")


def test_colours_are_red_green_blue() -> None:
    content = io.BytesIO()
    Image.new("RGB", (4, 4), (200, 100, 50)).save(content, "PNG")
    assert decode_frame(content.getvalue(), "a.png", 3)[0, 0].tolist() == [200, 100, 50]
