"""Image files with more bands than red, green and blue, and with several pages."""

import io
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.helpers.tiff_files import tiff_file
from yolo_lightning.data.input_clips import ClipReader
from yolo_lightning.data.storage.frames import BitDepthError, FrameError, decode_frame
from yolo_lightning.data.storage.image_header import FrameLimits, unread_parts
from yolo_lightning.detector import _single_image

GRAY, RGB = 1, 2
UNSPECIFIED, OPACITY = 0, 2
BANDS = np.random.default_rng(0).integers(0, 256, (24, 32, 6), dtype=np.uint8)
COLOURS = BANDS[..., :3]


def saved(image: Image.Image, image_format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, image_format, **options)
    return file.getvalue()


FILES = {
    "PNG": saved(Image.fromarray(BANDS[..., :4], "RGBA"), "PNG"),
    "JPEG 2000": saved(Image.fromarray(BANDS[..., :4], "RGBA"), "JPEG2000", irreversible=False),
    "TIFF of Pillow": saved(Image.fromarray(BANDS[..., :4], "RGBA"), "TIFF"),
    "compressed TIFF": saved(Image.fromarray(BANDS[..., :4], "RGBA"), "TIFF", compression="tiff_lzw"),
    "TIFF with near infrared": tiff_file(BANDS[..., :4], RGB, [UNSPECIFIED]),
    "TIFF with opacity": tiff_file(BANDS[..., :4], RGB, [OPACITY]),
    "TIFF without ExtraSamples": tiff_file(BANDS[..., :4], RGB),
}


@pytest.mark.parametrize("name", FILES)
def test_colours_do_not_depend_on_a_fourth_band(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert np.array_equal(decode_frame(FILES[name], name, channels=3), COLOURS)
    (picture,) = _single_image(Image.open(io.BytesIO(FILES[name])), ClipReader())
    assert np.array_equal(picture.pixels, COLOURS)
    gray = cv2.cvtColor(COLOURS, cv2.COLOR_RGB2GRAY)
    difference = decode_frame(FILES[name], name, channels=1).astype(int) - gray
    assert np.abs(difference).max() <= 1  # decoders round differently
    assert unread_parts(FILES[name]) == "4 bands, of which the first 3 are read"
    assert capfd.readouterr().err == "", "OpenCV complains of the bands of a TIFF"


def test_five_and_six_bands_that_begin_with_colours_are_read() -> None:
    for bands in (5, 6):
        content = tiff_file(BANDS[..., :bands], RGB, [UNSPECIFIED] * (bands - 3))
        assert np.array_equal(decode_frame(content, "a.tif", channels=3), COLOURS)
        assert unread_parts(content) == f"{bands} bands, of which the first 3 are read"


@pytest.mark.parametrize("bands", [3, 4, 5])
def test_bands_without_colours_are_counted(bands: int) -> None:
    with pytest.raises(FrameError, match=rf"^a\.tif: a TIFF with {bands} bands that are not red, green and blue"):
        decode_frame(tiff_file(BANDS[..., :bands], GRAY), "a.tif", channels=3)


def test_bands_of_8_bits_are_no_image_of_16_bits() -> None:
    with pytest.raises(BitDepthError, match=r"a\.tif: the pixels are uint8"):
        decode_frame(FILES["TIFF with opacity"], "a.tif", limits=FrameLimits(bits=16))


def test_damaged_file_with_four_bands_is_named() -> None:
    content = FILES["compressed TIFF"]
    with pytest.raises(FrameError, match=r"^a\.tif: not an image"):
        decode_frame(content[:8] + bytes(200) + content[208:], "a.tif", channels=3)


@pytest.mark.parametrize(
    ("image", "options", "text"),
    [
        (Image.fromarray(COLOURS), {}, ""),
        (Image.fromarray(COLOURS[..., 0]), {}, ""),
        (Image.fromarray(BANDS[..., :4], "CMYK"), {}, ""),
        (Image.fromarray(BANDS[..., :2], "LA"), {}, "2 bands, of which the first one is read"),
        (
            Image.fromarray(COLOURS),
            {"save_all": True, "append_images": [Image.fromarray(COLOURS)]},
            "2 pages, of which the first one is read",
        ),
    ],
    ids=["RGB", "gray", "CMYK", "gray with opacity", "pages"],
)
def test_what_is_not_read_is_named(image: Image.Image, options: dict[str, Any], text: str) -> None:
    assert unread_parts(saved(image, "TIFF", **options)) == text


def test_file_that_is_no_image_has_no_unread_part() -> None:
    assert unread_parts(b"torn") == unread_parts(b"II*\0torn") == ""
