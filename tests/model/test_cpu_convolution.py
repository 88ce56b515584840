"""Choice of the convolutions of a training on a CPU."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from yolo_lightning.model.cpu_convolution import PATHS, choose_path, fastest, make_network, measure, run_pass, use_path

from tests.helpers.data_module import data_module
from yolo_lightning.conv import GemmConv2d
from yolo_lightning.conv.kernels import compiled
from yolo_lightning.data.loader import LoaderSettings
from yolo_lightning.model import cpu_convolution
from yolo_lightning.model.layers import ConvolutionSettings
from yolo_lightning.module import YOLOModule
from yolo_lightning.training.recipe import Recipe

CHOOSE = choose_path
"""The function itself, which `conftest` replaces during tests."""
SECONDS = {"compiled": 0.8, "channels_last": 0.9, "contiguous": 1.0}


@pytest.fixture(autouse=True)
def own_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield
    compiled.disable()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replaces the measurement; holds its results, the next one first."""
    results: list[Any] = [SECONDS]
    monkeypatch.setattr(cpu_convolution, "measure", lambda: results.pop(0))
    return results


def test_fastest_path_needs_a_clear_lead_over_the_default() -> None:
    assert fastest({"compiled": 0.8, "channels_last": 0.9, "contiguous": 1.0}) == "compiled"
    assert fastest({"channels_last": 0.94, "contiguous": 1.0}) == "channels_last"
    assert fastest({"compiled": 0.96, "channels_last": 0.97, "contiguous": 1.0}) == "contiguous"


def test_choice_is_measured_once_per_environment(
    measured: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    assert [CHOOSE("auto") for _ in range(2)] == ["compiled"] * 2
    assert [line.getMessage() for line in caplog.records] == [
        f"model.convolution.backend auto: gemm, compiled loops ({source}: gemm, compiled loops 800.0 ms, "
        "native, channels_last 900.0 ms, native, contiguous 1000.0 ms)"
        for source in ("measured", "stored result")
    ]
    measured.append({"channels_last": 1.0, "contiguous": 1.0})
    monkeypatch.setattr(compiled, "compiler", lambda: "another")
    assert CHOOSE("auto") == "contiguous"
    assert measured == []


@pytest.mark.parametrize(("memory_format", "path"), [("channels_last", "compiled"), ("contiguous", "contiguous")])
def test_memory_format_of_the_user_is_kept(memory_format: Any, path: str, measured: list[Any]) -> None:
    assert CHOOSE(memory_format) == path


def test_busy_machine_decides_nothing_for_later(measured: list[Any], tmp_path: Path) -> None:
    measured.insert(0, None)
    assert CHOOSE("auto") == "contiguous"
    measured.insert(0, None)
    assert CHOOSE("channels_last") == "channels_last"
    assert CHOOSE("auto") == "compiled"


@pytest.mark.parametrize(
    "entry", [{"seconds": 3}, {"seconds": {"compiled": 1.0}}, {"seconds": {"contiguous": "x"}}, {}]
)
def test_damaged_result_is_measured_again(measured: list[Any], tmp_path: Path, entry: dict[str, Any]) -> None:
    CHOOSE("auto")
    file = tmp_path / "yolo_lightning" / "convolution_cpu.json"
    content = json.loads(file.read_text())
    content["environments"] = dict.fromkeys(content["environments"], entry)
    file.write_text(json.dumps(content))
    measured.append({"channels_last": 0.5, "contiguous": 1.0})
    assert CHOOSE("auto") == "channels_last"


def test_without_a_compiler_native_paths_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "compiler", lambda: None)
    monkeypatch.setattr(cpu_convolution, "IMAGE_SIZE", 32)
    seconds = measure()
    assert seconds is not None
    assert seconds.keys() == {"channels_last", "contiguous"}
    assert all(0 < value < 10 for value in seconds.values())
    assert not use_path("compiled", lambda **settings: None)


@pytest.mark.parametrize(("round_s", "passes", "decides"), [(0.1, 10, True), (2.5, 8, True), (7.0, 4, False)])
def test_measurement_ends_on_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch, round_s: float, passes: int, decides: bool
) -> None:
    done: list[int] = []
    now_s = [0.0]

    def run_pass(network: Any, images: Any) -> None:
        done.append(1)
        now_s[0] += round_s / 2

    monkeypatch.setattr(compiled, "compiler", lambda: None)
    monkeypatch.setattr(cpu_convolution, "make_network", lambda path: None)
    monkeypatch.setattr(cpu_convolution, "run_pass", run_pass)
    monkeypatch.setattr(cpu_convolution.time, "perf_counter", lambda: now_s[0])
    assert (measure() is not None) == decides
    assert len(done) == passes


