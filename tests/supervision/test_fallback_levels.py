import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from yolo_lightning.supervision.fallback_levels import (
    AS_CONFIGURED,
    COMPUTATION_LEVELS,
    LOADER_LEVELS,
    FallbackState,
    Levels,
    LevelState,
    computation_levels,
    level_of_launch,
    levels_below,
    precision_levels,
    quarantined,
)
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.run_files import STATE_FILE

LEVELS = Levels(LOADER_LEVELS, computation_levels({}, cpu=True))
GEMM, PLAIN, HALF = (level.name for level in COMPUTATION_LEVELS[1:])


def lowered_loader(number: int) -> LevelState:
    return LevelState(LOADER_LEVELS[number].name)


@pytest.mark.parametrize(
    ("workers", "below"), [(8, [None, 2, 0]), (4, [None, 2, 0]), (2, [None, 0]), (1, [None, 0]), (0, [None])]
)
def test_levels_have_fewer_workers_than_configured(workers: int, below: list[int | None]) -> None:
    assert [level.num_workers for level in levels_below(workers)] == below


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, [AS_CONFIGURED, GEMM, PLAIN, HALF]),
        ({"model.convolution.backend": "native", "data.batch_size": 4}, [AS_CONFIGURED, GEMM, PLAIN, HALF]),
        ({"model.convolution.backend": "gemm"}, [AS_CONFIGURED, PLAIN, HALF]),
        ({"model.convolution.algorithm": "table"}, [AS_CONFIGURED, GEMM, HALF]),
        ({"model.convolution.backend": "gemm", "model.convolution.algorithm": "table"}, [AS_CONFIGURED, HALF]),
    ],
)
def test_levels_equal_to_the_configuration_are_skipped(options: dict[str, object], names: list[str]) -> None:
    assert [level.name for level in computation_levels(options)] == names
    assert [level.name for level in computation_levels(options, cpu=True)] == [*names, "CPU"]
    assert computation_levels(options | {"trainer.accelerator": "cpu"}, cpu=True)[-1].name == HALF
    assert HALF not in [level.name for level in computation_levels(options | {"trainer.sync_batchnorm": True})]


def test_overrides_of_both_levels() -> None:
    state = FallbackState(lowered_loader(2), LevelState(PLAIN))
    assert LEVELS.overrides(state) == (
        "--data.loader.num_workers=0",
        "--data.loader.persistent_workers=false",
        "--data.loader.prefetch_factor=2",
        "--model.convolution.backend=gemm",
        "--model.convolution.algorithm=table",
    )
    assert LEVELS.overrides(FallbackState(LevelState("of another version"))) == ()


@pytest.mark.parametrize(
    ("precision", "count"), [("auto", 2), ("bf16-mixed", 2), (16, 2), ("32-true", 1), (32, 1), (None, 1)]
)
def test_mixed_precision_has_a_level_in_float32(precision: object, count: int) -> None:
    levels = replace(LEVELS, precision=precision_levels(precision))
    assert len(levels.precision) == count
    lowered = FallbackState(precision=LevelState("float32"))
    assert levels.overrides(lowered) == ("--trainer.precision=32-true",) * (count - 1)


def test_line_names_lowered_levels_with_time_and_reason() -> None:
    assert FallbackState().line == AS_CONFIGURED
    computation = LevelState(GEMM, "GPU stall at step 31,204", "2026-11-23T22:00:00+0000")
    expected = "computation: gemm since 2026-11-23T22:00:00+0000 (GPU stall at step 31,204)"
    assert FallbackState(computation=computation).line == expected
    loader = LevelState(LOADER_LEVELS[1].name, "loader stall at step 2", "2026-11-24T22:00:00+0000")
    assert FallbackState(loader, computation).line == (
        f"loader: 2 workers, not persistent since 2026-11-24T22:00:00+0000 (loader stall at step 2); {expected}"
    )


def test_run_names_the_samples_to_leave_out(tmp_path: Path) -> None:
    assert quarantined(tmp_path) == ()
    state = FallbackState(quarantined=("id=20200502114223915", "key=(0, 7)", "index=7"))
    write_json(tmp_path / STATE_FILE, asdict(state))
    assert quarantined(tmp_path) == ("id=20200502114223915", "index=7")


def test_state_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "supervision.json"
    state = FallbackState(
        lowered_loader(1), attempts=1, restarts=5, suspicions={"index=7": 2}, quarantined=("index=7",)
    )
    write_json(path, asdict(state))
    assert FallbackState.read(path) == state
    assert [entry.name for entry in tmp_path.iterdir()] == ["supervision.json"]


def test_started_by_a_person_the_level_stays_and_attempts_do_not() -> None:
    kept = FallbackState(lowered_loader(2), LevelState(GEMM), restarts=5, suspicions={"index=7": 1})
    state = replace(kept, attempts=3, waits=2, failures={"computation": 1}, on_trial="loader")
    assert state.for_new_supervisor() == kept


def report(run: Path, name: str, **content: object) -> None:
    folder = run / "incidents" / name
    folder.mkdir(parents=True)
    whole = {"launch": "a", "attempt": 0, "phase": "fetch", "activity": "load"} | content
    (folder / "incident.json").write_text(json.dumps(whole))


def test_each_attempt_of_a_launch_that_waited_for_a_batch_lowers_the_level(tmp_path: Path) -> None:
    assert level_of_launch(tmp_path, "a", 4).num_workers is None
    report(tmp_path, "1", activity="exchange")  # waits for another rank
    report(tmp_path, "2-rank1", launch="another")
    report(tmp_path, "3", launch=None)
    report(tmp_path, "torn")
    (tmp_path / "incidents/torn/incident.json").write_text("{")
    assert level_of_launch(tmp_path, "a", 4).num_workers is None
    report(tmp_path, "4")
    report(tmp_path, "4-rank1")  # of the same attempt
    assert level_of_launch(tmp_path, "a", 4).num_workers == 2
    report(tmp_path, "5-rank1", attempt=1)
    assert level_of_launch(tmp_path, "a", 4).num_workers == 0
    report(tmp_path, "6-rank1", attempt=2)
    assert level_of_launch(tmp_path, "a", 4).num_workers == 0
    assert level_of_launch(tmp_path, "a", 0).settings == {}
