"""Convolutions of the module: the result of `auto`, stored settings, and the copy for evaluation."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from tests.callbacks.tiny_training import tiny_trainer
from tests.helpers.data_module import data_module
from tests.helpers.networks import module_of
from tests.test_parity import random_batch
from yolo_lightning import module as module_file
from yolo_lightning.callbacks import EMA
from yolo_lightning.conv import GemmConv2d
from yolo_lightning.conv.normalization import RecomputedBatchNormSiLU2d
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.model.layers import FoldedGraph
from yolo_lightning.module import YOLOModule
from yolo_lightning.training.recipe import Recipe


@pytest.fixture
def data(look_alike: Path, index_root: Path) -> DetectionDataModule:
    return data_module(str(look_alike), index_root=str(index_root), image_size=64, batch_size=4, num_workers=0)


def trainer(folder: Path, *callbacks: Callback, **options: Any) -> Trainer:
    limits: dict[str, Any] = {f"limit_{name}_batches": 1 for name in ("val", "test", "predict")}
    return tiny_trainer(folder, *callbacks, **(limits | {"limit_train_batches": 2} | options))


def is_gemm(module: YOLOModule) -> bool:
    return any(isinstance(layer, GemmConv2d) for layer in module.graph.modules())


def is_channels_last(module: YOLOModule) -> bool:
    layers = [layer for layer in module.graph.modules() if isinstance(layer, nn.Conv2d) and layer.kernel_size[0] > 1]
    return all(layer.weight.is_contiguous(memory_format=torch.channels_last) for layer in layers)


class Watch(Callback):
    """Notes what evaluates, and the networks at the first steps."""

    def __init__(self) -> None:
        self.folded: list[tuple[str, bool]] = []
        self.gemm: list[bool] = []
        self.keys: set[str] = set()

    def _note(self, stage: str, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, YOLOModule)
        self.folded.append((stage, pl_module._folded_graph is not None))
        self.gemm.append(is_gemm(pl_module))
        self.keys = set(pl_module.state_dict())

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *arguments: Any) -> None:
        self._note("train", pl_module)

    def on_validation_batch_start(self, trainer: Trainer, pl_module: LightningModule, *arguments: Any) -> None:
        self._note("validation", pl_module)

    def on_test_batch_start(self, trainer: Trainer, pl_module: LightningModule, *arguments: Any) -> None:
        self._note("test", pl_module)

    def on_predict_batch_start(self, trainer: Trainer, pl_module: LightningModule, *arguments: Any) -> None:
        self._note("predict", pl_module)


class SaveAtEachBatch(Callback):
    """Within the fit: at its end the average replaces the raw weights."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_train_batch_end(self, trainer: Trainer, *arguments: Any) -> None:
        trainer.save_checkpoint(self.file)


