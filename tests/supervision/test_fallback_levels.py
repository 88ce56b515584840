import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from yolo_lightning.supervision import Job, SuperviseSettings
from yolo_lightning.supervision.classify import Diagnosis, StallClass
from yolo_lightning.supervision.fallback_levels import (
    AS_CONFIGURED,
    COMPUTATION_LEVELS,
    LOADER_LEVELS,
    FallbackState,
    Levels,
    LevelState,
    climb,
    computation_levels,
    level_of_launch,
    levels_below,
)
from yolo_lightning.supervision.restart_policy import Decision, decide, quarantined
from yolo_lightning.supervision.supervisor import Supervisor
from yolo_lightning.utils.run_files import ENVIRONMENT, STATE_FILE

LEVELS = Levels(LOADER_LEVELS, computation_levels({}, cpu=True))
GEMM, PLAIN, HALF = (level.name for level in COMPUTATION_LEVELS[1:])


def lowered_loader(number: int) -> LevelState:
    return LevelState(LOADER_LEVELS[number].name)


def step(
    state: FallbackState,
    kind: StallClass,
    *,
    saved: bool = False,
    down: bool = False,
    suspect: str = "",
    epoch: int = 0,
    max_attempts: int = 3,
    in_kernel: bool = False,
) -> Decision:
    return decide(
        state,
        Diagnosis(kind, "", moves_down=down, in_kernel=in_kernel),
        LEVELS,
        saved=saved,
        suspects=(suspect,) if suspect else (),
        epoch=epoch,
        max_attempts=max_attempts,
        place=" at step 31,204",
        now="2026-11-23T22:00:00+0000",
    )


@pytest.mark.parametrize(
    ("workers", "below"), [(8, [None, 2, 0]), (4, [None, 2, 0]), (2, [None, 0]), (1, [None, 0]), (0, [None])]
)
def test_levels_have_fewer_workers_than_configured(workers: int, below: list[int | None]) -> None:
    assert [level.num_workers for level in levels_below(workers)] == below


@pytest.mark.parametrize("kind", [StallClass.STORAGE, StallClass.UNKNOWN, StallClass.LIVELOCK, StallClass.DISK_FULL])
def test_other_classes_keep_both_levels(kind: StallClass) -> None:
    state = FallbackState()
    for _ in range(2):
        state = step(state, kind).state
    assert (state.loader, state.computation) == (LevelState(), LevelState())


COMPUTATION_FAILS = ("GPU_STALL", "DEVICE_ERROR", "WRONG_RESULT", "NOT_FINITE")


@pytest.mark.parametrize("kind", COMPUTATION_FAILS)
def test_incident_of_the_computation_lowers_its_level_alone(kind: str) -> None:
    state, names = FallbackState(), []
    for _ in range(5):
        state = step(state, StallClass[kind]).state
        names.append(state.computation.name)
    assert names == [GEMM, PLAIN, HALF, "CPU", "CPU"]
    assert state.loader == LevelState()
    assert state.computation.reason == f"{StallClass[kind]} at step 31,204"
    assert state.computation.failures == {AS_CONFIGURED: 1, GEMM: 1, PLAIN: 1, HALF: 1}


def test_lack_of_memory_lowers_the_computation_to_the_next_level_that_saves_memory() -> None:
    state = step(FallbackState(), StallClass.OUT_OF_MEMORY).state
    assert state.computation.name == HALF
    assert step(state, StallClass.OUT_OF_MEMORY).state.computation.name == "CPU"


def test_crash_lowers_the_computation_if_it_repeats_or_occurs_in_a_convolution() -> None:
    once = step(FallbackState(), StallClass.CRASH).state
    assert once.computation.name == AS_CONFIGURED
    between = step(once, StallClass.UNKNOWN, saved=True).state
    twice = step(between, StallClass.CRASH, saved=True).state
    assert (twice.computation.name, twice.crashes) == (GEMM, 0)
    assert step(twice, StallClass.CRASH).state.computation.name == GEMM
    assert step(FallbackState(), StallClass.CRASH, in_kernel=True).state.computation.name == GEMM


def test_stopped_gpu_queues_lower_the_loader_and_then_the_computation() -> None:
    state, taken = FallbackState(), []
    for _ in range(3):
        state = step(state, StallClass.GPU_STALL, down=True).state
        taken.append((state.loader.name, state.computation.name))
    assert taken == [
        (LOADER_LEVELS[1].name, AS_CONFIGURED),
        (LOADER_LEVELS[2].name, AS_CONFIGURED),
        (LOADER_LEVELS[2].name, GEMM),
    ]


