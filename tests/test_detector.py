"""`Detector`: sources, results, weights and keywords."""

import doctest
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL.Image
import pytest
import supervision as sv
import torch

from tests.helpers.networks import lively_checkpoint
from tests.helpers.program import run_python
from yolo_lightning import Detector, detector as detector_file
from yolo_lightning.checkpoints.checkpoint_file import INPUT, write_checkpoint
from yolo_lightning.data.formats.yolo import ORIENTATION
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.data.input_images import InputImage, from_array
from yolo_lightning.evaluation.detection_result import DetectionResult
from yolo_lightning.model import conv_backend, native_probe
from yolo_lightning.model.network_settings import input_record, read_settings

NAMES = ("cat", "dog")
FRAME = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`best.ckpt`, `frame.png` and `video.mp4` of two frames."""
    root = tmp_path_factory.mktemp("detector")
    lively_checkpoint(root, class_names=NAMES)
    cv2.imwrite(str(root / "frame.png"), FRAME[..., ::-1])
    writer = cv2.VideoWriter(str(root / "video.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 5, (48, 48))
    for number in range(2):
        writer.write(np.random.default_rng(number).integers(0, 256, (48, 48, 3), dtype=np.uint8))
    writer.release()
    return root


@pytest.fixture(scope="module")
def detector(folder: Path) -> Detector:
    return Detector(folder / "best.ckpt", image_size=64, score_threshold=0.4, max_detections=20, batch_size=2)


def same(result: Any, other: Any) -> bool:
    return (
        len(result) == len(other)
        and np.allclose(result.boxes, other.boxes, atol=1e-3)
        and np.allclose(result.scores, other.scores, atol=1e-5)
        and np.array_equal(result.labels, other.labels)
    )


def test_array_file_and_list_give_the_same_detections(folder: Path, detector: Detector) -> None:
    result = detector(FRAME)
    assert 0 < len(result) <= 20
    assert (result.boxes.dtype, result.scores.dtype, result.labels.dtype) == (np.float32, np.float32, np.int64)
    assert (result.boxes >= 0).all()
    assert (result.boxes <= [60, 40, 60, 40]).all()
    assert (result.scores >= 0.4).all()
    assert (np.diff(result.scores) <= 0).all()
    assert result.names == [NAMES[label] for label in result.labels]
    listed = detector([FRAME, folder / "frame.png", str(folder / "frame.png")])
    assert [answer.source for answer in listed] == [None, folder / "frame.png", folder / "frame.png"]
    assert all(same(answer, result) for answer in [*listed, detector(folder / "frame.png")])
    assert np.array_equal(listed[1].image, FRAME)


def test_pil_images_are_detected_as_their_arrays(detector: Detector) -> None:
    image = PIL.Image.fromarray(FRAME)
    assert same(detector(image), detector(FRAME))
    assert same(detector([image.convert("RGBA")])[0], detector(FRAME))
    gray = np.array(image.convert("L"))
    for picture in (image.convert("L"), np.stack([gray] * 3, axis=-1)):
        assert same(detector(picture), detector(gray))
    turned = PIL.Image.fromarray(np.ascontiguousarray(np.rot90(FRAME)))
    turned.getexif()[ORIENTATION] = 6  # shown after a turn by 90 degrees clockwise
    assert same(detector(turned), detector(FRAME))


def test_tensors_are_detected_as_their_arrays(detector: Detector) -> None:
    image = torch.from_numpy(FRAME).permute(2, 0, 1)
    assert same(detector(image), detector(FRAME))
    first, second = detector(torch.stack([image, image.flip(2)]).float() / 255)
    assert same(first, detector(FRAME))
    assert same(second, detector(np.ascontiguousarray(FRAME[:, ::-1])))
    gray = FRAME[..., 0]
    assert same(detector([torch.from_numpy(gray)[None]])[0], detector(gray))


@pytest.mark.whole_run
def test_detecting_imports_no_package_of_training(folder: Path) -> None:
    """The import of the training's packages takes three times as long as that of all others together."""
    script = f"""
import sys, numpy as np
from yolo_lightning import Detector
Detector({str(folder / "best.ckpt")!r})(np.zeros((48, 64, 3), np.uint8)).plot()
heavy = {{"lightning", "torchmetrics", "albumentations", "pandas", "matplotlib", "scipy", "torch._dynamo"}}
print(*heavy & {{*sys.modules}})
"""
    done = run_python(folder, "-c", script)
    assert (done.returncode, done.stdout.split()) == (0, [])


