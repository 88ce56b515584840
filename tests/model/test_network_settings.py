"""Settings stored with the weights are used unless the command line sets others."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.conftest import data_options
from tests.helpers.networks import lively_checkpoint
from yolo_lightning.checkpoints.averaging import average_checkpoints
from yolo_lightning.checkpoints.checkpoint_file import write_checkpoint
from yolo_lightning.cli import main
from yolo_lightning.commands.export.command import export
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.data.transforms.pixel_range import PixelRange
from yolo_lightning.model.detection_settings import DetectionSettings
from yolo_lightning.model.network_settings import (
    NetworkSettings,
    bound_options,
    check_same_input,
    input_record,
    precedence,
    read_record,
    read_settings,
)

Run = Callable[..., None]
RUN = Path("runs/yolo")
BEST = RUN / "checkpoints" / "best.ckpt"
FIT = [
    *("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "1", "--trainer.limit_val_batches", "1"),
    *("--model.recipe.nominal_batch", "16", "--data.image_size", "[96, 96]", "--model.detections.max_detections", "50"),
]
INPUT = {
    "image_size": 96,
    "channels": 1,
    "background": False,
    "letterbox": "centred in a square, padded with 114",
    "normalisation": "uint8 / 255",
    "resize": "area",
}


def trained_on(folder: Path, class_names: tuple[str, ...] = ("a", "b"), **recorded: Any) -> Path:
    """A checkpoint of a network that finds something everywhere; it records its input and `recorded`."""
    arguments = {name: recorded.pop(name) for name in DetectionSettings().recorded() if name in recorded}
    file = lively_checkpoint(folder, "single_class", "detections", class_names=class_names, **arguments)
    content = torch.load(file, weights_only=True)
    write_checkpoint(content | {"input": INPUT | recorded}, file)
    return file


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """A configuration file that names other values than the training's."""
    file = tmp_path / "yolo.yaml"
    file.write_text("data:\n  image_size: 128\nmodel:\n  detections: {max_detections: 300, score_threshold: 0.5}\n")
    return file


def resolved(subcommand: str) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((RUN / f"config.{subcommand}.yaml").read_text())
    return config