def test_attempts_are_counted_anew_at_a_lower_level_of_the_computation() -> None:
    state, restarts = FallbackState(), 0
    while (decision := step(state, StallClass.DEVICE_ERROR)).restart:
        state, restarts = decision.state, restarts + 1
        assert restarts < 10
    assert restarts == 4 + 2  # one per level, then the attempts at the last level


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


def test_line_names_lowered_levels_with_time_and_reason() -> None:
    assert FallbackState().line == AS_CONFIGURED
    state = step(FallbackState(), StallClass.GPU_STALL).state
    expected = "computation: gemm since 2026-11-23T22:00:00+0000 (GPU stall at step 31,204)"
    assert state.line == expected
    both = step(state, StallClass.LOADER_STALL, down=True).state
    assert both.line == (
        f"loader: 2 workers, not persistent since 2026-11-23T22:00:00+0000 (loader stall at step 31,204); {expected}"
    )


def climbed(state: FallbackState) -> FallbackState:
    after = climb(state, LEVELS, "12 h without incidents", "2026-11-24T10:00:00+0000")
    assert after is not None
    return after


def test_levels_are_taken_back_one_by_one_the_loader_first() -> None:
    state = step(FallbackState(lowered_loader(1)), StallClass.OUT_OF_MEMORY).state
    taken = []
    while (after := climb(state, LEVELS, "", "")) is not None:
        taken.append((after.on_trial, after.loader.name, after.computation.name))
        state = after
    assert taken == [
        ("loader", AS_CONFIGURED, HALF),
        ("computation", AS_CONFIGURED, PLAIN),
        ("computation", AS_CONFIGURED, GEMM),
        ("computation", AS_CONFIGURED, AS_CONFIGURED),
    ]


def test_level_that_failed_twice_is_not_tried_again() -> None:
    state = climbed(step(FallbackState(), StallClass.GPU_STALL).state)
    assert (state.computation.name, state.failed_climbs) == (AS_CONFIGURED, 0)
    state = step(state, StallClass.GPU_STALL, saved=True).state
    assert (state.computation.name, state.failed_climbs) == (GEMM, 1)
    assert climb(state, LEVELS, "", "") is None
    lower = step(state, StallClass.GPU_STALL).state
    assert (lower.computation.name, lower.failed_climbs) == (PLAIN, 1)
    assert climbed(lower).computation.name == GEMM


def test_any_failure_before_a_checkpoint_lowers_a_level_that_was_taken_back() -> None:
    low = step(FallbackState(), StallClass.GPU_STALL).state
    assert step(climbed(low), StallClass.UNKNOWN).state.computation.name == GEMM
    proved = step(climbed(low), StallClass.UNKNOWN, saved=True).state
    assert (proved.computation.name, proved.on_trial) == (AS_CONFIGURED, "")
    assert step(proved, StallClass.UNKNOWN).state.computation.name == AS_CONFIGURED


def test_loader_stall_and_evicted_queues_move_down_to_the_last_level() -> None:
    state = FallbackState()
    for level in (1, 2, 2, 2):
        state = step(state, StallClass.LOADER_STALL, saved=True, down=True).state
        assert state.loader.number(LOADER_LEVELS) == level
    assert state.computation == LevelState()


@pytest.mark.parametrize("kind", [StallClass.LOADER_CRASH, StallClass.LOADER_STALL], ids=["crash", "before a batch"])
def test_second_loader_incident_in_a_row_moves_down(kind: StallClass) -> None:
    once = step(FallbackState(), kind).state
    assert once.loader == LevelState()
    assert step(once, kind).state.loader.number(LOADER_LEVELS) == 1
    assert step(once, StallClass.LOADER_CRASH).state.loader.number(LOADER_LEVELS) == 1
    between = step(once, StallClass.UNKNOWN, saved=True).state
    assert step(between, kind).state.loader.number(LOADER_LEVELS) == 0


def test_gives_up_after_three_attempts_in_a_row_without_a_checkpoint() -> None:
    state, decisions = FallbackState(), []
    for saved in (False, False, True, False, False, False):
        decisions.append(step(state, StallClass.UNKNOWN, saved=saved))
        state = decisions[-1].state
    assert [decision.restart for decision in decisions] == [True, True, True, True, True, False]
    assert state.restarts == 5


