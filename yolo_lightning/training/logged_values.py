"""Values logged with `self.log(on_epoch=True)`, metrics, and steps of `ReduceLROnPlateau`, as a part of a checkpoint.

Lightning stores none of them. After a resume within an epoch, the mean of a value would cover the rest of the epoch
only, and `ReduceLROnPlateau` would make no step at the end of the epoch. Can be removed when Lightning stores them:
https://github.com/Lightning-AI/pytorch-lightning/issues/14699.
"""

from copy import copy
from typing import Any

import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torchmetrics import Metric, MetricCollection, MetricTracker
from torchmetrics.wrappers.abstract import WrapperMetric

from yolo_lightning.utils.distributed import gather
from yolo_lightning.utils.loop_position import end_restart, has_pending_epoch_end, is_within_epoch, pending_batches

# fmt: off
LOG_ARGUMENTS = (
    "fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx", "metric_attribute"
)
# fmt: on
"""Attributes of the metadata of a logged value that are arguments of `_ResultCollection.log`, too."""

PROGRESS_ATTRIBUTES = ("min_val", "max_val", "_num_vals_seen")
"""Attributes of `MinMaxMetric` and `Running` that change in a training and are not among the states of a metric."""


class LoggedValues:
    """Restores the logged values of the epoch in which a checkpoint was saved."""

    def __init__(self) -> None:
        self._is_restored = False  # whether the values of the current epoch were restored
        self._metrics: dict[str, Any] = {}  # loaded states of metrics by module name, until training has started
        self._sums: list[dict[str, Any]] = []  # loaded values of the epoch that the resumed fit has not logged yet

    def state_dict(self, trainer: Trainer, module: LightningModule) -> dict[str, Any]:
        """Return the values that all ranks have logged in the current epoch; a collective call."""
        self.add_sums(trainer)
        own_metrics = _own_metrics(trainer, module)
        values: dict[str, Any] = {"callback_metrics": dict(trainer.callback_metrics), "own_metrics": own_metrics}
        if is_within_epoch(trainer):
            values |= _epoch_values(trainer, module)
            values["results"] += self._sums
            for name in values["metrics"]:
                own_metrics.pop(name, None)
        return {
            "epoch": trainer.current_epoch,
            "has_pending_epoch_end": has_pending_epoch_end(trainer),
            "pending_batches": pending_batches(trainer),
            "ranks": gather(move_data_to_device(values, torch.device("cpu"))),
        }

    def restore(self, trainer: Trainer, module: LightningModule, state: dict[str, Any]) -> None:
        """Set the values of a checkpoint; call it when training starts, after Lightning has restored its loops."""
        if len(state["ranks"]) != trainer.world_size:
            rank_zero_warn(
                f"the checkpoint contains the logged values of {len(state['ranks'])} ranks, the world size is "
                f"{trainer.world_size}: the means of the resumed epoch cover its rest only"
            )
            return
        self._is_restored = True
        values = move_data_to_device(state["ranks"][trainer.global_rank], module.device)
        trainer._logger_connector._callback_metrics.update(values["callback_metrics"])
        self._metrics = values["own_metrics"]
        _step_plateau_schedulers(trainer, module, "step", state["pending_batches"])
        if is_within_epoch(trainer):
            self._metrics |= values["metrics"]
            self._sums = values["results"]
        elif state["has_pending_epoch_end"]:
            _step_plateau_schedulers(trainer, module, "epoch", state["epoch"] + 1)
        _set_metrics(module, self._metrics)

    def restore_metrics(self, module: LightningModule) -> None:
        """Set the loaded states of the metrics once more; call it in the first hook after `on_train_start`.

        Modules reset their metrics in `on_train_start`, to remove the values of the sanity check.
        """
        if self._metrics:
            _set_metrics(module, self._metrics)
        self._metrics = {}

    def add_sums(self, trainer: Trainer) -> None:
        """Add the loaded sums to those of the values that have been logged since; call it after each batch."""
        if self._sums:
            self._sums = _add_sums(trainer, self._sums)

    def end_epoch(self, trainer: Trainer, module: LightningModule) -> None:
        """Complete the values of a resumed epoch, and let the schedulers step; call it in `on_train_epoch_end`."""
        self.add_sums(trainer)
        _log_sums(trainer, module, self._sums)
        self._sums = []
        if self._is_restored:
            end_restart(trainer)
        self._is_restored = False


def _epoch_values(trainer: Trainer, module: LightningModule) -> dict[str, Any]:
    """Return the sums of the logged tensors, and the states of the logged metrics of torchmetrics by module name."""
    names = {id(part): name for name, part in module.named_modules()}
    results = []
    metrics: dict[str, Any] = {}
    for result in trainer.fit_loop.epoch_loop._results.result_metrics:
        if result.has_reset or not result.meta.on_epoch:
            continue
        entry = {name: getattr(result.meta, name) for name in LOG_ARGUMENTS}
        entry["reduce_fx"] = result.meta.reduce_fx.__name__
        entry["sync_dist"] = result.meta.sync.should
        entry["rank_zero_only"] = result.meta.sync.rank_zero_only
        if result.is_tensor:
            entry["states"] = {name: getattr(result, name) for name in result._defaults}
        elif id(result.value) not in names:
            continue
        else:
            entry["metric"] = names[id(result.value)]
            parts = (part for part in result.value.modules() if isinstance(part, Metric))
            metrics |= {names[id(part)]: _metric_state(part) for part in parts}
        results.append(entry)
    return {"results": results, "metrics": metrics}


