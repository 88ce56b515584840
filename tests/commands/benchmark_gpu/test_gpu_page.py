"""The page shows what was measured, what was not, and why; also of crashed stages and incomplete results."""

from typing import Any, get_args

import pytest

from yolo_lightning.commands.benchmark_gpu.command import STAGE_NAMES, StageName, check_stages
from yolo_lightning.commands.benchmark_gpu.gpu_page import SECTIONS, TITLES, key_figure, page, speed_table, table
from yolo_lightning.commands.benchmark_gpu.stage_process import MODULES
from yolo_lightning.commands.benchmark_gpu.stage_records import LIMITS, Stage, StageRecord, StageState

ENVIRONMENT = {"date": "2026-01-01T00:00:00+00:00", "command": "python -m x", "device": "cuda", "quick": False}


def timed(variant: str, *samples_s: float) -> dict[str, Any]:
    ordered = sorted(samples_s)
    total = {"samples_s": samples_s, "median_s": ordered[len(ordered) // 2]}
    return {
        "variant": variant,
        "failure": None,
        "total": total | {"minimum_s": ordered[0], "maximum_s": ordered[-1]},
        "footprint": None,
    }


def record(stage: Stage, state: StageState = StageState.PASSED, **result: Any) -> StageRecord:
    return StageRecord(stage=stage, state=state, seconds=1.0, result=result)


SPEED = record(
    Stage.SPEED,
    batch=8,
    image_size=640,
    variants={"gemm-nhwc": "ours"},
    excluded={"native-tf32": "TF32 exists on NVIDIA GPUs only"},
    step=[
        timed("gemm-nhwc", 0.05, 0.05, 0.06),
        timed("slow", 0.1, 0.2, 0.12),
        timed("native", 0.04, 0.04, 0.04),
        timed("native-tf32", 0.01, 0.01, 0.01),
        {"variant": "unfold", "failure": "OutOfMemoryError: no", "total": None, "footprint": None},
    ],
)


def test_speed_shows_median_range_rate_ratios_and_failures() -> None:
    text = page([SPEED], ENVIRONMENT)
    assert "| variant | median ms | range ms | images/s | ratio to native | ratio to slow |" in text
    assert "| gemm-nhwc | 50.00 | 50.00 to 60.00 | 160.0 | 1.25 | 0.50 |" in text
    assert "- `unfold` failed: OutOfMemoryError: no" in text
    assert "- `native-tf32`: TF32 exists on NVIDIA GPUs only" in text
    assert "fastest of ours: gemm-nhwc, 50.00 ms per training step; 1.25 of native; 0.50 of slow" in text


def test_memory_and_launches_are_shown_where_they_were_measured() -> None:
    row = timed("gemm-nhwc", 0.05) | {"footprint": {"saved_bytes": 3 * 2**20, "peak_bytes": None, "launches": 500}}
    heading, _, line = speed_table([row], 8)
    assert heading.endswith("| stored MiB | peak MiB | launches |")
    assert line.endswith("| 3 | - | 500 |")


def test_crashed_stage_is_shown_with_its_last_lines_and_its_partial_result() -> None:
    crashed = record(Stage.WAITS, StageState.CRASHED, method="counting", steps=2, batch=8, variants={})
    crashed.reason, crashed.last_lines = "SIGSEGV, in: gemm-nhwc", ["HIP error: invalid device function"]
    text = page([crashed, SPEED], ENVIRONMENT)
    assert "| Waits for the device | crashed | 1.0 | SIGSEGV, in: gemm-nhwc |" in text
    assert "**crashed**: SIGSEGV, in: gemm-nhwc" in text
    assert "```\nHIP error: invalid device function\n```" in text
    assert "Counted by counting" in text
    assert "| gemm-nhwc | 50.00" in text  # the other stages are not lost


@pytest.mark.parametrize("stage", list(Stage))
def test_incomplete_result_never_breaks_the_page(stage: Stage) -> None:
    crashed = record(stage, StageState.CRASHED, step=[], variants={}, rows=[])
    text = page([crashed, record(stage)], ENVIRONMENT)
    assert f"## {TITLES[stage]}" in text


def test_wrong_algorithm_is_marked_with_its_worst_case() -> None:
    one = {"algorithm": "rows", "dtype": "float32", "cases": 4, "largest_error": 0.3, "worst": "forward, NCHW, stem"}
    result = {"shapes": 1, "shapes_of_network": 34, "batch": 2, "tolerances": {"float32": 1e-3}, "messages": ["gone"]}
    wrong = record(Stage.CORRECTNESS, StageState.FAILED, **result, algorithms=[one | {"refusals": 1, "refusal": "no"}])
    text = page([wrong], ENVIRONMENT)
    assert "| rows | **3.0e-01 WRONG** (forward, NCHW, stem) | 4 | 1 |" in text
    assert "1 of 34 distinct convolutions" in text
    assert "- gone" in text


def test_rehearsal_is_marked() -> None:
    assert "**Rehearsal**" in page([SPEED], ENVIRONMENT | {"quick": True})
    assert "**Rehearsal**" not in page([SPEED], ENVIRONMENT)


def test_table_escapes_bars_and_aligns_numbers() -> None:
    assert table(["a", "b", "c"], [["x|y", "1", "text"], ["z", "-", "2"]]) == [
        "| a | b | c |",
        "| --- | ---: | --- |",
        "| x\\|y | 1 | text |",
        "| z | - | 2 |",
    ]


def test_key_figure_of_a_result_without_it() -> None:
    assert key_figure(record(Stage.SPEED)) == "-"


def test_every_stage_has_a_module_a_title_limits_a_section_and_a_name() -> None:
    assert set(MODULES) == set(TITLES) == set(LIMITS) == set(SECTIONS) == set(Stage)
    assert get_args(StageName) == STAGE_NAMES == tuple(stage.value for stage in Stage)


@pytest.mark.parametrize(("names", "shown"), [(["speed", "sped"], "got sped"), ([], "got none")])
def test_stage_names_are_checked(names: list[str], shown: str) -> None:
    with pytest.raises(ValueError, match=f"stages must contain some of machine, .*{shown}"):
        check_stages(names)
