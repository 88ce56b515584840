"""A fit of the complete network with non-finite losses, non-finite gradients and out-of-memory errors."""

import csv
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset

from tests.callbacks.tiny_detection import sample
from tests.callbacks.tiny_training import tiny_trainer
from tests.helpers.data_module import data_module
from tests.helpers.networks import module_of
from yolo_lightning.callbacks import EMA, LastCheckpoint, MetricsFile
from yolo_lightning.data.batch import Batch, TrainingFacts, collate
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.model.loss import DetectionLoss
from yolo_lightning.module import YOLOModule
from yolo_lightning.training.nonfinite import NonFiniteError
from yolo_lightning.training.recipe import Recipe

pytestmark = pytest.mark.whole_run

EPOCHS, STEPS_PER_EPOCH, SAVE_STEPS = 2, 8, 3
Fault = Callable[[YOLOModule, Tensor], Tensor]


class Interrupt(Exception):
    """Ends a fit."""


def loss_is_nan(module: YOLOModule, total: Tensor) -> Tensor:
    return total * float("nan")


def gradient_is_nan(module: YOLOModule, total: Tensor) -> Tensor:
    """The derivative of a root at 0 is infinite, and 0 times that is not a number; the loss stays as it is."""
    return total + (module.graph.model[0].conv.weight.sum() * 0).sqrt()


def out_of_memory(module: YOLOModule, total: Tensor) -> Tensor:
    raise torch.OutOfMemoryError("tried to allocate 7 GiB")


class FaultyLoss(DetectionLoss):
    """Applies the fault of the step of a module, and notes the images of each pass."""

    def __init__(self, module: "Faulty") -> None:
        super().__init__(module.graph, module.loss_settings)
        self.module = module

    def __call__(self, raw: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        total, parts = super().__call__(raw, batch)
        module = self.module
        module.seen.append((module._steps, batch.image_ids))
        fault = module.faults.get(module._steps)
        if fault is None or (fault is out_of_memory and len(batch) <= 1):
            return total, parts
        return fault(module, total), parts


class Faulty(YOLOModule):
    """Has faults at given steps."""

    faults: dict[int, Fault]
    seen: list[tuple[int, tuple[str, ...]]]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.detection_loss = FaultyLoss(self)


class Weights(Callback):
    """Notes weights and running statistics after each step."""

    def __init__(self) -> None:
        self.after: dict[int, dict[str, Tensor]] = {}
        self.learning_rates: dict[int, float] = {}

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *arguments: Any) -> None:
        assert isinstance(pl_module, YOLOModule)
        self.after[pl_module._steps] = {name: tensor.clone() for name, tensor in pl_module.graph.state_dict().items()}
        self.learning_rates[pl_module._steps] = trainer.optimizers[0].param_groups[0]["lr"]


