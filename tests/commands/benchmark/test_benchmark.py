"""The whole benchmark on small images: report, JSON, tables, command line."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonargparse import auto_cli
from rich.console import Console

from yolo_lightning.commands.benchmark.baselines import LAYOUTS, UnfoldConv2d, Variant
from yolo_lightning.commands.benchmark.command import benchmark
from yolo_lightning.commands.benchmark.comparison import Result, Spread
from yolo_lightning.commands.benchmark.passes import STAGES
from yolo_lightning.commands.benchmark.run import BenchmarkReport, BenchmarkSettings, new_report, run, write_json
from yolo_lightning.commands.benchmark.tables import show

pytestmark = pytest.mark.whole_run  # measures whole networks

TINY: dict[str, Any] = {
    "device": "cpu",
    "sections": ("graph",),
    "image_size": 64,
    "batch_size": 1,
    "repeats": 1,
    "profile": False,
    "skip": ("unfold", "slow", "native"),
}
FAILURE = "RuntimeError: HIP out of memory"


@pytest.fixture(scope="module")
def saved() -> list[str]:
    """First letters of the sections in the report, for each time it was saved."""
    return []


@pytest.fixture(scope="module")
def report(saved: list[str]) -> BenchmarkReport:
    """All sections, with a baseline that fails."""

    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("HIP out of memory\nTried to allocate")

    settings = BenchmarkSettings(
        device=torch.device("cpu"),
        threads=None,
        sections=("layers", "graph", "step", "stability"),
        skip=(),
        conv_algorithm="autotune",
        conv_algorithm_budget_s=0.05,
        precision="32-true",
        batch_size=1,
        image_size=64,
        repeats=2,
        stability_steps=10,
        vendor_search=False,
        profile=False,
        frames=100,
        epochs=2,
        json=Path("benchmark.json"),
    )

    def save(report: BenchmarkReport, path: Path) -> None:
        assert path == settings.json
        saved.append("".join(name[0] for name in ("layers", "graph", "step", "stability") if getattr(report, name)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UnfoldConv2d, "_conv_forward", broken)
        patch.setattr("yolo_lightning.commands.benchmark.run.write_json", save)
        report = new_report(settings)
        run(report)
        return report


def test_report_is_saved_after_every_section(report: BenchmarkReport, saved: list[str]) -> None:
    assert saved == ["l", "lg", "lgs", "lgss"]


def test_failing_baseline_is_listed_in_every_section(report: BenchmarkReport) -> None:
    sections = [report.graph, report.step, *(layer.results for layer in report.layers)]
    for results in sections:
        assert {result.variant: result.failure for result in results if result.failure} == {Variant.UNFOLD: FAILURE}
        assert all((result.total is None) == (result.variant is Variant.UNFOLD) for result in results)
    assert {len(results) for results in sections[:2]} == {len(LAYOUTS)}


def test_json_contains_the_measurements(report: BenchmarkReport, tmp_path: Path) -> None:
    path = tmp_path / "benchmark.json"
    write_json(report, path)
    content = json.loads(path.read_text())
    assert list(content) == [
        "format", "environment", "settings", "layers", "graph", "step", "stability", "plan",
    ]  # fmt: skip
    assert content["settings"]["device"] == "cpu"
    for section in (content["graph"], content["step"], *(layer["results"] for layer in content["layers"])):
        measured = [row for row in section if row["failure"] is None]
        assert [row["variant"] for row in section if row not in measured] == ["unfold"]
        for row in measured:
            stages = row["stages"].values()
            assert row["total"]["samples_s"] == pytest.approx([sum(s["samples_s"][r] for s in stages) for r in (0, 1)])
            assert row["reference"] in ("native", "native-nhwc")
        assert [row["ratio_to_reference"] for row in measured if row["variant"] == row["reference"]] == [1.0]
    assert content["stability"]["passed"] is True
    assert {planned["operation"] for planned in content["plan"]}


def test_recomputed_activations_save_fewer_bytes(report: BenchmarkReport) -> None:
    saved = {result.variant: result.footprint.saved_bytes for result in report.graph if result.footprint}
    assert saved[Variant.GEMM_RECOMPUTE] < 0.8 * saved[Variant.GEMM]


@pytest.mark.parametrize("width", [80, 100, 140])
def test_tables_fit_the_terminal(report: BenchmarkReport, width: int) -> None:
    text = tables(report, width)
    lines = [
        line for line in text.splitlines() if not line.startswith((" " * 4, "forward:", "weight_", "input_", "grad"))
    ]
    assert max(map(len, lines)) <= width
    assert "…" not in text
    # A truncated or wrapped table would have fewer or more rows than one per variant and table.
    headings = [line for line in lines if line.startswith("variant")]
    assert len([line for line in lines if line.startswith("gemm ")]) == len(headings)


def test_tables_contain_titles_failures_and_units(report: BenchmarkReport) -> None:
    text = tables(report, 120)
    for expected in (
        "Six layers, NOT a training speed",
        f"unfold failed: {FAILURE}",
        "training steps only, without data loading and validation",
        "Stability: passed",
        "x slow",
        "images/s",
    ):
        assert expected in text


def test_rate_of_a_layer(report: BenchmarkReport) -> None:
    row, *_ = [line for line in part(report, "0: 3 to 16").splitlines() if line.startswith("native ")]
    first = report.layers[0]
    assert first.results[0].total is not None
    assert row.split()[-4] == f"{first.operations / first.results[0].total.median_s / 1e9:,.1f}"


def test_estimate_counts_a_smaller_last_batch_as_a_step(report: BenchmarkReport) -> None:
    step = Result(Variant.GEMM, dict.fromkeys(STAGES, Spread((0.0,))), Spread((3600.0, 1800.0, 7200.0)))
    settings = replace(report.settings, batch_size=8, frames=17, epochs=16)
    (row,) = part(replace(report, step=[step], settings=settings), "Estimate for 16 epochs").splitlines()[3:4]
    assert row.split() == ["gemm", "3.00", "1.50-6.00", "2.00", "1.00-4.00"]


def part(report: BenchmarkReport, title: str) -> str:
    """Return the printed text from `title` on."""
    return title + tables(report, 140).split(title)[1]


def tables(report: BenchmarkReport, width: int) -> str:
    output = io.StringIO()
    show(report, Console(file=output, width=width))
    return output.getvalue()


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "out.json"
    options = ["--device=cpu", "--image_size=64", "--batch_size=1", "--repeats=1", "--profile=false", "--threads=1"]
    choice = ["--sections=graph", "--skip=[native,slow,unfold]", "--precision=bf16-mixed", f"--json={output}"]
    auto_cli(benchmark, args=[*options, *choice])
    rows = json.loads(output.read_text())["graph"]
    assert [(row["variant"], row["failure"], row["reference"] is None) for row in rows] == [
        ("gemm", None, False), ("gemm-nhwc", None, False), ("gemm-recompute", None, False),
    ]  # fmt: skip
    printed = capsys.readouterr()
    assert "bf16-mixed" in printed.out
    assert "benchmark: measuring whole network" in printed.err


def test_failed_stability_run_exits_with_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "backward", lambda *_: (_ for _ in ()).throw(RuntimeError("broken")))
    with pytest.raises(SystemExit) as exit:
        benchmark(**TINY | {"sections": "stability", "stability_steps": 10})
    assert exit.value.code == 1


def test_number_of_threads_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    seen = []
    command = "yolo_lightning.commands.benchmark.command"
    monkeypatch.setattr(f"{command}.run", lambda report: seen.append(torch.get_num_threads()) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        benchmark(**TINY, threads=before + 1)
    assert (seen, torch.get_num_threads()) == ([before + 1], before)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("device", "cuda:99", "auto, cpu"),
        ("device", "toaster", "auto, cpu"),
        ("threads", 0, ">= 1"),
        ("sections", (), "layers, graph, step, stability"),
        ("sections", ("graf",), "layers, graph, step, stability"),
        ("skip", "vendor", "native, slow, unfold, gemm"),
        ("skip", ("native", "slow", "unfold", "gemm"), "at least one implementation"),
        ("batch_size", 0, ">= 1, got 0"),
        ("image_size", 100, "multiple of 32"),
        ("image_size", 32, "multiple of 32 and >= 64"),
        ("image_size", [64, 32], "two multiples of 32 and >= 64"),
        ("repeats", 0, ">= 1"),
        ("precision", "16", "32-true, bf16-mixed"),
        ("conv_algorithm", "best", "auto, table, autotune"),
        ("conv_algorithm_budget_s", float("nan"), "finite and > 0"),
        ("stability_steps", 3, ">= 10, got 3"),
        ("frames", 0, ">= 1"),
        ("epochs", -1, ">= 1, got -1"),
        ("json", Path("missing/out.json"), "existing writable folder"),
        ("json", Path(), "got the folder"),
    ],
)
def test_invalid_value_is_rejected_with_the_accepted_ones(
    name: str, value: object, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yolo_lightning.commands.benchmark.command.run", lambda report: pytest.fail("it ran"))
    with pytest.raises(ValueError, match=name) as error:
        benchmark(**TINY | {name: value})
    assert told in str(error.value)


@pytest.mark.parametrize(("image_size", "expected"), [(640, (160, 160)), (96, (96, 96)), ([288, 96], (160, 96))])
def test_stability_images_have_at_most_160_pixels_on_a_cpu(
    image_size: int | list[int], expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    benchmark_run = "yolo_lightning.commands.benchmark.run"
    monkeypatch.setattr(f"{benchmark_run}.run_stability", lambda *_, image_size, **__: seen.append(image_size) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        benchmark(**TINY | {"image_size": image_size, "sections": "stability"})
    assert seen == [expected]


def test_tables_that_do_not_fit_side_by_side_are_printed_below(report: BenchmarkReport) -> None:
    parts = [tables(report, width).split("Whole network, forward")[1].splitlines()[2] for width in (80, 140)]
    assert ["saved MiB" in part for part in parts] == [False, True]
