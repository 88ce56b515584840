"""16-bit frames: every storage returns the same values, every reader maps them by `data.input.pixel_range`."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from comparison.dataset import with_storage
from lightning.pytorch import Trainer
from synthetic import draw_dataset
from synthetic.camera import RAW_LOW, RAW_PER_LEVEL

from tests.helpers.archives import pack, write_zip
from tests.helpers.data_module import data_module
from yolo_lightning.commands.prepare.command import pack_frames
from yolo_lightning.data.batch import Sample
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import TrainingDataset
from yolo_lightning.data.formats.frame_checks import describe_values
from yolo_lightning.data.input_images import from_array, read_pictures
from yolo_lightning.data.loader_settings import LoaderSettings
from yolo_lightning.data.sampling.resumable_loader import SampleKey
from yolo_lightning.data.storage.choose_storage import open_frames, open_original
from yolo_lightning.data.storage.frames import BitDepthError, FrameError, decode_frame
from yolo_lightning.data.storage.image_header import FrameLimits
from yolo_lightning.data.storage.packing import complete_shards, damaged_frames
from yolo_lightning.data.storage.storage_settings import StorageSettings
from yolo_lightning.data.transforms.augmentation_settings import Augmentation
from yolo_lightning.data.transforms.photometric import random_photometry
from yolo_lightning.data.transforms.pixel_range import PixelRange, Span

RAW = FrameLimits(bits=16)
FIXED = PixelRange("fixed", RAW_LOW, RAW_LOW + 255 * RAW_PER_LEVEL)
FRAMES = {"train_frames": 16, "valid_frames": 8, "test_frames": 4, "width": 96, "height": 64}


@pytest.fixture(scope="module")
def raw_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The look-alike with 16-bit PNG files, as folder, archive and packed store; shared, so never change it."""
    root = draw_dataset(tmp_path_factory.mktemp("raw") / "data", **FRAMES, bits=16)
    files = sorted((root / "frames").rglob("*.png"))
    names = [str(file.relative_to(root)) for file in files]
    write_zip(root / "frames.zip", {name: file.read_bytes() for name, file in zip(names, files, strict=True)})
    store = pack(root / "packed", open_original(root, StorageSettings(kind="folder"), RAW), names, 9)
    assert not any(damaged_frames(store, shard) for shard in complete_shards(store)[0])
    return root


def data(root: Path, pixel_range: PixelRange = FIXED, **options: Any) -> DetectionDataModule:
    values = {"image_size": 64, "batch_size": 4, "loader": LoaderSettings(num_workers=0), **options}
    module = data_module(str(root), index_root=str(root / "index"), pixel_range=pixel_range, **values)
    module.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    return module


@pytest.mark.parametrize("extension", [".png", ".tif"])
def test_png_and_tiff_are_read_exactly(extension: str) -> None:
    image = np.random.default_rng(0).integers(0, 2**16, (24, 32), dtype=np.uint16)
    content = cv2.imencode(extension, image)[1].tobytes()
    assert np.array_equal(decode_frame(content, "a", limits=RAW), image)
    with pytest.raises(
        FrameError, match=r"^a: the header claims 32 x 24 pixels, more than data\.limits\.max_image_pixels 767"
    ):
        decode_frame(content, "a", limits=FrameLimits(767, bits=16))


@pytest.mark.parametrize(
    ("extension", "dtype", "channels", "message"),
    [
        (".png", np.uint8, 1, r"a: the pixels are uint8.* set data\.input\.pixel_range\.mode null"),
        (".tif", np.float32, 1, r"a: the pixels are float32.* only 8-bit images and 16-bit gray images .*: convert"),
        (".png", np.uint16, 3, r"a: images with 16 bits must be gray, got 3 channels"),
    ],
)
def test_other_images_are_refused(extension: str, dtype: Any, channels: int, message: str) -> None:
    image = np.arange(24 * channels, dtype=dtype).reshape(4, 6, channels)
    with pytest.raises(FrameError, match=message) as raised:
        decode_frame(cv2.imencode(extension, image)[1].tobytes(), "a", limits=RAW)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_colour_images_of_16_bits_are_refused_without_the_option_for_gray_ones() -> None:
    image = np.arange(72, dtype=np.uint16).reshape(4, 6, 3)
    for channels in (1, 3):
        with pytest.raises(BitDepthError, match=r"uint16.* only 8-bit images and 16-bit gray .*: convert") as raised:
            decode_frame(cv2.imencode(".png", image)[1].tobytes(), "a", channels)  # type: ignore[arg-type]
        assert "pixel_range" not in str(pickle.loads(pickle.dumps(raised.value)))


