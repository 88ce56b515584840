"""Layers of a graph: every arrangement computes equal numbers, within the expected memory."""

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from ultralytics.nn.modules import Conv
from ultralytics.nn.tasks import DetectionModel

from tests.conv.test_batch_norm import kept_storages
from yolo_lightning.conv import DEFAULT_PLAN, AutotunedPlan, disable_gpu_kernels
from yolo_lightning.conv.kernels import fused, fused_norm
from yolo_lightning.model import native_probe
from yolo_lightning.model.conv_backend import make_plan
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.model.layers import FoldedGraph, arrange, blocks, image_layers, restore
from yolo_lightning.model.native_probe import ProbeResult, choose_convolution
from yolo_lightning.model.native_trial import arranged as arranged_blocks

ARRANGEMENTS = list(itertools.product(("native", "gemm"), (False, True)))
OURS = [arrangement for arrangement in ARRANGEMENTS if arrangement != ("native", False)]


def plain(dtype: torch.dtype = torch.float64) -> Any:
    """Ultralytics' graph with running statistics of some data."""
    torch.manual_seed(0)
    graph = DetectionModel("yolov8n.yaml", ch=3, nc=4, verbose=False).to(dtype).train()
    with torch.no_grad():
        for _ in range(3):
            graph(images(dtype=dtype))
    return graph


@pytest.fixture(scope="module")
def native() -> Any:
    return plain()


@pytest.fixture(scope="module")
def native32() -> Any:
    return plain(torch.float32)


def images(size: int = 64, channels: int = 3, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(2, channels, size, size, generator=generator, dtype=torch.float64).to(dtype)


def arranged(graph: Any, *arrangement: Any) -> Any:
    twin = copy.deepcopy(graph)
    arrange(twin, *arrangement)
    return twin


def train(graph: Any, batches: list[Tensor]) -> dict[str, Tensor]:
    """A few steps; outputs, gradients, weights and statistics of each."""
    optimizer = torch.optim.SGD(graph.parameters(), lr=0.01, momentum=0.9)
    seen: dict[str, Tensor] = {}
    for step, batch in enumerate(batches):
        output = graph.train()(batch)
        optimizer.zero_grad()
        # Normalized: the plain sum of squares explodes within two steps.
        sum(output[name].pow(2).mean() for name in ("boxes", "scores")).backward()
        seen |= {f"{step} output {name}": output[name].detach() for name in ("boxes", "scores")}
        seen |= {
            f"{step} gradient {name}": parameter.grad.clone()
            for name, parameter in graph.named_parameters()
            if parameter.grad is not None
        }
        optimizer.step()
        seen |= {f"{step} state {name}": value.clone() for name, value in graph.state_dict().items()}
    return seen


@pytest.mark.parametrize("arrangement", OURS, ids=str)
def test_three_steps_equal_ultralytics_in_float64(native: Any, arrangement: tuple[str, str]) -> None:
    batches = [images(seed=step) for step in range(3)]
    expected = train(copy.deepcopy(native), batches)
    actual = train(arranged(native, *arrangement), batches)
    assert sum("gradient" in name for name in expected) > 500
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("convolution", ["native", "gemm"])
def test_gray_equals_three_equal_channels_over_three_steps(native: Any, convolution: str) -> None:
    batches = [images(channels=1, seed=step) for step in range(3)]
    gray = train(arranged(native, convolution), batches)
    repeated = train(arranged(native, convolution), [batch.repeat(1, 3, 1, 1) for batch in batches])
    torch.testing.assert_close(gray, repeated, rtol=1e-8, atol=1e-10)
    first = "0 gradient model.0.conv.weight"
    torch.testing.assert_close(gray[first], repeated[first], rtol=1e-12, atol=1e-12)
    assert gray[first].shape[1] == 3


def test_gray_saves_two_thirds_of_the_first_input(native32: Any) -> None:
    graph = arranged(native32, "gemm")
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as trace, torch.no_grad():
        graph(images(channels=1, dtype=torch.float32))
    first = next(event for event in trace.events() if event.name == "_Convolution")
    assert first.input_shapes[:2] == [[2, 1, 64, 64], [16, 1, 3, 3]]


def kinds(graph: nn.Module) -> list[tuple[str, type[nn.Module]]]:
    return [(name, type(module)) for name, module in graph.named_modules()]


def test_an_arrangement_does_not_depend_on_the_one_before(native: Any) -> None:
    graph = copy.deepcopy(native)
    parameters = {name: id(parameter) for name, parameter in graph.named_parameters()}
    expected = {arrangement: kinds(arranged(native, *arrangement)) for arrangement in ARRANGEMENTS}
    assert len({tuple(layers) for layers in expected.values()}) == 4
    for before, after in itertools.product(ARRANGEMENTS, ARRANGEMENTS):
        arrange(graph, *before)
        arrange(graph, *after)
        assert kinds(graph) == expected[after], (before, after)
    assert {name: id(parameter) for name, parameter in graph.named_parameters()} == parameters
    assert list(graph.state_dict()) == list(native.state_dict())


@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=str)
def test_restored_graph_is_ultralytics_own(native: Any, arrangement: tuple[str, str]) -> None:
    graph = arranged(native, *arrangement, make_plan(ConvolutionSettings(algorithm="autotune", autotune_budget_s=0.0)))
    changed = [
        name
        for (name, kind), (_, native_kind) in zip(kinds(graph), kinds(native), strict=False)
        if kind is not native_kind
    ]
    assert "model.0.conv" in changed
    restore(graph)
    assert kinds(graph) == kinds(native)
    assert all("plan" not in vars(module) for module in graph.modules())


