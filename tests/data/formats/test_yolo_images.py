"""Image sizes from file headers equal the sizes of the decoded images."""

import struct
import zlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL
import pytest
from PIL import Image, ImageOps, features

from yolo_lightning.data.formats import yolo
from yolo_lightning.data.formats.yolo import YoloSplit, image_shape
from yolo_lightning.data.formats.yolo_description import read_description
from yolo_lightning.data.index.split_index import SplitIndex, open_packed
from yolo_lightning.data.input_images import find_files, read_pictures
from yolo_lightning.data.input_settings import Channels
from yolo_lightning.data.storage import image_header, pillow_images
from yolo_lightning.data.storage.folder_frames import ImageFiles
from yolo_lightning.data.storage.frames import IMAGE_SUFFIXES, BitDepthError, FrameError, decode_frame
from yolo_lightning.data.storage.image_header import ORIENTATION, FrameLimits
from yolo_lightning.data.storage.pillow_images import reads_heif

FORMATS = {
    **{"jpg": "JPEG", "jpeg": "JPEG", "mpo": "MPO", "png": "PNG", "bmp": "BMP", "tif": "TIFF", "tiff": "TIFF"},
    **{"webp": "WEBP", "jp2": "JPEG2000", "jpe": "JPEG", "jfif": "JPEG", "jif": "JPEG", "dib": "BMP", "gif": "GIF"},
    **dict.fromkeys(("pbm", "pgm", "pnm", "ppm"), "PPM"),
}
if features.check("avif"):  # Pillow >= 11.3 can write AVIF
    FORMATS["avif"] = "AVIF"
if reads_heif():
    from pillow_heif import from_pillow
OPTIONAL = {".avif", ".heic", ".heif"}
MODES = {"pbm": "1", "pgm": "L"}
TURNABLE = ("jpg", "png", "tif", "webp")
HEIGHT, WIDTH = 20, 30


def write(path: Path, orientation: int | None = None, mode: str = "RGB") -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).convert(MODES.get(path.suffix[1:], mode))
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
    assert {f".{suffix}" for suffix in FORMATS} | OPTIONAL == IMAGE_SUFFIXES
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


@pytest.mark.skipif(not features.check("avif"), reason="Pillow cannot write AVIF")
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_avif_is_decoded_upright(tmp_path: Path, orientation: int, channels: Channels) -> None:
    ramp = np.linspace(0, 250, HEIGHT * WIDTH).reshape(HEIGHT, WIDTH).astype(np.uint8)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    path = tmp_path / "a.avif"
    Image.fromarray(ramp).convert("RGB").save(path, exif=exif, quality=100)
    with Image.open(path) as image:
        upright = np.asarray(ImageOps.exif_transpose(image).convert("L"), dtype=int)
    frame = decode_frame(path.read_bytes(), "a", channels)
    assert image_shape(path) == frame.shape[:2] == upright.shape
    assert np.abs(frame.reshape(*upright.shape, -1).max(axis=2) - upright).max() < 12


@pytest.mark.parametrize("orientation", [3, 6])
def test_orientation_behind_the_pixels_of_a_png_counts(tmp_path: Path, orientation: int) -> None:
    path = write(tmp_path / "a.png")
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = b"eXIf" + exif.tobytes().removeprefix(b"Exif\0\0")
    chunk = struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    content = path.read_bytes()
    path.write_bytes(content[:-12] + chunk + content[-12:])  # the last chunk has no content
    assert image_shape(path) == decode_frame(path.read_bytes(), "a", 3).shape[:2]