def test_sample_is_set_aside_when_it_ends_training_twice() -> None:
    once = step(FallbackState(), StallClass.LOADER_STALL, suspect="index=7").state
    other = step(once, StallClass.LOADER_STALL, saved=True, suspect="index=8").state
    assert other.quarantined == ()
    twice = step(other, StallClass.LOADER_STALL, saved=True, suspect="index=7")
    assert twice.state.quarantined == ("index=7",)
    assert "leaving out index=7" in twice.reason
    assert step(twice.state, StallClass.LOADER_STALL, saved=True, suspect="index=7").state.quarantined == ("index=7",)


def test_a_sample_that_was_trained_since_is_not_left_out() -> None:
    once = step(FallbackState(), StallClass.UNKNOWN, suspect="id=7", epoch=0).state
    next_epoch = step(once, StallClass.UNKNOWN, suspect="id=7", epoch=1)
    assert next_epoch.state.quarantined == ()
    assert step(next_epoch.state, StallClass.UNKNOWN, suspect="id=7", epoch=1).state.quarantined == ("id=7",)


def supervisor(run: Path) -> Supervisor:
    made = Supervisor(run, Job(("program",), ("program",), options={"model.convolution.backend": "auto"}))
    made.disk = SimpleNamespace(ask=lambda function, *arguments: function(*arguments))  # type: ignore[assignment]
    return made


@pytest.mark.parametrize(
    ("chosen", "names"),
    [("gemm", [AS_CONFIGURED, PLAIN, HALF]), ("native", [AS_CONFIGURED, GEMM, PLAIN, HALF]), (None, None)],
)
def test_level_that_auto_has_chosen_itself_is_skipped(chosen: str | None, names: list[str], tmp_path: Path) -> None:
    (tmp_path / ENVIRONMENT).write_text(json.dumps({"convolutions": chosen} if chosen else []))
    found = [level.name for level in supervisor(tmp_path)._levels_now().computation]
    assert found == (names or [AS_CONFIGURED, GEMM, PLAIN, HALF])


def test_wait_before_a_level_is_taken_back_doubles_with_each_failed_attempt(tmp_path: Path) -> None:
    made = supervisor(tmp_path)
    assert made._climb_after_s() == math.inf
    made.state = step(FallbackState(), StallClass.GPU_STALL).state
    assert made._climb_after_s() == 12 * 3600
    made.state = step(replace(made.state, failed_climbs=2), StallClass.UNKNOWN).state
    assert made._climb_after_s() == 48 * 3600
    made.settings = SuperviseSettings(climb_after_h=0)
    assert made._climb_after_s() == math.inf


def test_run_names_the_samples_to_leave_out(tmp_path: Path) -> None:
    assert quarantined(tmp_path) == ()
    FallbackState(quarantined=("id=20200502114223915", "key=(0, 7)", "index=7")).write(tmp_path / STATE_FILE)
    assert quarantined(tmp_path) == ("id=20200502114223915", "index=7")


def test_state_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "supervision.json"
    state = FallbackState(
        lowered_loader(1), attempts=1, restarts=5, suspicions={"index=7": 2}, quarantined=("index=7",)
    )
    state.write(path)
    assert FallbackState.read(path) == state
    assert [entry.name for entry in tmp_path.iterdir()] == ["supervision.json"]


def test_started_by_a_person_the_level_stays_and_attempts_do_not() -> None:
    kept = FallbackState(lowered_loader(2), LevelState(GEMM), restarts=5, suspicions={"index=7": 1})
    state = replace(kept, attempts=3, loader_crashes=1, on_trial="loader")
    assert state.for_new_supervisor() == kept


def report(run: Path, name: str, **content: object) -> None:
    folder = run / "incidents" / name
    folder.mkdir(parents=True)
    whole = {"launch": "a", "attempt": 0, "phase": "fetch"} | content
    (folder / "incident.json").write_text(json.dumps(whole))


def test_each_attempt_of_a_launch_that_waited_for_a_batch_lowers_the_level(tmp_path: Path) -> None:
    assert level_of_launch(tmp_path, "a", 4).num_workers is None
    report(tmp_path, "1", phase="training step")
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
