"""Every shipped configuration runs through the command line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

CONFIGS = sorted((REPOSITORY / "configs").glob("*.yaml"))
SMALL = [
    *("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "2", "--trainer.limit_val_batches", "1"),
    *("--data.batch_size", "4", "--model.recipe.nominal_batch", "4", "--data.sampling.frame_interval", "1"),
    *("--trainer.check_val_every_n_epoch", "1", "--trainer.default_root_dir", "runs/small"),
]


def test_there_are_configurations() -> None:
    assert {path.name for path in CONFIGS} >= {"ltdv2.yaml", "ltdv2_best.yaml", "demo.yaml"}


@pytest.mark.whole_run
@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_config_fits_validates_tests_and_predicts(config: Path, run: Callable[..., None]) -> None:
    run("fit", *SMALL, config=config)
    written = {path.name for path in Path("runs/small/checkpoints").iterdir()}
    assert {"best.ckpt", "last.ckpt", "step-000000002.ckpt"} <= written
    assert "val/map_50" in Path("runs/small/metrics.csv").read_text()
    for subcommand in ("validate", "test", "predict"):
        run(subcommand, *SMALL[-2:], config=config)
        assert Path(f"runs/small/config.{subcommand}.yaml").is_file()
    assert Path("runs/small/predictions.json").is_file()
    assert not Path("runs/small/incidents").exists()
