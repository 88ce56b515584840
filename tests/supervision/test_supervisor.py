"""Faults of the matrix in the reliability facts, by number, injected into a trainer without training."""

import json
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from tests.supervision.supervised import PATIENT_S, Supervised, floors
from yolo_lightning.supervision.classify import StallClass
from yolo_lightning.supervision.fallback_levels import levels_below
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts, PhaseTimeouts
from yolo_lightning.supervision.run_lock import read_holder
from yolo_lightning.supervision.trainer import temporary_folder
from yolo_lightning.utils.exit_codes import ExitCode
from yolo_lightning.utils.json_record import read_record

pytestmark = pytest.mark.whole_run  # real processes, seconds each

SHORT_S = 0.6


@dataclass(frozen=True)
class Fault:
    """What is injected, and what must be reported.

    `allowed` is short for the phase of the fault alone.
    """

    kind: str
    stall_class: StallClass
    words: tuple[str, ...]
    allowed: PhaseTimeouts
    level: int = 0
    phase: str = "step"


STEP, FETCH, SAVE = floors(step_s=SHORT_S), floors(fetch_s=SHORT_S), floors(save_s=SHORT_S)
COMPUTATION, LOADER = StallClass.COMPUTATION, StallClass.LOADER_STALL
STALLS = {
    "fault 1, 7.1: worker sleeps": Fault(
        "wait_for_worker",
        LOADER,
        ("has not delivered the batch", "__getitem__", "index=7", "epoch 1, batch 5"),
        FETCH,
        1,
        "fetch",
    ),
    "fault 13: C call with the lock": Fault("hold_the_lock", COMPUTATION, ("hold_the_lock",), STEP),
    "fault 15: trainer stopped alone": Fault("stop_alone", StallClass.UNKNOWN, ("stop_alone", "stopped (T)"), STEP),
    "fault 16: busy loop": Fault("compute_for_ever", COMPUTATION, ("compute_for_ever",), STEP),
    "fault 23: storage": Fault(
        "write_for_ever", StallClass.STORAGE, ("waits for storage in sleep_for_ever",), SAVE, phase="save"
    ),
    "7.3: orphans and a semaphore": Fault("leave_children_and_hang", COMPUTATION, ("sleep_for_ever",), STEP),
}


@pytest.mark.parametrize("name", STALLS)
def test_stall_is_reported_ended_and_resumed(name: str, tmp_path: Path) -> None:
    fault = STALLS[name]
    supervised = Supervised(tmp_path / "run", fault.kind, allowed=fault.allowed)
    assert supervised.wait() == ExitCode.FINISHED, supervised.log()
    (incident,) = supervised.incidents()
    assert (incident["class"], incident["phase"]) == (fault.stall_class, fault.phase), incident
    assert incident["waited_s"] >= SHORT_S
    assert [word for word in fault.words if word not in incident["sentence"]] == []
    assert [start["first_step"] for start in supervised.starts()] == [0, 4]
    assert supervised.state()["loader"]["name"] == levels_below(4)[fault.level].name
    assert supervised.left() == []
    assert set(supervised.new_shared_memory()) == set()


@pytest.mark.parametrize(
    ("kind", "words"),
    [("kill", "SIGKILL"), ("leave_children_and_die", "exit code 9"), ("exit_0", "before training was finished")],
)
def test_death_is_noticed_at_once_and_resumed(kind: str, words: str, tmp_path: Path) -> None:
    supervised = Supervised(tmp_path / "run", kind)
    assert supervised.wait() == ExitCode.FINISHED, supervised.log()
    (incident,) = supervised.incidents()
    assert words in incident["sentence"]
    assert [start["first_step"] for start in supervised.starts()] == [0, 4]
    assert supervised.left() == []


def test_gpu_stall_of_native_convolutions_revokes_their_verdict(tmp_path: Path) -> None:
    cache, facts = tmp_path / "verdicts.json", tmp_path / "run" / "environment.json"
    facts.parent.mkdir()
    facts.write_text(
        json.dumps({"convolutions": "native", "native verdict key": "a", "native verdict file": str(cache)})
    )
    supervised = Supervised(tmp_path / "run", "wait_for_gpu", allowed=STEP)
    assert supervised.wait() == ExitCode.FINISHED, supervised.log()
    failure = f"GPU stall at step 5 in run {tmp_path / 'run'}"
    assert json.loads(cache.read_text())["environments"] == {"a": {"outcome": "failed", "detail": failure}}
    assert f"native convolutions on this device: failed, {failure}" in supervised.log()


def test_healthy_run_needs_one_attempt_and_leaves_no_incident(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path / "run", "none")
    assert supervised.wait() == ExitCode.FINISHED
    (start,) = supervised.starts()
    assert start["options"] == []
    assert not start["knows the job"]  # which contains addresses
    assert not Path(start["temporary"]).exists()
    assert not (tmp_path / "run" / "incidents").exists()


def test_fault_26_all_levels_are_tried_before_a_sample_is_left_out(tmp_path: Path) -> None:
    supervised = Supervised(
        tmp_path / "run", "wait_for_worker", until=3, allowed=FETCH, workers=4, attempts=1, patience_h=1
    )
    assert supervised.wait() == ExitCode.FINISHED, supervised.log()
    options = [" ".join(start["options"]) for start in supervised.starts()]
    assert len(options) == 4
    assert options[0] == ""
    assert "--resume --data.loader.num_workers=2 --data.loader.persistent_workers=false" in options[1]
    assert ["--data.loader.num_workers=0" in words for words in options] == [False, False, True, True]
    # The number of the trainer's own threads decides the last bits of its weights.
    assert [start["threads"] for start in supervised.starts()] == ["1"] * 4
    assert supervised.state()["quarantined"] == ["index=7"]
    assert supervised.left() == []