def test_every_storage_returns_the_values_of_the_files(raw_set: Path) -> None:
    names = [str(file.relative_to(raw_set)) for file in (raw_set / "frames").rglob("*.png")]
    for kind in ("folder", "zip", "packed"):
        storage = pickle.loads(
            pickle.dumps(open_frames(raw_set, StorageSettings(kind, index_root=str(raw_set / "index")), RAW))  # type: ignore[arg-type]
        )
        for name in names:
            frame = storage.read(name)
            assert frame.dtype == np.uint16
            assert np.array_equal(frame, cv2.imread(str(raw_set / name), cv2.IMREAD_UNCHANGED))
    assert "pixel values of 28 sampled frames: 0 to 100 %: 6" in describe_values(names, storage)


def samples(module: DetectionDataModule, storage: Any = None, budget_mib: int = 0, **settings: Any) -> list[Sample]:
    if storage is not None:
        module.dataset_format = with_storage(module.dataset_format, storage)
    frames = module.open("train").cached(budget_mib, 4)
    dataset = TrainingDataset(frames, 64, Augmentation(**settings), 0)
    keys = [SampleKey(epoch, frame, has_mosaic=epoch < 1) for epoch in (0, 1) for frame in range(0, 16, 3)]
    return [dataset[key] for key in keys]


