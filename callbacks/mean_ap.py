"""Average precision, precision, recall and drift over the months, of a whole split, in validations and tests."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import rich
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint, Timer

from yolo_lightning.errors import UserError
from yolo_lightning.evaluation.bootstrap_limits import MIN_BOOTSTRAP_SAMPLES
from yolo_lightning.evaluation.drift import DriftScores, drift_scores, named_scores, organisers_scores
from yolo_lightning.evaluation.matching import match
from yolo_lightning.evaluation.oracles import oracles
from yolo_lightning.evaluation.record import EvaluationCollection, Stage
from yolo_lightning.evaluation.score_intervals import BOOTSTRAPPED, bootstrap, bound_names, limits
from yolo_lightning.evaluation.score_table import class_table, oracle_table, score_table
from yolo_lightning.evaluation.ultralytics_matching import match_as_ultralytics
from yolo_lightning.evaluation.ultralytics_metrics import (
    ThresholdCurves,
    UltralyticsScores,
    threshold_curves,
    ultralytics_scores,
)
from yolo_lightning.utils.choices import check_range, checked_arguments
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.loop_position import (
    ends_after_batch,
    ends_within_epoch,
    is_last_epoch,
    steps_begun,
    validate_after_batch,
)
from yolo_lightning.utils.optional_file import OptionalFile
from yolo_lightning.utils.rank_zero import rank_zero_warn
from yolo_lightning.utils.run_files import CHALLENGE_SCORES, SCORES, evaluation_record
from yolo_lightning.utils.suggestions import did_you_mean, similar
from yolo_lightning.utils.trainer_callbacks import callbacks_of

LOSS = "_loss"
"""End of the names of the losses that a validation logs."""
MONTH = re.compile(r"\d{4}-\d{2}(/.+)?")
LOGGED_BY_STEPS = ("train/", "lr/", "epoch", "step")
"""Beginnings of the names that training steps and Lightning log."""
PACKAGES = ("yolo_lightning", "callbacks", "lightning")
"""Packages whose modules and callbacks log no further score in a validation."""


class MeanAP(Callback):
    """Logs `val/map`, `val/map_50`, `val/balanced`, `val/precision`, ... and, in a test, `test/map`, ...

    Scores are also logged per class and month. docs/score_definitions.md defines them; `BestCheckpoint` can monitor any
    of them. Validation and test steps must return `{"preds": list[Prediction], "targets": list[Target]}`.
    Scores are computed once over all frames, not as a mean over batches. `validate` and `test` print tables; `test`
    also writes `test_scores.json`, and `scores.json` in the format of the challenge. Trainer's
    `check_val_every_n_epoch` sets the interval of validations.

    Every validation and test writes an `EvaluationRecord` to `evaluations` in the run folder, from which `report` draws
    curves and the confusion matrix. A full disk does not end the run.

    Args:
        report: Whether to print the tables and to write files. Otherwise, scores are logged only.
        bootstrap_samples: Samples of a bootstrap over clips for the bounds `val/balanced_low`, `val/balanced_high`,
            `val/map_50_low`, `val/map_50_low/2020-05`, ... of 95 % intervals; 0 logs none. `BestCheckpoint` with
            `monitor: val/balanced_low` selects less by chance than with `val/balanced`.
    """

    @checked_arguments()
    def __init__(self, report: bool = True, bootstrap_samples: int = 0) -> None:
        self._with_report = report
        if bootstrap_samples != 0:
            check_range("bootstrap_samples", bootstrap_samples, f">= {MIN_BOOTSTRAP_SAMPLES}")
        self.bootstrap_samples = bootstrap_samples
        self._metric: EvaluationCollection | None = None
        self._record_file = OptionalFile()
        self._trained: dict[str, int] = {}
        """`epoch` and `steps` of the loaded checkpoint."""
        self.last_scores: tuple[DriftScores, ThresholdCurves, UltralyticsScores] | None = None
        """Scores of the last validation or test of this process."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a `monitor` that nothing logs: Lightning would end the fit after its first validation."""
        if "class_names" not in pl_module.hparams:
            raise UserError(f"MeanAP needs a YOLOModule, or hparams['class_names'], got {type(pl_module).__name__}")
        callbacks = callbacks_of(trainer, Callback)
        packages = {type(part).__module__.split(".")[0] for part in (pl_module, *callbacks)}
        if stage != "fit":
            return
        # The functions of a `LambdaCallback` are the user's.
        logs_all = packages.issubset(PACKAGES) and not callbacks_of(trainer, LambdaCallback)
        for callback in callbacks:
            self._check_monitor(trainer, callback, pl_module.hparams["class_names"], logs_all=logs_all)

    def _check_monitor(
        self, trainer: Trainer, callback: Callback, class_names: Sequence[str], *, logs_all: bool
    ) -> None:
        """Raise a UserError for a `monitor` that nothing logs; with `logs_all`, validations log no other scores."""
        monitor = str(getattr(callback, "monitor", None) or "")
        name = type(callback).__name__
        is_score = monitor.startswith("val/") and self._logs(monitor.removeprefix("val/"), class_names)
        if logs_all and monitor and not is_score and not monitor.startswith(LOGGED_BY_STEPS):
            names = score_names(len(class_names), bounds=self.bootstrap_samples > 0)
            logged = [f"val/{name}" for name in sorted(names)]
            bounds = "" if self.bootstrap_samples else "; bootstrap_samples of MeanAP adds val/balanced_low, ..."
            raise UserError(
                f"trainer.callbacks: {name}: monitor must be one of {', '.join(logged)}, such a name with /class or "
                f"/month, or a loss{bounds}; got {monitor!r}{did_you_mean(_meant(monitor, logged))}"
            )
        if is_of_lightning(callback) and is_score and trainer.limit_val_batches == 0:
            raise UserError(
                f"trainer.callbacks: {name}: monitor {monitor} needs validations, but trainer.limit_val_batches is 0"
            )

    def _logs(self, name: str, class_names: Sequence[str]) -> bool:
        """Return whether a validation can log the score; months are known only after it."""
        score, separator, part = name.partition("/")
        if not separator and score.endswith(LOSS):
            return True
        is_part = part in class_names or MONTH.fullmatch(part) is not None
        return score in score_names(len(class_names), bounds=self.bootstrap_samples > 0) and is_part == bool(separator)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._trained = {name: checkpoint[name] for name in ("epoch", "steps") if name in checkpoint}

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Warn if the fit ends before its first validation; Lightning's callbacks would raise an error."""
        if not ends_within_epoch(trainer):
            return
        callbacks: list[Any] = callbacks_of(trainer, EarlyStopping, ModelCheckpoint)
        for callback in callbacks:
            is_waiting = is_of_lightning(callback) and callback.monitor not in (None, *trainer.callback_metrics)
            if not is_waiting:
                continue
            if isinstance(callback, EarlyStopping):
                callback.strict = False
            else:
                callback.save_top_k = 0
            rank_zero_warn(
                f"{type(callback).__name__} does nothing, because the fit ends before the first validation, which logs "
                f"{callback.monitor}: a larger trainer.max_steps, or a smaller trainer.val_check_interval, is needed"
            )

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._metric = EvaluationCollection(len(pl_module.hparams["class_names"]))

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
        assert self._metric is not None
        if not isinstance(outputs, Mapping) or not {"preds", "targets"} <= outputs.keys():
            raise UserError("MeanAP: validation_step and test_step must return {'preds': ..., 'targets': ...}")
        self._metric.update(outputs["preds"], outputs["targets"])

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score and log, except after the sanity check."""
        if not trainer.sanity_checking:
            self._score(trainer, pl_module, "val")
        self._metric = None

    on_test_epoch_start = on_validation_epoch_start
    on_test_batch_end = on_validation_batch_end  # type: ignore[assignment]

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        scores, logged = self._score(trainer, pl_module, "test")
        self._metric = None
        if trainer.is_global_zero and self._with_report:
            folder = Path(trainer.default_root_dir)
            finite = {name: value if math.isfinite(value) else None for name, value in logged.items()}
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / SCORES, finite, allow_nan=False)
            write_json(folder / CHALLENGE_SCORES, organisers_scores(scores), allow_nan=False)

    def _score(
        self, trainer: Trainer, pl_module: LightningModule, stage: Stage
    ) -> tuple[DriftScores, dict[str, float]]:
        assert self._metric is not None
        class_names = pl_module.hparams["class_names"]
        record = self._metric.compute(stage, class_names)
        scores = drift_scores(record.matches)
        ultralytics = ultralytics_scores(record.ultralytics)
        curves = threshold_curves(record.matches)
        named = named_scores(scores, class_names) | curves.named(class_names) | ultralytics.named(class_names)
        if self.bootstrap_samples:
            named |= limits(bootstrap(record.matches, record.image_ids, self.bootstrap_samples))
        self.last_scores = scores, curves, ultralytics
        logged = {f"{stage}/{name}": value for name, value in named.items()}
        shown = f"{stage}/map_50"
        pl_module.log(shown, logged[shown], prog_bar=True)
        pl_module.log_dict({name: value for name, value in logged.items() if name != shown})
        if not trainer.is_global_zero or not self._with_report:
            return scores, logged
        if trainer.state.fn == "fit":
            self._trained = {"epoch": trainer.current_epoch, "steps": steps_begun(trainer)}
        path = Path(trainer.default_root_dir) / evaluation_record(stage)
        with self._record_file.attempt(path, "the run continues"):
            replace(record, epoch=self._trained.get("epoch"), steps=self._trained.get("steps")).save(path)
        if trainer.state.fn != "fit":
            rich.print(score_table(scores, class_names), class_table(scores, curves, ultralytics, class_names))
        if stage == "test":
            rows = oracles(record.matches, class_names)
            if rows:
                rich.print(oracle_table(rows))
        return scores, logged


def is_of_lightning(callback: Callback) -> bool:
    """Return whether Lightning defines a callback; those of this package do not need a validation."""
    return type(callback).__module__.startswith("lightning.")


def _meant(monitor: str, names: Sequence[str]) -> list[str]:
    """Return the name that is most similar to a `monitor`, which may be Ultralytics' `metrics/mAP50-95(B)`."""
    typed = monitor.rpartition("/")[2].lower().removesuffix("(b)").replace("50-95", "")
    return similar(f"val/{typed}", names)


