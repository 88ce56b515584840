"""Durations of the steps and validations of a fit, measured once for all callbacks of a Trainer."""

import statistics
import time
from collections import deque
from typing import Any, NamedTuple

from lightning.pytorch import Callback, LightningModule, Trainer

from yolo_lightning.utils.loop_position import is_validation_of_fit
from yolo_lightning.utils.trainer_callbacks import callbacks_of

BLOCK_STEPS = 16
BLOCKS = 16


class TypicalStep(NamedTuple):
    """Recent steps of a fit."""

    step_s: float  # seconds per step, with the wait for its batch
    fetch_share: float  # share of the wait, 0 to 1


class StepPace:
    """Recent duration of a training step: median over blocks of the mean within each block.

    Workers deliver batches in bursts, so that a median over single steps would be the duration of a fast step. A
    checkpoint or a stall distorts one block only.
    """

    def __init__(self) -> None:
        self.timed_steps = 0
        self.total_fetch_s = 0.0
        self.total_step_s = 0.0
        self._blocks: deque[tuple[float, float]] = deque(maxlen=BLOCKS)
        self._block: list[tuple[float, float]] = []

    def add(self, fetch_s: float, step_s: float) -> None:
        """Add a step with the seconds of the wait for its batch and of its computation."""
        self.timed_steps += 1
        self.total_fetch_s += fetch_s
        self.total_step_s += step_s
        self._block.append((fetch_s, step_s))
        if len(self._block) == BLOCK_STEPS:
            self._blocks.append(_means(self._block))
            self._block = []

    def typical(self, newest: int = BLOCKS) -> TypicalStep | None:
        """Return the typical step of the `newest` blocks, at most `BLOCKS`; None before the first step."""
        blocks = list(self._blocks)[-newest:]
        if not blocks and self._block:
            blocks = [_means(self._block)]
        totals = [fetch_s + step_s for fetch_s, step_s in blocks]
        if not totals or not all(totals):
            return None
        shares = [fetch_s / total for (fetch_s, _), total in zip(blocks, totals, strict=True)]
        return TypicalStep(statistics.median(totals), statistics.median(shares))


def _means(steps: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the mean seconds of the waits and of the computations of steps."""
    return statistics.fmean(fetch_s for fetch_s, _ in steps), statistics.fmean(step_s for _, step_s in steps)


class FitTimer(Callback):
    """Times the steps and validations of a fit. Checkpoints contain the durations.

    The first step of a process does not count for the pace, because it starts workers and compiles kernels.
    """

    def __init__(self) -> None:
        self.pace = StepPace()
        self.batch = 0  # trained batches of the current epoch
        self.step_s = 0.0  # computation of the newest step
        self.step_with_wait_s = 0.0  # newest step and the wait for its batch
        self.validation_s: float | None = None  # newest validation; None before the first one
        self.epoch_end_s = 0.0  # from the last step or validation of the previous epoch to the start of this epoch
        self._waiting_since_s = 0.0
        self._step_began_s = 0.0
        self._validation_began_s = 0.0
        self._pause_s = 0.0
        self._is_first_step = True
        self._trained_before_s = 0.0
        self._train_began_s: float | None = None
        self._train_ended_s: float | None = None

    @property
    def has_begun(self) -> bool:
        """Whether this process has begun to train."""
        return self._train_began_s is not None

    def trained_s(self) -> float:
        """Return the seconds of training over all restarts, with validations and checkpoints."""
        if self._train_began_s is None:
            return self._trained_before_s
        ended_s = time.monotonic() if self._train_ended_s is None else self._train_ended_s
        return self._trained_before_s + ended_s - self._train_began_s

    def state_dict(self) -> dict[str, Any]:
        return {"validation_s": self.validation_s, "trained_s": self.trained_s()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.validation_s = state_dict["validation_s"]
        self._trained_before_s = state_dict["trained_s"]
        self._train_began_s = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._trained_before_s = self.trained_s()  # with earlier fits of the Trainer
        self._train_began_s = time.monotonic()
        self._train_ended_s = None
        self.pace = StepPace()
        self.batch = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        self._pause_s = 0.0
        self._is_first_step = True
        self._waiting_since_s = self._train_began_s

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        now_s = time.monotonic()
        self.batch = 0
        self.epoch_end_s = now_s - self._waiting_since_s
        self._waiting_since_s = now_s

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._step_began_s = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now_s = time.monotonic()
        fetch_s = self._step_began_s - self._waiting_since_s
        self.batch = batch_idx + 1
        self.step_s = now_s - self._step_began_s
        self.step_with_wait_s = fetch_s + self.step_s + self._pause_s
        if not self._is_first_step:
            self.pace.add(fetch_s, self.step_s + self._pause_s)
        self._is_first_step = False
        self._pause_s = 0.0
        self._waiting_since_s = now_s

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation_began_s = time.monotonic()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._waiting_since_s = time.monotonic()
        if is_validation_of_fit(trainer):
            self.validation_s = self._waiting_since_s - self._validation_began_s

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._train_ended_s = time.monotonic()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._train_ended_s is None:
            self._train_ended_s = time.monotonic()

    def add_pause(self, pause_s: float) -> None:
        """Count a pause after a step as computation of the next step, not as a wait for its batch."""
        self._pause_s += pause_s
        self._waiting_since_s += pause_s


def shared_timer(trainer: Trainer, user: Callback) -> FitTimer:
    """Return the timer of a Trainer; the first call inserts it in front of `user` in the callbacks.

    Call it in the hook `setup`. Lightning then still iterates over the former list of callbacks.
    """
    for timer in callbacks_of(trainer, FitTimer):
        return timer
    timer = FitTimer()
    callbacks = callbacks_of(trainer, Callback)
    position = callbacks.index(user)
    trainer.callbacks = [*callbacks[:position], timer, *callbacks[position:]]  # type: ignore[attr-defined]
    return timer


class TimedCallback(Callback):
    """Base class of callbacks that read the timer of their Trainer.

    Args:
        options: Options of the other base class.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.timer = FitTimer()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self.timer = shared_timer(trainer, self)