@pytest.fixture
def choice(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Pretends that a probe found native convolutions broken; holds what was asked."""
    asked: list[Any] = []

    def choose(device: torch.device, settings: ConvolutionSettings, precision: str) -> ConvolutionSettings:
        asked.append((device, settings, precision))
        return replace(settings, backend="gemm")

    monkeypatch.setattr(module_file.native_probe, "choose_convolution", choose)
    return asked


@pytest.mark.parametrize(
    ("memory_format", "precision", "channels_last"),
    [("auto", "32-true", True), ("contiguous", "32-true", False), ("auto", "bf16-mixed", True)],
)
def test_auto_is_the_default_and_native_in_channels_last_on_a_cpu(
    memory_format: Any,
    precision: str,
    channels_last: bool,
    tmp_path: Path,
    data: DetectionDataModule,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module_file.native_probe, "probe_native", None)
    module, watch = module_of(nominal_batch=4, memory_format=memory_format), Watch()
    trainer(tmp_path, watch, precision=precision).fit(module, data)
    assert watch.gemm == [False] * 3
    assert module.hparams["convolution"]["backend"] == "auto"
    assert is_channels_last(module) == channels_last


def test_auto_takes_the_probe_s_choice_before_anything_computes(
    tmp_path: Path, data: DetectionDataModule, choice: list[Any]
) -> None:
    module, watch = module_of(nominal_batch=4, activation_checkpointing=True, probe_timeout_s=9.0), Watch()
    assert not is_gemm(module)
    keys = list(module.state_dict())
    run = trainer(tmp_path, watch, EMA())
    run.fit(module, data)
    assert watch.gemm == [True] * 3
    assert choice == [(torch.device("cpu"), module.convolution, "32-true")]
    assert module.hparams["convolution"]["backend"] == "auto"
    assert list(module.state_dict()) == keys
    assert any(isinstance(layer, RecomputedBatchNormSiLU2d) for layer in module.graph.modules())
    run.test(module, data, verbose=False)
    assert is_gemm(module)


def test_explicit_choice_is_not_probed(tmp_path: Path, data: DetectionDataModule, choice: list[Any]) -> None:
    module = YOLOModule(convolution=ConvolutionSettings(backend="native"))
    trainer(tmp_path).validate(module, data, verbose=False)
    assert choice == []
    assert not is_gemm(module)


def test_other_processes_take_what_the_first_found(choice: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    class Strategy:
        root_device = torch.device("cpu")

        def broadcast(self, value: ConvolutionSettings) -> ConvolutionSettings:
            return replace(value, backend="gemm", memory_format="channels_last")

    class SecondProcess:
        strategy = Strategy()
        is_global_zero = False
        precision = "64-true"
        datamodule = None
        callbacks: tuple[Callback, ...] = ()
        fit_loop = SimpleNamespace(_data_source=SimpleNamespace(is_defined=lambda: True), total_batch_idx=-1)

    module = YOLOModule()
    monkeypatch.setattr(YOLOModule, "trainer", SecondProcess())
    module.setup("fit")
    assert choice == []
    assert is_gemm(module)


def test_synchronized_normalization_would_drop_activations_and_is_refused() -> None:
    module = YOLOModule(convolution=ConvolutionSettings(activation_checkpointing=True))
    module.trainer = Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False)
    module.on_fit_start()
    module.graph = nn.SyncBatchNorm.convert_sync_batchnorm(module.graph)
    with pytest.raises(ValueError, match=r"trainer\.sync_batchnorm must be false"):
        module.on_fit_start()


@pytest.mark.parametrize(("first", "second"), [("native", "gemm"), ("gemm", "native")])
def test_run_continues_under_another_convolution(
    tmp_path: Path, data: DetectionDataModule, first: Any, second: Any
) -> None:
    torch.manual_seed(0)
    started = trainer(tmp_path, EMA(), limit_val_batches=0)
    started.fit(module_of(backend=first, nominal_batch=4), data)
    started.save_checkpoint(tmp_path / "run.ckpt")
    module = module_of(backend=second, activation_checkpointing=True, nominal_batch=4)
    trainer(tmp_path, EMA(), epochs=2, limit_val_batches=0).fit(module, data, ckpt_path=tmp_path / "run.ckpt")
    assert module._steps == 4
    assert is_gemm(module) == (second == "gemm")
    assert all(tensor.isfinite().all() for tensor in module.state_dict().values())


def test_only_evaluation_outside_of_a_fit_is_folded(tmp_path: Path, data: DetectionDataModule) -> None:
    module, watch = YOLOModule(convolution=ConvolutionSettings(backend="gemm"), recipe=Recipe(nominal_batch=4)), Watch()
    run = trainer(tmp_path, watch)
    run.fit(module, data)
    keys = watch.keys
    for stage in (run.validate, run.test):
        stage(module, data, verbose=False)
    run.predict(module, data, return_predictions=False)
    assert watch.folded == [
        *[("train", False)] * 2,
        ("validation", False),
        ("validation", True),
        ("test", True),
        ("predict", True),
    ]
    assert watch.keys == keys
    assert module._folded_graph is None
    run.fit_loop.max_epochs = 2
    run.fit(module, data)
    assert watch.folded[6:] == [*[("train", False)] * 2, ("validation", False)]


@pytest.mark.parametrize("conv", ["native", "gemm"])
def test_folded_evaluation_scores_the_checkpoint_s_average(
    conv: Any, tmp_path: Path, data: DetectionDataModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    file = tmp_path / "run.ckpt"
    started = trainer(tmp_path, EMA(decay=0.5, tau=1.0), SaveAtEachBatch(file), limit_val_batches=0)
    started.fit(YOLOModule(convolution=ConvolutionSettings(backend=conv), recipe=Recipe(nominal_batch=4)), data)
    results = []
    for plain in (False, True):
        if plain:
            monkeypatch.setattr(module_file, "FoldedGraph", lambda graph, **options: None)
        module = YOLOModule(convolution=ConvolutionSettings(backend=conv))
        (losses,) = trainer(tmp_path, EMA()).validate(module, data, ckpt_path=file, verbose=False)
        results.append(losses)
    saved = torch.load(file, weights_only=True)
    average, raw = saved["state_dict"], saved["current_model_state"]
    assert any(not torch.equal(average[name], raw[name]) for name in average)
    torch.testing.assert_close(module.state_dict(), average, rtol=0, atol=0)
    assert {"val/box_loss", "val/cls_loss", "val/dfl_loss", "val/map"} <= set(results[0])
    assert results[0] == pytest.approx(results[1], rel=1e-4, nan_ok=True)


def test_folded_predictions_equal_those_of_the_graph() -> None:
    torch.manual_seed(0)
    module, batch = module_of(backend="gemm", score_threshold=0.0).eval(), random_batch()
    with torch.no_grad():
        expected = module.predict_step(batch, 0)
        module._folded_graph = FoldedGraph(module.graph)
        for parameter in module.graph.parameters():  # the copy must answer
            parameter.zero_()
        actual = module.predict_step(batch, 0)
    assert sum(len(answer.scores) for answer in expected) > 0
    for prediction, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(prediction.boxes, other.boxes, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(prediction.scores, other.scores, rtol=1e-4, atol=1e-6)


def test_size_that_the_graph_does_not_accept_is_refused_before_the_training(
    look_alike: Path, index_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(YOLOModule, "_network_input", lambda *_: pytest.fail("the training has started"))
    data = data_module(str(look_alike), index_root=str(index_root), image_size=[64, 96], num_workers=0)
    with pytest.raises(ValueError, match=r"data\.image_size must be two multiples of 64 and >= 64, got \[64, 96\]"):
        trainer(tmp_path).fit(YOLOModule(variant="yolov8n-p6"), datamodule=data)


def test_fused_optimizer_is_resumed_in_another_memory_format(tmp_path: Path, data: DetectionDataModule) -> None:
    """PyTorch's fused optimizers read weights, gradients and moments in the order of their memory."""

    def fit(memory_format: Any, epochs: int, *callbacks: Callback, checkpoint: Path | None = None) -> YOLOModule:
        module = module_of(
            optimizer=lambda groups: torch.optim.AdamW(groups, fused=True),
            nominal_batch=8,  # the checkpoint contains summed gradients
            warmup_epochs=0.0,
            memory_format=memory_format,
        )
        run = trainer(tmp_path, *callbacks, epochs=epochs, limit_train_batches=3, limit_val_batches=0)
        run.fit(module, data, ckpt_path=checkpoint)
        return module

    saved = tmp_path / "saved.ckpt"
    fit("contiguous", 1, SaveAtEachBatch(saved))
    expected = fit("contiguous", 2, checkpoint=saved)
    resumed = fit("auto", 2, checkpoint=saved)
    assert is_channels_last(resumed)
    assert not is_channels_last(expected)
    pairs = zip(resumed.parameters(), expected.parameters(), strict=True)
    differences = torch.cat([(value - other).detach().abs().flatten() for value, other in pairs])
    # AdamW enlarges the rounding of tiny gradients: single weights differ.
    assert (differences > 1e-3).float().mean() < 0.01