@pytest.fixture
def untyped(tmp_path: Path, look_alike: Path, index_root: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Calls the command line as `run` does, without an image size among the options."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["yolo_lightning"])

    def call(subcommand: str, *options: str, config: Path | None = None) -> None:
        data = data_options(look_alike, index_root)
        small = [
            *("--trainer.accelerator", "cpu", "--trainer.num_sanity_val_steps", "0"),
            *("--supervision.enabled", "false"),
        ]
        main([subcommand, *(["--config", str(config)] if config else []), *data, *small, *options])

    return call


@pytest.mark.whole_run
def test_evaluation_takes_the_settings_of_the_training_before_those_of_the_file(
    untyped: Run, configuration: Path, caplog: pytest.LogCaptureFixture
) -> None:
    untyped("fit", *FIT)
    assert torch.load(BEST, weights_only=True)["input"] == {**INPUT, "category_ids": [1, 2, 3, 4]}
    for subcommand in ("validate", "test", "predict"):
        caplog.clear()
        untyped(subcommand, config=configuration)
        config = resolved(subcommand)
        assert config["data"]["image_size"] == [96, 96]
        detections = config["model"]["detections"]
        assert (detections["max_detections"], detections["score_threshold"]) == (50, 0.001)
        (line,) = [text for text in caplog.messages if text.startswith("taken from the checkpoint")]
        assert "data.image_size [96, 96] (instead of 128)" in line
        assert "model.detections.score_threshold 0.001 (instead of 0.5)" in line
    caplog.clear()
    untyped("validate", "--data.image_size", "64", config=configuration)
    assert resolved("validate")["data"]["image_size"] == 64
    assert "changed since the checkpoint: data.image_size was [96, 96], now 64 (used)" in caplog.messages


@pytest.mark.whole_run
def test_new_training_keeps_its_own_size_and_names_the_difference(
    untyped: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = trained_on(tmp_path, image_size=160)
    untyped("fit", *FIT, "--model.weights", str(file))
    assert yaml.safe_load((RUN / "config.yaml").read_text())["data"]["image_size"] == [96, 96]
    assert f"changed since the weights {file}: data.image_size was [160, 160], now [96, 96] (used)" in caplog.messages


@pytest.mark.whole_run
def test_evaluated_weights_without_a_run_bring_their_settings(
    untyped: Run, configuration: Path, tmp_path: Path
) -> None:
    file = trained_on(tmp_path, class_names=CLASS_NAMES, iou_threshold=0.3)
    export(checkpoint=str(file), output=str(tmp_path / "file.pt"))
    untyped("validate", "--trainer.limit_val_batches", "1", "--model.weights", "file.pt", config=configuration)
    config = resolved("validate")
    assert config["data"]["image_size"] == [96, 96]
    detections = config["model"]["detections"]
    assert (detections["iou_threshold"], detections["score_threshold"]) == (0.3, 0.001)


@pytest.mark.parametrize("kind", ["ckpt", "pt", "average"])
def test_every_file_of_weights_records_the_settings(tmp_path: Path, kind: str) -> None:
    file = trained_on(tmp_path, score_threshold=0.1, class_agnostic=True)
    expected = NetworkSettings(
        ImageSize(96, 96), 1, ("a", "b"), detections=DetectionSettings(score_threshold=0.1, class_agnostic=True)
    )
    match kind:
        case "pt":
            export(checkpoint=file.as_uri(), output=str(tmp_path / "file.pt"))
            file = tmp_path / "file.pt"
        case "average":
            (tmp_path / "other").mkdir()
            other = trained_on(tmp_path / "other", score_threshold=0.1, class_agnostic=True)
            content = torch.load(other, weights_only=True)
            content["state_dict"]["graph.model.0.conv.weight"] += 1  # equal files are refused
            write_checkpoint(content, other)
            write_checkpoint(average_checkpoints([file, other]), tmp_path / "average.ckpt")
            file = tmp_path / "average.ckpt"
    assert read_settings(file) == expected


@pytest.mark.whole_run
def test_ultralytics_file_gives_its_image_size_as_a_multiple_of_the_stride(tmp_path: Path) -> None:
    export(checkpoint=str(trained_on(tmp_path)), output=str(tmp_path / "file.pt"))
    content = torch.load(tmp_path / "file.pt", weights_only=False)
    del content["yolo_lightning"]
    torch.save(content | {"train_args": {"imgsz": 500}}, tmp_path / "theirs.pt")
    expected = {"image_size": 512, "class_names": ["a", "b"], "input_channels": 3}
    assert read_record(tmp_path / "theirs.pt") == expected
    torch.save(content | {"train_args": {"imgsz": [480, 600]}}, tmp_path / "theirs.pt")
    assert read_record(tmp_path / "theirs.pt")["image_size"] == [480, 608]
    torch.save(content | {"train_args": {}}, tmp_path / "theirs.pt")
    assert read_record(tmp_path / "theirs.pt")["image_size"] == 96, "the network's own arguments"


def test_weights_without_a_recorded_image_size_use_the_usual_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = read_settings(lively_checkpoint(tmp_path))
    assert settings.image_size is None
    assert settings.for_pictures().image_size == ImageSize(640, 640)
    assert "the weights do not record their image size: 640 is used" in caplog.messages


def test_pictures_are_not_shown_with_the_threshold_for_scores(caplog: pytest.LogCaptureFixture) -> None:
    scoring = NetworkSettings(ImageSize(96, 96), 1)
    assert scoring.for_pictures().detections.score_threshold == 0.25
    assert scoring.for_pictures(score_threshold=0.4).detections.score_threshold == 0.4
    assert not caplog.messages
    chosen = NetworkSettings(ImageSize(96, 96), 1, detections=DetectionSettings(score_threshold=0.1))
    assert chosen.for_pictures().detections.score_threshold == 0.1
    assert chosen.for_pictures(score_threshold=0.0, image_size=64) == NetworkSettings(
        ImageSize(64, 64), 1, detections=DetectionSettings(score_threshold=0.0)
    )
    assert caplog.messages == [
        "changed since the checkpoint: image_size was 96, now 64 (used)",
        "changed since the checkpoint: score_threshold was 0.1, now 0.0 (used)",
    ]


def test_rectangle_is_recorded_as_two_numbers() -> None:
    record = input_record(1, ImageSize(96, 128))
    assert record == INPUT | {"image_size": [96, 128], "letterbox": "centred in a rectangle, padded with 114"}
    settings = NetworkSettings.of(record)
    assert settings.image_size == ImageSize(96, 128)
    assert settings.plain()["image_size"] == [96, 128]
    bound = {"data.image_size": [96, 128], "data.input.background": False, "data.input.resize": "area"}
    assert bound_options(record, is_gray=True) == bound
    with pytest.raises(ValueError, match=r"image_size of the weights must be one integer .* got \[1, 2, 3\]"):
        NetworkSettings.of(record | {"image_size": [1, 2, 3]})


def test_input_that_cannot_be_prepared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="resize of the weights must be one of area, linear, got 'cubic'"):
        read_settings(trained_on(tmp_path, resize="cubic"))


def test_bound_options_are_those_that_are_recorded() -> None:
    record = {"image_size": 96, "channels": 3, "variant": "yolov8s", "class_width": None, "recipe": {"lr0": 0.1}}
    model = {"data.image_size": [96, 96], "model.variant": "yolov8s"}
    assert bound_options(record, is_gray=False) == model | {"data.input.channels": 3}
    assert bound_options(record, is_gray=True) == model


def test_range_of_16_bit_frames_is_recorded_and_bound(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorded = input_record(1, ImageSize(96, 96), pixel_range=PixelRange("fixed", 7000, 9040))
    assert "pixel_range" not in input_record(1, ImageSize(96, 96))
    bound = bound_options(recorded, is_gray=True)
    bound_range = {name.rpartition(".")[2]: value for name, value in bound.items() if "pixel_range." in name}
    assert bound_range == {"mode": "fixed", "low": 7000, "high": 9040}
    settings = read_settings(trained_on(tmp_path, **recorded))
    caplog.clear()
    assert settings.for_pictures(pixel_range=None).pixel_range == PixelRange("fixed", 7000, 9040)
    assert caplog.messages == ["taken from the checkpoint: pixel_range fixed, values 7000 to 9040 for 16-bit images"]
    assert settings.for_pictures(pixel_range=PixelRange("frame")).pixel_range.mode == "frame"
    assert "changed since the checkpoint: pixel_range was fixed, values 7000 to 9040, now frame, percent" in caplog.text
    assert NetworkSettings.of(settings.plain()).pixel_range == settings.pixel_range


def test_other_inputs_are_refused_and_another_size_is_not() -> None:
    before = input_record(1, ImageSize(96, 96))
    check_same_input(before, input_record(1, ImageSize(64, 128)))
    with pytest.raises(ValueError, match=r"data.input.channels must be 1, as in the checkpoint, got 3: the network"):
        check_same_input(before, input_record(3, ImageSize(96, 96)))
    with pytest.raises(ValueError, match=r"data.input.background must be None, as in the checkpoint, got True"):
        check_same_input(before, input_record(1, ImageSize(96, 96), background=True))
    with pytest.raises(ValueError, match=r"data.input.pixel_range must be None, .* got {.*7000"):
        check_same_input(before, input_record(1, ImageSize(96, 96), pixel_range=PixelRange("fixed", 7000, 9040)))


def test_precedence_is_one_line_and_names_what_was_chosen() -> None:
    bound = {
        "data.image_size": 96,
        "data.input.channels": 3,
        "data.files.image_folders": [],  # a tuple in the defaults: no difference
        "model.detections.iou_threshold": 0.6,
        "model.detections.score_threshold": 0.1,
    }
    before = {
        "data.image_size": 640,
        "data.input.channels": None,
        "data.files.image_folders": (),
        "model.detections.iou_threshold": 0.7,
        "model.detections.score_threshold": 0.2,
    }
    assert precedence(bound, before, bound | {"model.detections.score_threshold": 0.2}) == [
        "changed since the checkpoint: model.detections.score_threshold was 0.1, now 0.2 (used)",
        "taken from the checkpoint: data.image_size 96 (instead of 640), "
        "model.detections.iou_threshold 0.6 (instead of 0.7)",
    ]
