"""Precision 32, bf16-mixed and 16-mixed: result of a step, and content of a checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins import MixedPrecision

from tests.helpers.networks import module_of
from tests.parity.training_twins import (
    Frames,
    Recorder,
    initial_graph,
    largest_difference,
    make_trainer,
    random_batches,
    state,
)
from yolo_lightning.commands.benchmark.training_step import random_batch
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.model.graph import build_graph
from yolo_lightning.model.layers import of_branch
from yolo_lightning.model.loss import DetectionLoss
from yolo_lightning.module import YOLOModule
from yolo_lightning.training.accumulation import Accumulation

CLIP_NORM = 0.5
"""Far below the norm of these gradients: clipping them before they are unscaled would leave next to nothing."""


def scaling() -> MixedPrecision:
    """16-mixed with a gradient scaler; Lightning itself turns 16-mixed into bf16-mixed on a CPU."""
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))


def train(folder: Path, *callbacks: Callback, resume: Path | None = None, **options: Any) -> YOLOModule:
    arguments = {"backend": "native", "nominal_batch": 4, "warmup_epochs": 0.0, "clip_norm": CLIP_NORM}
    module = module_of(**(arguments | options.pop("model", {})))
    module.graph.load_state_dict(initial_graph().state_dict())
    trainer = make_trainer(folder, options.pop("epochs", 1), *callbacks, **options)
    trainer.fit(module, Frames(random_batches(2)), ckpt_path=resume)
    return module


def moved(module: YOLOModule) -> dict[str, torch.Tensor]:
    start = initial_graph().state_dict()
    return {name: tensor - start[name] for name, tensor in state(module.graph).items() if name.endswith("conv.weight")}


def test_bf16_mixed_keeps_weights_in_float32_and_the_loss_near(tmp_path: Path) -> None:
    exact, mixed = Recorder(), Recorder()
    train(tmp_path, exact)
    module = train(tmp_path, mixed, precision="bf16-mixed")
    assert {tensor.dtype for tensor in module.graph.parameters()} == {torch.float32}
    assert mixed.steps[0]["loss"] == pytest.approx(exact.steps[0]["loss"], rel=0.05)
    assert mixed.steps[0]["loss"] != exact.steps[0]["loss"]


@pytest.mark.parametrize("variant", ["yolov8n", "yolov10n"])
def test_boxes_and_loss_under_autocast_are_those_of_float32(variant: str) -> None:
    """bfloat16 rounds coordinates beyond 64 cells to half a cell; the image has 128 cells in a row at stride 8."""
    graph: Any = build_graph(variant, CLASS_NAMES).eval()
    batch = random_batch(1, ImageSize(32, 1024), seed=0)
    shapes = [(1, 64, 32 // stride, 1024 // stride) for stride in (8, 16, 32)]
    generator = torch.Generator().manual_seed(0)
    cells = sum(height * width for _, _, height, width in shapes)
    raw: Any = {
        "boxes": 3 * torch.randn(1, 64, cells, generator=generator),
        "scores": torch.randn(1, len(CLASS_NAMES), cells, generator=generator),
    }
    raw = {name: tensor.bfloat16() for name, tensor in raw.items()}
    precise = {name: tensor.float() for name, tensor in raw.items()}
    precise["feats"] = [torch.empty(shape) for shape in shapes]
    raw["feats"] = [torch.empty(shape, dtype=torch.bfloat16) for shape in shapes]
    expected_boxes = graph.model[-1]._inference(precise)
    if variant == "yolov10n":
        raw, precise = ({"one2many": branch, "one2one": branch} for branch in (raw, precise))
    expected_loss, _ = DetectionLoss(graph)(precise, batch)
    with torch.autocast("cpu", torch.bfloat16):
        boxes, _ = of_branch(graph, (None, raw), one_to_one=False)
        loss, _ = DetectionLoss(graph)(raw, batch)
    torch.testing.assert_close(boxes, expected_boxes)
    torch.testing.assert_close(loss, expected_loss)


def test_16_mixed_unscales_before_it_clips(tmp_path: Path) -> None:
    first = {"limit_train_batches": 1}
    exact, scaled = moved(train(tmp_path, **first)), moved(train(tmp_path, plugins=[scaling()], **first))
    lengths = [torch.cat([tensor.flatten() for tensor in update.values()]).norm() for update in (exact, scaled)]
    assert float(lengths[1]) == pytest.approx(float(lengths[0]), rel=0.05)


class SaveAfter(Callback):
    """Saves a checkpoint after the first batch, and what the gradients were."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.gradients: dict[str, torch.Tensor] = {}

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if not self.path.exists():
            named = pl_module.graph.named_parameters()
            self.gradients = {name: parameter.grad.clone() for name, parameter in named if parameter.grad is not None}
            trainer.save_checkpoint(self.path)


def test_checkpoint_carries_scaler_and_unscaled_gradients(tmp_path: Path) -> None:
    saving = SaveAfter(tmp_path / "half.ckpt")
    train(tmp_path, saving, plugins=[scaling()], model={"nominal_batch": 8})
    checkpoint = torch.load(saving.path, weights_only=True)
    assert checkpoint["MixedPrecision"]["scale"] == 1024.0
    kept = checkpoint["accumulation"]
    assert kept["steps"] == 1
    assert kept["gradients"].keys() == saving.gradients.keys()
    for name, gradient in saving.gradients.items():
        assert torch.equal(kept["gradients"][name] * 1024, gradient), name


@pytest.mark.slow
def test_run_with_a_scaler_resumes_exactly_and_in_another_precision(tmp_path: Path) -> None:
    options = {"epochs": 2, "model": {"nominal_batch": 8}}

    class SaveEpoch(Recorder):
        def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            super().on_train_epoch_end(trainer, pl_module)
            if trainer.current_epoch == 0:
                trainer.save_checkpoint(tmp_path / "epoch.ckpt")

    whole, rest, plain = SaveEpoch(), Recorder(), Recorder()
    train(tmp_path, whole, plugins=[scaling()], **options)
    train(tmp_path, rest, plugins=[scaling()], resume=tmp_path / "epoch.ckpt", **options)
    assert largest_difference(rest.weights, whole.weights) == 0
    train(tmp_path, plain, resume=tmp_path / "epoch.ckpt", **options)
    assert [step["loss"] for step in plain.steps] == pytest.approx([step["loss"] for step in rest.steps], rel=0.1)


def test_gradients_survive_a_change_of_scale() -> None:
    layer = torch.nn.Linear(2, 1)
    layer.weight.grad = torch.tensor([[3.0, 5.0]]) * 1024
    kept = Accumulation()
    kept.steps = 2
    saved = kept.state_dict(layer, torch.amp.GradScaler("cpu", init_scale=1024.0))
    loaded = Accumulation()
    loaded.load_state_dict(saved)
    layer.weight.grad = None
    layer.bias.requires_grad_(False)
    loaded.restore(layer, torch.amp.GradScaler("cpu", init_scale=64.0))
    assert loaded.steps == 2
    assert torch.equal(layer.weight.grad, torch.tensor([[3.0, 5.0]]) * 64)  # type: ignore[arg-type]
