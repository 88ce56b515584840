"""Frozen parts: names, and unchanged weights and statistics. `test_training_parity` compares whole runs."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from tests.parity.training_twins import Batch, Frames, make_trainer, random_batches
from yolo_lightning.callbacks import EMA
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.module import YOLOModule
from yolo_lightning.training.freezing import Freeze
from yolo_lightning.training.recipe import Recipe


@pytest.mark.parametrize(
    ("freeze", "message"),
    [
        (23, "model.freeze must be a number of layers from 0 to 22 or a list, got 23"),
        (-1, "from 0 to 22 or a list, got -1"),
        ([0, 23], "model.freeze must contain layer numbers from 0 to 22 or names of parts .*, got 23"),
        ([-1], "model.freeze must contain layer numbers from 0 to 22 .*, got -1"),
        (["backbone"], "model.freeze must contain .* names of parts .*, got 'backbone'"),
        (["22.cv4"], "names of parts such as 22.cv3, got '22.cv4'"),
        (list(range(23)), "must leave at least one"),
    ],
)
def test_bad_part_is_refused_with_the_allowed_ones(freeze: Freeze, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        YOLOModule(freeze=freeze)


@pytest.mark.parametrize(
    ("freeze", "layers"), [(0, set()), (3, {"0", "1", "2"}), ([2, "22.cv3"], {"2", "22"}), ([], set())]
)
def test_only_the_named_parts_lose_their_gradients(freeze: Freeze, layers: set[str]) -> None:
    graph = YOLOModule(freeze=freeze, convolution=ConvolutionSettings(backend="native")).graph
    frozen = {name for name, parameter in graph.named_parameters() if not parameter.requires_grad} - {
        "model.22.dfl.conv.weight"
    }
    assert {name.split(".")[1] for name in frozen} == layers
    assert all(name.startswith("model.22.cv3.") for name in frozen if name.startswith("model.22."))


class Normalization(Callback):
    """Notes which normalization layers are in training mode in each step."""

    def __init__(self) -> None:
        self.training: list[set[str]] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        norms = [
            (name, layer) for name, layer in pl_module.graph.named_modules() if isinstance(layer, torch.nn.BatchNorm2d)
        ]
        self.training.append({name.split(".")[1] for name, layer in norms if layer.training})


class FramesToValidate(Frames):
    def val_dataloader(self) -> DataLoader[Batch]:
        return DataLoader(self.batches[:1], batch_size=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("conv", ["native", "gemm"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_frozen_layers_stand_still_through_validations(tmp_path: Path, conv: str, checkpointing: bool) -> None:
    module = YOLOModule(
        freeze=3,
        convolution=ConvolutionSettings(backend=conv, activation_checkpointing=checkpointing),
        recipe=Recipe(nominal_batch=4),
    )  # type: ignore[arg-type]
    before = {name: tensor.clone() for name, tensor in module.graph.state_dict().items()}
    norms = Normalization()
    make_trainer(tmp_path, 2, norms, EMA()).fit(module, FramesToValidate(random_batches(2)))
    assert len(norms.training) == 4
    assert all({"0", "1", "2"}.isdisjoint(names) and "3" in names for names in norms.training)
    after = module.graph.state_dict()
    frozen = {name for name in before if name.split(".")[1] in ("0", "1", "2")}
    statistics = {name for name in before if name.endswith("running_mean")}
    assert {name for name in frozen if not torch.equal(after[name], before[name])} == set()
    assert {name for name in statistics - frozen if torch.equal(after[name], before[name])} == set()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_behind_frozen_layers_equal_pytorch_s(checkpointing: bool) -> None:
    gradients = []
    for conv, kept in (("native", False), ("gemm", checkpointing)):
        torch.manual_seed(0)
        module = YOLOModule(
            freeze=[2, 5], convolution=ConvolutionSettings(backend=conv, activation_checkpointing=kept)
        ).double()  # type: ignore[arg-type]
        batch = random_batches(1)[0]
        total, _ = module.detection_loss(module.train().graph(batch.images.double() / 255), batch)
        total.backward()
        gradients.append(
            {name: parameter.grad for name, parameter in module.graph.named_parameters() if parameter.grad is not None}
        )
    assert gradients[0].keys() == gradients[1].keys()
    for name, expected in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], expected, rtol=1e-6, atol=1e-9, msg=name)


def test_only_frozen_norms_rest_whatever_mode_the_module_is_put_into() -> None:
    module = YOLOModule(freeze=["2.cv1"], convolution=ConvolutionSettings(backend="native"))
    for switched in (module, module.eval().train()):
        resting = {name for name, layer in switched.graph.named_modules() if not layer.training}
        assert resting == {"model.2.cv1.bn"}