def same(first: list[Sample], second: list[Sample]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(np.array_equal(a.image, b.image) and np.array_equal(a.boxes, b.boxes) for a, b in pairs)


@pytest.mark.parametrize("mode", ["fixed", "frame", "full"])
def test_samples_are_equal_from_every_storage_and_with_a_cache(raw_set: Path, mode: Any) -> None:
    module = data(raw_set, FIXED if mode == "fixed" else PixelRange(mode))
    folder = samples(module, "folder")
    dtype = np.float32 if mode == "full" else np.uint8
    assert all(sample.image.dtype == dtype and sample.readable for sample in folder)
    assert same(folder, samples(module, "zip"))
    assert same(folder, samples(module, "packed"))
    assert same(folder, samples(module, "folder", budget_mib=8))
    assert not same(folder, samples(module, "folder", photometric=0.0))


@pytest.mark.parametrize(
    "settings",
    [
        {
            "mosaic": 1.0,
            "mixup": 1.0,
            "degrees": 10.0,
            "noise": 8.0,
            "blur": 2.0,
            "fixed_pattern": 8.0,
            "shading": 40.0,
        },
        {"stretch": 1.0, "gamma": 0.5, "inversion": 1.0},
    ],
)
def test_samples_with_full_depth_are_those_of_a_mapping_to_8_bits_before_rounding(
    raw_set: Path, settings: dict[str, Any]
) -> None:
    """Several effects are rounded, and histograms have 256 bins instead of exact quantiles."""
    full = samples(data(raw_set, PixelRange("full", FIXED.low, FIXED.high)), photometric=1.0, **settings)
    rounded = samples(data(raw_set, FIXED), photometric=1.0, **settings)
    for sample, other in zip(full, rounded, strict=True):
        assert np.array_equal(sample.boxes, other.boxes)
        assert np.isfinite(sample.image).all()
        assert np.unique(sample.image).size > np.unique(other.image).size
        assert np.corrcoef(np.clip(sample.image, 0, 255).ravel(), other.image.ravel())[0, 1] > 0.98


def test_histogram_of_another_image_with_full_depth() -> None:
    generator = np.random.default_rng(0)
    image, reference = (generator.gamma(2, scale, (512, 512)).astype(np.float32) for scale in (10, 25))
    matched = random_photometry(image, Augmentation(photometric=0.0), generator, reference)
    assert matched.dtype == np.float32
    shares = np.linspace(0.1, 0.9, 9)
    np.testing.assert_allclose(np.quantile(matched, shares), np.quantile(reference, shares), rtol=0.06)


def test_albumentations_is_refused_with_full_depth(raw_set: Path) -> None:
    with pytest.raises(ValueError, match=r"^data\.augmentation\.pixel_transforms must be empty with .*mode full"):
        data(raw_set, PixelRange("full"), augmentation=Augmentation(pixel_transforms=({"name": "CLAHE"},)))


def test_16_bit_frames_are_the_8_bit_twins(raw_set: Path, tmp_path: Path) -> None:
    """Without compression, the twins differ by the rounding of the raw values to eighths of a level."""
    twin = draw_dataset(tmp_path / "twin", **FRAMES)
    of_folder = data(raw_set)
    of_folder.dataset_format = with_storage(of_folder.dataset_format, "folder")
    raw, gray = of_folder.open("train"), data(twin, PixelRange()).open("train")
    for position in range(0, 16, 5):
        difference = raw.read(position).image.astype(int) - gray.read(position).image
        assert np.abs(difference).mean() < 1.5, "JPEG"
        assert np.array_equal(raw.read(position).boxes, gray.read(position).boxes)


def test_colour_is_refused(raw_set: Path) -> None:
    with pytest.raises(ValueError, match=r"^data\.input\.channels must be 1 or null"):
        data(raw_set, channels=3)


def test_bit_depth_of_store_and_option_must_agree(raw_set: Path, look_alike: Path) -> None:
    with pytest.raises(
        ValueError, match=r"packed frames of 16 bits must have frames of 8 bits .*: set data\.input\.pixel_range"
    ):
        data(raw_set, PixelRange()).setup("validate")
    with pytest.raises(
        ValueError, match=r"sampled frames are not 8-bit images, .* add: --data\.input\.pixel_range\.mode fixed"
    ):
        data(raw_set, PixelRange(), kind="folder").setup("validate")
    with pytest.raises(
        ValueError, match=r"sampled frames are not 16-bit images, .* set data\.input\.pixel_range\.mode null"
    ):
        data(look_alike, kind="folder").setup("validate")


def test_coco_and_yolo_datasets_are_mapped(raw_set: Path, yolo_set: Callable[..., Path]) -> None:
    module = data(raw_set, format="coco", channels=None)
    module.setup("validate")
    assert next(iter(module.val_dataloader())).images.shape == (4, 1, 64, 64)
    image = np.random.default_rng(0).integers(7000, 9040, (48, 64), dtype=np.uint16)
    file = yolo_set(
        {f"{split}/{number}.tif": "0 0.5 0.5 0.25 0.5\n" for split in ("train", "val") for number in range(4)}
    )
    for path in (file.parent / "images").rglob("*.tif"):
        path.write_bytes(cv2.imencode(".tif", image)[1].tobytes())
    module = data_module(format=str(file), pixel_range=FIXED, index_root=str(file.parent / "index"))
    frames = module.open("train")
    assert np.array_equal(frames.read(0).image, Span(RAW_LOW, RAW_LOW + 255 * RAW_PER_LEVEL).levels(image))


def test_pictures_and_arrays_are_mapped_and_8_bit_images_are_not(raw_set: Path, look_alike: Path) -> None:
    path = next((raw_set / "frames").rglob("*.png"))
    raw = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    assert raw is not None
    ranges = FIXED
    (picture,) = read_pictures(path, ranges)
    assert np.array_equal(picture.pixels[..., 2], FIXED.of_frame(raw).levels(raw))
    assert np.array_equal(picture.pixels, from_array(raw, ranges=ranges).pixels)
    gray = next((look_alike / "frames").rglob("*.jpg"))
    assert np.array_equal(next(read_pictures(gray, ranges)).pixels, next(read_pictures(gray)).pixels)
    assert picture.full is None
    (deep,) = read_pictures(path, PixelRange("full", FIXED.low, FIXED.high))
    assert np.array_equal(deep.pixels, picture.pixels)
    assert deep.full is not None
    assert np.array_equal(deep.full, (raw.astype(np.float32) - RAW_LOW) * np.float32(255 / (FIXED.high - FIXED.low)))
    with pytest.raises(ValueError, match=r"^pixel_range must be set for arrays of uint16"):
        from_array(raw, ranges=PixelRange())
    with pytest.raises(BitDepthError, match=r"predict PICTURES: --pixel_range\.mode"):
        list(read_pictures(path, PixelRange()))


def test_percentiles_of_the_pixel_values_are_printed(
    raw_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack_frames(str(raw_set), store=str(tmp_path / "store"), index_root=str(raw_set / "index"), bits=16)
    assert "pixel values of 28 sampled frames: 0 to 100 %: 6" in capsys.readouterr().out
