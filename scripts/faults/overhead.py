"""What it costs to be watched: time that the trainer loses in each step, and time that the supervisor takes."""

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from yolo_lightning.callbacks import HeartbeatFile
from yolo_lightning.data.batch import Batch
from yolo_lightning.supervision import SuperviseSettings
from yolo_lightning.supervision.heartbeat import HeartbeatReader, HeartbeatWriter
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts
from yolo_lightning.supervision.watch import Watch, excuse_for
from yolo_lightning.utils.run_files import HEARTBEAT_FILE

STEP_S = 0.4
"""A training step on the hardware that this is for."""

REPEATS = 5
ALLOWED_SHARE = 0.001


@dataclass(frozen=True, slots=True)
class Cost:
    """One line.

    Attributes:
        what: For a person.
        step_s: Seconds for each training step.
    """

    what: str
    step_s: float

    @property
    def share(self) -> float:
        """Of a step."""
        return self.step_s / STEP_S


def measure() -> list[Cost]:
    """All costs."""
    with tempfile.TemporaryDirectory() as folder:
        return [of_the_trainer(Path(folder)), of_the_supervisor(Path(folder))]


def of_the_trainer(folder: Path) -> Cost:
    """The hooks of a step, as often as a step calls them."""
    record, trainer, batch = HeartbeatFile(), stand_in_trainer(folder), stand_in_batch(8)
    writer = HeartbeatWriter(folder / HEARTBEAT_FILE)
    record.writer = writer
    cost = Cost("trainer: heartbeat of a step", fastest(lambda: step(record, trainer, batch), 2000))
    writer.close()
    return cost


def step(record: HeartbeatFile, trainer: Any, batch: Batch) -> None:
    """What a training step calls."""
    record.on_train_batch_start(trainer, trainer.lightning_module, batch, 7)
    record.on_train_batch_end(trainer, trainer.lightning_module, None, batch, 7)


def of_the_supervisor(folder: Path) -> Cost:
    """A look at the record and at the process, as often as it looks in the time of a step; of another core."""
    path = folder / "watched"
    writer = HeartbeatWriter(path)
    reader, settings = HeartbeatReader(path), SuperviseSettings()
    process = os.getpid()
    watch = Watch(
        lambda: reader.read(process),
        lambda: excuse_for(process),
        AdaptiveTimeouts(settings.phase_timeouts, {}),
        settings.poll_s,
    )
    look_s = fastest(watch.look, 200)
    writer.close()
    return Cost("supervisor: its looks", look_s * STEP_S / settings.poll_s)


def fastest(call: Callable[[], Any], times: int) -> float:
    """Seconds that a call takes, in the fastest of several series; the others were disturbed."""
    series = []
    for _ in range(REPEATS):
        begin_s = time.perf_counter()
        for _ in range(times):
            call()
        series.append((time.perf_counter() - begin_s) / times)
    return min(series)


def stand_in_trainer(folder: Path) -> Any:
    """As much of a trainer as the hooks look at."""
    return SimpleNamespace(
        current_epoch=1,
        num_training_batches=100,
        default_root_dir=str(folder),
        lightning_module=SimpleNamespace(steps=8),
        fit_loop=SimpleNamespace(total_batch_idx=7),
    )


def stand_in_batch(frames: int) -> Batch:
    """Ids of `frames` frames; nothing else of it is looked at."""
    nothing = torch.zeros(0)
    ids = tuple(f"{number:017d}" for number in range(frames))
    return Batch(nothing, nothing, nothing, nothing, ids, (), (), ())


def lines(costs: list[Cost]) -> list[str]:
    """For a terminal."""
    return [f"{cost.what}: {cost.step_s * 1e6:.1f} us in a step, {cost.share:.4%} of {STEP_S:g} s" for cost in costs]


def is_cheap(costs: list[Cost]) -> bool:
    """Whether all together take less than a thousandth."""
    return sum(cost.share for cost in costs) < ALLOWED_SHARE
