import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from tests.callbacks.tiny_training import (
    AccumulatingModule,
    Interrupt,
    StopAt,
    TinyModule,
    assert_equal_weights,
    fit,
    loader,
    tiny_trainer,
    weights,
)
from yolo_lightning.callbacks import EMA, LastCheckpoint
from yolo_lightning.callbacks.ema import RampedAverage
from yolo_lightning.checkpoints.resume import latest_checkpoint

DECAY, TAU = 0.9, 5.0
COUNTER = "layers.1.num_batches_tracked"


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


class Spy(Callback):
    """Records the weights that each hook sees."""

    def __init__(self) -> None:
        self.start: dict[str, Tensor] = {}
        self.raw: list[dict[str, Tensor]] = []
        self.validated: list[dict[str, Tensor]] = []
        self.after_validation: list[dict[str, Tensor]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.start = weights(pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        self.raw.append(weights(pl_module))

    def on_validation_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        self.validated.append(weights(pl_module))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.after_validation.append(weights(pl_module))

    def average(self) -> dict[str, Tensor]:
        """The definition, in double precision."""
        mean = {name: value.double() for name, value in self.start.items()}
        for number, raw in enumerate(self.raw, start=1):
            kept = DECAY * (1 - math.exp(-number / TAU))
            mean = {name: kept * value + (1 - kept) * raw[name].double() for name, value in mean.items()}
        return mean | {COUNTER: self.raw[-1][COUNTER].double()}


def test_average_equals_that_of_ultralytics_after_300_updates(tmp_path: Path) -> None:
    from ultralytics.utils.torch_utils import ModelEMA

    class Reference(Callback):
        def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            self.ema = ModelEMA(pl_module, decay=0.9999, tau=200)

        def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
            self.ema.update(pl_module)
            self.raw = weights(pl_module)

    reference = Reference()
    averaged = weights(fit(tmp_path, EMA(0.9999, 200), reference, module=TinyModule(0.003), batches=300))
    assert reference.ema.updates == 300
    expected = reference.ema.ema.state_dict()
    for name in ("layers.0.weight", "layers.1.weight", "layers.1.running_mean", "layers.1.running_var"):
        assert not torch.allclose(averaged[name], reference.raw[name], atol=1e-4), f"{name}: the case is too easy"
    floating = [name for name, value in averaged.items() if value.is_floating_point()]
    for name in floating:
        torch.testing.assert_close(averaged[name], expected[name], rtol=0, atol=1e-6)


def test_validation_sees_the_average_which_is_left_in_the_network_at_the_end(tmp_path: Path) -> None:
    spy = Spy()
    final_weights = weights(fit(tmp_path, EMA(DECAY, TAU), spy))
    for state in (spy.validated[0], final_weights):
        seen = {name: value.double() for name, value in state.items()}
        torch.testing.assert_close(seen, spy.average(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_training_goes_on_with_the_raw_weights_after_validation(tmp_path: Path, precision: str) -> None:
    with_average, without = Spy(), Spy()
    fit(tmp_path, EMA(DECAY, TAU), with_average, epochs=2, precision=precision)
    fit(tmp_path, without, epochs=2, precision=precision)
    assert_equal_weights(with_average.after_validation[0], with_average.raw[3])
    assert_equal_weights(with_average.raw[-1], without.raw[-1])


class ReassigningModule(TinyModule):
    """Assigns a buffer and a parameter anew in each step."""

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        norm: Any = self.layers[1]
        norm.running_mean = norm.running_mean + 0.5
        norm.bias = nn.Parameter(norm.bias.detach() + 0.25)
        return super().training_step(batch, batch_idx)


def test_average_follows_tensors_that_are_assigned_anew(tmp_path: Path) -> None:
    spy = Spy()
    module = ReassigningModule()
    fit(tmp_path, EMA(DECAY, TAU), spy, module=module, epochs=2)
    seen = {name: value.double() for name, value in weights(module).items()}
    torch.testing.assert_close(seen, spy.average(), rtol=0, atol=1e-6)


def test_average_follows_a_module_that_is_replaced_between_epochs(tmp_path: Path) -> None:
    class Replaces(Callback):
        def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            layers: Any = pl_module.layers
            layers[0] = deepcopy(layers[0])

    spy = Spy()
    module = TinyModule()
    fit(tmp_path, Replaces(), EMA(DECAY, TAU), spy, module=module, epochs=2)
    seen = {name: value.double() for name, value in weights(module).items()}
    torch.testing.assert_close(seen, spy.average(), rtol=0, atol=1e-6)


def test_tied_weights_are_averaged_once(tmp_path: Path) -> None:
    module = TinyModule()
    module.register_module("tied", nn.ModuleList([module.layers[2]]))
    module.layers.append(nn.Linear(1, 1))
    module.tied.append(module.layers[3])
    average = RampedAverage(module, DECAY, TAU)
    average.update_parameters(module)
    with torch.no_grad():
        module.layers[2].weight.add_(1)
    before = average.module.layers[2].weight.clone()
    average.update_parameters(module)
    kept = DECAY * (1 - math.exp(-2 / TAU))
    expected = kept * before + (1 - kept) * module.layers[2].weight
    torch.testing.assert_close(average.module.layers[2].weight, expected)


class LateModule(TinyModule):
    """Creates a layer in `configure_model`, which Lightning calls after the setup of the callbacks."""

    def configure_model(self) -> None:
        if len(self.layers) == 3:
            self.layers.append(nn.Linear(1, 1))


def test_layers_that_configure_model_creates_are_averaged(tmp_path: Path) -> None:
    spy = Spy()
    state = weights(fit(tmp_path, EMA(DECAY, TAU), spy, module=LateModule()))
    assert "layers.3.weight" in state
    seen = {name: value.double() for name, value in state.items()}
    torch.testing.assert_close(seen, spy.average(), rtol=0, atol=1e-6)


def test_complex_parameters_are_averaged() -> None:
    module = TinyModule()
    module.register_parameter("spectrum", nn.Parameter(torch.ones(2, dtype=torch.complex64)))
    average = RampedAverage(module, DECAY, TAU)
    with torch.no_grad():
        module.spectrum.mul_(3j)
    average.update_parameters(module)
    kept = DECAY * (1 - math.exp(-1 / TAU))
    expected = kept * torch.ones(2, dtype=torch.complex64) + (1 - kept) * module.spectrum
    torch.testing.assert_close(average.module.spectrum, expected)


class FailingModule(TinyModule):
    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        raise Interrupt


@pytest.mark.parametrize("module", [FailingModule(), TinyModule()], ids=["validation", "training step"])
def test_failure_leaves_the_raw_weights(module: TinyModule, tmp_path: Path) -> None:
    spy = Spy()
    with pytest.raises(Interrupt):
        fit(tmp_path, EMA(DECAY, TAU), spy, StopAt(1, 2), module=module, epochs=2)
    assert_equal_weights(weights(module), spy.raw[-1])


def test_checkpoint_holds_the_average_and_the_raw_weights_beside_it(tmp_path: Path) -> None:
    spy = Spy()
    fit(tmp_path, EMA(DECAY, TAU), spy, LastCheckpoint(0))
    content = read(tmp_path / "checkpoints/last.ckpt")
    average = {name: value.double() for name, value in content["state_dict"].items()}
    torch.testing.assert_close(average, spy.average(), rtol=0, atol=1e-6)
    assert_equal_weights(content["current_model_state"], spy.raw[-1])


@pytest.mark.parametrize("name", ["step-000000002.ckpt", "step-000000004.ckpt"])
def test_resumed_run_continues_average_and_raw_weights_exactly(tmp_path: Path, name: str) -> None:
    whole, first = tmp_path / "whole", tmp_path / "first"
    fit(whole, EMA(DECAY, TAU), LastCheckpoint(2, keep=9), epochs=2)
    with pytest.raises(Interrupt):
        fit(first, EMA(DECAY, TAU), LastCheckpoint(2, keep=9), StopAt(1, 1), epochs=2)
    module = TinyModule()
    with torch.no_grad():
        module.layers[0].weight.fill_(7)  # nothing may come from the new network
    fit(first, EMA(DECAY, TAU), LastCheckpoint(2), module=module, epochs=2, resume=first / "checkpoints" / name)
    expected, resumed = (read(folder / "checkpoints/last.ckpt") for folder in (whole, first))
    for key in ("state_dict", "current_model_state", "averaging_state"):
        assert_equal_weights(resumed[key], expected[key])


def test_averages_only_after_an_update_of_the_optimizer(tmp_path: Path) -> None:
    fit(tmp_path, EMA(DECAY, TAU), LastCheckpoint(0), module=AccumulatingModule(), batches=6)
    copy_and_updates = int(read(tmp_path / "checkpoints/last.ckpt")["averaging_state"]["n_averaged"])
    assert copy_and_updates == 1 + 3


def test_evaluation_of_a_checkpoint_uses_the_average(tmp_path: Path) -> None:
    spy = Spy()
    fit(tmp_path, EMA(DECAY, TAU), LastCheckpoint(0))
    path = tmp_path / "checkpoints/last.ckpt"
    tiny_trainer(tmp_path, EMA(DECAY, TAU), spy).validate(TinyModule(), loader(1), ckpt_path=path, verbose=False)
    assert_equal_weights(spy.validated[0], read(path)["state_dict"])


def test_test_after_a_fit_of_the_same_trainer_uses_the_average(tmp_path: Path) -> None:
    module, path = TinyModule(), tmp_path / "checkpoints/last.ckpt"
    trainer = tiny_trainer(tmp_path, EMA(DECAY, TAU), LastCheckpoint(0))
    trainer.fit(module, loader(), loader(1))
    trainer.test(module, loader(1), ckpt_path=path, verbose=False)
    assert_equal_weights(weights(module), read(path)["state_dict"])


def test_validation_does_not_round_the_average_of_a_network_of_16_bits(tmp_path: Path) -> None:
    def average_of(folder: str, **options: Any) -> dict[str, Any]:
        fit(tmp_path / folder, EMA(DECAY, TAU), LastCheckpoint(), epochs=3, precision="bf16-true", **options)
        checkpoint = latest_checkpoint(tmp_path / folder)
        assert checkpoint is not None
        average: dict[str, Any] = read(checkpoint)["state_dict"]
        return average

    validated = average_of("validated")
    assert any(value.dtype == torch.float32 for value in validated.values())
    assert_equal_weights(validated, average_of("not validated", limit_val_batches=0))


def test_callback_that_another_trainer_has_used_averages_anew(tmp_path: Path) -> None:
    average = EMA(DECAY, TAU)
    fit(tmp_path / "first", average, epochs=2)
    again = weights(fit(tmp_path / "second", average))
    assert_equal_weights(again, weights(fit(tmp_path / "fresh", EMA(DECAY, TAU))))
