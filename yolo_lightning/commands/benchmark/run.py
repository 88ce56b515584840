"""Runs the sections of a benchmark one after the other."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec
import torch
from torch.utils.benchmark import Timer

from yolo_lightning.commands.benchmark.baselines import Variant, libraries, numerics, variants
from yolo_lightning.commands.benchmark.benchmark_settings import BenchmarkSettings
from yolo_lightning.commands.benchmark.comparison import Result, compare
from yolo_lightning.commands.benchmark.layer_benchmark import Layer, find_layers, layer_pass
from yolo_lightning.commands.benchmark.network import (
    graph_pass,
    make_module,
    step_pass,
    synthetic_batch,
    variant_module,
)
from yolo_lightning.commands.benchmark.stability import Stability, run_stability
from yolo_lightning.commands.benchmark.timing import Pass
from yolo_lightning.conv import AutotunedPlan, Plan, PlannedConvolution, enable_compiled_kernels
from yolo_lightning.conv.measurement_cache import describe_environment
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.utils.files import cache_folder, replacing

SEED = 0
CPU_STABILITY_PIXELS = 160
CPU_GEMM_SIZES = (512, 1024, 2048)
ACCELERATOR_GEMM_SIZES = (1024, 2048, 4096, 8192)

FORMAT = 3
"""Version of the JSON form; increases when the meaning of a key changes or a key is removed."""


@dataclass(frozen=True)
class GemmCeiling:
    """Highest measured rate of a square matrix product, in 1e9 operations per second, with its side and data type."""

    gflops: float
    size: int
    dtype: str


@dataclass(kw_only=True)
class BenchmarkReport:
    """Results, filled in section by section. The fields are the keys of the JSON form: seconds and bytes."""

    format: int = FORMAT  # version of the JSON form
    environment: dict[str, str]  # device type and name, driver and torch version, and the date (ISO 8601)
    settings: BenchmarkSettings  # options of the benchmark
    gemm_ceiling: GemmCeiling | None = None  # highest rate of a matrix product, or None before it is measured
    layers: list[Layer] = field(default_factory=list)  # results for single layers
    graph: list[Result] = field(default_factory=list)  # results for the whole network, forward and backward
    step: list[Result] = field(default_factory=list)  # results for a whole training step
    stability: Stability | None = None  # result of the stability section, or None if it was skipped
    plan: list[PlannedConvolution] = field(default_factory=list)  # algorithms that the gemm variants used


def new_report(settings: BenchmarkSettings) -> BenchmarkReport:
    """Return a report without results."""
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    environment = {"date": date, **describe_environment(settings.device)}
    return BenchmarkReport(environment=environment, settings=settings)


def write_json(report: BenchmarkReport, path: Path) -> None:
    """Write the report atomically; numbers that are not finite become null."""
    with replacing(path) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(report, enc_hook=str), indent=2) + b"\n")


def run(report: BenchmarkReport) -> None:
    """Measure the sections that the settings select and store the results in the report.

    The JSON file is written after every section: a baseline that hangs does not lose the results of earlier sections.
    """
    settings = report.settings
    sections = _Sections(report)
    # Events are recorded on the stream of the current device.
    current: AbstractContextManager[object] = nullcontext()
    if settings.device.type == "cuda":
        current = torch.cuda.device(settings.device)
    with numerics(settings.tf32), current:
        report.gemm_ceiling = sections.measure_gemm_ceiling()
        for section in settings.sections:
            getattr(sections, section)()
            report.plan = sections.plan.describe()
            if settings.json is not None:
                write_json(report, settings.json)


def _log(text: str) -> None:
    print(f"benchmark: measuring {text}", file=sys.stderr, flush=True)


class _Sections:
    """One method per section, which writes into the report."""

    def __init__(self, report: BenchmarkReport) -> None:
        self.settings = report.settings
        self.report = report
        self.variants = variants(self.settings.skip)
        self.dtype = torch.bfloat16 if self.settings.precision == "bf16-mixed" else torch.float32
        if self.settings.conv_algorithm == "compiled":
            enable_compiled_kernels(cache_folder() / "kernels")
        # New plans: no timings from a cache file, none written.
        autotune = self.settings.conv_algorithm == "autotune"
        self.plan = AutotunedPlan(self.settings.conv_algorithm_budget_s) if autotune else Plan()

    def autocast(self) -> torch.autocast:
        """Return the autocast context of the precision, for the forward pass and the loss."""
        mixed = self.dtype is torch.bfloat16
        return torch.autocast(self.settings.device.type, dtype=torch.bfloat16, enabled=mixed)

    def measure_gemm_ceiling(self) -> GemmCeiling:
        """Return the highest rate over square matrix products of several sizes, from the shortest run of each size."""
        _log("matrix products")
        device, rates = self.settings.device, {}
        for size in CPU_GEMM_SIZES if device.type == "cpu" else ACCELERATOR_GEMM_SIZES:
            left, right = (torch.randn(size, size, device=device, dtype=self.dtype) for _ in range(2))
            timer = Timer("left @ right", globals={"left": left, "right": right}, num_threads=torch.get_num_threads())
            rates[2 * size**3 / min(timer.blocked_autorange().times) / 1e9] = size
        return GemmCeiling(max(rates), rates[max(rates)], str(self.dtype).removeprefix("torch."))

    def layers(self) -> None:
        """Measure every layer alone, without the variant that concerns activations."""
        settings = self.settings
        graph = make_module(SEED).graph
        layers = find_layers(graph, settings.image_size, settings.batch_size, settings.layers)
        for position, layer in enumerate(layers, start=1):
            _log(f"layer {position} of {len(layers)}: {layer.label}")
            arguments = (self.plan, settings.device, settings.batch_size, self.autocast)
            passes: dict[Variant, Callable[[], Pass]] = {
                variant: partial(layer_pass, layer, graph, variant, *arguments)
                for variant in self.variants
                if variant is not Variant.GEMM_RECOMPUTE
            }
            layer.results = self._compare(passes, footprints=True)
            self.report.layers.append(layer)

    def graph(self) -> None:
        """Measure the network, forward and backward."""
        _log("whole network")
        self.report.graph = self._compare(
            self._network_passes(partial(graph_pass, autocast=self.autocast)), footprints=True
        )

    def step(self) -> None:
        """Measure a training step; memory and launches are close to those of the network and not measured again."""
        _log("whole training step")
        passes = self._network_passes(lambda module, batch: step_pass(module, [batch], self.autocast))
        self.report.step = self._compare(passes, footprints=False)

    def stability(self) -> None:
        """Train twice with gemm in channels_last, the default layout, unless gemm is skipped."""
        settings = self.settings
        if Variant.GEMM_NHWC not in self.variants:
            return
        on_cpu = settings.device.type == "cpu"
        image_size = min(settings.image_size, CPU_STABILITY_PIXELS) if on_cpu else settings.image_size
        _log(f"2 x {settings.stability_steps} steps at {image_size} px")
        self.report.stability = run_stability(
            Variant.GEMM_NHWC,
            self.plan,
            settings.device,
            self.autocast,
            steps=settings.stability_steps,
            image_size=image_size,
            batch_size=settings.batch_size,
        )

    def _network_passes(self, make: Callable[..., Pass]) -> dict[Variant, Callable[[], Pass]]:
        settings = self.settings
        plain = make_module(SEED)
        batch = synthetic_batch(settings.batch_size, settings.image_size, len(CLASS_NAMES), SEED).to(settings.device)

        def prepare(variant: Variant) -> Pass:
            return make(variant_module(plain, variant, self.plan, settings.device), batch)

        return {variant: partial(prepare, variant) for variant in self.variants}

    def _compare(self, passes: dict[Variant, Callable[[], Pass]], footprints: bool) -> list[Result]:
        settings = self.settings
        return compare(
            passes,
            partial(libraries, device=settings.device, vendor_search=settings.vendor_search),
            settings.device,
            repeats=settings.repeats,
            footprints=footprints,
            profiled=settings.profile,
        )
