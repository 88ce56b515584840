"""`data.input.background` from training to predictions, by the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from synthetic import draw_dataset

from yolo_lightning import Detector
from yolo_lightning.model.network_settings import read_settings

pytestmark = pytest.mark.whole_run

BEST = Path("runs/yolo/checkpoints/best.ckpt")
Run = Callable[..., None]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of four frames."""
    root = tmp_path_factory.mktemp("clips") / "data"
    sizes = {"train_frames": 16, "valid_frames": 8, "test_frames": 4, "width": 96, "height": 64}
    return draw_dataset(root, **sizes, clip_frames=4, gain_drift=0.2)


def options(data: Path, background: str) -> tuple[str, ...]:
    return ("--data.root", str(data), "--data.input.background", background)


def test_network_with_background_is_trained_scored_and_applied(
    run: Run, data: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    run("fit", *options(data, "true"), "--trainer.max_epochs", "1", "--data.batch_size", "4")
    assert "train: backgrounds of 5 clips" in caplog.messages
    settings = read_settings(BEST)
    assert (settings.background, settings.channels, settings.input_channels) == (True, 1, 2)
    checkpoint = torch.load(BEST, weights_only=True)
    assert checkpoint["state_dict"]["graph.model.0.conv.weight"].shape[1] == 2
    for subcommand in ("test", "predict"):
        run(subcommand, "--data.root", str(data))  # the setting is that of the checkpoint
    assert len(json.loads(Path("runs/yolo/predictions.json").read_text())) == 4
    folder = next(path.parent for path in sorted(data.rglob("image_0003.jpg")))
    results = list(Detector(BEST, score_threshold=0.0)(folder))
    assert [result.image.shape for result in results] == [(64, 96, 3)] * 4

    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        run("validate", *options(data, "false"))
    assert ended.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert "data.input.background must be true, as in the checkpoint, whose network has 2 input channels" in line


def test_run_is_not_resumed_with_other_inputs(run: Run, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual = ("--data.root", str(data), "--data.batch_size", "4", "--trainer.limit_train_batches", "1")
    run("fit", *usual, "--trainer.max_epochs", "1")
    background = "data.input.background"
    for name, value, named in (
        (background, "true", background),
        ("model.single_class", "true", "model.class_names"),
    ):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run("fit", *usual, "--trainer.max_epochs", "2", "--resume", f"--{name}", value)
        assert ended.value.code == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
        assert named in line
        assert "as in the checkpoint" in line
