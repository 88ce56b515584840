"""Options, sections and report of the benchmark."""

import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import msgspec
import torch

from yolo_lightning.commands.benchmark.baselines import Implementation, Variant, variants
from yolo_lightning.commands.benchmark.comparison import Pass, Result, compare
from yolo_lightning.commands.benchmark.passes import (
    Layer,
    find_layers,
    graph_pass,
    layer_pass,
    make_module,
    step_pass,
    synthetic_batch,
    variant_module,
)
from yolo_lightning.commands.benchmark.stability import VARIANT, Stability, run_stability
from yolo_lightning.conv import AutotunedPlan, Plan, PlannedConvolution, enable_gpu_kernels
from yolo_lightning.conv.measurement_cache import describe_environment
from yolo_lightning.data.image_size import STRIDE, ImageSize
from yolo_lightning.utils.choices import check_choices
from yolo_lightning.utils.files import cache_folder, replacing

Section = Literal["layers", "graph", "step", "stability"]
Precision = Literal["32-true", "bf16-mixed"]
ConvAlgorithm = Literal["auto", "table", "autotune"]

SEED = 0
CPU_STABILITY_PIXELS = 160
MIN_STABILITY_STEPS = 10

FORMAT = 4
"""Version of the JSON form; increases when the meaning of a key changes or a key is removed."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings:
    """Options of `benchmark`, which documents them; `ValueError` if a value is not allowed."""

    device: torch.device
    threads: int | None
    sections: tuple[Section, ...]
    skip: tuple[Implementation, ...]
    batch_size: int
    image_size: int | Sequence[int]
    repeats: int
    precision: Precision
    vendor_search: bool
    conv_algorithm: ConvAlgorithm
    conv_algorithm_budget_s: float
    stability_steps: int
    frames: int
    epochs: int
    profile: bool
    json: Path | None

    def __post_init__(self) -> None:
        check_choices("sections", self.sections, Section)
        check_choices("skip", self.skip, Implementation)
        check_choices("conv_algorithm", (self.conv_algorithm,), ConvAlgorithm)
        check_choices("precision", (self.precision,), Precision)
        self.input_size.check("image_size", least=2 * STRIDE)
        if not self.sections:
            raise ValueError(f"sections must contain at least one of {', '.join(get_args(Section))}, got none")
        if set(self.skip) == set(get_args(Implementation)):
            raise ValueError("skip must leave at least one implementation to measure, got all of them")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be >= 1 or null, got {self.threads}")
        for name in ("batch_size", "repeats", "frames", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if not 0 < self.conv_algorithm_budget_s < math.inf:
            raise ValueError(f"conv_algorithm_budget_s must be finite and > 0, got {self.conv_algorithm_budget_s}")
        if self.stability_steps < MIN_STABILITY_STEPS:
            raise ValueError(f"stability_steps must be >= {MIN_STABILITY_STEPS}, got {self.stability_steps}")
        if self.json is not None:
            # Checked before the measurements, which take minutes.
            if self.json.is_dir():
                raise ValueError(f"json must be a file, got the folder {self.json}")
            if not self.json.parent.is_dir() or not os.access(self.json.parent, os.W_OK):
                raise ValueError(f"json must be in an existing writable folder, got {self.json}")

    @property
    def input_size(self) -> ImageSize:
        return ImageSize.of("image_size", self.image_size)


@dataclass(kw_only=True)
class BenchmarkReport:
    """Results, filled in section by section. The fields are the keys of the JSON form: seconds and bytes."""

    format: int = FORMAT  # version of the JSON form
    environment: dict[str, str]  # device type and name, driver and torch version, and the date (ISO 8601)
    settings: BenchmarkSettings  # options of the benchmark
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
    with torch.cuda.device(settings.device) if settings.device.type == "cuda" else nullcontext():
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
        if self.settings.conv_algorithm in ("auto", "autotune"):
            enable_gpu_kernels(cache_folder() / "kernels")
        # New plans: no timings from a cache file, none written.
        autotune = self.settings.conv_algorithm == "autotune"
        self.plan = AutotunedPlan(self.settings.conv_algorithm_budget_s) if autotune else Plan()

    def autocast(self) -> torch.autocast:
        """Return the autocast context of the precision, for the forward pass and the loss."""
        mixed = self.settings.precision == "bf16-mixed"
        return torch.autocast(self.settings.device.type, dtype=torch.bfloat16, enabled=mixed)

    def layers(self) -> None:
        """Measure every layer alone, without the variant that concerns activations."""
        settings = self.settings
        graph = make_module(SEED).graph
        for layer in find_layers(graph, settings.input_size, settings.batch_size):
            _log(f"layer {layer.label}")
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
        passes = self._network_passes(partial(graph_pass, autocast=self.autocast))
        self.report.graph = self._compare(passes, footprints=True)

    def step(self) -> None:
        """Measure a training step; memory and launches are close to those of the network and not measured again."""
        _log("whole training step")
        passes = self._network_passes(lambda module, batch: step_pass(module, [batch], self.autocast))
        self.report.step = self._compare(passes, footprints=False)

    def stability(self) -> None:
        """Train twice with gemm, unless gemm is skipped."""
        settings = self.settings
        if VARIANT not in self.variants:
            return
        on_cpu = settings.device.type == "cpu"
        largest = CPU_STABILITY_PIXELS if on_cpu else max(settings.input_size)
        image_size = ImageSize(*(min(side, largest) for side in settings.input_size))
        _log(f"2 x {settings.stability_steps} steps at {image_size} px")
        self.report.stability = run_stability(
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
        batch = synthetic_batch(settings.batch_size, settings.input_size, SEED).to(settings.device)

        def prepare(variant: Variant) -> Pass:
            return make(variant_module(plain, variant, self.plan, settings.device), batch)

        return {variant: partial(prepare, variant) for variant in self.variants}

    def _compare(self, passes: dict[Variant, Callable[[], Pass]], footprints: bool) -> list[Result]:
        settings = self.settings
        return compare(
            passes,
            settings.device,
            repeats=settings.repeats,
            footprints=footprints,
            profiled=settings.profile,
            vendor_search=settings.vendor_search,
        )
