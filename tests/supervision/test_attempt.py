"""One attempt: what the supervisor concludes from a look at the heartbeat."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from yolo_lightning.supervision import Job
from yolo_lightning.supervision.attempt import AttemptRunner
from yolo_lightning.supervision.heartbeat import NOT_STARTED, Phase
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts, PhaseTimeouts
from yolo_lightning.supervision.watch import Look


@pytest.mark.parametrize("is_readable", [True, False])
def test_run_is_stopped_to_take_a_level_back_only_while_its_heartbeat_is_readable(
    tmp_path: Path, is_readable: bool
) -> None:
    services = Mock(signals=[])
    timeouts = AdaptiveTimeouts(PhaseTimeouts(), {})
    runner = AttemptRunner(tmp_path / "run", Job(("program",), ("program",)), "token", services, timeouts)
    runner._heartbeat_path = tmp_path / "heartbeat"
    trainer = Mock()
    trainer.process.poll.side_effect = [None, 0]
    heartbeat = replace(NOT_STARTED, phase=Phase.STEP)
    watch = Mock()
    watch.look.return_value = Look(heartbeat, is_readable=is_readable)
    assert runner._watch(trainer, watch, climb_after_s=0.0) is None
    assert trainer.process.terminate.called is is_readable
    assert services.announcer.progress_made.called is is_readable
