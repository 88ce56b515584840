"""Optimizers by name equal Ultralytics'; optimizers by class path use the groups and schedules of this package."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
import yaml
from torch import nn
from ultralytics.engine.trainer import BaseTrainer

from tests.helpers.networks import module_of
from tests.parity.training_twins import Frames, Recorder, make_trainer, random_batches, train_ours
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.module import YOLOModule
from yolo_lightning.training.optimizers import (
    automatic,
    check_same_optimizer,
    make_optimizer,
    muon_groups,
    parameter_groups,
)
from yolo_lightning.training.recipe import OptimizerName, Recipe
from yolo_lightning.training.schedule import CLASS_HEAD_FACTOR

pytestmark = pytest.mark.whole_run

ARGUMENTS = ("lr", "momentum", "betas", "weight_decay", "nesterov", "eps", "alpha")
ONE_STEP = [
    *("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "1", "--trainer.limit_val_batches", "1"),
    *("--model.convolution.backend", "native", "--model.recipe.nominal_batch", "16"),
]


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))


@pytest.mark.parametrize("name", sorted({*get_args(OptimizerName)} - {"MuSGD"}))
def test_named_optimizers_equal_those_of_ultralytics(name: str) -> None:
    recipe, twin = Recipe(name, lr0=0.02, momentum=0.8), network()  # type: ignore[arg-type]
    trainer: Any = SimpleNamespace(args=SimpleNamespace(), data={})
    reference = BaseTrainer.build_optimizer(trainer, twin, name=name, lr=0.02, momentum=0.8, decay=5e-4)
    optimizer = make_optimizer(recipe, parameter_groups(twin, 5e-4))
    assert type(optimizer) is type(reference)
    expected = {group["param_group"].replace("bn", "normalisation"): group for group in reference.param_groups}
    for group in optimizer.param_groups:
        other = expected[group["name"]]
        assert {key: group.get(key) for key in ARGUMENTS} == {key: other.get(key) for key in ARGUMENTS}
        assert [id(parameter) for parameter in group["params"]] == [id(parameter) for parameter in other["params"]]


@pytest.mark.parametrize("variant", ["yolo26n", "yolov8n"])
def test_musgd_has_the_groups_of_ultralytics(variant: str) -> None:
    trainer: Any = SimpleNamespace(args=SimpleNamespace(), data={})
    graph = YOLOModule(variant=variant).graph
    reference = BaseTrainer.build_optimizer(trainer, graph, name="MuSGD", lr=0.02, momentum=0.8, decay=5e-4)
    optimizer: Any = make_optimizer(Recipe("MuSGD", lr0=0.02, momentum=0.8), muon_groups(graph, 5e-4))
    assert (optimizer.muon, optimizer.sgd) == (reference.muon, reference.sgd)
    assert len({group["name"] for group in optimizer.param_groups}) == 8
    for group, other in zip(optimizer.param_groups, reference.param_groups, strict=True):
        assert group["name"].removeprefix("class head ") == other["param_group"].replace("bn", "normalisation")
        assert [id(parameter) for parameter in group["params"]] == [id(parameter) for parameter in other["params"]]
        keys = ("momentum", "weight_decay", "nesterov", "use_muon")
        assert {key: group[key] for key in keys} == {key: other[key] for key in keys}
        assert other["lr"] == (0.02 * CLASS_HEAD_FACTOR if group["class_head"] else 0.02)


@pytest.mark.parametrize(
    ("updates", "classes", "epochs", "expected"),
    [
        (10_000, 4, 3, ("AdamW", 0.00125, 0.9)),
        (10_001, 4, 3, ("MuSGD", 0.01, 0.937)),
        (99, 80, 3, ("AdamW", 0.000119, 0.9)),
        (10_001, 4, 1, ("MuSGD", 0.01, 0.9)),
    ],
)
def test_automatic_choice_is_that_of_ultralytics(
    updates: int, classes: int, epochs: int, expected: tuple[str, float, float]
) -> None:
    trainer: Any = SimpleNamespace(args=SimpleNamespace(lr0=0.5), data={"nc": classes})
    graph = YOLOModule().graph
    reference = BaseTrainer.build_optimizer(trainer, graph, name="auto", lr=0.5, momentum=0.937, iterations=updates)
    recipe = automatic(Recipe(lr0=0.5), classes=classes, optimizer_steps=updates, epochs=epochs)
    assert (recipe.optimizer, recipe.lr0, recipe.momentum) == expected
    assert (recipe.optimizer, recipe.lr0, recipe.warmup_bias_lr) == (
        type(reference).__name__,
        trainer.args.lr0,
        trainer.args.warmup_bias_lr,
    )


def test_automatic_choice_of_a_checkpoint_is_kept() -> None:
    for saved, updates in (("AdamW", 99_999), ("MuSGD", 1)):
        assert automatic(Recipe(), classes=4, optimizer_steps=updates, epochs=9, saved=saved).optimizer == saved


@pytest.mark.parametrize("given", [{"lr": 0.5}, {"weight_decay": 0.5}])
def test_class_path_may_not_set_what_the_recipe_decides(given: dict[str, float]) -> None:
    recipe = Recipe(lambda groups: torch.optim.Adagrad(groups, **given))  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match=rf"Adagrad got {next(iter(given))} 0.5; set model\."):
        make_optimizer(recipe, parameter_groups(network(), 0.0))


def test_fused_optimizer_is_refused_where_clipping_comes_before_unscaling() -> None:
    def make(recipe: Recipe, *, scaled: bool) -> torch.optim.Optimizer:
        fused = replace(recipe, optimizer=lambda groups: torch.optim.AdamW(groups, fused=True))
        return make_optimizer(fused, parameter_groups(network(), 0.0), scaled=scaled)

    with pytest.raises(ValueError, match=r"set fused to false, or model\.recipe\.clip_norm to 0"):
        make(Recipe(), scaled=True)
    assert make(Recipe(clip_norm=0), scaled=True)
    assert make(Recipe(), scaled=False)


def test_loaded_states_have_the_memory_layout_of_the_weights() -> None:
    def make(layout: torch.memory_format) -> torch.optim.Optimizer:
        layer = nn.Conv2d(3, 4, 3).to(memory_format=layout)
        optimizer = make_optimizer(Recipe("AdamW"), parameter_groups(layer, 0.0))
        for parameter in layer.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        return optimizer

    saved, resumed = make(torch.contiguous_format), make(torch.channels_last)
    resumed.load_state_dict(saved.state_dict())
    weights = resumed.param_groups[1]["params"][0]
    moment = resumed.state[weights]["exp_avg"]
    assert moment.stride() == weights.stride()
    assert not moment.is_contiguous()
    assert torch.equal(moment, saved.state[saved.param_groups[1]["params"][0]]["exp_avg"])


def test_schedules_reach_an_optimizer_without_momentum(tmp_path: Path) -> None:
    _, _, steps = train_ours(tmp_path, epochs=2, optimizer=torch.optim.Adagrad, warmup_epochs=1.0)
    _, _, expected = train_ours(tmp_path, epochs=2, warmup_epochs=1.0)
    for step, other in zip(steps, expected, strict=True):
        for name, group in step["groups"].items():
            assert group.keys() == {"lr", "weight_decay"}
            assert group == {key: other["groups"][name][key] for key in group}


def test_class_path_on_the_command_line(run: Callable[..., None]) -> None:
    run("fit", *ONE_STEP, "--model.recipe.optimizer", "torch.optim.NAdam", "--model.recipe.optimizer.eps", "1e-5")
    checkpoint = torch.load("runs/yolo/checkpoints/last.ckpt", weights_only=True)
    groups = {group["name"]: group for group in checkpoint["optimizer_states"][0]["param_groups"]}
    assert (checkpoint["optimizer"], groups["weight"]["eps"]) == ("NAdam", 1e-5)
    assert groups["weight"]["weight_decay"] == pytest.approx(5e-4)
    assert groups["bias"]["weight_decay"] == 0
    stored = checkpoint["hyper_parameters"]
    assert not {"weights", "freeze"} & stored.keys()
    assert "optimizer" not in stored["recipe"]
    config = yaml.safe_load(Path("runs/yolo/config.yaml").read_text())["model"]["recipe"]["optimizer"]
    assert config["class_path"] == "torch.optim.NAdam"
    run("fit", *ONE_STEP, "--resume", "--trainer.max_epochs", "2", "--config", "runs/yolo/config.yaml")
    assert torch.load("runs/yolo/checkpoints/last.ckpt", weights_only=True)["optimizer"] == "NAdam"


def test_name_on_the_command_line_and_resume_with_another_one_is_refused(
    run: Callable[..., None], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    automatic_optimizer = ("--model.recipe.optimizer", "auto", "--model.recipe.lr0", "0.005")
    run("fit", *ONE_STEP, "--model.recipe.optimizer", "SGD")
    with pytest.raises(SystemExit):
        run("fit", *ONE_STEP, "--resume", "--trainer.max_epochs", "2", *automatic_optimizer)
    assert "model.recipe.optimizer must be SGD, as in the checkpoint, got AdamW" in capsys.readouterr().err
    assert "model.recipe.lr0 0.005 needs another model.recipe.optimizer" in caplog.text


def test_checkpoint_that_names_no_optimizer_is_not_refused() -> None:
    check_same_optimizer(None, torch.optim.SGD([torch.zeros(1)]))


def test_module_with_a_class_path_can_be_copied() -> None:
    class Uncopyable:
        def __deepcopy__(self, memo: dict[int, Any]) -> None:
            raise AssertionError

        def __call__(self, groups: Any) -> torch.optim.Optimizer:
            return torch.optim.Adagrad(groups)

    deepcopy(YOLOModule(convolution=ConvolutionSettings(backend="native"), recipe=Recipe(optimizer=Uncopyable())))  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, optimizer: str) -> None:
    options: dict[str, Any] = {
        "backend": "native",
        "optimizer": optimizer,
        "lr0": 1e-3,
        "multi_scale": 0.5,
        "freeze": 2,
    }
    batches, path = random_batches(), tmp_path / "between.ckpt"

    class Saving(Recorder):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            super().on_train_epoch_end(trainer, pl_module)
            if trainer.current_epoch == 0:
                trainer.save_checkpoint(path)

    def train(recorder: Recorder, resume: Path | None) -> Recorder:
        torch.manual_seed(0)
        module = module_of(**(options | {"nominal_batch": 12}))
        make_trainer(tmp_path, 2, recorder).fit(module, Frames(batches), ckpt_path=resume)
        return recorder

    whole, rest = train(Saving(), None), train(Recorder(), path)
    assert [step["loss"] for step in rest.steps] == [step["loss"] for step in whole.steps[5:]]
    assert all(torch.equal(rest.weights[name], tensor) for name, tensor in whole.weights.items())
