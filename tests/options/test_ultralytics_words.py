"""Command lines in the words of Ultralytics are answered with the command line to type."""

import shlex

import pytest

from yolo_lightning.options.ultralytics_words import arguments_of_ultralytics, command_of, translated, translated_file

FIT = (
    *("config", "data.format", "data.image_size", "data.batch_size", "data.loader.num_workers", "model.variant", "tta"),
    *("model.weights", "model.recipe.lr0", "trainer.accelerator", "trainer.callbacks", "trainer.default_root_dir"),
    *("trainer.devices", "trainer.max_epochs", "trainer.precision", "resume", "data.augmentation.mosaic"),
)
PICTURES = ("run", "weights", "score_threshold", "image_size", "device", "output")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("fit epochs=3 imgsz=320 data=x.yaml", "fit --config yolo --trainer.max_epochs 3 --data.image_size 320"),
        ("train --data x.yaml --epochs 3", "fit --config yolo --data.format x.yaml --trainer.max_epochs 3"),
        ("detect train model=yolov8n.pt lr0=0.01", "fit --model.weights yolov8n.pt --model.recipe.lr0 0.01"),
        ("yolo task=detect mode=train model=yolo11n.yaml", "fit --model.variant yolo11n"),
        ("train device=0,1 workers=4", "fit --trainer.accelerator gpu --trainer.devices '[0,1]'"),
        ("train device=cpu resume=True", "fit --trainer.accelerator cpu --resume"),
        ("train resume=last.pt amp=False", "fit --ckpt_path last.pt --trainer.precision 32-true"),
        ("train project=runs name=a", "fit --trainer.default_root_dir runs/a"),
        ("train patience=50", "--trainer.callbacks.patience=50"),
        ("val model=best.pt", "validate --model.weights best.pt"),
        ("train epochs=3 plots=True", "--trainer.max_epochs 3 # without an equivalent: plots=True"),
        ("fit a=b,c=d", "unknown a=b,c=d; options are written as --key value"),
        ("Train EPOCHS=3 img = 320", "fit --trainer.max_epochs 3 --data.image_size 320"),
        ("Train", "Train is fit here. Type: python -m yolo_lightning fit"),
        ("inference x.png", "python -m yolo_lightning predict x.png"),
        ("train hyp=h.yaml", "fit --config h.yaml"),
        ("train pretrained=True lr0=0.1", "fit --model.recipe.lr0 0.1"),
    ],
)
def test_words_of_ultralytics_for_datasets(typed: str, meant: str) -> None:
    words = shlex.split(typed)
    command = command_of(words)

    assert command is not None
    assert meant in translated(words, command, FIT)


def test_the_argument_file_of_a_run_is_translated_without_its_defaults() -> None:
    arguments = arguments_of_ultralytics() | {
        "mode": "train",
        "save_dir": "/runs/train",
        "name": "train",
        "half": False,
    }
    arguments |= {"model": "yolov8n.pt", "data": "x.yaml", "epochs": 3, "lr0": 0.02, "device": "cpu", "rect": True}

    text = translated_file("args.yaml", arguments, ["fit", "--config", "args.yaml", "--trainer.max_epochs", "7"], FIT)

    assert text is not None
    _, _, line = text.partition("python -m yolo_lightning ")
    assert line == (
        "fit --config yolo --model.weights yolov8n.pt --data.format x.yaml --trainer.max_epochs 3 "
        "--trainer.accelerator cpu --model.recipe.lr0 0.02 --trainer.max_epochs 7 # without an equivalent: rect=True"
    )
    assert translated_file("ours.yaml", {"seed_everything": 1}, ["fit"], FIT) is None


def test_words_of_ultralytics_for_pictures() -> None:
    words = ["predict", "source=x", "conf=0.5", "weights=best.pt", "device=0", "name=a"]

    line = translated(words, "predict", PICTURES)

    assert "predict x --output a --score_threshold 0.5 --weights best.pt --device cuda:0" in line


@pytest.mark.parametrize(
    "typed",
    [
        *("fit --epochs 3", "predict a.jpg", "trian", "fit --trainer.default_root_dir lr=0.1"),
        *("supervise -- python train.py epochs=3", "supervise --run x -- python train.py epochs=3"),
    ],
)
def test_other_command_lines_are_left_alone(typed: str) -> None:
    assert command_of(shlex.split(typed)) is None