@pytest.mark.parametrize("content", [b"", b"no image", b"\xff\xd8\xff\xe0"])
def test_damaged_image_has_no_size(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.jpg").write_bytes(content)
    assert image_shape(tmp_path / "a.jpg") is None


def test_index_follows_the_limit_and_the_libraries_that_decide_which_images_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "images").mkdir()
    write(tmp_path / "images" / "a.jpg", 6)
    (tmp_path / "images" / "a.txt").write_text("0 0.5 0.5 0.5 0.5\n")
    (tmp_path / "data.yaml").write_text("train: images\nval: images\nnames: [cat]\n")
    description = read_description(tmp_path / "data.yaml")

    def opened(max_pixels: int) -> SplitIndex:
        split = YoloSplit(description, "train", FrameLimits(max_pixels))
        return open_packed("train", split.state(), split.read, tmp_path / "index")

    assert opened(HEIGHT * WIDTH - 1).facts.kept == 0
    index = opened(HEIGHT * WIDTH)
    assert (index.shape(0), index.facts.kept) == ((WIDTH, HEIGHT), 1)
    for library in (cv2, PIL):
        monkeypatch.setattr(library, "__version__", "0")
        folder = opened(HEIGHT * WIDTH).folder
        assert folder != index.folder
        index = SplitIndex(folder)


def test_image_with_damaged_exif_data_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Image.Image) -> Image.Exif:
        raise struct.error("unpack requires a buffer of 12 bytes")

    path = write(tmp_path / "a.jpg", 6)
    monkeypatch.setattr(Image.Image, "getexif", refuse)
    assert image_shape(path) == (WIDTH, HEIGHT)


def test_first_frame_of_a_gif_is_read(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    content = (tmp_path / "a.gif").read_bytes()
    assert decode_frame(content, "a.gif", 3).reshape(-1, 3).max(axis=0).tolist() == [255, 0, 0]
    assert np.unique(decode_frame(content, "a.gif")).tolist() == [76]  # the gray level of red in OpenCV
    with pytest.raises(BitDepthError):
        decode_frame(content, "a.gif", limits=FrameLimits(bits=16))
    with pytest.raises(FrameError, match=r"a\.gif: the header claims 30 x 20 pixels"):
        decode_frame(content, "a.gif", limits=FrameLimits(max_pixels=599))
    with pytest.raises(FrameError, match=r"a\.gif: not an image that can be decoded"):
        decode_frame(content[:30], "a.gif", 3)


HEIC_START = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"


def test_missing_decoder_of_heic_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pillow_images, "reads_heif", lambda: False)
    monkeypatch.setattr(image_header, "reads_heif", lambda: False)
    monkeypatch.setattr(yolo, "reads_heif", lambda: False)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.HEIC").write_bytes(HEIC_START + bytes(100))
    with pytest.raises(FrameError, match=r"pip install 'yolo-lightning\[heic\]'"):
        ImageFiles(tmp_path, 3).read("images/a.HEIC")
    (tmp_path / "data.yaml").write_text("train: images\nval: images\nnames: [cat]\n")
    split = YoloSplit(read_description(tmp_path / "data.yaml"), "train")
    state = split.state()
    assert f"1 of them are HEIC images, such as {tmp_path}/images/a.HEIC: HEIC images are read with pillow-heif: " in (
        "\n".join(split.read().facts.notes)
    )
    monkeypatch.setattr(yolo, "reads_heif", lambda: True)
    assert YoloSplit(read_description(tmp_path / "data.yaml"), "train").state() != state


@pytest.mark.skipif(not reads_heif(), reason="requires pillow-heif")
@pytest.mark.parametrize("name", ["a.heic", "a.HEIF", "a.jpg"])
def test_heic_is_read(tmp_path: Path, name: str) -> None:
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    pixels[:, : WIDTH // 2] = 200, 40, 40
    from_pillow(Image.fromarray(pixels)).save(tmp_path / name, quality=95)
    assert image_shape(tmp_path / name) == (HEIGHT, WIDTH)
    (picture,) = read_pictures(tmp_path / name)
    assert np.abs(picture.pixels.astype(int) - pixels).mean() < 8
    assert np.array_equal(ImageFiles(tmp_path, 3).read(name), picture.pixels)
