"""Invalid values of options end a fit before training starts, with an error of one line."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

AUGMENTATION, PASTE, SAMPLING = "data.augmentation.", "data.augmentation.paste.", "data.sampling."
BAD: list[tuple[str, str, str]] = [
    ("model.recipe.lr0", "-1", r"model\.recipe\.lr0 must be > 0, got -1"),
    ("model.weights", "nowhere.pt", r"\(nothing is downloaded\), got nowhere\.pt"),
    ("data.format", "", r"data\.format must not be empty, got ''"),
    ("data.image_size", "100", r"image_size must be a multiple of 32 and >= 32, got 100"),
    ("data.batch_size", "17", r"data\.batch_size must be at most the 16 frames"),
    ("data.loader.num_workers", "many", r"data\.loader\.num_workers must be an integer or auto, got 'many'"),
    ("trainer.default_root_dir", "/proc/nowhere", r"cannot be written"),
    ("seed_everything", "true", r"seed_everything must be an integer >= 0, got True"),
    ("seed_everything", "-1", r"seed_everything must be an integer >= 0, got -1"),
    ("trainer.use_distributed_sampler", "true", r"trainer\.use_distributed_sampler must be false, got true"),
    ("max_hours", "0", r"max_hours must be > 0 and <= 1000000 or null, got 0"),
    ("trainer.devices", "0", r"trainer\.devices must be auto, an integer >= 1 or a list of numbers, got 0"),
    ("trainer.devices", "two", r"trainer\.devices must be auto or the number of processes, >= 1, on a CPU, got 'two'"),
    ("trainer.strategy", "dpp", r"trainer\.strategy must be auto, ddp or a class, got dpp"),
    ("trainer.logger", "TensorBord", r"there is no logger TensorBord\. Did you mean TensorBoardLogger\?"),
    ("model.variant", "yolo11q", r"model\.variant must be .*got 'yolo11q'\. Did you mean yolo11"),
    ("model.variant", "nowhere.yaml", r"model\.variant must be an existing .*got 'nowhere.yaml'"),
    ("model.recipe.optimizer", "sgd", r"model\.recipe\.optimizer must be auto, SGD, .*got 'sgd'\. Did you mean SGD"),
    (
        "model.recipe.optimizer",
        "torch.nn.Linear",
        r"model\.recipe\.optimizer must be .* or a class path, got 'torch\.nn\.Linear'",
    ),
    (
        "model.recipe.optimizer",
        "torch.optim.Muon",
        r"model\.recipe\.optimizer must accept .* as SGD, .*: Muon only supports 2D",
    ),
    ("model.detections.tta", "fusion", r"model\.detections\.tta must be true or false, got 'fusion'"),
    ("model.detections.one_to_one", "true", r"model\.detections\.one_to_one must be false for yolov8n, got true"),
    ("data.input.background", "x", r"data\.input\.background must be true or false, got 'x'"),
    ("data.image_size", "[64, x]", r"data\.image_size must be one integer \(a square\) or two \(.*\), got \[64, 'x'\]"),
    ("data.image_size", "[64, 70]", r"data\.image_size must be two multiples of 32 and >= 32, got \[64, 70\]"),
    ("data.image_size", "1000000000", r"data\.image_size must be <= 16352, got 1000000000"),
    (
        "data.input.pixel_range",
        "x",
        r"data\.input\.pixel_range must be set by its keys .*data\.input\.pixel_range\.mode, got 'x'",
    ),
    (
        "data.input.pixel_range.mode",
        "all",
        r"data\.input\.pixel_range\.mode must be fixed, frame, full or null, got 'all'",
    ),
    (
        "data.input.pixel_range.mode",
        "fixed",
        r"data\.input\.pixel_range\.low must be a pixel value .*got None and None",
    ),
    (AUGMENTATION + "mixup", "1.5", r"data\.augmentation\.mixup must be >= 0 and <= 1, got 1\.5"),
    (AUGMENTATION + "paste", "0.5", r"data\.augmentation\.paste must be set by its keys .*probability.*got '0\.5'"),
    (PASTE + "probability", "2", r"paste\.probability must be >= 0 and <= 1, got 2"),
    (PASTE + "count", "0", r"paste\.count must be >= 1, got 0"),
    (PASTE + "classes", "Dog", r"paste\.classes must be a list, got 'Dog'"),
    (SAMPLING + "frame_interval", "0", r"sampling\.frame_interval must be >= 1, got 0"),
    ("trainer.accumulate_grad_batches", "4", r"accumulate_grad_batches must not be set, got 4: use model\.recipe\.nom"),
    ("trainer.check_val_every_n_epoch", "-1", r"check_val_every_n_epoch must be an integer >= 1, got -1"),
    ("trainer.limit_train_batches", "-1", r"limit_train_batches must be an integer >= 0 or a fraction .* got -1"),
    ("trainer.limit_val_batches", "1.5", r"limit_val_batches must be .* or a fraction from 0\.0 to 1\.0, got 1\.5"),
    ("trainer.val_check_interval", "0", r"val_check_interval must be an integer >= 1 or a fraction .* got 0"),
    ("trainer.val_check_interval", "99", r"val_check_interval must be <= 2, the batches per epoch, got 99"),
    ("trainer.max_epochs", "-5", r"max_epochs must be an integer >= 1, got -5"),
    ("trainer.max_steps", "-2", r"max_steps must be an integer >= -1, got -2"),
    ("trainer.log_every_n_steps", "-1", r"log_every_n_steps must be an integer >= 0, got -1"),
    ("trainer.max_time", "5", r"trainer\.max_time must be DD:HH:MM:SS, got 5"),
    ("trainer.default_root_dir", "/dev/null/run", r"default_root_dir must be a folder, got the file /dev/null"),
    ("trainer.gradient_clip_val", "1.0", r"gradient_clip_val must not be set, got 1\.0: use model\.recipe\.clip_norm"),
]
CHECKED_WITH_DATA = ("data.batch_size", "trainer.val_check_interval", "model.recipe.optimizer", "trainer.callbacks")
CALLBACKS = [
    ("BestCheckpoint", "window: 0", "BestCheckpoint: window must be >= 1, got 0"),
    ("BestCheckpoint", "window: x", "BestCheckpoint: window must be an integer, got 'x'"),
    ("BestCheckpoint", "mode: high", "BestCheckpoint: mode must be max or min, got 'high'"),
    ("BestCheckpoint", "monitor: val/balance", r"monitor must be one of .*'val/balance'\. Did you mean val/balanced\?"),
    ("LastCheckpoint", "keep: 0", "LastCheckpoint: keep must be >= 1, got 0"),
    ("EMA", "decay: null", "EMA: decay must be a number, got None"),
    ("EMA", "decay: 2", "EMA: decay must be >= 0 and < 1, got 2"),
    ("BestCheckpoint", "monitor: ' '", "BestCheckpoint: monitor must be the name of a logged metric, got ' '"),
    ("StatusFile", "interval_s: -1", r"StatusFile: interval_s must be >= 1, got -1"),
    ("ModelCheckpoint", "save_top_k: -5", "ModelCheckpoint: Invalid value for save_top_k=-5"),
    ("BestCheckpoint", "monitor: val/balanced_low", r"monitor must be .*bootstrap_samples of MeanAP adds"),
    ("BestCheckpoint", "monitor: val/map_50/dog", r"monitor must be one of .*got 'val/map_50/dog'"),
    ("BestCheckpoint", "monitor: map50", r"monitor must be one of .*got 'map50'\. Did you mean val/map_50\?"),
    ("MeanAP", "bootstrap_samples: 9", "MeanAP: bootstrap_samples must be >= 100, got 9"),
]
BAD += [
    ("trainer.callbacks", f"[{{class_path: {name}, init_args: {{{option}}}}}]", rf"trainer\.callbacks: .*{message}")
    for name, option, message in CALLBACKS
]


@pytest.mark.whole_run
@pytest.mark.parametrize(("key", "value", "message"), BAD, ids=[f"{key} {value}" for key, value, _ in BAD])
def test_bad_value_ends_a_fit_before_it_starts_in_one_line(
    key: str, value: str, message: str, run: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run("fit", "--trainer.default_root_dir", "run", f"--{key}", value, config=REPOSITORY / "configs/ltdv2.yaml")
    assert stopped.value.code == 2
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    start = shown.index("error: ")
    (line,) = shown[start:].splitlines()
    assert re.search(message, line)
    assert not list(Path().rglob("*.ckpt"))
    assert key in CHECKED_WITH_DATA or not Path("run").exists()
