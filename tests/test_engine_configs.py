"""The configurations of configs/engine go on top of the recipe, and their headers say how."""

import re
import sys
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch.cli import LightningCLI
from torch.distributed import DistStoreError

from tests.conftest import REPOSITORY

ENGINES = sorted((REPOSITORY / "configs" / "engine").glob("*.yaml"))
RECIPE = REPOSITORY / "configs" / "ltdv2.yaml"


@pytest.fixture(autouse=True)
def no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["yolo_lightning"])


def resolved(config: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The configuration that fit would use."""
    from yolo_lightning.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["fit", "--config", str(RECIPE), "--config", str(config), "--print_config"])
    assert ended.value.code == 0
    content: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return content


def test_there_is_one_for_each_launcher() -> None:
    assert [path.stem for path in ENGINES] == ["ddp", "ray", "slurm"]


@pytest.mark.parametrize("config", ENGINES, ids=lambda path: path.stem)
def test_what_the_file_says_is_used(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if config.stem == "ray" and find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    wanted = yaml.safe_load(config.read_text())["trainer"]
    found = resolved(config, capsys)["trainer"]
    assert {name: named(found[name]) for name in wanted} == {name: named(value) for name, value in wanted.items()}


def named(value: Any) -> Any:
    """Objects by their class: what a file leaves out, the parser fills in."""
    if isinstance(value, list):
        return [named(one) for one in value]
    return value["class_path"] if isinstance(value, dict) else value


@pytest.mark.parametrize("config", ENGINES, ids=lambda path: path.stem)
def test_header_names_the_file_in_a_command_line(config: Path) -> None:
    header = "".join(line for line in config.read_text().splitlines(True) if line.startswith("#"))
    assert re.search(rf"fit --config configs/ltdv2.yaml --config configs/engine/{config.name}", header)


def test_distributed_sampler_of_lightning_is_refused(
    run: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run("fit", "--trainer.use_distributed_sampler", "true")
    assert ended.value.code == 2
    assert "trainer.use_distributed_sampler must be false, got true" in capsys.readouterr().err


def test_batch_norm_over_processes_is_refused_on_a_cpu(
    run: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run("fit", "--trainer.sync_batchnorm", "true", "--trainer.devices", "2", "--trainer.strategy", "ddp")
    assert ended.value.code == 2
    assert "trainer.sync_batchnorm must be false on a CPU, got true" in capsys.readouterr().err


def test_missing_process_is_said_in_a_line(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_in_vain(cli: LightningCLI, subcommand: str) -> None:
        assert cli.trainer.strategy._timeout == timedelta(seconds=90)
        raise DistStoreError("Timed out after 91 seconds waiting for clients. 1/2 clients joined.")

    monkeypatch.setattr(LightningCLI, "_run_subcommand", wait_in_vain)
    with pytest.raises(SystemExit, match=r"error: a process is missing.*1/2 clients joined.*configs/engine/ddp.yaml"):
        run("fit", "--trainer.strategy", "DDPStrategy", "--trainer.strategy.timeout", "0:01:30")