def score_names(classes: int, *, bounds: bool) -> set[str]:
    """Return the names of the scores of a validation without class and month; with `bounds` also of their intervals."""
    matches = match([], [], classes)
    names = {"cov", *named_scores(drift_scores(matches), ()), *threshold_curves(matches).named(())}
    if bounds:
        names |= {bound for score in BOOTSTRAPPED for bound in bound_names(score)}
    return names | ultralytics_scores(match_as_ultralytics([], [], classes)).named(()).keys()


class FinalValidation(Callback):
    """Lets a validation follow the last batch of the last epoch, so that the final weights are always evaluated.

    It sets `check_val_every_n_epoch` to 1 for the last epoch, and replaces `val_check_interval` for its last batch. The
    last epoch is also the one that a `Timer` (`trainer.max_time`) ends. Lightning calls this callback after it.
    """

    def __init__(self) -> None:
        self._interval: int | None = None
        self._val_check_batch: int | float | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._interval = None
        self._val_check_batch = None
        callbacks = callbacks_of(trainer, Callback)
        timers = callbacks_of(trainer, Timer)
        if timers and callbacks.index(self) < callbacks.index(timers[-1]):
            callbacks.remove(self)
            callbacks.insert(callbacks.index(timers[-1]) + 1, self)
            trainer.callbacks = callbacks  # type: ignore[attr-defined]  # a new list: Lightning iterates over the former

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Change the setting in the last epoch; a run resumed within it does not call `on_train_epoch_start`."""
        if is_last_epoch(trainer):
            self._validate_this_epoch(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Change the setting when another callback or `trainer.max_steps` ends the fit."""
        if ends_after_batch(trainer):
            self._validate_this_epoch(trainer)

    def _validate_this_epoch(self, trainer: Trainer) -> None:
        if self._interval is None and trainer.check_val_every_n_epoch is not None:
            self._interval = trainer.check_val_every_n_epoch
            trainer.check_val_every_n_epoch = 1
        if trainer.is_last_batch and self._val_check_batch is None:
            self._val_check_batch = validate_after_batch(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the settings."""
        if self._interval is not None:
            trainer.check_val_every_n_epoch = self._interval
            self._interval = None
        if self._val_check_batch is not None:
            trainer.val_check_batch = self._val_check_batch
            self._val_check_batch = None

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.on_fit_end(trainer, pl_module)
