"""Everything that one benchmark found, and its JSON form."""

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from yolo_lightning.commands.benchmark.benchmark_settings import BenchmarkSettings
from yolo_lightning.commands.benchmark.comparison import Result, ratio, reference
from yolo_lightning.commands.benchmark.estimate import Estimate, estimate
from yolo_lightning.commands.benchmark.gemm_ceiling import GemmCeiling
from yolo_lightning.commands.benchmark.hardware import Hardware
from yolo_lightning.commands.benchmark.layer_benchmark import Layer
from yolo_lightning.commands.benchmark.stability import Stability
from yolo_lightning.commands.benchmark.timing import Spread
from yolo_lightning.conv import PlannedConvolution
from yolo_lightning.utils.files import replacing

FORMAT = 1
"""Version of the JSON form; changes when a key changes its meaning or goes."""

ESTIMATE_LABEL = "convolution and step only; the loader is measured separately"


@dataclass
class BenchmarkReport:
    """Filled section by section.

    Attributes:
        settings: What was asked for.
        environment: Where it ran.
        ceiling: The fastest matrix product, or None as long as it is not measured.
        layers: Per layer the result of each variant.
        graph: The whole network, forward and backward.
        step: A whole training step.
        stability: Of two equal trainings, or None if left out.
        plan: What this project's convolutions chose.
    """

    settings: BenchmarkSettings
    environment: Hardware
    ceiling: GemmCeiling | None = None
    layers: list[tuple[Layer, list[Result]]] = field(default_factory=list)
    graph: list[Result] = field(default_factory=list)
    step: list[Result] = field(default_factory=list)
    stability: Stability | None = None
    plan: list[PlannedConvolution] = field(default_factory=list)

    def estimate_of(self, result: Result) -> Estimate | None:
        """The time of the training that the settings describe, with the convolution of a result of `step`."""
        if result.total is None:
            return None
        return estimate(result.total, self.settings.batch_size, self.settings.frames, self.settings.epochs)


def write_json(report: BenchmarkReport, path: Path) -> None:
    """Write the report; times in seconds, sizes in bytes, rates in 1e9 operations per second."""
    with replacing(path) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(as_dictionary(report)), indent=2) + b"\n")


def as_dictionary(report: BenchmarkReport) -> dict[str, Any]:
    """The report as JSON holds it; numbers that are not finite become null."""
    settings = asdict(report.settings) | {"device": str(report.settings.device)}
    return {
        "format": FORMAT,
        "environment": asdict(report.environment),
        "settings": settings,
        "gemm_ceiling": None if report.ceiling is None else asdict(report.ceiling),
        "layers": [_layer(report, layer, results) for layer, results in report.layers],
        "graph": _results(report.graph),
        "step": [
            row | {"estimate": _estimate(report.estimate_of(result))}
            for row, result in zip(_results(report.step), report.step, strict=True)
        ],
        "estimate_label": ESTIMATE_LABEL,
        "stability": None if report.stability is None else _stability(report.stability),
        "plan": [_planned(planned) for planned in report.plan],
    }


def _layer(report: BenchmarkReport, layer: Layer, results: list[Result]) -> dict[str, Any]:
    operations = layer.operations(report.settings.batch_size)
    rows = []
    for row, result in zip(_results(results), results, strict=True):
        gflops = None if result.total is None else operations / result.total.median_s / 1e9
        share = None if gflops is None or report.ceiling is None else gflops / report.ceiling.gflops
        rows.append(row | {"gflops": gflops, "share_of_gemm": share})
    return {
        "name": layer.name,
        "label": layer.label,
        "count": layer.count,
        "operations": operations,
        "results": rows,
    }


def _results(results: list[Result]) -> list[dict[str, Any]]:
    native, slow = reference(results), reference(results, ("slow",))
    return [
        {
            "variant": result.variant.value,
            "failure": result.failure,
            "stages": {name: _spread(spread) for name, spread in result.stages.items()},
            "total": None if result.total is None else _spread(result.total),
            "reference": None if native is None else native.variant.value,
            "ratio_to_reference": ratio(result, native),
            "ratio_to_slow": ratio(result, slow),
            "footprint": None if result.footprint is None else asdict(result.footprint),
        }
        for result in results
    ]


def _spread(spread: Spread) -> dict[str, Any]:
    return {
        "median_s": spread.median_s,
        "minimum_s": spread.minimum_s,
        "maximum_s": spread.maximum_s,
        "samples_s": list(spread.samples_s),
    }


def _estimate(found: Estimate | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def _stability(stability: Stability) -> dict[str, Any]:
    row = asdict(stability) | {"grows": stability.grows, "passed": stability.passed}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


def _planned(planned: PlannedConvolution) -> dict[str, Any]:
    return {
        "operation": str(planned.operation),
        "problem": planned.problem,
        "device": str(planned.device),
        "algorithm": planned.algorithm,
        "seconds": dict(planned.seconds),
    }
