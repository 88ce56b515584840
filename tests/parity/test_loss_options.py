"""Class weights and one class for all; gains, assigner and gradients of the loss are compared in `test_parity`."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ultralytics.models.yolo.detect import DetectionTrainer

from tests.helpers.networks import module_of
from tests.parity.training_twins import random_batches
from yolo_lightning.model.loss import class_weights
from yolo_lightning.training.device_transforms import as_one_class

ONE_STEP = [
    *("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "1", "--trainer.limit_val_batches", "1"),
    *("--model.convolution.backend", "native", "--model.recipe.nominal_batch", "16"),
]


@pytest.mark.parametrize("counts", [[10, 400, 3, 7], [5, 0, 80, 0], [0, 0, 0, 9], [6, 6, 6, 6]])
@pytest.mark.parametrize("power", [0.1, 0.5, 1.0])
def test_class_weights_equal_ultralytics(counts: list[int], power: float) -> None:
    trainer: Any = SimpleNamespace(args=SimpleNamespace(cls_pw=power))
    reference = DetectionTrainer.compute_class_weights(trainer, np.array(counts, dtype=np.float32))
    weights = class_weights(tuple(counts), power)
    assert weights is not None
    torch.testing.assert_close(weights, torch.from_numpy(reference / reference.mean()).float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("counts", "power"), [((1, 2), 0.0), ((0, 0), 0.5)])
def test_nothing_to_weigh(counts: tuple[int, ...], power: float) -> None:
    assert class_weights(counts, power) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"class_weight_power": 1.5}, "model.loss.class_weight_power must be >= 0 and <= 1, got 1.5"),
        (
            {"class_weight_power": 0.5, "single_class": True},
            "must be 0 with model.single_class, got 0.5",
        ),
    ],
)
def test_bad_class_weights_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        module_of(**arguments)


def test_one_class_keeps_everything_but_the_labels() -> None:
    batch = random_batches(1)[0]
    merged = as_one_class(batch)
    assert batch.labels.any()
    assert merged.labels.tolist() == [0] * len(batch.labels)
    assert merged.labels.dtype == batch.labels.dtype
    assert merged.boxes is batch.boxes


@pytest.mark.slow
def test_network_of_one_class_trains_resumes_and_is_scored(run: Callable[..., None]) -> None:
    run("fit", *ONE_STEP, "--model.single_class", "true")
    checkpoint = torch.load("runs/yolo/checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["hyper_parameters"]["class_names"] == ["object"]
    assert checkpoint["state_dict"]["graph.model.22.cv3.0.2.weight"].shape[0] == 1
    run("fit", *ONE_STEP, "--resume", "--model.single_class", "true", "--trainer.max_epochs", "2")
    run("test", "--trainer.limit_test_batches", "1")
