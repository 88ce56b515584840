"""Results of a benchmark and their JSON form."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from yolo_lightning.commands.benchmark.benchmark_settings import BenchmarkSettings
from yolo_lightning.commands.benchmark.comparison import Result
from yolo_lightning.commands.benchmark.environment import GemmCeiling
from yolo_lightning.commands.benchmark.layer_benchmark import Layer
from yolo_lightning.commands.benchmark.stability import Stability
from yolo_lightning.conv import PlannedConvolution
from yolo_lightning.utils.files import replacing

FORMAT = 2
"""Version of the JSON form; increases when the meaning of a key changes or a key is removed."""


@dataclass(kw_only=True)
class BenchmarkReport:
    """Results, filled in section by section. The fields are the keys of the JSON form.

    Attributes:
        format: Version of the JSON form.
        environment: Machine and software.
        settings: Options of the benchmark.
        gemm_ceiling: Highest rate of a matrix product, or None before it is measured.
        layers: Results for single layers.
        graph: Results for the whole network, forward and backward.
        step: Results for a whole training step; `estimate` is set.
        estimate_label: Scope of the estimates.
        stability: Result of the stability section, or None if it was skipped.
        plan: Algorithms that the gemm variants used.
    """

    format: int = FORMAT
    environment: dict[str, str]
    settings: BenchmarkSettings
    gemm_ceiling: GemmCeiling | None = None
    layers: list[Layer] = field(default_factory=list)
    graph: list[Result] = field(default_factory=list)
    step: list[Result] = field(default_factory=list)
    estimate_label: str = "training steps only, without data loading and validation"
    stability: Stability | None = None
    plan: list[PlannedConvolution] = field(default_factory=list)


def as_dictionary(report: BenchmarkReport) -> dict[str, Any]:
    """Return the JSON form: times in seconds, sizes in bytes, rates in 1e9 operations per second."""
    return msgspec.to_builtins(report, enc_hook=str)  # type: ignore[no-any-return]


def write_json(report: BenchmarkReport, path: Path) -> None:
    """Write the JSON form of the report atomically; numbers that are not finite become null."""
    with replacing(path) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(as_dictionary(report)), indent=2) + b"\n")
