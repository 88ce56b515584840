"""Whole trainings: the loop of Ultralytics and this package have equal weights after every step."""

from pathlib import Path
from typing import Any

import pytest

from tests.parity.training_twins import initial_graph, largest_difference, state, train_ours, train_theirs

pytestmark = pytest.mark.whole_run

EXACT = 1e-6
"""Both run the same kernels in the same order; found was a difference of 0 throughout."""

RECIPES = {
    # three steps to an update, five to an epoch: gradients cross its end
    "accumulation across epochs": ({"nbs": 12, "warmup_epochs": 1.0}, {"nominal_batch": 12, "warmup_epochs": 1.0}),
    "AdamW": ({"optimizer": "AdamW", "lr0": 1e-3, "cos_lr": True}, {"optimizer": "AdamW", "lr0": 1e-3, "cosine": True}),
    "MuSGD": (
        {"optimizer": "MuSGD", "variant": "yolo26n", "nbs": 8, "warmup_epochs": 1.0},
        {"optimizer": "MuSGD", "variant": "yolo26n", "nominal_batch": 8, "warmup_epochs": 1.0},
    ),
    "automatic optimizer": ({"optimizer": "auto"}, {"optimizer": "auto"}),
    "frozen list": ({"freeze": [0, "22.cv3"]}, {"freeze": [0, "22.cv3"]}),
    "class weights and gains": (
        {"cls_pw": 0.5, "box": 3.0, "cls": 1.0, "dfl": 0.7},
        {"class_weight_power": 0.5, "box_gain": 3.0, "cls_gain": 1.0, "dfl_gain": 0.7},
    ),
}
MORE_RECIPES = {
    "frozen layers": ({"freeze": 5}, {"freeze": 5}),
    "Adam": ({"optimizer": "Adam", "lr0": 1e-3}, {"optimizer": "Adam", "lr0": 1e-3}),
    "RMSprop": ({"optimizer": "RMSprop", "lr0": 1e-4}, {"optimizer": "RMSprop", "lr0": 1e-4}),
    "NAdam": ({"optimizer": "NAdam", "lr0": 1e-3}, {"optimizer": "NAdam", "lr0": 1e-3}),
    "fewer steps than an update takes": (
        {"nbs": 400, "warmup_epochs": 0.0},
        {"nominal_batch": 400, "warmup_epochs": 0.0},
    ),
    "no warm-up": ({"warmup_epochs": 0.0, "lr0": 1e-3}, {"warmup_epochs": 0.0, "lr0": 1e-3}),
}


FAMILIES = ("yolov8n", "yolov8n-p2", "yolo11n", "yolo12n", "yolo26n")
MORE_FAMILIES = ("yolov5n", "yolov9t", "yolov10n", "yolo26n-p2")


def assert_same_training(folder: Path, reference_options: dict[str, Any], options: dict[str, Any], epochs: int) -> None:
    weights, average, steps = train_theirs(folder, epochs=epochs, **reference_options)
    own_weights, own_average, own_steps = train_ours(folder, epochs=epochs, **options)
    start = state(initial_graph(reference_options.get("variant", "yolov8n")))
    assert largest_difference(weights, start) > 0.1, "the case is too easy"
    assert [step["groups"] for step in own_steps] == [step["groups"] for step in steps]
    assert [step["loss"] for step in own_steps] == pytest.approx([step["loss"] for step in steps], rel=EXACT)
    assert largest_difference(own_weights, weights) < EXACT
    assert largest_difference(own_average, average) < EXACT


@pytest.mark.timeout(600)  # MuSGD computes in bfloat16, which processors without its instructions emulate
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_weights_and_average_equal_ultralytics(tmp_path: Path, recipe: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert_same_training(tmp_path, *recipe, epochs=2)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", MORE_RECIPES.values(), ids=MORE_RECIPES.keys())
def test_further_recipes_equal_ultralytics(tmp_path: Path, recipe: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert_same_training(tmp_path, *recipe, epochs=3)


def assert_same_family(folder: Path, variant: str) -> None:
    """Compare fifteen steps, bit for bit."""
    recipe = {"variant": variant, "warmup_epochs": 1.0}
    weights, average, steps = train_theirs(folder, epochs=3, nbs=8, **recipe)
    own_weights, own_average, own_steps = train_ours(folder, epochs=3, nominal_batch=8, **recipe)
    assert largest_difference(weights, state(initial_graph(variant))) > 0.01, "the case is too easy"
    assert len(own_steps) == 15
    assert [step["groups"] for step in own_steps] == [step["groups"] for step in steps]
    assert [step["loss"] for step in own_steps] == pytest.approx([step["loss"] for step in steps], rel=1e-6)
    assert largest_difference(own_weights, weights) == 0
    assert largest_difference(own_average, average) == 0


@pytest.mark.parametrize("variant", FAMILIES)
def test_families_equal_ultralytics(tmp_path: Path, variant: str) -> None:
    assert_same_family(tmp_path, variant)


@pytest.mark.slow
@pytest.mark.parametrize("variant", MORE_FAMILIES)
def test_further_families_equal_ultralytics(tmp_path: Path, variant: str) -> None:
    assert_same_family(tmp_path, variant)


def test_comparison_notices_another_recipe(tmp_path: Path) -> None:
    weights, _, _ = train_theirs(tmp_path, epochs=2, cls_pw=0.5)
    unweighted, _, _ = train_ours(tmp_path, epochs=2)
    assert largest_difference(unweighted, weights) > 1e-3
