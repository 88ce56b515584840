"""Image sizes from file headers equal the sizes of the decoded images."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from yolo_lightning.data.formats import yolo
from yolo_lightning.data.formats.yolo import ORIENTATION, YoloSplit, image_shape
from yolo_lightning.data.formats.yolo_description import read_description
from yolo_lightning.data.input_images import find_files, read_pictures
from yolo_lightning.data.storage.folder_frames import ImageFiles
from yolo_lightning.data.storage.frames import IMAGE_SUFFIXES, decode_frame

FORMATS = {
    **{"jpg": "JPEG", "jpeg": "JPEG", "mpo": "MPO", "png": "PNG", "bmp": "BMP", "tif": "TIFF", "tiff": "TIFF"},
    **{"webp": "WEBP", "jp2": "JPEG2000"},
}
if features.check("avif"):  # Pillow >= 11.3 can write AVIF
    FORMATS["avif"] = "AVIF"
TURNABLE = ("jpg", "png", "tif", "webp")
HEIGHT, WIDTH = 20, 30


def write(path: Path, orientation: int | None = None, mode: str = "RGB") -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    options: dict[str, Any] = {}
    if path.suffix == ".mpo":  # two images, of which the first is used
        options = {"save_all": True, "append_images": [Image.fromarray(255 - pixels)]}
    if orientation is not None:
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        options = {"exif": exif}
    image.save(path, FORMATS[path.suffix[1:]], **options)
    return path


def test_every_format_that_is_trained_on_is_predicted_with_equal_pixels(tmp_path: Path) -> None:
    assert {f".{suffix}" for suffix in FORMATS} | {".avif"} == IMAGE_SUFFIXES
    (tmp_path / "images").mkdir()
    files = sorted(write(tmp_path / "images" / f"a-{suffix}.{suffix}") for suffix in FORMATS)
    file = tmp_path / "data.yaml"
    file.write_text("train: images\nval: images\nnames: [cat]\n")
    trained = [bytes(name).decode() for name in YoloSplit(read_description(file), "train").read().file_names]
    assert trained == [path.relative_to(tmp_path).as_posix() for path in files]
    assert find_files([str(tmp_path / "images")]) == files
    for name, path in zip(trained, files, strict=True):
        assert find_files([str(path)]) == [path]
        (predicted,) = read_pictures(path)
        assert predicted.pixels.std() > 20
        assert np.array_equal(ImageFiles(tmp_path, 3).read(name), predicted.pixels)


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