def test_all_paths_compute_the_same() -> None:
    images = torch.rand(2, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    state = torch.get_rng_state()
    results = [run_pass(make_network(path).double(), images.double()) for path in PATHS]
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-6, atol=1e-9)
    assert torch.equal(torch.get_rng_state(), state)


class Run:
    """One epoch of a training on four drawn frames."""

    def __init__(self, look_alike: Path, index_root: Path, folder: Path) -> None:
        self.data = data_module(
            str(look_alike),
            index_root=str(index_root),
            image_size=64,
            batch_size=4,
            loader=LoaderSettings(num_workers=0),
        )
        self.folder = folder

    def fit(self, module: YOLOModule, epochs: int = 1, resume: Path | None = None, **options: Any) -> Trainer:
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            limit_train_batches=1,
            limit_val_batches=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=self.folder,
            **options,
        )
        trainer.fit(module, self.data, ckpt_path=resume)
        return trainer


@pytest.fixture
def run(look_alike: Path, index_root: Path, tmp_path: Path) -> Run:
    return Run(look_alike, index_root, tmp_path)


def layout_of(module: YOLOModule) -> tuple[bool, bool]:
    """Return whether the network has gemm layers, and whether its weights are in channels_last."""
    layers = [
        layer for layer in module.graph.modules() if isinstance(layer, torch.nn.Conv2d) and layer.kernel_size[0] > 1
    ]
    is_channels_last = all(layer.weight.is_contiguous(memory_format=torch.channels_last) for layer in layers)
    return any(isinstance(layer, GemmConv2d) for layer in layers), is_channels_last


def test_training_uses_the_chosen_path_and_resumes_with_that_of_the_checkpoint(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cpu_convolution, "choose_path", lambda memory_format: "channels_last")
    module = YOLOModule(recipe=Recipe(nominal_batch=4))
    run.fit(module).save_checkpoint(tmp_path / "run.ckpt")
    assert layout_of(module) == (False, True)
    monkeypatch.setattr(cpu_convolution, "choose_path", lambda memory_format: "contiguous")
    module = YOLOModule(recipe=Recipe(nominal_batch=4))
    run.fit(module, epochs=2, resume=tmp_path / "run.ckpt")
    assert layout_of(module) == (False, True)
    module = YOLOModule(recipe=Recipe(nominal_batch=4), convolution=ConvolutionSettings(memory_format="contiguous"))
    run.fit(module, epochs=2, resume=tmp_path / "run.ckpt")
    assert layout_of(module) == (False, False)


def test_path_of_the_checkpoint_that_cannot_be_used_is_replaced_with_a_warning(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trainer = run.fit(YOLOModule(recipe=Recipe(nominal_batch=4)))
    trainer.lightning_module._cpu_path = "compiled"
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    monkeypatch.setattr(compiled, "compiler", lambda: None)
    module = YOLOModule(recipe=Recipe(nominal_batch=4))
    with pytest.warns(UserWarning, match=r"auto: gemm, compiled loops cannot be used here"):
        run.fit(module, epochs=2, resume=tmp_path / "run.ckpt")
    assert (layout_of(module), module._cpu_path) == ((False, False), "contiguous")


@pytest.mark.parametrize("options", [{"precision": "64-true"}, {"precision": "bf16-mixed"}])
def test_other_precisions_use_native_convolutions(
    run: Run, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(cpu_convolution, "choose_path", None)
    module = YOLOModule(recipe=Recipe(nominal_batch=4))
    run.fit(module, **options)
    assert (layout_of(module), module._cpu_path) == ((False, False), None)


@pytest.mark.skipif(compiled.compiler() is None, reason="no C++ compiler")
@pytest.mark.whole_run
def test_training_with_compiled_loops_repeats_bit_for_bit(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_convolution, "choose_path", lambda memory_format: "compiled")
    states = []
    for _ in range(2):
        torch.manual_seed(0)
        module = YOLOModule(recipe=Recipe(nominal_batch=4))
        run.fit(module)
        assert layout_of(module) == (True, True)
        assert compiled.available()
        states.append(module.state_dict())
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
