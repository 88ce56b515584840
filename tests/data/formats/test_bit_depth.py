"""Images with more than 8 bits: every reader refuses them with file, range and remedy."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from tests.helpers.archives import drawn_frames, put, write_annotations, write_zip
from tests.helpers.data_module import set_up
from yolo_lightning.commands.prepare.command import pack_frames
from yolo_lightning.data.storage.choose_storage import open_frames
from yolo_lightning.data.storage.frames import BitDepthError, FrameError, decode_frame
from yolo_lightning.data.storage.storage_settings import StorageSettings

HEIGHT, WIDTH = 24, 32
LOWEST, HIGHEST = 7000, 9040
RAW = np.linspace(LOWEST, HIGHEST, HEIGHT * WIDTH).reshape(HEIGHT, WIDTH)
COLOUR = np.stack((RAW, RAW[::-1], RAW[:, ::-1]), axis=-1)
NAMES = [f"frames/20200502/clip_1_1142/image_{number:04d}.jpg" for number in range(6)]
ENCODED = {
    "gray png": (".png", RAW.astype(np.uint16), "uint16, values 7000 to 9040"),
    "colour png": (".png", COLOUR.astype(np.uint16), "uint16, values 7000 to 9040"),
    "gray tiff": (".tif", RAW.astype(np.uint16), "uint16, values 7000 to 9040"),
    "colour tiff": (".tif", COLOUR.astype(np.uint16), "uint16, values 7000 to 9040"),
    "signed tiff": (".tif", (RAW - 8000).astype(np.int16), "int16, values -1000 to 1040"),
    "float tiff": (".tif", (RAW / 1000).astype(np.float32), "float32, values 7 to 9.04"),
    "integer tiff": (".tif", RAW.astype(np.int32), "int32, values 7000 to 9040"),
}


def encode(extension: str, image: np.ndarray) -> bytes:
    return cv2.imencode(extension, image)[1].tobytes()


def raw_frame() -> bytes:
    return encode(".png", RAW.astype(np.uint16))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("case", ENCODED)
def test_file_range_and_remedy_are_named(case: str, channels: Any, capfd: pytest.CaptureFixture[str]) -> None:
    extension, image, words = ENCODED[case]
    is_raw = case in ("gray png", "gray tiff")
    remedy = (
        r"to read 16-bit gray images, add: --data\.input\.pixel_range\.mode" if is_raw else "only 8-bit .*: convert"
    )
    with pytest.raises(BitDepthError, match=rf"^a/b\.png: the pixels are {words}; {remedy}") as raised:
        decode_frame(encode(extension, image), "a/b.png", channels)
    assert isinstance(raised.value, FrameError)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    assert capfd.readouterr().err == "", "OpenCV complains in several lines"


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("extension", [".jpg", ".png", ".tif", ".bmp", ".webp"])
def test_8_bit_images_are_read_as_before(extension: str, channels: Any) -> None:
    image = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    content = encode(extension, image)
    flag = cv2.IMREAD_GRAYSCALE if channels == 1 else cv2.IMREAD_COLOR_RGB
    assert np.array_equal(
        decode_frame(content, "a", channels), cv2.imdecode(np.frombuffer(content, dtype=np.uint8), flag)
    )


@pytest.fixture
def ltdv2(tmp_path: Path) -> Path:
    """A dataset in LTDv2's layout whose frames all have 16 bits."""
    put(tmp_path, dict.fromkeys(NAMES, raw_frame()))
    for file in ("Train.json", "Valid.json", "TestNoLabels.json"):
        write_annotations(tmp_path / file, NAMES, HEIGHT, WIDTH)
    return tmp_path


@pytest.mark.parametrize("stage", ["fit", "validate", "test", "predict"])
@pytest.mark.parametrize("storage", ["folder", "zip"])
def test_ltdv2_of_16_bits_is_refused_before_it_starts(ltdv2: Path, storage: Any, stage: str) -> None:
    write_zip(ltdv2 / "frames.zip", dict.fromkeys(NAMES, raw_frame()))
    with pytest.raises(
        ValueError,
        match=r"^6 of 6 sampled .*0000\.jpg: the pixels are uint16, values 7000 to 9040; .*pixel_range\.low 7000",
    ) as raised:
        set_up(stage, str(ltdv2), kind=storage, index_root=str(ltdv2 / "index"))
    assert "\n" not in str(raised.value)


def test_a_single_16_bit_frame_is_named_and_left_out(ltdv2: Path) -> None:
    put(ltdv2, drawn_frames(6))
    put(ltdv2, {NAMES[4]: raw_frame()})
    with pytest.warns(
        UserWarning, match=r"left out 1 of at most 100 bad frames: .*image_0004\.jpg: the pixels are uint16"
    ):
        datamodule = set_up("validate", str(ltdv2), index_root=str(ltdv2 / "index"))
    (batch,) = [batch for batch in datamodule.val_dataloader() if batch.bad_frames]
    assert batch.bad_frames[0].startswith(f"{NAMES[4]}: the pixels are uint16, values 7000 to 9040")


@pytest.mark.parametrize("problem", ["not an image", "no such file"])
def test_dataset_without_one_readable_frame_is_refused(ltdv2: Path, problem: str) -> None:
    put(ltdv2, dict.fromkeys(NAMES, b"torn"))
    if problem == "no such file":
        shutil.rmtree(ltdv2 / "frames")
        (ltdv2 / "frames").mkdir()
    with pytest.raises(ValueError, match=rf"^none of 6 sampled frames can be read: .*image_0000\.jpg: {problem}"):
        set_up("predict", str(ltdv2), index_root=str(ltdv2 / "index"))


def pack(root: Path, **options: Any) -> None:
    pack_frames(str(root), index_root=str(root / "index"), workers=1, **options)


def test_prepare_refuses_frames_of_16_bits(ltdv2: Path) -> None:
    with pytest.raises(ValueError, match=r"^6 of 6 sampled frames .* are uint16.* values 7000 to 9040"):
        pack(ltdv2)
    assert not list(ltdv2.glob("packed/*.u8"))


def test_prepare_names_a_single_frame_of_16_bits(ltdv2: Path, capfd: pytest.CaptureFixture[str]) -> None:
    put(ltdv2, drawn_frames(6))
    put(ltdv2, {NAMES[4]: raw_frame()})
    pack(ltdv2)
    assert (
        f"left out 1 damaged frames: {NAMES[4]}: the pixels are uint16, values 7000 to 9040" in capfd.readouterr().out
    )
    with pytest.raises(FrameError, match=rf"^{NAMES[4]}: the pixels are uint16, values 7000 to 9040"):
        open_frames(ltdv2, StorageSettings(kind="packed")).read(NAMES[4])


def test_store_that_an_earlier_version_packed_from_16_bits_is_refused(ltdv2: Path) -> None:
    put(ltdv2, drawn_frames(6))
    pack(ltdv2)
    put(ltdv2, dict.fromkeys(NAMES, raw_frame()))
    with pytest.raises(
        ValueError,
        match=r"packed.* was packed from .* not 8-bit images: .*0000\.jpg: the pixels are uint16",
    ):
        open_frames(ltdv2, StorageSettings(kind="packed"))
