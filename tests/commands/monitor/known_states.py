"""Status reports, heartbeats and run folders for the tests of `monitor`."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

from yolo_lightning.supervision.heartbeat import Heartbeat, HeartbeatWriter, Phase
from yolo_lightning.supervision.run_status import Scores, Status, SupervisorState, SupervisorStatus, write_status
from yolo_lightning.utils.process_identity import started_ticks

NOW_S = 1_800_000_000.0
STATUS = Status(
    written_s=NOW_S,
    interval_s=5.0,
    process=os.getpid(),
    process_started_ticks=started_ticks(os.getpid()),
    host=os.uname().nodename,
    device="cpu",
    workers=2,
    epoch=1,
    epochs=5,
    batch=30,
    batches_per_epoch=75,
    step=105,
    step_s=0.5,
    fetch_share=0.25,
    trained_s=60.0,
    validation_s=10.0,
    validate_every_epochs=2,
    validations_per_epoch=1,
    losses={"train/loss": 11.5, "train/box_loss": 4.25, "train/cls_loss": 3.0},
    learning_rates={"lr/weight": 0.01, "lr/bias": 0.02},
    scores=(Scores(0, {"val/map_50": 0.1234, "val/map": 0.05}),),
    best_map_50=0.1234,
)
STANDING = SupervisorStatus(
    state=SupervisorState.RUNNING,
    since_s=NOW_S - 100,
    sentence="",
    attempt=2,
    restarts=1,
    fallback_level="as configured",
    process=1,
    process_started_ticks=0,
    host="h",
)


def record(phase: Phase = Phase.STEP, **changed: object) -> Heartbeat:
    """Return the heartbeat of a process that does not exist."""
    heartbeat = Heartbeat(4711, 1, 0, 2, 1, 105, 30, phase, time.monotonic(), {}, ())
    return replace(heartbeat, **changed)  # type: ignore[arg-type]


def make_run(folder: Path, phase: Phase = Phase.STEP, status: Status | None = STATUS) -> HeartbeatWriter:
    """Create the run folder of a training in this process."""
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    writer = HeartbeatWriter(folder / "heartbeat")
    writer.beat(phase, 1, 105, 30)
    if status is not None:
        write_status(status, folder / "status.json")
    return writer


def add_incident(folder: Path, name: str, **report: object) -> None:
    place = folder / "incidents" / name
    place.mkdir(parents=True)
    (place / "incident.json").write_text(json.dumps(report))
