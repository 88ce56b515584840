"""Exported files open in a process in which this package cannot be imported."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from yolo_lightning.checkpoints.checkpoint_file import write_checkpoint
from yolo_lightning.commands.export.command import export
from yolo_lightning.commands.export.onnx_file import sample_images
from yolo_lightning.commands.export.pt_file import plain_network
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.data.transforms.pixel_range import PixelRange
from yolo_lightning.detector import Detector
from yolo_lightning.model.network_settings import input_record

IMAGE_SIZE = 64
STRANGER = """
import json, sys
import torch
from ultralytics import YOLO

file, data, project = sys.argv[1:]
model = YOLO(file)
result = model.predict(f"{data}/images/0.png", imgsz=64, conf=0.3, verbose=False, save=False)[0]
images = torch.load(f"{data}/images.pt")
model.model.eval()
decoded = model.model.float()(images)[0]
torch.save(decoded, f"{project}/decoded.pt")
scores = model.val(data=f"{data}/data.yaml", imgsz=64, batch=2, workers=0, plots=False, verbose=False, project=project)
model.fuse()
trained = YOLO(file).train(
    data=f"{data}/data.yaml", imgsz=64, batch=2, epochs=1, workers=0, plots=False, verbose=False, project=project,
    amp=False, val=False,
)
print(json.dumps({
    "names": result.names, "boxes": len(result.boxes), "map": float(scores.box.map),
    "foreign": [name for name in sys.modules if name.split(".")[0] in ("yolo_lightning", "callbacks")],
}))
"""


@pytest.fixture(scope="module")
def strangers_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    for folder in ("images", "labels"):
        (root / folder).mkdir()
    for number in range(2):
        pixels = np.random.default_rng(number).integers(0, 256, (48, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "images" / f"{number}.png")
        (root / "labels" / f"{number}.txt").write_text("1 0.5 0.5 0.4 0.6\n")
    (root / "data.yaml").write_text(f"path: {root}\ntrain: images\nval: images\nnames: [a, b, c, d]\n")
    torch.save(sample_images(2, 3, IMAGE_SIZE), root / "images.pt")
    return root


@pytest.mark.whole_run
def test_plain_ultralytics_opens_the_file(trained: Path, strangers_data: Path, tmp_path: Path) -> None:
    file = tmp_path / "file.pt"
    export(checkpoint=str(trained), format="pt", output=str(file), image_size=IMAGE_SIZE)
    font = {"YOLO_CONFIG_DIR": str(tmp_path), "YOLO_OFFLINE": "1", "YOLO_AUTOINSTALL": "0"}
    answer = subprocess.run(
        [sys.executable, "-I", "-c", STRANGER, str(file), str(strangers_data), str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | font,
        check=False,
        timeout=150,
    )
    assert answer.returncode == 0, answer.stdout[-2000:] + answer.stderr[-2000:]
    report: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    assert report["foreign"] == []
    assert report["names"] == {"0": "person", "1": "bicycle", "2": "motorcycle", "3": "vehicle"}
    with torch.no_grad():
        expected = plain_network(trained).half().float()(sample_images(2, 3, IMAGE_SIZE))[0]
    assert torch.allclose(torch.load(tmp_path / "decoded.pt"), expected, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint": "no.ckpt"}, "no.ckpt cannot be used: it does not exist"),
        ({"channels": 1}, "channels must be 3 for format pt, got 1"),
        ({"image_size": 100}, "image_size must be a multiple of 32 and >= 32, got 100"),
        ({"output": "/proc/x.pt"}, "output /proc/x.pt cannot be written"),
        ({"max_detections": 0}, "max_detections must be >= 1, got 0"),
    ],
)
def test_bad_option_is_named(trained: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        export(**({"checkpoint": str(trained), "output": str(tmp_path / "file")} | options))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("variance", "dtype"), [(60_000.0, torch.float16), (100_000.0, torch.float32)])
def test_statistics_beyond_half_precision_keep_the_network_in_float32(
    trained: Path, tmp_path: Path, variance: float, dtype: torch.dtype
) -> None:
    content = torch.load(trained, weights_only=True)
    name = next(name for name in content["state_dict"] if name.endswith("running_var"))
    content["state_dict"][name][0] = variance
    write_checkpoint(content, tmp_path / "a.ckpt")
    export(checkpoint=str(tmp_path / "a.ckpt"), format="pt", output=str(tmp_path / "a.pt"))
    network = torch.load(tmp_path / "a.pt", weights_only=False)["model"]
    statistics = network.state_dict()[name.removeprefix("graph.")]
    assert statistics.dtype == dtype
    assert statistics[0] == pytest.approx(variance, rel=1e-3)


def test_tilde_in_the_output_is_the_home_folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    export(checkpoint=str(trained), output="~/a.pt")
    assert (tmp_path / "a.pt").is_file()


def test_output_must_not_be_the_checkpoint(trained: Path) -> None:
    with pytest.raises(ValueError, match="output must differ from the checkpoint"):
        export(checkpoint=str(trained), output=str(trained))


@pytest.mark.whole_run
def test_network_of_full_depth_scores_as_the_detector_does(trained: Path, tmp_path: Path) -> None:
    """The input of the file is `(value - low) / (high - low)` in float32, also for values outside of the range."""
    record = input_record(1, ImageSize(IMAGE_SIZE, IMAGE_SIZE), pixel_range=PixelRange("full", 7000, 9000))
    checkpoint, file = tmp_path / "full.ckpt", tmp_path / "file.onnx"
    write_checkpoint(torch.load(trained, weights_only=True) | {"input": record}, checkpoint)
    export(checkpoint=str(checkpoint), format="onnx", output=str(file))
    coarse = np.random.default_rng(0).uniform(6800, 9300, (4, 4))
    raw = np.clip(cv2.resize(coarse, (IMAGE_SIZE, IMAGE_SIZE), interpolation=cv2.INTER_CUBIC), 0, 65535).astype(
        np.uint16
    )
    assert raw.min() < 7000 < 9000 < raw.max()
    images = ((raw.astype(np.float32) - 7000) / 2000)[None, None]
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (decoded,) = session.run(None, {"images": images})
    best = decoded[0, 4:].max()
    scores = {}
    for mode in ("full", "fixed"):
        shown = PixelRange(mode, 7000, 9000)  # type: ignore[arg-type]
        everything: dict[str, Any] = {"score_threshold": 0.0, "iou_threshold": 1.0, "max_detections": decoded.shape[2]}
        scores[mode] = Detector(checkpoint, pixel_range=shown, **everything)(raw).scores.max()
    assert scores["full"] == pytest.approx(best, abs=1e-5)
    assert scores["fixed"] != pytest.approx(best, abs=1e-4), "8 bits would pass"
