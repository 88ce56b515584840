from dataclasses import replace

from tests.commands.monitor.known_states import STATUS
from yolo_lightning.commands.monitor.run_state import Remaining, remaining
from yolo_lightning.supervision.heartbeat import Phase


def test_steps_and_validations_to_come_count() -> None:
    found = remaining(STATUS, 1, 30, Phase.STEP)  # of 5 epochs of 75; validations after epochs 2, 4 and the last
    assert found.epoch_s == 45 * 0.5 + 10
    assert found.run_s == (45 + 3 * 75) * 0.5 + 3 * 10


def test_epoch_without_validation_has_none() -> None:
    assert remaining(STATUS, 0, 30, Phase.STEP).epoch_s == 45 * 0.5


def test_validation_that_goes_on_counts_whole_and_a_past_one_not() -> None:
    assert remaining(STATUS, 4, 75, Phase.VALIDATE).run_s == 10
    assert remaining(STATUS, 4, 75, Phase.EPOCH_END).run_s == 0


def test_several_validations_in_an_epoch() -> None:
    often = replace(STATUS, validations_per_epoch=3, validate_every_epochs=1)
    assert remaining(often, 4, 0, Phase.STEP).epoch_s == 75 * 0.5 + 3 * 10
    assert remaining(often, 4, 60, Phase.STEP).epoch_s == 15 * 0.5 + 10


def test_nothing_is_known_before_a_step_was_measured() -> None:
    assert remaining(replace(STATUS, step_s=None), 1, 30, Phase.STEP) == Remaining(None, None, 0)


def test_validation_that_was_never_measured_is_left_out_and_named() -> None:
    found = remaining(replace(STATUS, validation_s=None), 1, 30, Phase.STEP)
    assert found == Remaining(None, (45 + 3 * 75) * 0.5, 3)


def test_run_without_validation_is_known_at_once() -> None:
    found = remaining(replace(STATUS, validation_s=None, validate_every_epochs=None), 1, 30, Phase.STEP)
    assert found == Remaining(45 * 0.5, (45 + 3 * 75) * 0.5, 0)


def test_run_without_end_has_no_time_left() -> None:
    found = remaining(replace(STATUS, epochs=None), 1, 30, Phase.STEP)
    assert found == Remaining(45 * 0.5 + 10, None, 0)
