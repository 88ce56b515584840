"""Callback that writes `status.json` in the run folder, for `monitor`."""

import math
import os
import socket
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from yolo_lightning.callbacks.finish_by import deadline_schedule, fit_length
from yolo_lightning.callbacks.fit_timer import TimedCallback
from yolo_lightning.supervision.run_status import Scores, Status, write_status
from yolo_lightning.supervision.watches import MAX_TEMPERATURE_C, Minute, Reading, RunWatches, WatchFinding
from yolo_lightning.utils.activity import number_from_device
from yolo_lightning.utils.choices import check_state, checked_arguments
from yolo_lightning.utils.loop_position import begins_anew, is_validation_of_fit, steps_begun
from yolo_lightning.utils.moment import parse_moment
from yolo_lightning.utils.optional_file import OptionalFile
from yolo_lightning.utils.process_identity import started_ticks
from yolo_lightning.utils.run_files import STATUS_FILE
from yolo_lightning.utils.sensors import Capacity, MachineReader, SensorReadings

SCORES_KEPT = 5
MAP_50 = "val/map_50"
MAP = "val/map"
LOSS = "train/loss"
MOST_PAUSE_S = 30.0


class StatusFile(TimedCallback):
    """Writes `status.json` in the run folder every few seconds during a fit, and at its end, and watches the run.

    A thread reads the sensors; the watches (`supervision/watches.py`) judge temperature, memory, disk, speed and loss
    over minutes. A full disk causes one warning and does not end the fit. Measurements are stored in checkpoints, so
    that the remaining time is known immediately after a resume.

    Args:
        interval_s: Minimum seconds between two writes.
        max_temperature_c: Limit of the GPU temperature in °C; five minutes above the limit are an alarm.
        pause_when_hot: Whether to pause after each step for the duration of the step, at most 30 s, while that alarm
            lasts. This halves the load of the GPU.
        deadline: Moment that the status file names, as YYYY-MM-DDTHH:MM, local time or with zone. `monitor` shows the
            buffer until this moment, and the supervisor sends a notification when the buffer falls below a day. The
            length of the fit does not change; see `FinishBy`.
    """

    @checked_arguments(interval_s=">= 1", max_temperature_c="> 0")
    def __init__(
        self,
        interval_s: float = 10.0,
        max_temperature_c: float = MAX_TEMPERATURE_C,
        pause_when_hot: bool = False,
        deadline: str | None = None,
    ) -> None:
        super().__init__()
        self.deadline = None if deadline is None else parse_moment("deadline", deadline)
        self.interval_s = interval_s
        self.pause_when_hot = pause_when_hot
        self.watches = RunWatches(max_temperature_c)
        self._machine: MachineReader | None = None
        self._scores: deque[Scores] = deque(maxlen=SCORES_KEPT)
        self._best_map_50: float | None = None
        self._epoch = 0
        self._step = 0
        self._written_at_s = -math.inf
        self._file = OptionalFile()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if begins_anew(trainer, stage):
            self.watches = RunWatches(self.watches.max_temperature_c)
            self._scores.clear()
            self._best_map_50 = None

    def state_dict(self) -> dict[str, Any]:
        return {
            "scores": [(scores.epoch, dict(scores.values)) for scores in self._scores],
            "best_map_50": self._best_map_50,
            "minutes": [astuple(minute) for minute in self.watches.minutes],
            "findings": [asdict(finding) for finding in self.watches.findings if finding.until_s is not None],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        check_state(self, state_dict, self.state_dict())
        self._scores.clear()
        self._scores.extend(Scores(epoch, dict(values)) for epoch, values in state_dict["scores"])
        self._best_map_50 = state_dict["best_map_50"]
        self.watches.minutes.clear()
        self.watches.minutes.extend(Minute(*minute) for minute in state_dict["minutes"])
        self.watches.findings = tuple(WatchFinding(**finding) for finding in state_dict["findings"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self._machine = MachineReader(Path(trainer.default_root_dir), self.interval_s)
        self._epoch = trainer.current_epoch
        self._step = steps_begun(trainer)
        self._write(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch = trainer.current_epoch

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self._step = steps_begun(trainer)
        self._write_if_due(trainer)
        if self.pause_when_hot and self.watches.is_hot():
            pause_s = min(self.timer.step_s, MOST_PAUSE_S)
            time.sleep(pause_s)
            self.timer.add_pause(pause_s)

    def on_validation_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if not trainer.sanity_checking:
            self._write_if_due(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not is_validation_of_fit(trainer):
            return
        scores = finite({name: trainer.callback_metrics.get(name) for name in (MAP_50, MAP)})
        if scores:
            self._scores.append(Scores(trainer.current_epoch, scores))
        map_50 = scores.get(MAP_50)
        if map_50 is not None and (self._best_map_50 is None or map_50 > self._best_map_50):
            self._best_map_50 = map_50

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.on_train_end(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer)
        if self._machine is not None:
            self._machine.close()
            self._machine = None

    def _write_if_due(self, trainer: Trainer) -> None:
        if time.monotonic() >= self._written_at_s + self.interval_s:
            self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        if not self.timer.has_begun or not trainer.is_global_zero or trainer.state.fn != "fit":
            return
        path = Path(trainer.default_root_dir) / STATUS_FILE
        self._written_at_s = time.monotonic()
        with self._file.attempt(path):
            write_status(self._status(trainer), path)

    def _status(self, trainer: Trainer) -> Status:
        step_s: float | None = None
        fetch_share: float | None = None
        typical = self.timer.pace.typical()
        if typical is not None:
            step_s, fetch_share = typical
        deadline_s: float | None = None
        deadline_problem = ""
        schedule = deadline_schedule(trainer)
        if schedule is not None:
            deadline_s = schedule.deadline_s
            deadline_problem = schedule.problem
        elif self.deadline is not None:
            deadline_s = self.deadline.timestamp()
        # A value with two names has a plain name, too.
        metrics = trainer.callback_metrics.items()
        logged = {name: value for name, value in metrics if not name.endswith(("_step", "_epoch"))}
        losses = finite({name: logged[name] for name in logged if name.startswith("train/") and "loss" in name})
        self._observe(trainer, losses.get(LOSS))
        return Status(
            **asdict(fit_length(trainer)),
            written_s=time.time(),
            interval_s=self.interval_s,
            process=os.getpid(),
            process_started_ticks=started_ticks(os.getpid()),
            host=socket.gethostname(),
            device=str(trainer.strategy.root_device),
            workers=getattr(trainer.train_dataloader, "num_workers", 0),
            epoch=self._epoch,
            batch=self.timer.batch,
            step=self._step,
            step_s=step_s,
            fetch_share=fetch_share,
            trained_s=self.timer.trained_s(),
            validation_s=self.timer.validation_s,
            losses=losses,
            learning_rates=finite({name: logged[name] for name in logged if name.startswith("lr/")}),
            scores=tuple(self._scores),
            best_map_50=self._best_map_50,
            findings=self.watches.findings,
            deadline_s=deadline_s,
            deadline_problem=deadline_problem,
            is_planned=schedule is not None,
        )

    def _observe(self, trainer: Trainer, loss: float | None) -> None:
        """Pass the readings of this moment to the watches. Readings of silent sensors are left out."""
        machine = SensorReadings()
        if self._machine is not None:
            machine = self._machine.latest()
        if machine.silent_s:
            machine = SensorReadings()
        gpus = machine.gpus
        if trainer.strategy.root_device.type == "cpu":
            gpus = ()
        usage = {"memory grows": machine.memory, "disk fills": machine.disk}
        for number, gpu in enumerate(gpus):
            if gpu.memory_used_bytes is not None and gpu.memory_bytes is not None:
                usage[f"memory of GPU {number} grows"] = Capacity(gpu.memory_used_bytes, gpu.memory_bytes)
        temperatures = [gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None]
        pace = self.timer.pace
        reading = Reading(
            now_s=time.monotonic(),
            epoch=self._epoch,
            steps=pace.timed_steps,
            fetch_s=pace.total_fetch_s,
            step_s=pace.total_step_s,
            loss=loss,
            temperature_c=max(temperatures, default=None),
            usage={name: capacity for name, capacity in usage.items() if capacity is not None},
        )
        self.watches.observe(reading, time.time())


def finite(values: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the values as numbers, None if not finite (strict JSON has no NaN), without missing values."""
    numbers = {name: number_from_device(value) for name, value in values.items() if value is not None}
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}
