"""One attempt: what the supervisor concludes from a look at the heartbeat."""

import errno
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from yolo_lightning.supervision import attempt
from yolo_lightning.supervision.attempt import AttemptRunner
from yolo_lightning.supervision.failure_record import NO_FAILURE, read_failure
from yolo_lightning.supervision.fallback_levels import FallbackState
from yolo_lightning.supervision.heartbeat import NOT_STARTED, Phase
from yolo_lightning.supervision.job import Job
from yolo_lightning.supervision.kill import Killed
from yolo_lightning.supervision.next_action import AttemptFacts
from yolo_lightning.supervision.unsaved_checkpoint import read_unsaved
from yolo_lightning.supervision.watch import Look


@pytest.mark.parametrize("is_readable", [True, False])
def test_run_is_stopped_to_take_a_level_back_only_while_its_heartbeat_is_readable(
    tmp_path: Path, is_readable: bool
) -> None:
    services = Mock(signals=[])
    runner = AttemptRunner(tmp_path / "run", Job(("program",), ("program",)), "token", services)
    runner._heartbeat_path = tmp_path / "heartbeat"
    trainer = Mock()
    trainer.process.poll.side_effect = [None, 0]
    heartbeat = replace(NOT_STARTED, phase=Phase.STEP)
    watch = Mock()
    watch.look.return_value = Look(heartbeat, is_readable=is_readable)
    assert runner._watch(trainer, watch, climb_after_s=0.0) is None
    assert trainer.process.terminate.called is is_readable
    assert services.announcer.progress_made.called is is_readable


@pytest.mark.parametrize(("code", "finished"), [(0, True), (1, False), (-9, False), (None, False)])
def test_program_that_ends_while_its_stall_is_examined_has_finished_with_exit_code_0(
    tmp_path: Path, code: int | None, finished: bool
) -> None:
    job = Job(("program",), ("program",), any_command=True)
    runner = AttemptRunner(tmp_path / "run", job, "token", Mock(signals=[]))
    runner._heartbeat_path = tmp_path / "heartbeat"
    trainer = Mock()
    trainer.process.returncode = code
    stall = AttemptFacts(job.settings, tmp_path / "incident", waited_s=60.0)
    assert runner._facts(trainer, NOT_STARTED, stall, Killed()).finished is finished


def test_no_trainer_remains_after_an_error_of_its_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    services = Mock(signals=[])
    services.disk.ask.return_value = set()
    runner = AttemptRunner(tmp_path / "run", Job(("program",), ("program",)), "token", services)
    trainer = Mock()
    killed = Mock()
    monkeypatch.setattr(attempt, "RunningTrainer", lambda *_, **__: trainer)
    monkeypatch.setattr(attempt, "kill_tree", killed)
    services.announcer.attempt_started.side_effect = OSError("too many open files")
    with pytest.raises(OSError, match="too many open files"):
        runner.run(["program"], FallbackState(), climb_after_s=0.0)
    assert killed.call_args.args[:1] == (trainer.process.pid,)


def test_processes_that_cannot_be_listed_do_not_end_the_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = AttemptRunner(tmp_path / "run", Job(("program",), ("program",)), "token", Mock(signals=[]))
    monkeypatch.setattr(attempt, "reap_orphans", Mock(side_effect=OSError("too many open files")))
    trainer = Mock()
    trainer.process.poll.side_effect = [None, 0]
    watch = Mock()
    watch.look.return_value = Look(NOT_STARTED, is_readable=False)
    assert runner._watch(trainer, watch, climb_after_s=60.0) is None


def test_facts_after_an_error_of_the_supervisor_contain_the_last_heartbeat(tmp_path: Path) -> None:
    services = Mock(signals=[])
    runner = AttemptRunner(tmp_path / "run", Job(("program",), ("program",)), "token", services)
    heartbeat = replace(NOT_STARTED, phase=Phase.SAVE, step=5)
    services.announcer.progress_made.side_effect = OSError(errno.EIO, "Input/output error")
    trainer = Mock()
    trainer.process.poll.return_value = None
    watch = Mock()
    watch.look.return_value = Look(heartbeat)
    with pytest.raises(OSError, match="Input/output error"):
        runner._watch(trainer, watch, climb_after_s=60.0)
    assert runner.new_facts().heartbeat == heartbeat, "the run has trained: the error is waited for"


def test_records_in_a_folder_that_cannot_be_listed_do_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "glob", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    assert read_unsaved(tmp_path / "heartbeat") is None
    assert read_failure(tmp_path / "heartbeat") is NO_FAILURE
