"""Whole runs on 16-bit frames: equal to runs on mapped frames, exact resume, prediction without an option."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, Trainer
from synthetic import draw_dataset
from synthetic.camera import RAW_LOW, RAW_PER_LEVEL

from tests.helpers.networks import lively_checkpoint
from yolo_lightning.checkpoints.checkpoint_file import write_checkpoint
from yolo_lightning.cli import main
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.data.transforms.pixel_range import PixelRange, RangeMode
from yolo_lightning.detector import Detector
from yolo_lightning.model.network_settings import input_record, read_settings

Run = Callable[..., None]
FRAMES = {"train_frames": 24, "valid_frames": 8, "test_frames": 4, "width": 96, "height": 64}
FIXED = PixelRange("fixed", RAW_LOW, RAW_LOW + 255 * RAW_PER_LEVEL)
OF_DATA = [
    *("--data.input.pixel_range.mode", "fixed", "--data.input.pixel_range.low", str(FIXED.low)),
    *("--data.input.pixel_range.high", str(FIXED.high)),
]
SHORT = ["--trainer.max_epochs", "2", "--data.batch_size", "8", "--model.recipe.nominal_batch", "8"]


class Stop(Callback):
    """Ends a fit within its second epoch, after a checkpoint."""

    def on_train_batch_end(self, trainer: Trainer, *arguments: object) -> None:
        if trainer.global_step == 4:
            trainer.save_checkpoint("stopped.ckpt")
            raise KeyboardInterrupt


def on(root: Path, folder: str) -> list[str]:
    return ["--data.root", str(root), "--trainer.default_root_dir", folder]


def losses(folder: Path) -> list[float]:
    """Return the mean training losses of all epochs."""
    with (folder / "metrics.csv").open() as file:
        return [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]


@pytest.mark.whole_run
def test_a_run_on_16_bit_frames_equals_a_run_on_the_mapped_frames(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    still = ["--data.augmentation.photometric", "0"]  # 16-bit frames drift before, 8-bit frames after the mapping
    raw = draw_dataset(tmp_path / "data", **FRAMES, bits=16)
    gray = shutil.copytree(raw, tmp_path / "mapped")
    for file in (gray / "frames").rglob("*.png"):
        pixels = np.asarray(cv2.imread(str(file), cv2.IMREAD_UNCHANGED), dtype=np.uint16)
        cv2.imwrite(str(file), FIXED.of_frame(pixels).levels(pixels))
    run("fit", *on(raw, "raw"), *SHORT, *still, *OF_DATA)
    run("fit", *on(gray, "gray"), *SHORT, *still)
    assert losses(tmp_path / "raw") == losses(tmp_path / "gray")
    assert read_settings(tmp_path / "raw" / "checkpoints" / "best.ckpt").pixel_range == FIXED
    assert read_settings(tmp_path / "gray" / "checkpoints" / "best.ckpt").pixel_range == PixelRange()
    caplog.clear()
    run("test", *on(raw, "raw"))
    assert (
        "taken from the checkpoint: data.input.pixel_range.mode fixed (instead of None), data.input.pixel_range.low"
        in caplog.text
    )
    run("test", *on(gray, "gray"))
    scores = [(tmp_path / name / "test_scores.json").read_text() for name in ("raw", "gray")]
    assert scores[0] == scores[1]


@pytest.mark.whole_run
def test_a_run_with_full_depth_is_resumed_bit_for_bit(run: Run, tmp_path: Path) -> None:
    raw = draw_dataset(tmp_path / "data", **FRAMES, bits=16)
    full = ["--data.input.pixel_range.mode", "full", *SHORT]
    run("fit", *on(raw, "whole"), *full)
    with pytest.raises(SystemExit):
        run("fit", *on(raw, "parts"), *full, "--trainer.callbacks+", f"{__name__}.Stop")
    run("fit", *on(raw, "parts"), *full, "--ckpt_path", "stopped.ckpt")
    whole, parts = (
        torch.load(tmp_path / name / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        for name in ("whole", "parts-2")
    )
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    run("test", *on(raw, "whole"))
    run("predict", *on(raw, "whole"))


@pytest.mark.parametrize("mode", ["fixed", "full"])
def test_five_of_65536_values_change_the_output_with_full_depth_only(tmp_path: Path, mode: RangeMode) -> None:
    weights = lively_checkpoint(tmp_path, class_names=("cat", "dog"))
    ranges = PixelRange(mode, 0, 65535)
    recorded = input_record(1, ImageSize(64, 64), pixel_range=ranges)
    write_checkpoint(torch.load(weights, weights_only=True) | {"input": recorded}, weights)
    plain = np.full((64, 64), 20_000, dtype=np.uint16)
    with_object = plain.copy()
    with_object[20:30, 20:30] += 5
    detector = Detector(weights, device="cpu", score_threshold=0.0)
    first, second = detector(plain), detector(with_object)
    assert np.array_equal(first.scores, second.scores) == (mode == "fixed")


@pytest.mark.whole_run
def test_predict_maps_16_bit_files_by_the_range_of_the_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = lively_checkpoint(tmp_path, class_names=("cat", "dog"))
    recorded = input_record(1, ImageSize(64, 64), pixel_range=FIXED)
    write_checkpoint(torch.load(weights, weights_only=True) | {"input": recorded}, weights)
    raw = np.random.default_rng(0).integers(RAW_LOW, RAW_LOW + 2040, (48, 64), dtype=np.uint16)
    (tmp_path / "frames").mkdir()
    for suffix in (".png", ".tif"):
        cv2.imwrite(str(tmp_path / "frames" / f"a{suffix}"), raw)
    detector = Detector(weights, device="cpu")
    results = [*detector(tmp_path / "frames"), detector(raw), detector(FIXED.of_frame(raw).levels(raw))]
    assert len(results[0]) > 0
    for result in results:  # PyTorch's convolutions round a batch of two images in another order than one image
        assert np.array_equal(result.image, results[0].image)
        np.testing.assert_allclose(result.boxes, results[0].boxes, rtol=0, atol=1e-3)
    other = Detector(weights, device="cpu", pixel_range=PixelRange("fixed", 0, 65535))(raw)
    assert not np.array_equal(other.image, results[0].image)
    main(["predict", str(tmp_path / "frames"), "--weights", str(weights), "--output", str(tmp_path / "out")])
    assert "in 2 images" in capsys.readouterr().out
