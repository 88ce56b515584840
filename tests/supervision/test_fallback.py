import json
from pathlib import Path

import pytest

from yolo_lightning.supervision.classify import Diagnosis, StallClass
from yolo_lightning.supervision.fallback import FALLBACK_LEVELS, level_of_launch, levels_below
from yolo_lightning.supervision.restart_policy import Decision, FallbackState, decide, quarantined
from yolo_lightning.utils.run_files import STATE_FILE


def step(
    state: FallbackState,
    kind: StallClass,
    *,
    saved: bool = False,
    down: bool = False,
    suspect: str = "",
    epoch: int = 0,
    max_attempts: int = 3,
) -> Decision:
    return decide(
        state,
        Diagnosis(kind, "", moves_down=down),
        FALLBACK_LEVELS,
        saved=saved,
        suspects=(suspect,) if suspect else (),
        epoch=epoch,
        max_attempts=max_attempts,
        pause_s=10,
        max_pause_s=15,
    )


@pytest.mark.parametrize(
    ("workers", "below"), [(8, [None, 2, 0]), (4, [None, 2, 0]), (2, [None, 0]), (1, [None, 0]), (0, [None])]
)
def test_levels_have_fewer_workers_than_configured(workers: int, below: list[int | None]) -> None:
    assert [level.num_workers for level in levels_below(workers)] == below


def test_first_level_is_the_configuration_itself() -> None:
    assert FALLBACK_LEVELS[0].overrides == ()


@pytest.mark.parametrize("kind", [StallClass.STORAGE, StallClass.UNKNOWN, StallClass.LIVELOCK, StallClass.GPU_STALL])
def test_other_classes_keep_the_level(kind: StallClass) -> None:
    state = FallbackState()
    for _ in range(2):
        state = step(state, kind).state
    assert state.level == 0


def test_loader_stall_and_evicted_queues_move_down_to_the_last_level() -> None:
    state = FallbackState()
    for level in (1, 2, 2, 2):
        state = step(state, StallClass.LOADER_STALL, saved=True, down=True).state
        assert state.level == level


def test_second_loader_crash_in_a_row_moves_down() -> None:
    once = step(FallbackState(), StallClass.LOADER_CRASH).state
    assert once.level == 0
    assert step(once, StallClass.LOADER_CRASH).state.level == 1
    between = step(once, StallClass.UNKNOWN, saved=True).state
    assert step(between, StallClass.LOADER_CRASH).state.level == 0


def test_second_stall_before_the_first_batch_in_a_row_moves_down() -> None:
    once = step(FallbackState(), StallClass.LOADER_STALL).state
    assert once.level == 0
    assert step(once, StallClass.LOADER_STALL).state.level == 1
    assert step(once, StallClass.LOADER_CRASH).state.level == 1


def test_gives_up_after_three_attempts_in_a_row_without_a_checkpoint() -> None:
    state, decisions = FallbackState(), []
    for saved in (False, False, True, False, False, False):
        decisions.append(step(state, StallClass.UNKNOWN, saved=saved))
        state = decisions[-1].state
    assert [decision.restart for decision in decisions] == [True, True, True, True, True, False]
    assert state.restarts == 5


def test_first_restart_comes_at_once_then_the_pause_doubles_up_to_its_limit() -> None:
    state, pauses = FallbackState(), []
    for saved in (True, False, False, False, True):
        decision = step(state, StallClass.UNKNOWN, saved=saved, max_attempts=9)
        state = decision.state
        pauses.append(decision.pause_s)
    assert pauses == [0, 0, 10, 15, 0]


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


def test_run_names_the_samples_to_leave_out(tmp_path: Path) -> None:
    assert quarantined(tmp_path) == ()
    FallbackState(quarantined=("id=20200502114223915", "key=(0, 7)", "index=7")).write(tmp_path / STATE_FILE)
    assert quarantined(tmp_path) == ("id=20200502114223915", "index=7")


def test_state_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "supervision.json"
    state = FallbackState(2, 1, 5, 1, {"index=7": 2}, 3, ("index=7",))
    state.write(path)
    assert FallbackState.read(path) == state
    assert [entry.name for entry in tmp_path.iterdir()] == ["supervision.json"]


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"unknown": 1, "quarantined": []}'])
def test_damaged_state_is_the_beginning(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "state").write_text(text)
    assert FallbackState.read(tmp_path / "state") == FallbackState()


def test_started_by_a_person_the_level_stays_and_attempts_do_not() -> None:
    state = FallbackState(2, 3, 5, 1, {"index=7": 1}, ("id=3",)).for_new_supervisor(2)
    assert state == FallbackState(1, 0, 5, 0, {"index=7": 1}, ("id=3",))


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
    assert level_of_launch(tmp_path, "a", 4).num_workers is None
    report(tmp_path, "4")
    report(tmp_path, "4-rank1")  # of the same attempt
    assert level_of_launch(tmp_path, "a", 4).num_workers == 2
    report(tmp_path, "5-rank1", attempt=1)
    assert level_of_launch(tmp_path, "a", 4).num_workers == 0
    report(tmp_path, "6-rank1", attempt=2)
    assert level_of_launch(tmp_path, "a", 4).num_workers == 0
    assert level_of_launch(tmp_path, "a", 0).settings == {}


def test_supervisors_incidents_and_torn_ones_say_nothing_of_a_launch(tmp_path: Path) -> None:
    report(tmp_path, "1")
    (tmp_path / "incidents/1/incident.json").write_text("{")
    (tmp_path / "incidents/2").mkdir()
    (tmp_path / "incidents/2/incident.json").write_text('{"phase": "fetch", "class": "loader stall"}')
    assert level_of_launch(tmp_path, "a", 4).num_workers is None
