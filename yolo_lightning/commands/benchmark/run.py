"""Runs the sections of a benchmark, one after the other."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from yolo_lightning.commands.benchmark.baselines import Variant, libraries, numerics, variants
from yolo_lightning.commands.benchmark.benchmark_report import BenchmarkReport
from yolo_lightning.commands.benchmark.benchmark_settings import BenchmarkSettings
from yolo_lightning.commands.benchmark.comparison import Result, compare
from yolo_lightning.commands.benchmark.gemm_ceiling import measure_gemm_ceiling
from yolo_lightning.commands.benchmark.hardware import describe_environment
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

Passes = dict[Variant, Callable[[], Pass]]


def run(
    settings: BenchmarkSettings, say: Callable[[str], None], keep: Callable[[BenchmarkReport], None]
) -> BenchmarkReport:
    """Measure what the settings ask for.

    Args:
        settings: What.
        say: Told in a line what comes next.
        keep: Given the report after every section, so that little is lost with a rival that hangs.
    """
    report = BenchmarkReport(settings, describe_environment(settings.device))
    runner = _Runner(settings, say)
    with numerics(settings.tf32), _current(settings.device):
        say("matrix products")
        report.ceiling = measure_gemm_ceiling(settings.device, runner.autocast)
        for section in settings.sections:
            match section:
                case "layers":
                    runner.layers(report)
                case "graph":
                    report.graph = runner.graph()
                case "step":
                    report.step = runner.step()
                case "stability":
                    runner.stability(report)
            report.plan = runner.plan.describe()
            keep(report)
    return report


class _Runner:
    def __init__(self, settings: BenchmarkSettings, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._device = settings.device
        self._variants = variants(settings.skip)
        if settings.conv_plan == "fused":
            enable_fused_kernels(cache_folder() / "kernels")
        # Plans of its own: nothing remembered, nothing kept.
        self.plan = TimedPlan(settings.conv_plan_budget_s) if settings.conv_plan == "timed" else Plan()

    def autocast(self) -> torch.autocast:
        """The context of the precision; on while the forward pass and the loss run."""
        mixed = self._settings.precision == "bf16-mixed"
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=mixed)

    def layers(self, report: BenchmarkReport) -> None:
        """Every layer by itself; what concerns activations has no place there."""
        settings = self._settings
        layers = find_layers(make_module(SEED).graph, settings.image_size, settings.layers)
        alone = [variant for variant in self._variants if variant is not Variant.GEMM_RECOMPUTE]
        for position, layer in enumerate(layers, start=1):
            self._say(f"layer {position} of {len(layers)}: {layer.label}")
            arguments = (self.plan, self._device, settings.batch_size, self.autocast)
            passes: Passes = {variant: partial(layer_pass, layer, variant, *arguments) for variant in alone}
            report.layers.append((layer, self._compare(passes, footprints=True)))

    def graph(self) -> list[Result]:
        """The network forward and backward."""
        self._say("whole network")
        return self._network(lambda module, batch: graph_pass(module, batch, self.autocast), footprints=True)

    def step(self) -> list[Result]:
        """A training step; memory and launches are those of the network, but for the loss."""
        self._say("whole training step")
        return self._network(lambda module, batch: step_pass(module, [batch], self.autocast), footprints=False)

    def stability(self, report: BenchmarkReport) -> None:
        """Two equal trainings with this project's convolution in its usual layout, where it is not skipped."""
        settings = self._settings
        if not settings.stability_steps or Variant.GEMM_NHWC not in self._variants:
            return
        self._say(f"2 x {settings.stability_steps} steps at {settings.stability_image_size} px")
        report.stability = run_stability(
            Variant.GEMM_NHWC,
            self.plan,
            self._device,
            self.autocast,
            steps=settings.stability_steps,
            image_size=settings.stability_image_size,
            batch_size=settings.batch_size,
        )

    def _network(self, make: Callable[..., Pass], footprints: bool) -> list[Result]:
        settings = self._settings
        plain = make_module(SEED)
        batch = synthetic_batch(settings.batch_size, settings.image_size, len(CLASS_NAMES), SEED).to(self._device)

        def prepare(variant: Variant) -> Pass:
            return make(variant_module(plain, variant, self.plan, self._device), batch)

        return self._compare({variant: partial(prepare, variant) for variant in self._variants}, footprints)

    def _compare(self, passes: Passes, footprints: bool) -> list[Result]:
        settings = self._settings

        def switches(variant: Variant) -> AbstractContextManager[None]:
            return libraries(variant, self._device, settings.vendor_search)

        return compare(
            passes,
            switches,
            self._device,
            repeats=settings.repeats,
            footprints=footprints,
            profiled=settings.profile,
        )


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Makes a device current: events are noted on its stream."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
