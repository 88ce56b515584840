"""Start here: every configuration of `configs/` runs, or is used, as its header says.

`configs/*.yaml` are complete and run `fit`, `test` and `predict`. `configs/*/*.yaml` are overlays, which a command line
adds to `configs/ltdv2.yaml`.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "configs"
COMPLETE, OVERLAYS = sorted(FOLDER.glob("*.yaml")), sorted(FOLDER.glob("*/*.yaml"))
FIT = [
    *("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "2", "--trainer.limit_val_batches", "2"),
    *("--data.batch_size", "4", "--model.recipe.nominal_batch", "4", "--data.sampling.frame_interval", "1"),
    *("--trainer.check_val_every_n_epoch", "1", "--trainer.default_root_dir", "runs/small"),
]


def name(config: Path) -> str:
    return str(config.relative_to(FOLDER))


def test_there_are_configurations() -> None:
    assert {name(config) for config in COMPLETE} >= {"ltdv2.yaml", "ltdv2_best.yaml", "yolo.yaml", "demo.yaml"}
    assert {name(config) for config in OVERLAYS} >= {"engine/ddp.yaml", "loader/single.yaml"}


@pytest.mark.whole_run
@pytest.mark.parametrize("config", COMPLETE, ids=name)
def test_complete_configuration_fits_tests_and_predicts(config: Path, run: Callable[..., None]) -> None:
    run("fit", *FIT, config=config)
    written = {path.name for path in Path("runs/small/checkpoints").iterdir()}
    assert {"best.ckpt", "last.ckpt", "step-000000002.ckpt"} <= written
    assert "val/map_50" in Path("runs/small/metrics.csv").read_text()
    for subcommand in ("validate", "test", "predict"):
        split = "val" if subcommand == "validate" else subcommand
        run(subcommand, *FIT[-2:], f"--trainer.limit_{split}_batches", "2", config=config)
        assert Path(f"runs/small/config.{subcommand}.yaml").is_file()
    assert Path("runs/small/predictions.json").is_file()
    assert not Path("runs/small/incidents").exists()


@pytest.mark.parametrize("overlay", OVERLAYS, ids=name)
def test_overlay_is_used_on_top_of_the_recipe(
    overlay: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from yolo_lightning.cli import main

    content = yaml.safe_load(overlay.read_text())
    monkeypatch.setattr(sys, "argv", ["yolo_lightning"])
    with pytest.raises(SystemExit) as ended:
        main(["fit", "--config", str(FOLDER / "ltdv2.yaml"), "--config", str(overlay), "--print_config"])
    assert ended.value.code == 0
    assert_within(content, yaml.safe_load(capsys.readouterr().out), overlay.stem)


def assert_within(part: Any, whole: Any, key: str) -> None:
    """Check that `whole` has all values of `part`; a list `key+` is the end of the list `key`."""
    if isinstance(part, dict):
        for name, value in part.items():
            if name.endswith("+"):
                assert_within(value, whole[name[:-1]][-len(value) :], f"{key}.{name}")
            else:
                assert_within(value, whole[name], f"{key}.{name}")
    elif isinstance(part, list):
        assert len(part) == len(whole), key
        for number, (item, other) in enumerate(zip(part, whole, strict=True)):
            assert_within(item, other, f"{key}[{number}]")
    elif key.endswith("class_path"):
        assert whole.rpartition(".")[2] == part.rpartition(".")[2], key
    else:
        assert whole == part, key


@pytest.mark.parametrize("overlay", OVERLAYS, ids=name)
def test_header_of_an_overlay_names_the_file_in_a_command_line(overlay: Path) -> None:
    header = "".join(line for line in overlay.read_text().splitlines(True) if line.startswith("#"))
    assert f"fit --config configs/ltdv2.yaml --config configs/{name(overlay)}" in header
