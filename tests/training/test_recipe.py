"""The rules of `auto` in the recipe."""

import pytest

from yolo_lightning.training.recipe import Recipe, automatic_nominal_batch, with_numbers


@pytest.mark.parametrize(
    ("images", "batch_size", "nominal_batch"),
    [
        (329_299 * 15, 8, 64),
        (128_000, 8, 64),
        (127_999, 8, 32),
        (218 * 100, 8, 8),
        (218 * 16, 12, 16),  # one step per optimizer step
        (218, 64, 64),
        (218, 128, 64),
    ],
)
def test_small_training_has_more_optimizer_steps(images: int, batch_size: int, nominal_batch: int) -> None:
    assert automatic_nominal_batch(images, batch_size) == nominal_batch


@pytest.mark.parametrize(("epochs", "warmup_epochs"), [(100, 3.0), (30, 3.0), (16, 1.6), (1, 0.1)])
def test_warm_up_is_at_most_a_tenth_of_the_training(epochs: int, warmup_epochs: float) -> None:
    recipe = with_numbers(Recipe(warmup_epochs="auto"), epoch_images=218, epochs=epochs, batch_size=8, saved={})
    assert recipe == Recipe(warmup_epochs=warmup_epochs)


def test_set_and_saved_values_are_kept() -> None:
    recipe = Recipe(nominal_batch="auto", warmup_epochs=2.0)
    saved = {"nominal_batch": 16, "warmup_epochs": 0.5}
    recipe = with_numbers(recipe, epoch_images=218, epochs=16, batch_size=8, saved=saved)
    assert recipe == Recipe(nominal_batch=16, warmup_epochs=2.0)