def test_shared_activation_is_never_changed(native: Any) -> None:
    shared = Conv.default_act
    graph = arranged(native, "gemm", True)
    FoldedGraph(graph)
    assert Conv.default_act is shared
    assert type(shared) is nn.SiLU
    assert not shared.inplace
    assert sum(isinstance(block.act, nn.SiLU) for block in blocks(native)) == 57


def test_block_with_another_activation_keeps_it(native: Any) -> None:
    graph = copy.deepcopy(native)
    graph.model[0].act = nn.ReLU()
    arrange(graph, "native", True)
    assert type(graph.model[0].act) is nn.ReLU
    assert type(graph.model[0].bn) is nn.BatchNorm2d


def kept_bytes(graph: Any, batch: Tensor) -> int:
    """What a forward pass keeps for the backward pass besides parameters and buffers."""
    network_addresses = {tensor.untyped_storage().data_ptr() for tensor in (*graph.parameters(), *graph.buffers())}
    kept = kept_storages(lambda: graph.train()(batch)["boxes"])
    return sum(size for address, size in kept.items() if address not in network_addresses)


def test_memory_between_forward_and_backward_pass(native32: Any) -> None:
    graph, batch = copy.deepcopy(native32), images(320, dtype=torch.float32)[:1]
    native = kept_bytes(graph, batch)
    assert native > 40 << 20
    share = {}
    for arrangement in ARRANGEMENTS:
        arrange(graph, *arrangement)
        share[arrangement] = kept_bytes(graph, batch) / native
    assert share["native", False] == 1
    assert share["gemm", False] <= 1.05
    assert share["gemm", True] <= 0.75
    assert share["native", True] <= 0.75


@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=str)
def test_folded_copy_predicts_the_same(native: Any, arrangement: tuple[str, str]) -> None:
    graph = arranged(native, *arrangement).eval()
    before = copy.deepcopy(graph.state_dict()), kinds(graph)
    folded = FoldedGraph(graph)
    for channels in (1, 3):
        actual, raw = folded(images(channels=channels))
        expected, expected_raw = graph(images(channels=channels))
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(raw["scores"], expected_raw["scores"], rtol=1e-9, atol=1e-9)
    assert not actual.requires_grad
    torch.testing.assert_close(graph.state_dict(), before[0], rtol=0, atol=0)
    assert kinds(graph) == before[1]


