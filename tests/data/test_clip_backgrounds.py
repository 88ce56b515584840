"""Samples with the background of their clip: its computation, storages, bad frames, augmentation."""

import pickle
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from synthetic import draw_dataset

from tests.helpers.archives import write_zip
from tests.helpers.data_module import data_module
from yolo_lightning.commands.prepare.command import pack_frames
from yolo_lightning.data import clip_backgrounds
from yolo_lightning.data.clip_backgrounds import LEAST_FRAMES, ClipBackgrounds, median_of, spread, with_difference
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import EvaluationDataset, TrainingDataset
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.sampling.resumable_loader import SampleKey
from yolo_lightning.data.storage.folder_frames import FolderFrames
from yolo_lightning.data.storage.frames import AbsentFrameError, Frame
from yolo_lightning.data.transforms.augmentation_settings import Augmentation
from yolo_lightning.data.transforms.photometric import random_photometry
from yolo_lightning.data.transforms.pixel_range import PixelRange
from yolo_lightning.errors import UserError

FRAMES = 20
STRONG = Augmentation(photometric=1, histogram_match=0.3, inversion=0.3, degrees=5, pixel_transforms=())


@pytest.fixture(scope="module")
def root(index_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drawn dataset with clips of up to five frames, in a folder, an archive and a packed store."""
    folder = tmp_path_factory.mktemp("stored") / "data"
    draw_dataset(folder, train_frames=FRAMES, valid_frames=5, test_frames=5, width=96, height=64, clip_frames=5)
    write_zip(
        folder / "frames.zip", {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.jpg")}
    )
    pack_frames(str(folder), index_root=str(index_root), workers=1)
    return folder


def module(root: Path, index_root: Path, **changed: Any) -> DetectionDataModule:
    options: dict[str, Any] = {"image_size": 96, "background": True, "kind": "folder", "batch_size": 4}
    return data_module(str(root), index_root=str(index_root), **options | changed)


@pytest.fixture
def frames(root: Path, index_root: Path) -> LabelledFrames:
    return module(root, index_root).open("train")


def samples(frames: LabelledFrames, settings: Augmentation = STRONG) -> list[np.ndarray]:
    training = TrainingDataset(frames, 96, settings, seed=3)
    keys = [SampleKey(epoch, index, has_mosaic=epoch < 1) for epoch in (0, 1) for index in range(len(training))]
    return [training[key].image for key in keys]


def assert_equal(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert all(np.array_equal(image, other) for image, other in zip(actual, expected, strict=True))


def test_channels_are_the_frame_and_the_median_of_its_clip(frames: LabelledFrames) -> None:
    index, plain = frames.index, LabelledFrames(frames.index, frames.storage)
    clips = index.clips()
    assert len(set(clips.tolist())) > 3
    for position in range(len(frames)):
        images = [plain.read(other).image for other in np.flatnonzero(clips == clips[position])]
        expected = np.sort(np.stack(images), axis=0)[len(images) // 2]
        read = frames.read(position)
        assert np.array_equal(read.image, np.dstack([plain.read(position).image, expected]))
        assert np.array_equal(read.boxes, plain.read(position).boxes)


def test_sample_has_the_difference_from_the_background(frames: LabelledFrames) -> None:
    image = EvaluationDataset(frames, 96)[0].image
    frame, background = frames.read(0).image.astype(int).transpose(2, 0, 1)
    assert image.shape == (96, 96, 2)
    assert np.array_equal(image[16:80, :, 0], frame)
    assert np.array_equal(image[16:80, :, 1], (114 + 2 * (frame - background)).clip(0, 255))
    assert (image[:16] == 114).all()  # the padding is no object


def test_difference_of_float_images_is_not_limited() -> None:
    pair = np.array([[[300.25, 0.5], [10, 10.125]]], np.float32)
    assert with_difference(pair).tolist() == [[[300.25, 713.5], [10, 113.75]]]


def test_moving_object_is_absent_from_the_background() -> None:
    clip = [np.full((4, 9), 50, np.uint16) for _ in range(9)]
    for place, frame in enumerate(clip):
        frame[:, place] = 60_000
    assert (median_of(clip) == 50).all()
    assert median_of(clip).dtype == np.uint16


@pytest.mark.parametrize("count", [1, 14, 15, 29, 30, 31, 120, 1000])
def test_spread_items_cover_the_sequence_evenly(count: int) -> None:
    kept = spread(iter(range(count)))
    assert kept[0] == 0
    assert min(count, LEAST_FRAMES) <= len(kept) < 2 * LEAST_FRAMES
    assert len(set(np.diff(kept).tolist())) <= 1
    assert count - kept[-1] <= max(np.diff(kept, append=count).tolist())


@pytest.mark.parametrize("storage", ["zip", "packed"])
def test_storages_give_the_same_samples(storage: str, root: Path, index_root: Path, frames: LabelledFrames) -> None:
    other = module(root, index_root, kind=storage).open("train")
    assert type(other.storage) is not type(frames.storage)
    assert_equal(samples(other), samples(frames))


def test_backgrounds_are_computed_once_and_shared(frames: LabelledFrames, monkeypatch: pytest.MonkeyPatch) -> None:
    assert frames.backgrounds is not None
    clips = frames.backgrounds.build()
    received = pickle.loads(pickle.dumps(frames))
    assert "_arrays" not in vars(received.backgrounds)
    monkeypatch.setattr(ClipBackgrounds, "_of_clip", None)  # nothing is computed again
    assert received.backgrounds.build() == clips
    assert_equal(samples(received), samples(frames))


def test_background_of_changed_frames_is_computed_again_by_the_next_run_only(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "data"
    shutil.copytree(root, copy)
    frames = module(copy, tmp_path / "index").open("train")
    assert frames.backgrounds is not None
    before = frames.backgrounds.of(0)
    for name in frames.index.file_names():
        cv2.imwrite(str(copy / name), np.full((64, 96), 7, np.uint8))
    worker = pickle.loads(pickle.dumps(frames.backgrounds))
    assert np.array_equal(worker.of(0), before)
    next_run = module(copy, tmp_path / "index").open("train")
    assert next_run.backgrounds is not None
    assert (next_run.backgrounds.of(0) == 7).all()


def test_part_of_a_file_has_the_backgrounds_of_its_clips(frames: LabelledFrames) -> None:
    part = frames.index.of_clips(np.array([1, 3]))
    part_backgrounds = ClipBackgrounds(part, frames.storage)
    whole = ClipBackgrounds(frames.index, frames.storage)
    names = frames.index.file_names()
    for position in range(len(part)):
        assert np.array_equal(part_backgrounds.of(position), whole.of(names.index(part.file_name(position))))


def test_bad_and_quarantined_frames_are_left_out(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "data"
    shutil.copytree(root, copy)
    frames = module(copy, tmp_path / "index").open("train")
    clips = frames.index.clips()
    torn, hanging, *readable = np.flatnonzero(clips == clips[0]).tolist()
    (copy / frames.index.file_name(torn)).write_bytes(b"torn")
    asked: list[str] = []
    read = FolderFrames.read
    monkeypatch.setattr(FolderFrames, "read", lambda self, name: asked.append(name) or read(self, name))
    background = ClipBackgrounds(frames.index, frames.storage, frozenset({hanging})).of(0)
    assert frames.index.file_name(hanging) not in asked
    assert np.array_equal(
        background, median_of([frames.storage.read(frames.index.file_name(place)) for place in readable])
    )
    unreadable = EvaluationDataset(frames, 96)[torn]
    assert (unreadable.readable, unreadable.image.shape, set(unreadable.image.ravel())) == (False, (96, 96, 2), {114})


@pytest.mark.parametrize("attempts", [1, 9])
def test_outage_does_not_become_a_background(
    root: Path, tmp_path: Path, frames: LabelledFrames, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    """The frames of a clip cannot be read in the first attempts, although their files are listed."""
    clip = frames.index.clip_name(1)
    reads: Counter[str] = Counter()
    read = FolderFrames.read

    def failing(self: FolderFrames, name: str) -> Frame:
        reads[name] += 1
        if name.startswith(clip) and reads[name] <= attempts:
            raise AbsentFrameError(f"{name}: Input/output error")
        return read(self, name)

    monkeypatch.setattr(clip_backgrounds, "REREAD_PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(FolderFrames, "read", failing)
    backgrounds = module(root, tmp_path).open("train").backgrounds
    assert backgrounds is not None
    assert frames.backgrounds is not None
    if attempts > 2:
        with pytest.raises(UserError, match=rf"frames of a clip cannot be read at the moment \({clip}/"):
            backgrounds.build()
        assert not list(tmp_path.glob("backgrounds-*-*"))
        return
    backgrounds.build()
    for position in range(len(frames)):
        assert np.array_equal(backgrounds.of(position), frames.backgrounds.of(position))


def test_setup_does_not_read_quarantined_frames(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = module(root, tmp_path / "index").open("train").index
    asked: list[str] = []
    read = FolderFrames.read
    monkeypatch.setattr(FolderFrames, "read", lambda self, name: asked.append(name) or read(self, name))
    data = module(root, tmp_path / "index", quarantine=(f"id={first.image_id(3)}",))
    data.setup("fit")
    assert first.file_name(2) in asked
    assert first.file_name(3) not in asked


def test_frames_of_several_sizes_are_refused(
    coco: Callable[..., Any], write_json: Callable[..., Path], tmp_path: Path
) -> None:
    content = coco([()] * 2)
    for number, image in enumerate(content["images"]):
        image |= {"width": 96 + 32 * number, "file_name": f"frames/clip_1/image_{number}.jpg"}
    (tmp_path / "frames").mkdir()
    data = data_module(str(write_json(content).parent), background=True, kind="folder")
    frames = data.open("train")
    assert frames.backgrounds is not None
    with pytest.raises(
        ValueError, match=r"data\.input\.background must be false unless all .*, got true and frames of 2"
    ):
        frames.backgrounds.build()


def test_frames_with_16_bits_have_a_background(tmp_path: Path, index_root: Path) -> None:
    root = draw_dataset(
        tmp_path / "data", train_frames=8, valid_frames=4, test_frames=4, width=96, height=64, clip_frames=4, bits=16
    )
    data = module(root, index_root, pixel_range=PixelRange("full", 7000, 9040))
    image = EvaluationDataset(data.open("train"), 96)[0].image
    assert (image.dtype, image.shape) == (np.float32, (96, 96, 2))
    assert np.unique(image[..., 1] % 1).tolist() == [0, 0.25, 0.5, 0.75]  # twice an eighth of a level


CLAHE = ({"name": "CLAHE", "p": 1.0}, {"name": "GaussNoise", "p": 1.0})


@pytest.mark.parametrize(
    "settings", [replace(STRONG, noise=0), Augmentation(photometric=0, pixel_transforms=CLAHE)], ids=["drift", "CLAHE"]
)
def test_equal_channels_are_changed_equally(settings: Augmentation) -> None:
    image = np.random.default_rng(0).integers(0, 256, (32, 48, 1), dtype=np.uint8)
    changed = 0
    for seed in range(30):
        single, merged = (
            random_photometry(channels, settings, np.random.default_rng(seed), image[..., 0], is_gray=True)
            for channels in (image[..., 0], cv2.merge([image[..., 0]] * 2))
        )
        assert (merged == merged[..., :1]).all()
        assert np.abs(merged[..., 0].astype(int) - single).max() <= 3  # rounding of the histograms
        changed += not np.array_equal(single, image[..., 0])
    assert changed


def test_formats_without_clips_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^data\.input\.background must be false with data\.format coco, whose images do not"
    ):
        data_module(str(tmp_path), format="coco", background=True)
