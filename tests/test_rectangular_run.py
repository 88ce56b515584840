"""Every command with a rectangular input, on real frames where they are present."""

import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml

from tests.conftest import REAL_FRAMES
from yolo_lightning.checkpoints.torch_archive import load_checkpoint
from yolo_lightning.cli import main
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.detector import Detector

SIZE = ImageSize(256, 320)
BEST = Path("runs/yolo/checkpoints/best.ckpt")
COUNTS = {"Train.json": 16, "Valid.json": 6, "TestNoLabels.json": 6}


@pytest.fixture
def frames(tmp_path: Path, look_alike: Path) -> Path:
    """Some real frames of 640 x 512 pixels in LTDv2's layout, or the drawn ones."""
    if not (REAL_FRAMES / "Train.json").is_file():
        return look_alike
    root = tmp_path / "real"
    root.mkdir()
    (root / "frames").symlink_to(REAL_FRAMES / "frames")
    for name, count in COUNTS.items():
        content = json.loads((REAL_FRAMES / name).read_text())
        content["images"] = content["images"][:count]
        kept = {image["id"] for image in content["images"]}
        if "annotations" in content:
            content["annotations"] = [
                annotation for annotation in content["annotations"] if annotation["image_id"] in kept
            ]
        (root / name).write_text(json.dumps(content))
    return root


@pytest.fixture
def trained(run: Callable[..., None], frames: Path) -> Callable[..., None]:
    """Trains an epoch, and returns a function that runs a command of the Trainer without an image size."""
    data = ["--data.root", str(frames), "--data.batch_size", "4"]
    run("fit", *data, "--data.image_size", str(SIZE), "--trainer.max_epochs", "1", "--model.recipe.nominal_batch", "4")

    def call(subcommand: str, *options: str) -> None:
        data_options = [*data, "--data.loader.num_workers", "0", "--data.storage.index_root", "index"]
        main([subcommand, "--trainer.accelerator", "cpu", *data_options, *options])

    return call


@pytest.mark.whole_run
@pytest.mark.timeout(600)
def test_rectangular_size_from_training_to_submission(
    trained: Callable[..., None], frames: Path, tmp_path: Path
) -> None:
    assert load_checkpoint(BEST, "meta")["input"]["image_size"] == [256, 320]
    for subcommand in ("validate", "test", "predict"):
        trained(subcommand)
        configuration = yaml.safe_load(Path(f"runs/yolo/config.{subcommand}.yaml").read_text())
        assert configuration["data"]["image_size"] == [256, 320], "taken from the checkpoint"
    trained("validate", "--model.detections.tta", "true")
    main(["submission", "check", "runs/yolo/predictions.json", "--template", str(frames / "TestNoLabels.json")])
    check_exports()
    check_detector(frames)
    check_tools(frames, tmp_path)


def check_exports() -> None:
    """Exported files record the size of the training."""
    import onnxruntime

    main(["export", "--format", "onnx", "--output", "best.onnx"])
    session = onnxruntime.InferenceSession("best.onnx", providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map["imgsz"] == "[256, 320]"
    main(["export", "--format", "pt", "--output", "best.pt"])
    assert Detector("best.pt").settings.image_size == SIZE


def check_detector(frames: Path) -> None:
    """Files give boxes within the picture; keywords replace the size."""
    files = sorted((frames / "frames").rglob("*.*g"))[:2]
    detector = Detector(BEST, score_threshold=0.0, device="cpu")
    assert detector.settings.image_size == SIZE
    tall = Detector(BEST, image_size=(320, 192), score_threshold=0.0, device="cpu", tta=True)
    assert tall.settings.image_size == ImageSize(320, 192)
    for result in (*detector(files), tall(files[0])):
        height, width = result.image.shape[:2]
        assert len(result)
        assert (result.boxes >= 0).all()
        assert (result.boxes <= np.array([width, height] * 2)).all()
    main(["predict", str(files[0]), "--weights", str(BEST), "--image_size", "[128, 160]", "--output", "seen"])
    assert json.loads(Path("seen/predictions.json").read_text())[0]["width"] == width


def check_tools(frames: Path, folder: Path) -> None:
    """`recalibrate`, `contact_sheet` and `report` use the size of the checkpoint or of the options."""
    common = ["--data.root", str(frames), "--data.loader.num_workers", "0", "--data.storage.index_root", "index"]
    common += ["--data.batch_size", "4"]
    size = ["--data.image_size", "[128, 160]"]
    main(["recalibrate", *common, "--device", "cpu", "--images", "8"])
    assert load_checkpoint(BEST.with_name("recalibrated.ckpt"), "meta")["input"]["image_size"] == [256, 320]
    main(["contact_sheet", *common, *size, "--samples", "2", "--output", str(folder / "sheet.png")])
    sheet = cv2.imread(str(folder / "sheet.png"))
    assert sheet is not None
    main(["report", "runs/yolo"])


@pytest.mark.whole_run
def test_one_number_follows_the_frames_from_training_to_evaluation(
    run: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    small = ["--data.batch_size", "4", "--model.recipe.nominal_batch", "4"]
    run("fit", *small, "--data.image_size", "96", "--trainer.max_epochs", "1")
    assert load_checkpoint(BEST, "meta")["input"]["image_size"] == [64, 96]
    run("fit", *small, "--data.image_size", "96", "--trainer.max_epochs", "2", "--resume")
    assert load_checkpoint(BEST.with_name("last.ckpt"), "meta")["input"]["image_size"] == [64, 96]
    assert "image_size was" not in caplog.text
    main(["validate", "runs/yolo"])
    configuration = yaml.safe_load(Path("runs/yolo/config.validate.yaml").read_text())
    assert configuration["data"]["image_size"] == [64, 96]
    run(
        "fit",
        *small,
        "--data.image_size",
        "[96, 96]",
        "--trainer.max_epochs",
        "1",
        "--trainer.default_root_dir",
        "square",
    )
    checkpoint = load_checkpoint(Path("square/checkpoints/last.ckpt"), "meta")
    assert checkpoint["input"]["image_size"] == 96
    run(
        "fit",
        *small,
        "--data.image_size",
        "96",
        "--trainer.max_epochs",
        "2",
        "--trainer.default_root_dir",
        "square",
        "--resume",
    )
    assert load_checkpoint(Path("square/checkpoints/last.ckpt"), "meta")["input"]["image_size"] == 96