def test_folded_copy_has_no_normalization_and_the_same_convolutions(native: Any) -> None:
    graph = arranged(native, "gemm", True).float().train()
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        FoldedGraph(graph)(images(channels=1, dtype=torch.float32))
    called = {event.key for event in trace.key_averages()}
    assert not {name for name in called if "norm" in name or "convolution" in name.replace("_Convolution", "")}
    assert "_Convolution" in called
    assert "aten::silu_" in called
    assert graph.training


def test_plans_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disable_gpu_kernels()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert make_plan(ConvolutionSettings(algorithm="table")) is DEFAULT_PLAN
    assert not fused.KERNELS.enabled
    assert make_plan(ConvolutionSettings()) is DEFAULT_PLAN
    assert fused.KERNELS.enabled
    assert fused_norm.KERNELS.enabled
    disable_gpu_kernels()
    plan = make_plan(ConvolutionSettings(algorithm="autotune", autotune_budget_s=5.0))
    assert isinstance(plan, AutotunedPlan)
    assert (plan.budget_s, plan.cache_file) == (5.0, tmp_path / "yolo_lightning" / "convolution_plan.json")


@pytest.mark.parametrize("options", [{}, {"memory_format": "contiguous"}, {"activation_checkpointing": True}])
@pytest.mark.parametrize("kind", ["native", "gemm"])
def test_probed_layers_are_arranged_like_the_graph(native: Any, kind: Any, options: dict[str, Any]) -> None:
    graph = copy.deepcopy(native)
    arrange(graph, kind, **options)
    stem, other = arranged_blocks(kind, torch.device("cpu"), ConvolutionSettings(**options))[:2]
    for probed, block in ((stem, graph.model[0]), (other, graph.model[1])):
        for layer, same in ((probed.conv, block.conv), (probed.bn, block.bn), (probed.act, block.act)):
            assert type(layer) is type(same)
        assert probed.conv.weight.is_contiguous() == block.conv.weight.is_contiguous()


def test_first_layer_keeps_the_memory_format_for_gray_images(native32: Any) -> None:
    graph = arrange(copy.deepcopy(native32), "native", memory_format="channels_last")
    (layer,) = image_layers(graph)
    output = layer(torch.rand(2, 1, 64, 64))
    assert output.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("outcome", "expected"), [("works", "native"), ("hung", "gemm"), ("slower", "gemm")])
@pytest.mark.parametrize(("hip", "memory_format"), [(None, "channels_last"), ("6.2", "auto")])
def test_accelerator_is_probed(
    outcome: Any,
    expected: str,
    hip: str | None,
    memory_format: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[tuple[Any, ...]] = []

    def probe(*arguments: Any, precision: str) -> ProbeResult:
        asked.append((*arguments, precision))
        return ProbeResult(outcome, "as seen")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native_probe, "probe_native", probe)
    caplog.set_level("INFO")
    native_probe._print_once.cache_clear()
    monkeypatch.setattr(torch.version, "hip", hip)
    settings = ConvolutionSettings(probe_timeout_s=7.0)
    choice = choose_convolution(torch.device("cuda", 1), settings, "16-mixed")
    assert (choice.backend, choice.memory_format) == (expected, memory_format)
    tested = ConvolutionSettings(probe_timeout_s=7.0, memory_format=memory_format)
    assert asked == [
        (torch.device("cuda", 1), tested, tmp_path / "yolo_lightning" / "convolution_probe.json", "16-mixed")
    ]
    lines = [record.getMessage() for record in caplog.records if "as seen" in record.getMessage()]
    assert lines == [f"model.convolution.backend auto: {expected}; native convolutions: {outcome}, as seen"]
