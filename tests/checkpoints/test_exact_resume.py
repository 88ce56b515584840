"""A killed and resumed run has the final weights of an uninterrupted run, bit for bit."""

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.forks import Forks
from tests.helpers.run_and_die import EXIT_KILLED, with_callbacks
from yolo_lightning import cli

HELPER = Path(__file__).parents[1] / "helpers" / "run_and_die.py"
RUN = Path("runs/yolo")
Die = Callable[..., int]
EPOCHS, STEPS_PER_EPOCH = 3, 4
TRAINING = [
    *("--trainer.max_epochs", str(EPOCHS), "--trainer.log_every_n_steps", "1", "--data.batch_size", "4"),
    *("--model.convolution.backend", "gemm", "--model.recipe.nominal_batch", "12", "--model.recipe.warmup_epochs", "1"),
    *("--data.augmentation.close_mosaic_epochs", "1"),
]
"""Three steps make an update while an epoch has four: gradients cross its end and most checkpoints."""
SAMPLING = (
    *("--data.augmentation.mixup", "0.5", "--data.augmentation.paste.probability", "0.7"),
    *("--data.sampling.epoch_frames", "14", "--data.split.train_fraction", "0.5", "--data.input.background", "true"),
)
"""Mixup, paste, background, repeated frames, epochs that begin within a pass; the last step has two frames."""

RECTANGULAR = ("--data.image_size", "[64, 96]", "--model.recipe.multi_scale", "0.5")
YOLO26 = (
    *("--model.variant", "yolo26n", "--model.recipe.optimizer", "MuSGD", "--model.recipe.lr0", "0.001"),
    *("--model.detections.one_to_one", "true", "--model.convolution.backend", "native"),
)


@pytest.fixture(autouse=True)
def restore_callbacks() -> Iterator[None]:
    combine = cli.with_default_callbacks
    yield
    cli.with_default_callbacks = combine


@pytest.fixture(scope="module")
def die(forks: Forks, look_alike: Path, index_root: Path) -> Die:
    """Trains in a process of its own until it dies; returns its exit code."""

    def call(folder: Path, where: str, *, workers: int = 0, options: tuple[str, ...] = ()) -> int:
        words = [where, "1", "fit", *TRAINING]
        words += ["--trainer.accelerator", "cpu", "--data.image_size", "64", "--trainer.num_sanity_val_steps", "0"]
        words += ["--data.root", str(look_alike), "--data.storage.index_root", str(index_root), *options]
        return forks.start(HELPER, *words, "--data.loader.num_workers", str(workers), folder=folder).wait()

    return call


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, die: Die) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert die(folder, "never") == 0
    return outcome(folder)


def outcome(folder: Path) -> dict[str, Any]:
    """Everything that must be equal: the last checkpoint's tensors, and the metrics without their times."""
    checkpoint = torch.load(folder / RUN / "checkpoints" / "last.ckpt", weights_only=True)
    with (folder / RUN / "metrics.csv").open(newline="") as file:
        rows = [{key: value for key, value in row.items() if key != "time_s"} for row in csv.DictReader(file)]
    states = ("state_dict", "current_model_state", "optimizer_states", "accumulation")
    return {"tensors": dict(tensors({name: checkpoint[name] for name in states})), "rows": rows, "all": checkpoint}


def tensors(tree: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(tree, Tensor):
        yield name, tree
    elif isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from tensors(value, f"{name}.{key}")


def assert_same(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual["tensors"].keys() == expected["tensors"].keys()
    for name, tensor in expected["tensors"].items():
        assert tensor.isfinite().all(), name
        assert torch.equal(actual["tensors"][name], tensor), name
    assert [row["step"] for row in actual["rows"]] == [row["step"] for row in expected["rows"]]
    for row, expected_row in zip(actual["rows"], expected["rows"], strict=True):
        assert {key: value for key, value in row.items() if expected_row.get(key) != value} == {}
    assert actual["all"]["steps"] == EPOCHS * STEPS_PER_EPOCH


def assert_resumed_is_same(
    run: Callable[..., None], folder: Path, expected: dict[str, Any], options: tuple[str, ...] = ()
) -> None:
    """Resume in this process, without loader workers, and compare."""
    with_callbacks("never", 1)
    run("fit", *TRAINING, *options, "--resume")
    assert_same(outcome(folder), expected)


@pytest.mark.whole_run
@pytest.mark.parametrize(
    ("where", "workers"),
    [("batch:6", 0), pytest.param("batch:6", 2, marks=pytest.mark.slow), ("validation:1", 0), ("batch:4", 0)],
    ids=["within an epoch", "within an epoch, two workers", "within a validation", "between two epochs"],
)
def test_killed_and_resumed_equals_uninterrupted(
    where: str, workers: int, run: Callable[..., None], die: Die, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    assert die(tmp_path, where, workers=workers) == EXIT_KILLED
    assert (
        torch.load(tmp_path / RUN / "checkpoints" / "last.ckpt", weights_only=True)["steps"] < EPOCHS * STEPS_PER_EPOCH
    )
    assert_resumed_is_same(run, tmp_path, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("step", range(1, EPOCHS * STEPS_PER_EPOCH))
def test_killed_before_every_step(
    step: int, run: Callable[..., None], die: Die, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    assert die(tmp_path, f"batch:{step}") == EXIT_KILLED
    assert_resumed_is_same(run, tmp_path, uninterrupted)


@pytest.mark.slow
def test_killed_twice_in_one_epoch_with_changing_workers(
    run: Callable[..., None], die: Die, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    assert die(tmp_path, "batch:5", workers=2) == EXIT_KILLED
    again = ("--resume", "--data.loader.persistent_workers", "false")
    assert die(tmp_path, "batch:7", workers=1, options=again) == EXIT_KILLED
    assert_resumed_is_same(run, tmp_path, uninterrupted)


@pytest.mark.whole_run
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("options", "where", "workers"),
    [
        pytest.param(YOLO26, "batch:6", 0, id="yolo26n, decaying loss"),
        pytest.param(RECTANGULAR, "batch:6", 0, id="rectangular images"),
        pytest.param(("--model.recipe.optimizer", "auto"), "batch:6", 0, id="optimizer auto"),
        *(
            pytest.param(SAMPLING, where, 2, id=f"sampling, {where}", marks=pytest.mark.slow)
            for where in ("batch:4", "batch:6", "validation:1")
        ),
    ],
)
def test_killed_and_resumed_with_other_options(
    options: tuple[str, ...], where: str, workers: int, run: Callable[..., None], die: Die, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    assert die(whole, "never", options=options) == 0
    assert die(tmp_path, where, workers=workers, options=options) == EXIT_KILLED
    assert_resumed_is_same(run, tmp_path, outcome(whole), options)