def test_choice_of_convolutions_is_printed_once_per_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(native_probe, "rank_zero_info", said.append)
    native_probe._print_once.cache_clear()
    for _ in range(2):
        Detector(folder / "best.ckpt", device="cpu")
    assert [line.endswith("on a CPU") for line in said] == [True]


def test_gemm_convolutions_of_a_detector_use_the_verified_kernels_of_a_gpu(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_folders: list[Path] = []
    monkeypatch.setattr(conv_backend, "enable_gpu_kernels", cache_folders.append)
    Detector(folder / "best.ckpt", device="cpu", conv_backend="native")
    assert not cache_folders
    Detector(folder / "best.ckpt", device="cpu", conv_backend="gemm")
    assert [cache.name for cache in cache_folders] == ["kernels"]


def test_videos_and_folders_are_read_while_they_are_iterated(folder: Path, detector: Detector) -> None:
    frames = detector(folder / "video.mp4")
    assert isinstance(frames, Iterator)
    assert [(result.frame, result.source, result.image.shape) for result in frames] == [
        (number, folder / "video.mp4", (48, 48, 3)) for number in range(2)
    ]
    assert [result.source.name for result in detector(folder)] == ["frame.png", "video.mp4", "video.mp4"]


def test_only_one_batch_is_held(detector: Detector) -> None:
    read = []

    def endless() -> Iterator[InputImage]:
        while True:
            read.append(len(read))
            yield InputImage(None, None, FRAME)

    assert len(list(islice(detector.detect(endless()), 3))) == 3
    assert len(read) == 4, "two batches of two"


def test_result_of_other_packages(detector: Detector) -> None:
    result = detector(FRAME)
    detections = result.to_supervision()
    assert isinstance(detections, sv.Detections)
    assert np.array_equal(detections.xyxy, result.boxes)
    assert detections.data["class_name"].tolist() == result.names
    first = result.to_coco("a")[0]
    x_min, y_min, x_max, y_max = result.boxes[0].tolist()
    assert first["bbox"] == pytest.approx([x_min, y_min, x_max - x_min, y_max - y_min], abs=0.01)
    assert (first["image_id"], first["category_id"]) == ("a", result.labels[0] + 1)


def test_categories_are_those_of_the_training_data(folder: Path, tmp_path: Path) -> None:
    content = torch.load(folder / "best.ckpt", weights_only=True)
    for recorded, expected in (((5, 8), {5, 8}), ((), {1, 2})):
        record = input_record(3, ImageSize(64, 64), category_ids=recorded)
        write_checkpoint(content | {INPUT: record}, tmp_path / "best.ckpt")
        categories = {
            detection["category_id"]
            for detection in Detector(tmp_path / "best.ckpt", score_threshold=0.01)(FRAME).to_coco()
        }
        assert categories
        assert categories <= expected


def test_plot_draws_on_a_copy_and_works_without_detections(folder: Path, detector: Detector) -> None:
    before = FRAME.copy()
    drawn = detector(FRAME).plot()
    assert (drawn.shape, drawn.dtype) == (FRAME.shape, np.uint8)
    assert not np.array_equal(drawn, FRAME)
    assert np.array_equal(before, FRAME)
    strict = Detector(folder / "best.ckpt", image_size=64, score_threshold=1.0)
    empty = strict(FRAME)
    assert (len(empty), empty.boxes.shape, empty.names, empty.to_coco()) == (0, (0, 4), [], [])
    assert np.array_equal(empty.plot(), FRAME)


def test_run_folder_and_class_names(tmp_path: Path) -> None:
    checkpoints = tmp_path / "run" / "checkpoints"
    checkpoints.mkdir(parents=True)
    lively_checkpoint(checkpoints, class_names=NAMES)
    run_detector = Detector(tmp_path / "run", image_size=64)
    assert run_detector.file == checkpoints / "best.ckpt"
    run_detector.names = ["Katze", "Hund"]
    names = run_detector(FRAME).names
    assert names
    assert set(names) <= {"Katze", "Hund"}


@pytest.mark.parametrize("variant", ["yolov10n", "yolo26n"])
def test_heads_without_suppression(variant: str, tmp_path: Path) -> None:
    file = lively_checkpoint(tmp_path, "detections", variant=variant, class_names=NAMES, one_to_one=True)
    result = Detector(file, image_size=64, score_threshold=0.2, max_detections=7)(FRAME)
    assert 0 < len(result) <= 7
    assert distinct_boxes(result) == len(result)


def distinct_boxes(result: DetectionResult) -> int:
    return len(np.unique(result.boxes, axis=0))


@pytest.mark.parametrize("tta", [False, True])
def test_a_box_has_one_class_in_a_picture_and_several_in_a_validation(folder: Path, tta: bool) -> None:
    detector = Detector(folder / "best.ckpt", image_size=64, score_threshold=0.3, tta=tta)
    result = detector(FRAME)
    assert distinct_boxes(result) == len(result) == len(result.to_coco()) > 0
    assert read_settings(folder / "best.ckpt").detections.multi_label
    as_scored = replace(detector.settings.detections, multi_label=True, tta=False)
    detector.settings = replace(detector.settings, detections=as_scored)
    scored = detector(FRAME)
    assert distinct_boxes(scored) < len(scored), "the case shows nothing"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            FRAME.astype(np.float32),
            r"must be a \(H, W\) gray or \(H, W, 3\) RGB array of uint8, got \(40, 60, 3\)",
        ),
        (np.zeros((4, 5, 4), np.uint8), r"got \(4, 5, 4\) of uint8"),
        (np.zeros((0, 5), np.uint8), r"got \(0, 5\) of uint8"),
        ([None], "an image must be a path, a PIL image, a tensor or an array of uint8, got NoneType"),
        (torch.zeros(4, 4, 4), r"a tensor must be \(C, H, W\) or .*, got \(4, 4, 4\) of torch.float32"),
        (torch.zeros(3, 4, 4, dtype=torch.int64), "got .* of torch.int64"),
        (torch.full((3, 4, 4), 255.0), "must contain values from 0 to 1, got 255 to 255"),
        (torch.full((1, 3, 4, 4), torch.nan), "must contain values from 0 to 1, got nan to nan"),
        ("http://camera/video.mp4", "http://camera/video.mp4 does not exist: .*must be local files; addresses and"),
        (["rtsp://camera/1"], "rtsp://camera/1 does not exist: .*must be local files; addresses and"),
        ("absent.png", "absent.png does not exist"),
        (["absent.png"], "absent.png does not exist"),
    ],
)
def test_other_sources_are_refused(detector: Detector, folder: Path, source: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        detector(source)
    with pytest.raises(ValueError, match=r"video\.mp4 must be an image: lists contain arrays and image files only"):
        detector([folder / "video.mp4"])


def test_network_of_one_channel_reads_gray_values(tmp_path: Path) -> None:
    file = lively_checkpoint(tmp_path, "input_channels", class_names=NAMES, input_channels=1)
    detector = Detector(file, image_size=64, score_threshold=0.4)
    assert same(detector(FRAME), detector(cv2.cvtColor(FRAME, cv2.COLOR_RGB2GRAY)))
    file = lively_checkpoint(tmp_path, "input_channels", class_names=NAMES, input_channels=4)
    with pytest.raises(ValueError, match=r"must be of a network with 1 or 3 channels, .*, got 4"):
        Detector(file)


def test_network_in_place_of_its_file_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be a file or a run folder, got Linear; trainer\.save_checkpoint"):
        Detector(torch.nn.Linear(1, 1))  # type: ignore[arg-type]


def test_recorded_interpolation_reduces_large_images(tmp_path: Path) -> None:
    """At a third of the size, linear interpolation takes every third row, and area interpolation the mean of three."""
    image = np.repeat(np.tile(np.array([0, 255, 255], np.uint8), 64)[:, None], 192, axis=1)
    levels = {}
    for resize in ("area", "linear"):
        (tmp_path / resize).mkdir()
        file = lively_checkpoint(tmp_path / resize, class_names=NAMES)
        content = torch.load(file, weights_only=True) | {INPUT: input_record(1, ImageSize(64, 64), resize=resize)}
        write_checkpoint(content, file)
        detector = Detector(file)
        sample = detector._sample(from_array(image), image, ImageSize(64, 64))
        levels[resize] = set(np.unique(sample.image).tolist())
    assert levels == {"area": {170}, "linear": {255}}


def test_pictures_of_another_shape_are_as_large_as_in_a_square(folder: Path, tmp_path: Path) -> None:
    content = torch.load(folder / "best.ckpt", weights_only=True) | {INPUT: input_record(3, ImageSize(64, 96))}
    write_checkpoint(content, tmp_path / "best.ckpt")
    recorded, given = Detector(tmp_path / "best.ckpt"), Detector(tmp_path / "best.ckpt", image_size=(64, 96))
    sizes = {(40, 60): (64, 96), (20, 60): (64, 96), (60, 40): (96, 96)}
    assert {shape: recorded._input_size(*shape) for shape in sizes} == sizes
    assert {given._input_size(*shape) for shape in sizes} == {(64, 96)}


def test_detections_in_a_picture_do_not_depend_on_the_shapes_in_its_batch(folder: Path, tmp_path: Path) -> None:
    content = torch.load(folder / "best.ckpt", weights_only=True) | {INPUT: input_record(3, ImageSize(96, 128))}
    write_checkpoint(content, tmp_path / "best.ckpt")
    detector = Detector(tmp_path / "best.ckpt", score_threshold=0.4)
    shapes = [(128, 96), (96, 128), (60, 40), (48, 64)]
    pictures = [np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in shapes]
    together = detector(pictures)
    assert [result.image.shape[:2] for result in together] == shapes
    assert all(map(len, together)), "the case shows nothing"
    assert all(same(result, detector(picture)) for result, picture in zip(together, pictures, strict=True))


def test_examples_of_the_docstring(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    finder = doctest.DocTestFinder(recurse=False)
    (examples,) = finder.find(detector_file.Detector, "Detector")
    assert len(examples.examples) >= 7
    runner = doctest.DocTestRunner()
    runner.run(examples)
    assert runner.summarize().failed == 0


@pytest.fixture(scope="module")
def background_detector(tmp_path_factory: pytest.TempPathFactory) -> Detector:
    """A network of a frame and its difference from the background."""
    file = lively_checkpoint(
        tmp_path_factory.mktemp("background"), "input_channels", class_names=NAMES, input_channels=2
    )
    recorded = input_record(1, ImageSize(64, 64), background=True)
    write_checkpoint(torch.load(file, weights_only=True) | {INPUT: recorded}, file)
    return Detector(file, score_threshold=0.4, max_detections=20, batch_size=2, tta=True)


def test_video_its_frames_as_files_and_as_arrays_give_the_same_detections(
    background_detector: Detector, tmp_path: Path
) -> None:
    frames = [np.random.default_rng(number).integers(0, 256, (48, 48), dtype=np.uint8) for number in range(5)]
    writer = cv2.VideoWriter(str(tmp_path / "film.avi"), cv2.VideoWriter.fourcc(*"FFV1"), 5, (48, 48))
    for number, frame in enumerate(frames):
        writer.write(np.repeat(frame[..., None], 3, axis=2))
        cv2.imwrite(str(tmp_path / f"frame_{number}.png"), frame)
    writer.release()
    pairs = [np.dstack([frame, np.median(frames, axis=0).astype(np.uint8)]) for frame in frames]
    film = list(background_detector(tmp_path / "film.avi"))
    assert [result.frame for result in film] == [0, 1, 2, 3, 4]
    assert all(np.array_equal(result.image[..., 0], frame) for result, frame in zip(film, frames, strict=True))
    files = background_detector([tmp_path / f"frame_{number}.png" for number in range(5)])
    for results in (files, background_detector(pairs), list(background_detector(tmp_path / "frame_*.png"))):
        assert all(same(result, other) for result, other in zip(results, film, strict=True))
    alone = background_detector(frames[1])
    assert not same(alone, film[1])
    assert same(alone, background_detector(np.dstack([frames[1]] * 2)))


def test_array_with_other_channels_is_refused(background_detector: Detector) -> None:
    with pytest.raises(ValueError, match=r"must be a \(H, W\) gray or \(H, W, 2\) frame and background array"):
        background_detector(FRAME)