def test_a_save_that_exceeds_its_timeout_gets_twice_the_time(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path / "run", "save_slowly", until=100, allowed=floors(save_s=3.1), patience_h=1)
    assert supervised.wait() == ExitCode.FINISHED, supervised.log()
    assert {incident["class"] for incident in supervised.incidents()} == {"storage stall"}
    assert 2 <= len(supervised.starts()) <= 3  # a busy machine


def test_a_run_that_has_trained_ends_when_the_patience_is_over(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path / "run", "kill", until=100)
    assert supervised.wait() == ExitCode.GAVE_UP
    assert "gave up: no new checkpoint for 0.001 h (supervision.patience_h)" in supervised.log()
    assert len(supervised.starts()) > 1


def test_fallback_level_stays_for_the_next_supervisor(tmp_path: Path) -> None:
    assert Supervised(tmp_path / "run", "wait_for_worker", allowed=FETCH).wait() == ExitCode.FINISHED
    again = Supervised(tmp_path / "run", "none")
    assert again.wait() == ExitCode.FINISHED
    assert "--data.loader.num_workers=2" in again.starts()[-1]["options"]


def test_damaged_state_is_named_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "supervision.json").write_text('{"quarantined": ["index=7"')
    supervised = Supervised(tmp_path / "run", "none")
    assert supervised.wait() == ExitCode.FINISHED
    assert (
        "supervision.json is damaged: fallback levels and quarantined samples are those of a new run"
        in supervised.log()
    )


def test_fault_28_slow_phases_within_their_timeout_are_no_stall(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path / "run", "be_slow", allowed=STEP)
    assert supervised.wait() == ExitCode.FINISHED
    assert len(supervised.starts()) == 1
    assert supervised.incidents() == []
    learned = read_record(tmp_path / "run" / "phase_timeouts.json", AdaptiveTimeouts)
    assert learned is not None
    assert 0.9 <= learned.longest_s["metrics"] < PATIENT_S


def test_fault_30_lost_record_is_blindness_and_no_stall(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path / "run", "truncate_record", allowed=STEP)
    assert supervised.wait() == ExitCode.FINISHED
    assert "no heartbeat: the heartbeat file has another format" in supervised.log()
    assert len(supervised.starts()) == 1
    assert supervised.incidents() == []


def test_fault_30_hang_without_a_record_is_noticed_after_the_largest_timeout(tmp_path: Path) -> None:
    allowed = PhaseTimeouts(**{field.name: 3.0 for field in fields(PhaseTimeouts)})
    supervised = Supervised(tmp_path / "run", "lose_record_and_hang", allowed=allowed)
    assert supervised.wait() == ExitCode.FINISHED
    (incident,) = supervised.incidents()
    assert "sleep_for_ever" in incident["sentence"]
    assert (incident["phase"], incident["step"]) == ("step", 5)
    (folder,) = (tmp_path / "run" / "incidents").iterdir()
    assert "sleep_for_ever" in (folder / "stacks.txt").read_text()  # by faulthandler, without py-spy
    state = f"process-{supervised.starts()[0]['process']}.txt"
    assert {path.name for path in folder.iterdir()} >= {
        "incident.json",
        "kernel.txt",
        "system.txt",
        "log.txt",
        state,
    }


def test_fault_35_hang_at_exit_after_success_counts_as_finished(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path / "run", "hang_at_exit", allowed=floors(exit_s=SHORT_S))
    assert supervised.wait() == ExitCode.FINISHED
    (incident,) = supervised.incidents()
    assert (incident["phase"], len(supervised.starts())) == ("exit", 1)


def test_fault_36_hang_in_set_up_gets_one_more_try(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path / "run", "hang_in_set_up", until=100, allowed=floors(setup_s=SHORT_S))
    assert supervised.wait() == ExitCode.GAVE_UP
    assert [incident["phase"] for incident in supervised.incidents()] == ["setup", "setup"]
    assert len(supervised.starts()) == 2


def test_program_that_is_not_there_is_an_error_without_retries(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path / "run", "", program=("/nowhere/python",))
    assert supervised.wait() == ExitCode.FAILED
    assert "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/python'" in supervised.log()
    holder = read_holder(tmp_path / "run" / "run.lock")
    assert holder is not None
    assert not temporary_folder(holder.marker).exists()


def test_fault_25_gpu_that_does_not_answer_needs_a_reboot(tmp_path: Path) -> None:
    hangs = (sys.executable, "-c", "import time; time.sleep(1000)")
    supervised = Supervised(
        tmp_path / "run", "wait_for_gpu", until=100, allowed=STEP, smoke_test=hangs, smoke_test_s=0.5
    )
    assert supervised.wait() == ExitCode.NEEDS_REBOOT
    assert len(supervised.starts()) == 1
    assert "waits for the device" in supervised.log()
    assert "needs reboot: the device does not respond" in supervised.log()
    assert supervised.left() == []


def test_gpu_that_answers_is_used_again(tmp_path: Path) -> None:
    answers = (sys.executable, "-c", "raise SystemExit(1)")
    assert Supervised(tmp_path / "run", "wait_for_gpu", allowed=STEP, smoke_test=answers).wait() == ExitCode.FINISHED


@pytest.mark.whole_run
def test_standard_output_that_nobody_reads_does_not_hold_up_the_run(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path / "run", "print_much", stdout=subprocess.PIPE)
    supervised.wait_for("finished.json")
    assert supervised.wait() == ExitCode.FINISHED
    assert len((tmp_path / "run" / "run.log").read_text()) > 1_000_000