class StopBefore(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.fit_loop.total_batch_idx + 1 == self.step:
            raise Interrupt


@pytest.fixture
def fit(tmp_path: Path, look_alike: Path, index_root: Path) -> Callable[..., tuple[Faulty, Weights]]:
    """Trains; faults are given by step."""

    def run(
        faults: dict[int, Fault], *callbacks: Callback, resume: bool = False, folder: str = "run", **options: Any
    ) -> tuple[Faulty, Weights]:
        data = data_module(str(look_alike), index_root=str(index_root), image_size=64, batch_size=2, num_workers=0)
        torch.manual_seed(0)
        (tmp_path / folder).mkdir(exist_ok=True)
        settings = {"backend": "native", "nominal_batch": 4, "warmup_epochs": 0.0} | options
        module, weights = module_of(Faulty, **settings), Weights()
        module.faults, module.seen = faults, []
        first_callbacks = EMA(tau=2.0), weights, MetricsFile(), LastCheckpoint(SAVE_STEPS, keep=99)
        trainer = tiny_trainer(tmp_path / folder, *first_callbacks, *callbacks, epochs=EPOCHS, limit_val_batches=0)
        trainer.fit(module, datamodule=data, ckpt_path=last(tmp_path / folder) if resume else None)
        return module, weights

    return run


def last(run: Path) -> Path:
    return run / "checkpoints/last.ckpt"


def content(run: Path, name: str = "last.ckpt") -> dict[str, Any]:
    checkpoint: dict[str, Any] = torch.load(run / "checkpoints" / name, weights_only=True)
    return checkpoint


def equal(state: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return state.keys() == other.keys() and all(torch.equal(state[name], other[name]) for name in state)


def assert_finite(tree: Any) -> None:
    assert all(leaf.isfinite().all() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


@pytest.mark.parametrize("fault", [loss_is_nan, gradient_is_nan])
def test_what_is_not_finite_is_left_out_named_and_counted(
    fault: Fault, fit: Callable[..., Any], tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Two steps make an update here; the second of an update is spoilt."""
    module, weights = fit({4: fault})
    assert equal(weights.after[4], weights.after[3]) == (fault is loss_is_nan)  # statistics are those of step 3
    saved = content(tmp_path / "run")
    assert_finite([saved[name] for name in ("state_dict", "current_model_state", "optimizer_states", "accumulation")])
    assert saved["nonfinite"]["skipped"] == 1
    with (tmp_path / "run/metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["train/skipped"]) for row in rows] == [0.0] * 3 + [1.0] * (EPOCHS * STEPS_PER_EPOCH - 3)
    assert (rows[3]["train/loss"] == "nan") == (fault is loss_is_nan)
    text = "\n".join(str(warning.message) for warning in recwarn)
    ids = [image_id for step, batch in module.seen if step in (3, 4) for image_id in batch]
    named = ids[2:] if fault is loss_is_nan else ids
    assert f"images {', '.join(named)}: skipped, 1 since training began" in text


@pytest.mark.filterwarnings("ignore:step", "ignore:restored weights")
def test_callbacks_receive_the_loss_of_each_batch(fit: Callable[..., Any]) -> None:
    class Received(Callback):
        pairs: ClassVar[list[tuple[float, float]]] = []

        def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *rest: Any) -> None:
            self.pairs.append((float(outputs["loss"]), float(trainer.callback_metrics["train/loss"])))

    fit({}, Received())
    assert len(Received.pairs) > 1
    assert all(loss == logged > 0 for loss, logged in Received.pairs)


@pytest.mark.filterwarnings("ignore:step", "ignore:restored weights")
@pytest.mark.parametrize("bad", [range(9, 14), range(9, 15)], ids=["five in a row", "six in a row"])
def test_goes_back_to_the_last_good_checkpoint_and_is_slower_from_there(
    bad: range, fit: Callable[..., Any], tmp_path: Path
) -> None:
    """Checkpoints lie after steps 3, 6, 8, 11 and so on, that of step 11 amid trouble: the one of step 8 is good."""
    _, weights = fit(dict.fromkeys(bad, loss_is_nan))
    good = content(tmp_path / "run", "step-000000008.ckpt")
    expected = {name.removeprefix("graph."): tensor for name, tensor in good["current_model_state"].items()}
    assert equal(weights.after[13], expected)
    rates = weights.learning_rates
    assert rates[14] == pytest.approx(rates[12] / 2)
    assert content(tmp_path / "run")["nonfinite"] == {
        "skipped": len(bad),
        "losses_in_a_row": 0,
        "gradients_in_a_row": 0,
        "rollbacks": 1,
        "computation": "native, auto, 32-true, cpu",
    }


@pytest.mark.filterwarnings("ignore:step", "ignore:restored weights")
def test_average_and_optimizer_go_back_too(fit: Callable[..., Any], tmp_path: Path) -> None:
    """Step 9 has moved on from the checkpoint of step 8 when two losses in a row are too many; that of 11 follows."""
    with pytest.raises(Interrupt):
        fit({10: loss_is_nan, 11: loss_is_nan}, StopBefore(12), max_consecutive_nonfinite=2, nominal_batch=2)
    good, after = content(tmp_path / "run", "step-000000008.ckpt"), content(tmp_path / "run", "step-000000011.ckpt")
    assert equal(after["state_dict"], good["state_dict"])
    assert equal(after["current_model_state"], good["current_model_state"])
    states = [checkpoint["optimizer_states"][0]["state"] for checkpoint in (good, after)]
    assert all(equal(states[0][number], states[1][number]) for number in states[0])


@pytest.mark.filterwarnings("ignore:step", "ignore:restored weights")
@pytest.mark.parametrize(
    "stop", [pytest.param(11, marks=pytest.mark.slow), 13, pytest.param(16, marks=pytest.mark.slow)]
)
def test_resumed_amid_trouble_equals_uninterrupted(stop: int, fit: Callable[..., Any], tmp_path: Path) -> None:
    faults = dict.fromkeys(range(9, 14), loss_is_nan) | {15: gradient_is_nan}
    fit(faults, folder="whole")
    with pytest.raises(Interrupt):
        fit(faults, StopBefore(stop))
    fit(faults, resume=True)
    whole, resumed = content(tmp_path / "whole"), content(tmp_path / "run")
    for name in ("state_dict", "current_model_state"):
        assert equal(whole[name], resumed[name])
    assert whole["nonfinite"] == resumed["nonfinite"]
    assert whole["nonfinite"]["rollbacks"] == 1


class OfUser(Callback):
    """Has an object in its state that is neither a tensor nor plain Python."""

    def state_dict(self) -> dict[str, Any]:
        return {"folder": Path("folder")}


@pytest.mark.filterwarnings("ignore:step", "ignore:the checkpoint contains", "ignore:.*[Pp]osixPath")
def test_checkpoints_that_cannot_be_restored_do_not_end_the_training(
    fit: Callable[..., Any], tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    module, _ = fit(dict.fromkeys(range(9, 14), loss_is_nan), OfUser())
    assert module._guard.tally.rollbacks == 1
    messages = [str(warning.message) for warning in recwarn]
    assert any("cannot be restored: it contains objects other than" in message for message in messages)
    assert any("no checkpoint can be restored" in message for message in messages)


@pytest.mark.filterwarnings("ignore:step", "ignore:restored weights", "ignore:no checkpoint can be restored")
def test_training_that_does_not_recover_ends_with_an_error_of_its_own(fit: Callable[..., Any]) -> None:
    with pytest.raises(NonFiniteError, match=r"4 consecutive non-finite values after 1 rollbacks.* model\.recipe\.lr0"):
        fit(dict.fromkeys(range(1, 9), loss_is_nan), max_consecutive_nonfinite=2, max_rollbacks=3)


@pytest.mark.filterwarnings("ignore:step", "ignore:restored weights")
def test_learning_rate_returns_when_another_computation_follows(fit: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(Interrupt):
        fit(dict.fromkeys(range(9, 14), loss_is_nan), StopBefore(15), backend="native")
    slowed = content(tmp_path / "run")["nonfinite"]
    module, _ = fit({}, resume=True, backend="gemm")
    assert (slowed["rollbacks"], module._guard.learning_rate_factor) == (1, 1.0)
    assert content(tmp_path / "run")["nonfinite"]["rollbacks"] == 0


@pytest.mark.filterwarnings("ignore:out of memory")
def test_memory_that_runs_out_halves_the_batch_for_good(fit: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(Interrupt):
        fit({5: out_of_memory}, StopBefore(8))
    first = content(tmp_path / "run")
    assert first["splitting"] == {"images_at_once": 1, "splits": 1}
    module, _ = fit({13: out_of_memory}, resume=True)
    assert {len(batch) for _, batch in module.seen} == {1}
    assert [step for step, _ in module.seen] == [step for step in range(7, 17) for _ in range(2)]
    assert content(tmp_path / "run")["steps"] == EPOCHS * STEPS_PER_EPOCH


@pytest.mark.parametrize("loader", [{"batch_size": 2}, {"batch_sampler": [[0, 1], [2, 3]]}], ids=["size", "sampler"])
def test_plain_loader_trains_if_its_batch_size_is_known(loader: dict[str, Any], tmp_path: Path) -> None:
    samples = [sample(number) for number in range(4)]
    plain: Any = DataLoader(samples, collate_fn=collate, **loader)  # type: ignore[arg-type]
    trainer = tiny_trainer(tmp_path)
    module = YOLOModule(convolution=ConvolutionSettings(backend="native"))
    if "batch_size" in loader:
        trainer.fit(module, plain)
        assert module._facts == TrainingFacts(2)
    else:
        with pytest.raises(ValueError, match="the model needs the batch size: set batch_size"):
            trainer.fit(module, plain)


def test_plain_loader_with_labels_of_several_classes_trains_one_class(tmp_path: Path) -> None:
    box = np.array([[8, 8, 24, 24]], dtype=np.float32)
    samples = [replace(sample(0), boxes=box, labels=np.array([2], dtype=np.int64))]
    plain: Any = DataLoader(samples, batch_size=1, collate_fn=collate)  # type: ignore[arg-type]
    module = YOLOModule(single_class=True, convolution=ConvolutionSettings(backend="native"))
    tiny_trainer(tmp_path).fit(module, plain, plain)
    assert module.graph.names == {0: "object"}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield sample(0)


@pytest.mark.parametrize("optimizer", ["SGD", "auto"])
def test_schedules_need_the_length_of_an_epoch(optimizer: str, tmp_path: Path) -> None:
    stream: Any = DataLoader(Stream(), batch_size=1, collate_fn=collate)
    module: YOLOModule = module_of(backend="native", optimizer=optimizer)
    with pytest.raises(ValueError, match=r"schedules of model\.recipe need .* set trainer\.limit_train_batches"):
        tiny_trainer(tmp_path).fit(module, stream)
    tiny_trainer(tmp_path, limit_train_batches=1, limit_val_batches=0).fit(module_of(backend="native"), stream)


def test_class_weights_need_the_number_of_boxes(tmp_path: Path) -> None:
    plain: Any = DataLoader([sample(0)], batch_size=1, collate_fn=collate)  # type: ignore[arg-type]
    trainer = tiny_trainer(tmp_path)
    with pytest.raises(ValueError, match=r"model\.loss\.class_weight_power needs a data module"):
        trainer.fit(module_of(backend="native", class_weight_power=0.5), plain)


def within_accumulation(run: Path) -> Path:
    """A checkpoint with gradients of one batch that no optimizer step has used."""
    assert content(run)["accumulation"]["steps"] == 1
    return last(run)


@pytest.mark.parametrize("origin", ["checkpoint", "earlier fit", "validation"])
def test_new_fit_has_no_part_of_an_earlier_training(
    origin: str, tmp_path: Path, look_alike: Path, index_root: Path
) -> None:
    """Three steps make an update, and a fit has four."""

    def trainer(folder: str) -> Trainer:
        options: dict[str, Any] = {"limit_train_batches": 4, "limit_val_batches": 1}
        return tiny_trainer(tmp_path / folder, LastCheckpoint(0), **options)

    def data() -> Any:
        return data_module(str(look_alike), index_root=str(index_root), image_size=64, batch_size=2, num_workers=0)

    settings = {"backend": "native", "nominal_batch": 6, "warmup_epochs": 0.0}
    torch.manual_seed(0)
    module: YOLOModule = module_of(**settings)
    trainer("first").fit(module, data())
    checkpoint = within_accumulation(tmp_path / "first")
    if origin == "checkpoint":
        module = YOLOModule.load_from_checkpoint(checkpoint)
    elif origin == "validation":
        module = module_of(**settings)
        trainer("second").validate(module, data(), ckpt_path=checkpoint, verbose=False)
    fresh: YOLOModule = module_of(**settings)
    fresh.load_state_dict(module.state_dict())
    trainer("second").fit(module, data())
    trainer("fresh").fit(fresh, data())
    assert equal(module.graph.state_dict(), fresh.graph.state_dict())


def test_new_fit_follows_its_own_length_and_may_have_another_optimizer(
    tmp_path: Path, look_alike: Path, index_root: Path
) -> None:
    data = data_module(str(look_alike), index_root=str(index_root), image_size=64, batch_size=2, num_workers=0)
    options: dict[str, Any] = {"limit_train_batches": 1, "limit_val_batches": 0}
    module: YOLOModule = module_of(backend="native", nominal_batch="auto", warmup_epochs="auto", optimizer="auto")
    tiny_trainer(tmp_path / "first", LastCheckpoint(0), **options).fit(module, data)
    assert module.recipe.warmup_epochs == 0.1
    tiny_trainer(tmp_path / "second", epochs=20, max_steps=1, **options).fit(module, data)
    assert module.recipe.warmup_epochs == 2.0
    loaded = YOLOModule.load_from_checkpoint(last(tmp_path / "first"), recipe=Recipe(optimizer="SGD"))
    tiny_trainer(tmp_path / "third", **options).fit(loaded, data)
    assert isinstance(loaded.trainer.optimizers[0], torch.optim.SGD)