def _own_metrics(trainer: Trainer, module: LightningModule) -> dict[str, Any]:
    """Return the states of the updated metrics of torchmetrics, without those that Lightning is about to reset.

    Lightning resets the metrics of `self.log` at the end of an epoch or of a validation. Within an epoch they have
    states, also those that are logged at its end only, or with `on_epoch=False`. A `MetricCollection` updates one
    metric of a group with equal states, and copies the state when the metrics are requested.
    """
    epoch_loop = trainer.fit_loop.epoch_loop
    ending_loops: list[Any] = [epoch_loop.val_loop]
    if has_pending_epoch_end(trainer):
        ending_loops.append(epoch_loop)
    reset_parts: set[int] = set()
    for loop in ending_loops:
        for result in loop._results.result_metrics:
            if not result.is_tensor:
                reset_parts.update(map(id, result.value.modules()))
    for part in module.modules():
        if isinstance(part, MetricCollection):
            part.values()
    states = {}
    for name, part in module.named_modules():
        if isinstance(part, MetricTracker):
            states[name] = {"increments": part.n_steps}
        elif isinstance(part, Metric) and id(part) not in reset_parts and _is_updated(part):
            states[name] = _metric_state(part)
    return states


def _is_updated(metric: Metric) -> bool:
    """Whether a metric may have been updated; wrappers do not count their updates."""
    return bool(metric._update_count) or isinstance(metric, WrapperMetric)


def _metric_state(metric: Metric) -> dict[str, Any]:
    return {
        "count": metric._update_count,
        "states": {name: getattr(metric, name) for name in metric._defaults},
        "attributes": {name: value for name, value in vars(metric).items() if name in PROGRESS_ATTRIBUTES},
    }


def _set_metrics(module: LightningModule, states: dict[str, Any]) -> None:
    """Set the states of the metrics that the module still has."""
    for name, part in [*module.named_modules()]:
        if isinstance(part, MetricTracker):
            for _ in range(states.get(name, {}).get("increments", 0) - part.n_steps):
                part.increment()
    parts: dict[str, Any] = dict(module.named_modules())
    for name, state in states.items():
        metric = parts.get(name)
        if not isinstance(metric, Metric) or metric._defaults.keys() != state["states"].keys():
            continue
        metric._update_count = state["count"]
        metric._computed = None
        for attribute, value in (state["states"] | state["attributes"]).items():
            setattr(metric, attribute, copy(value))  # `Metric.reset` clears a list in place


def _key(entry: dict[str, Any]) -> str:
    return f"{entry['fx']}.{entry['name']}"


def _add_sums(trainer: Trainer, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the loaded sums to those of values that the resumed fit has logged; return the entries of other values."""
    results = trainer.fit_loop.epoch_loop._results
    remaining = []
    for entry in entries:
        result = results.get(_key(entry))
        if result is None or result.has_reset:
            remaining.append(entry)
            continue
        for part, total in entry.get("states", {}).items():
            combine = result.meta.reduce_fx if entry["reduce_fx"] in ("max", "min") else torch.add
            setattr(result, part, combine(total, getattr(result, part)))
        result._computed = None
    return remaining


def _log_sums(trainer: Trainer, module: LightningModule, entries: list[dict[str, Any]]) -> None:
    """Log the loaded values that the rest of the epoch has not logged."""
    results = trainer.fit_loop.epoch_loop._results
    for entry in entries:
        is_tensor = "states" in entry
        value: Any = torch.zeros((), device=module.device) if is_tensor else module.get_submodule(entry["metric"])
        results.log(
            **{name: entry[name] for name in (*LOG_ARGUMENTS, "sync_dist", "rank_zero_only")},
            value=value,
            reduce_fx=getattr(torch, entry["reduce_fx"]),
            sync_dist_fn=trainer.strategy.reduce,
            batch_size=1,
        )
        for part, total in entry.get("states", {}).items():
            setattr(results[_key(entry)], part, total)


def _step_plateau_schedulers(trainer: Trainer, module: LightningModule, interval: str, count: int) -> None:
    """Make the steps of `ReduceLROnPlateau` that Lightning makes after the checkpoint.

    `count` is the number of epochs, or of batches in the epoch, after which the steps are due; 0 for no step.
    """
    if not module.automatic_optimization or not count:
        return
    for config in trainer.lr_scheduler_configs:
        if not config.reduce_on_plateau or config.interval != interval or count % config.frequency:
            continue
        value = trainer.callback_metrics.get(str(config.monitor))
        if value is None:
            rank_zero_warn(f"ReduceLROnPlateau makes no step: the checkpoint does not contain {config.monitor}")
            continue
        module.lr_scheduler_step(config.scheduler, value)
