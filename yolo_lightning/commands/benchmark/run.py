"""Runs the sections of a benchmark one after the other."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from yolo_lightning.commands.benchmark.baselines import Variant, libraries, numerics, variants
from yolo_lightning.commands.benchmark.benchmark_report import BenchmarkReport, write_json
from yolo_lightning.commands.benchmark.benchmark_settings import BenchmarkSettings
from yolo_lightning.commands.benchmark.comparison import Result, compare, estimate
from yolo_lightning.commands.benchmark.environment import describe_hardware, measure_gemm_ceiling
from yolo_lightning.commands.benchmark.layer_benchmark import find_layers, layer_pass
from yolo_lightning.commands.benchmark.network import (
    graph_pass,
    make_module,
    step_pass,
    synthetic_batch,
    variant_module,
)
from yolo_lightning.commands.benchmark.stability import run_stability
from yolo_lightning.commands.benchmark.timing import Pass
from yolo_lightning.conv import Plan, TimedPlan, enable_fused_kernels
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.utils.files import cache_folder

SEED = 0


def run(settings: BenchmarkSettings, say: Callable[[str], None]) -> BenchmarkReport:
    """Measure the sections that the settings select and return the report.

    The JSON file is written after every section: a baseline that hangs does not lose the results of earlier sections.

    Args:
        settings: Options of the benchmark.
        say: Receives the name of each measurement before its start.
    """
    report = BenchmarkReport(settings=settings, environment=describe_hardware(settings.device))
    sections = _Sections(settings, report, say)
    # Events are recorded on the stream of the current device.
    current: AbstractContextManager[object] = nullcontext()
    if settings.device.type == "cuda":
        current = torch.cuda.device(settings.device)
    with numerics(settings.tf32), current:
        say("matrix products")
        report.gemm_ceiling = measure_gemm_ceiling(settings.device, sections.autocast)
        for section in settings.sections:
            getattr(sections, section)()
            report.plan = sections.plan.describe()
            if settings.json is not None:
                write_json(report, settings.json)
    return report


class _Sections:
    """One method per section, which writes into the report."""

    def __init__(self, settings: BenchmarkSettings, report: BenchmarkReport, say: Callable[[str], None]) -> None:
        self.settings = settings
        self.report = report
        self.say = say
        self.variants = variants(settings.skip)
        if settings.conv_algorithm == "compiled":
            enable_fused_kernels(cache_folder() / "kernels")
        # New plans: no timings from a cache file, none written.
        self.plan = TimedPlan(settings.conv_algorithm_budget_s) if settings.conv_algorithm == "autotune" else Plan()

    def autocast(self) -> torch.autocast:
        """Return the autocast context of the precision, for the forward pass and the loss."""
        mixed = self.settings.precision == "bf16-mixed"
        return torch.autocast(self.settings.device.type, dtype=torch.bfloat16, enabled=mixed)

    def layers(self) -> None:
        """Measure every layer alone, without the variant that concerns activations."""
        settings = self.settings
        graph = make_module(SEED).graph
        layers = find_layers(graph, settings.image_size, settings.batch_size, settings.layers)
        for position, layer in enumerate(layers, start=1):
            self.say(f"layer {position} of {len(layers)}: {layer.label}")
            arguments = (self.plan, settings.device, settings.batch_size, self.autocast)
            passes: dict[Variant, Callable[[], Pass]] = {
                variant: partial(layer_pass, layer, graph, variant, *arguments)
                for variant in self.variants
                if variant is not Variant.GEMM_RECOMPUTE
            }
            layer.results = self._compare(passes, footprints=True)
            for result in layer.results:
                if result.total is not None and self.report.gemm_ceiling is not None:
                    result.gflops = layer.operations / result.total.median_s / 1e9
                    result.share_of_gemm = result.gflops / self.report.gemm_ceiling.gflops
            self.report.layers.append(layer)

    def graph(self) -> None:
        """Measure the network, forward and backward."""
        self.say("whole network")
        make = partial(graph_pass, autocast=self.autocast)
        self.report.graph = self._compare(self._network_passes(make), footprints=True)

    def step(self) -> None:
        """Measure a training step; memory and launches are close to those of the network and not measured again."""
        self.say("whole training step")
        passes = self._network_passes(lambda module, batch: step_pass(module, [batch], self.autocast))
        self.report.step = self._compare(passes, footprints=False)
        settings = self.settings
        for result in self.report.step:
            if result.total is not None:
                result.estimate = estimate(result.total, settings.batch_size, settings.frames, settings.epochs)

    def stability(self) -> None:
        """Train twice with gemm in channels_last, the default layout, unless gemm is skipped."""
        settings = self.settings
        if not settings.stability_steps or Variant.GEMM_NHWC not in self.variants:
            return
        self.say(f"2 x {settings.stability_steps} steps at {settings.stability_image_size} px")
        self.report.stability = run_stability(
            Variant.GEMM_NHWC,
            self.plan,
            settings.device,
            self.autocast,
            steps=settings.stability_steps,
            image_size=settings.stability_image_size,
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
