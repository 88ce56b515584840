"""Agreement with Ultralytics itself, on fixed seeds."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor
from ultralytics.engine.trainer import BaseTrainer
from ultralytics.nn.tasks import DetectionModel
from ultralytics.utils.loss import v8DetectionLoss

from yolo_lightning.data.batch import Batch
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.model.detection_settings import DetectionSettings
from yolo_lightning.model.graph import build_graph
from yolo_lightning.model.layers import arrange
from yolo_lightning.model.loss import DetectionLoss
from yolo_lightning.model.postprocess import predictions
from yolo_lightning.training.recipe import Group, Recipe
from yolo_lightning.training.schedule import decay_factor, scaled_weight_decay, settings_at

SIZE = 96
GAINS = {"box": 7.5, "cls": 0.5, "dfl": 1.5}


def random_batch(images: int = 3, boxes: int = 7) -> Batch:
    generator = torch.Generator().manual_seed(3)
    sample_index = torch.randint(images, (boxes,), generator=generator).sort().values
    centres = torch.rand(boxes, 2, generator=generator) * 0.6 + 0.2
    sides = torch.rand(boxes, 2, generator=generator) * 0.3 + 0.05
    return Batch(
        images=torch.randint(256, (images, 1, SIZE, SIZE), dtype=torch.uint8, generator=generator),
        boxes=torch.cat((centres, sides), 1),
        labels=torch.randint(len(CLASS_NAMES), (boxes,), generator=generator),
        sample_index=sample_index,
        image_ids=tuple(str(number) for number in range(images)),
        frame_shapes=((SIZE, SIZE),) * images,
        letterboxes=(Letterbox(1.0, 0, 0),) * images,
        readable=(True,) * images,
    )


def as_input(batch: Batch) -> Tensor:
    return batch.images.expand(-1, 3, -1, -1).float() / 255


def twin_graphs(convolution: str) -> tuple[torch.nn.Module, DetectionModel]:
    torch.manual_seed(0)
    reference = DetectionModel("yolov8n.yaml", ch=3, nc=len(CLASS_NAMES), verbose=False)
    graph = arrange(build_graph("yolov8n", CLASS_NAMES), convolution)  # type: ignore[arg-type]
    graph.load_state_dict(reference.state_dict())
    reference.args = SimpleNamespace(**GAINS)
    return graph, reference


def test_objects_far_smaller_than_the_first_boxes_are_assigned() -> None:
    """With Ultralytics' assigner their targets are below 1e-12, and the network does not begin to detect."""
    torch.manual_seed(0)
    graph, batch = arrange(build_graph("yolov8n", CLASS_NAMES), "native").train(), random_batch()
    sizes = torch.tensor([[4.0, 8.0]]).expand(len(batch.boxes), 2) / batch.images.shape[-1]
    small = replace(batch, boxes=torch.cat((batch.boxes[:, :2], sizes), 1))
    loss = DetectionLoss(graph)
    _, parts = loss(graph(as_input(small)), small)
    assert loss.target_scores > 1e-4
    assert parts["box_loss"] > 1e-3


@pytest.mark.usefixtures("ultralytics_epsilon")
@pytest.mark.parametrize("convolution", ["native", "gemm"])
@pytest.mark.parametrize("boxes", [0, 7])
def test_loss_and_gradients_equal_ultralytics(convolution: str, boxes: int) -> None:
    graph, reference = twin_graphs(convolution)
    graph = graph.double()
    reference = reference.double()
    batch = random_batch(boxes=boxes)
    total, parts = DetectionLoss(graph)(graph.train()(as_input(batch).double()), batch)
    fields = {"batch_idx": batch.sample_index.float(), "cls": batch.labels.float()[:, None], "bboxes": batch.boxes}
    expected, items = v8DetectionLoss(reference)(reference.train()(as_input(batch).double()), fields)
    total.backward()
    expected.sum().backward()
    torch.testing.assert_close(total, expected.sum(), rtol=1e-5, atol=1e-5)
    assert {name: float(part) for name, part in parts.items()} == pytest.approx(
        {name: float(item) for name, item in items.items()}, rel=1e-5
    )
    for (name, parameter), (_, other) in zip(graph.named_parameters(), reference.named_parameters(), strict=True):
        if other.grad is not None:
            assert parameter.grad is not None, name
            torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_slow_nms_loses_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    import ultralytics.utils.nms as nms

    now = iter(range(0, 10_000, 60))
    monkeypatch.setattr(nms.time, "time", lambda: next(now))  # every look at the clock costs a minute
    graph, _ = twin_graphs("native")
    batch = random_batch(images=6)
    with torch.no_grad():
        detections = predictions(
            graph.eval()(as_input(batch)),
            batch,
            DetectionSettings(score_threshold=0.001, iou_threshold=0.7, max_detections=300),
        )
    assert all(len(prediction.labels) > 0 for prediction in detections)


@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize(("batch_size", "steps_per_epoch", "epochs"), [(16, 45, 15), (8, 100, 3), (128, 10, 2)])
def test_schedule_equals_ultralytics_formulas(cosine: bool, batch_size: int, steps_per_epoch: int, epochs: int) -> None:
    recipe = Recipe(cosine=cosine)
    trainer = SimpleNamespace(
        args=SimpleNamespace(lrf=recipe.lrf, cos_lr=cosine, warmup_epochs=recipe.warmup_epochs),
        epochs=epochs,
        optimizer=torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=recipe.lr0),
    )
    BaseTrainer._setup_scheduler(trainer)
    warmup = BaseTrainer._get_warmup_iterations(trainer, steps_per_epoch)
    full = max(round(recipe.nominal_batch / batch_size), 1)
    for step in range(steps_per_epoch * epochs):
        epoch = step // steps_per_epoch
        factor = trainer.lf(epoch)
        assert decay_factor(recipe, epoch / epochs) == pytest.approx(factor)
        target = recipe.lr0 * factor
        if step <= warmup:
            ramp = (0, warmup)
            accumulate = max(1, int(np.interp(step, ramp, [1, full]).round()))
            bias = np.interp(step, ramp, [recipe.warmup_bias_lr, target])
            weight = np.interp(step, ramp, [0.0, target])
            momentum = np.interp(step, ramp, [recipe.warmup_momentum, recipe.momentum])
        else:
            accumulate, bias, weight, momentum = full, target, target, recipe.momentum
        settings = settings_at(
            recipe,
            step=step,
            epochs=epochs,
            steps_per_epoch=steps_per_epoch,
            batch_size=batch_size,
            progress=epoch / epochs,
        )
        assert settings.accumulate == accumulate
        assert settings.momentum == pytest.approx(momentum)
        assert settings.learning_rates == pytest.approx(
            {Group.WEIGHT: weight, Group.NORMALIZATION: weight, Group.BIAS: bias}
        )


def test_weight_decay_is_scaled_to_the_summed_batch() -> None:
    assert scaled_weight_decay(Recipe(), 16) == pytest.approx(5e-4)
    assert scaled_weight_decay(Recipe(), 24) == pytest.approx(5e-4 * 24 * 3 / 64)
    assert scaled_weight_decay(Recipe(), 128) == pytest.approx(1e-3)


def test_an_update_takes_no_more_steps_than_the_training_has() -> None:
    place: dict[str, Any] = {"step": 5, "epochs": 3, "steps_per_epoch": 2, "batch_size": 1, "progress": 2 / 3}
    assert settings_at(Recipe(warmup_epochs=0), **place).accumulate == 6
    assert scaled_weight_decay(Recipe(), 1) == pytest.approx(5e-4), "the decay is scaled before, as in Ultralytics"
