"""Frames of unknown origin: their size is known before their pixels are decoded, and only regular files are read."""

import io
import json
import os
import zipfile
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from yolo_lightning.data.limit_settings import Limits
from yolo_lightning.data.storage.folder_frames import FolderFrames, ImageFiles
from yolo_lightning.data.storage.frames import FrameError, decode_frame
from yolo_lightning.data.storage.image_header import FrameLimits
from yolo_lightning.data.storage.packed_frames import PackedFrames
from yolo_lightning.data.storage.zip_frames import ZipFrames


def encoded(suffix: str, width: int = 40, height: int = 30, channels: int = 1) -> bytes:
    pixels = np.full((height, width, channels), 7, np.uint8)
    return bytes(cv2.imencode(suffix, pixels)[1])


def claiming(width: int, height: int) -> dict[str, bytes]:
    """Return small files whose headers claim a size."""
    jpeg = bytearray(encoded(".jpg"))
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    png = bytearray(encoded(".png"))
    png[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    png[29:33] = zlib.crc32(png[12:29]).to_bytes(4, "big")
    bmp = bytearray(encoded(".bmp"))
    bmp[18:26] = width.to_bytes(4, "little") + height.to_bytes(4, "little")
    return {"jpg": bytes(jpeg), "png": bytes(png), "bmp": bytes(bmp)}


@pytest.mark.parametrize("kind", ["jpg", "png", "bmp"])
def test_claimed_size_is_refused_before_decoding(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_decoding(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(cv2, "imdecode", no_decoding)
    content = claiming(30_000, 30_000)[kind]
    assert len(content) < 5000
    with pytest.raises(
        FrameError, match=r"a\.x: the header claims (30,000 x 30,000|more than 178,956,970) pixels, more"
    ):
        decode_frame(content, "a.x")


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".webp", ".tif"])
@pytest.mark.parametrize("channels", [1, 3])
def test_header_size_of_every_format(suffix: str, channels: int) -> None:
    content = encoded(suffix, 41, 29, channels)
    limit = FrameLimits(max_pixels=41 * 29)
    assert decode_frame(content, "a", 1, limit).shape == (29, 41)
    with pytest.raises(FrameError, match=r"more than data\.limits\.max_image_pixels 1188"):
        decode_frame(content, "a", 1, FrameLimits(max_pixels=41 * 29 - 1))


def test_header_size_of_unusual_jpegs() -> None:
    pixels = Image.fromarray(np.zeros((29, 41), np.uint8))
    progressive, with_exif = io.BytesIO(), io.BytesIO()
    pixels.save(progressive, "jpeg", progressive=True)
    exif = Image.Exif()
    exif[0x010E] = "\xff\xc0" * 100
    pixels.save(with_exif, "jpeg", exif=exif, comment=b"\xff\xc0\x00\x11\x08\xff\xff\xff\xff")
    plain = encoded(".jpg", 41, 29)
    for content in (progressive.getvalue(), with_exif.getvalue(), plain[:2] + b"\xff\xff\xff" + plain[2:]):
        assert FrameLimits(max_pixels=41 * 29).problem_of_content(content) is None
        assert "41 x 29" in str(FrameLimits(max_pixels=41 * 29 - 1).problem_of_content(content))
    for content in (b"\xff\xd8", b"\xff\xd8\xff\xd9"):
        assert "not an image" in str(FrameLimits().problem_of_content(content))


def test_fifo_device_and_names_outside_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "root" / "frames"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "pipe.jpg")
    (folder / "zero.jpg").symlink_to("/dev/zero")
    (tmp_path / "outside.jpg").write_bytes(encoded(".jpg"))
    frames = FolderFrames(tmp_path / "root")
    for name in ("frames/pipe.jpg", "frames/zero.jpg"):
        with pytest.raises(FrameError, match=f"{name}: not a regular file"):
            frames.read(name)
    for name in ("/dev/zero", "../outside.jpg", "frames/../../outside.jpg", str(tmp_path / "outside.jpg")):
        with pytest.raises(
            FrameError, match=r"outside of the dataset folder; set data\.limits\.allow_outside_root true"
        ):
            frames.read(name)
    allowed = FolderFrames(tmp_path / "root", FrameLimits(outside_root=True))
    assert allowed.read("../outside.jpg").shape == (30, 40)
    with pytest.raises(FrameError, match="not a regular file"):
        allowed.read("/dev/zero")
    for name in ("frames/" + "x" * 300 + ".jpg", "frames/a\0b.jpg"):
        with pytest.raises(FrameError):
            frames.read(name)


def test_large_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.bmp").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FrameError, match=r"a\.bmp: 1,099,511,627,776 bytes, more than"):
        ImageFiles(tmp_path).read("a.bmp")


@pytest.mark.parametrize("pixels", [0, -1, 178_956_971])
def test_limit_is_checked(pixels: int) -> None:
    with pytest.raises(ValueError, match=r"data\.limits\.max_image_pixels must be 1 to 178956970 .*, got"):
        Limits(max_image_pixels=pixels)


def test_member_of_many_gigabytes_is_not_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "frames.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("frames/20200514/clip/image_1.jpg", encoded(".jpg"))
        archive.writestr("frames/20200514/clip/image_2.jpg", bytes(3 << 20))
    frames = ZipFrames(tmp_path / "frames.zip", tmp_path / "index", FrameLimits(max_pixels=1 << 18))
    assert frames.read("frames/20200514/clip/image_1.jpg").shape == (30, 40)
    with pytest.raises(FrameError, match=r"image_2\.jpg: 3,145,728 bytes, more than 1,048,576"):
        frames.read("frames/20200514/clip/image_2.jpg")


@pytest.mark.parametrize(
    ("signature", "place", "value"),
    [
        (b"PK\x01\x02", 42, 0xFFFFFFF0),  # offset of the member
        (b"PK\x01\x02", 20, 0x7FFFFFFF),  # packed size
        (b"PK\x05\x06", 16, 0x7FFFFFFF),  # offset of the directory, from which negative offsets of members follow
        (b"PK\x05\x06", 16, 200),
        (b"PK\x05\x06", 12, 0x7FFFFFFF),  # size of the directory
    ],
)
def test_positions_outside_of_the_archive_are_refused_in_one_line(
    signature: bytes, place: int, value: int, tmp_path: Path
) -> None:
    path = tmp_path / "frames.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("frames/20200514/clip/image_1.jpg", encoded(".jpg"))
    content = bytearray(path.read_bytes())
    start = content.rindex(signature) + place
    content[start : start + 4] = value.to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"frames\.zip") as error:
        ZipFrames(path, tmp_path / "index").read("frames/20200514/clip/image_1.jpg")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["", "..", "/etc/passwd", "../other.u8", "x" * 300, "a\0b"])
def test_store_names_only_files_in_its_folder(name: str, tmp_path: Path) -> None:
    shard = {"file": name, "bytes": 0, "frames": 0}
    manifest = {"format": 1, "source": {}, "index": "index", "index_crc": 0, "shards": [shard], "damaged": {}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="must be the name of a file in the store") as error:
        PackedFrames(tmp_path)
    assert "\n" not in str(error.value)


def test_member_without_a_name_is_left_out(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "frames.zip", "w") as archive:
        archive.writestr("x", b"")
        archive.writestr("frames/20200514/clip/image_1.jpg", encoded(".jpg"))
    content = (tmp_path / "frames.zip").read_bytes()
    start = content.index(b"PK\x01\x02")
    changed = bytearray(content)
    changed[start + 28 : start + 32] = b"\0\0\x01\0"  # the name becomes the extra field
    (tmp_path / "frames.zip").write_bytes(changed)
    frames = ZipFrames(tmp_path / "frames.zip", tmp_path / "index")
    assert frames.missing(["frames/20200514/clip/image_1.jpg"]) == []


def test_unknown_format_installs_nothing_although_ultralytics_replaces_the_open_function_of_pillow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ultralytics.utils.checks
    import ultralytics.utils.patches

    asked: list[str] = []
    monkeypatch.setattr(ultralytics.utils.checks, "check_requirements", asked.append)
    monkeypatch.setattr(ultralytics.utils.patches.Image, "open", ultralytics.utils.patches.image_open)
    assert FrameLimits().problem_of_content(b"no image") is not None
    assert asked == []
