"""Limits of option values, checked without torch before a parser is built.

The limits are those of the constructors. Groups of settings whose files import no torch are constructed. Of the other
constructors, the limits are read.
"""

import json
import re
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from yolo_lightning.commands import PICTURES, SUBCOMMANDS
from yolo_lightning.commands.device_limits import check_processors
from yolo_lightning.commands.required_files import check_annotations, check_required_files, check_weights
from yolo_lightning.data.batch_size import BATCH_SIZE_LIMITS
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.errors import UserError
from yolo_lightning.model.detection_settings import CLASS_WIDTH_LIMITS, DetectionSettings
from yolo_lightning.model.variants import description_of
from yolo_lightning.options.option_table import NULL, CommandOptions
from yolo_lightning.options.run_spec import RunSpec
from yolo_lightning.supervision import is_supervised
from yolo_lightning.training.deadline import MAX_HOURS_LIMITS
from yolo_lightning.training.recipe_limits import RECIPE_LIMITS
from yolo_lightning.utils.choices import AUTO, as_settings, check_range
from yolo_lightning.utils.distributed import NO_LAUNCH_ID, launch_id, machines_of_launch, may_restart, uses_agent_store
from yolo_lightning.utils.moment import parse_moment
from yolo_lightning.utils.nested_keys import nested
from yolo_lightning.utils.suggestions import did_you_mean

LIMITS: dict[str, str] = {
    "data.batch_size": BATCH_SIZE_LIMITS,
    "model.class_width": CLASS_WIDTH_LIMITS,
    **{f"model.recipe.{name}": limits for name, limits in RECIPE_LIMITS.items()},
    "max_hours": MAX_HOURS_LIMITS,
}
"""Limits of options that belong to no group of settings, by full name."""

SHEET_SAMPLES = ">= 1, <= 16"
RECALIBRATION_IMAGES = ">= 2"
LIMITS_OF_TOOLS = {
    "contact_sheet": {"samples": SHEET_SAMPLES},
    "recalibrate": {"images": RECALIBRATION_IMAGES},
    PICTURES: {"batch_size": ">= 1"},
}
"""Limits of the options of commands whose parser imports torch."""

DEVICE = re.compile(r"auto|cpu|mps|(cuda|xpu)(:\d+)?")
"""Device of a command besides fit, validate, test and predict."""

DEADLINE_OPTIONS = ("finish_by", "max_hours")
EVALUATED = ("fit", "validate", "test")  # Commands that read annotations
LIMITED = (*(f"limit_{split}_batches" for split in ("train", "val", "test", "predict")), "overfit_batches")
LEAST = {
    **dict.fromkeys(("max_steps", "num_sanity_val_steps"), -1),
    **dict.fromkeys((*LIMITED, "min_epochs", "min_steps", "log_every_n_steps", "fast_dev_run"), 0),
    **dict.fromkeys(("max_epochs", "val_check_interval", "check_val_every_n_epoch", "num_nodes"), 1),
}
"""Smallest integer of options of the Trainer. The numbers of batches and `val_check_interval` can also be fractions."""

WITHOUT_TRAINING = {"trainer.max_steps": 0, "trainer.max_time": "00:00:00:00"}
"""Values with which a fit would finish before its first step."""

BATCH_SIZE_SEARCH = "BatchSizeFinder"
"""Callback that needs no training batches."""

PROFILERS = ("simple", "advanced", "pytorch", "xla")
WITHIN_A_PROGRAM = ("_spawn", "_fork", "_notebook")
"""Ends of the names of strategies whose processes do not run the command line, with its filters and signals."""

REPLACED = {"accumulate_grad_batches": (1, "nominal_batch"), "gradient_clip_val": (0, "clip_norm")}
"""Value without effect of options of the Trainer that an option of the recipe replaces, and its name."""


def check_limits(command: CommandOptions, spec: RunSpec) -> None:
    """Raise a UserError for an option that is out of range or cannot be used with another option.

    Args:
        command: Command or section of a command.
        spec: Options that the user has set.
    """
    if spec.only_prints:
        return
    options = spec.given
    groups = _groups_of(command, options)
    for key, limits in (LIMITS | LIMITS_OF_TOOLS.get(command.name, {})).items():
        value = options.get(key)
        if value not in (None, AUTO) and key in command.options:
            types = command.options[key].types
            check_range(key, value, *limits.split(", "), or_null=NULL in types, or_auto=AUTO in types)
    for key in ("data.image_size", "image_size"):
        if options.get(key) is not None and key in command.options:
            ImageSize.of(key, options[key]).check(key)
    if command.name == PICTURES:
        _check_detections(options)
    check_device(str(options.get("device", AUTO)))
    check_trainer(options)
    check_run(options)
    if command.name in SUBCOMMANDS:
        check_launch(options, is_fit=command.name == "fit")
    if command.name == "fit":
        check_length(options)
        check_deadline(options)
    # Training processes of a supervisor or a launcher wait for files that are missing for a while.
    if not is_supervised() and launch_id() is None:
        if command.name in SUBCOMMANDS:
            check_processors(options)
        dataset = check_required_files(command, spec.words[1:], options, groups)
        _check_model(command, options)
        if dataset is not None and command.name in EVALUATED:
            check_annotations(dataset, command.name)


def _check_model(command: CommandOptions, options: Mapping[str, Any]) -> None:
    """Raise a UserError for weights or a graph of a new run that do not exist."""
    if command.name != "fit" or resumes(options) or options.get("ckpt_path") is not None:
        return
    weights = options.get("model.weights")
    if weights is not None:
        check_weights(weights)
    elif "model.variant" in options:
        description_of(options["model.variant"])


def _groups_of(command: CommandOptions, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the groups of settings that the user has set, by full name; raise a UserError for a wrong value."""
    values = {key: value for key, value in options.items() if key in command.keys}
    groups = {}
    for name, option in command.options.items():
        prefix = f"{name}."
        settings = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
        if option.settings and settings:
            module, _, class_name = option.settings.rpartition(".")
            groups[name] = as_settings(getattr(import_module(module), class_name), nested(settings))
    return groups


def _check_detections(options: Mapping[str, Any]) -> None:
    """Raise a UserError for a setting of the detections of `predict PICTURES` that is out of range."""
    try:
        DetectionSettings.of_weights(options)
    except UserError as error:
        raise UserError(str(error).removeprefix("model.detections.")) from error


def check_device(device: str) -> None:
    """Raise a UserError for a device that no machine has."""
    if DEVICE.fullmatch(device):
        return
    meant = [f"cuda:{device}"] if device.isdecimal() else []
    raise UserError(f"device must be one of auto, cpu, cuda, cuda:1, xpu, mps, got {device!r}{did_you_mean(meant)}")


def check_trainer(options: Mapping[str, Any]) -> None:
    """Raise a UserError for an option of the Trainer that is out of range or replaced by another option."""
    given = {key.removeprefix("trainer."): value for key, value in options.items() if key.startswith("trainer.")}
    for name, least in LEAST.items():
        _check_number(name, given.get(name), least)
    for name, (off, replacement) in REPLACED.items():
        value = given.get(name)
        if value not in (None, off):
            raise UserError(f"trainer.{name} must not be set, got {value}: use model.recipe.{replacement}.")
    max_time = given.get("max_time")
    if isinstance(max_time, str | int | float) and not re.fullmatch(r"\d+(:\d\d){3}", str(max_time)):
        raise UserError(f"trainer.max_time must be DD:HH:MM:SS, got {max_time}")
    _check_parts(given)
    if given.get("use_distributed_sampler"):
        raise UserError("trainer.use_distributed_sampler must be false, got true: the data module assigns frames.")


def _check_parts(given: Mapping[str, Any]) -> None:
    """Raise a UserError for a strategy, a profiler or an accelerator of the Trainer that does not exist."""
    if given.get("accelerator") == "mps" and sys.platform != "darwin":
        raise UserError("trainer.accelerator must be auto, cpu or gpu on this machine, got mps, which needs macOS.")
    strategy = str(given.get("strategy"))
    is_short = re.fullmatch(r"[a-z_\d]+", strategy) is not None
    if is_short and (not strategy.startswith(("ddp", "auto", "single")) or strategy.endswith(WITHIN_A_PROGRAM)):
        raise UserError(f"trainer.strategy must be auto, ddp or a class, got {strategy}.")
    profiler = given.get("profiler")
    if isinstance(profiler, str) and re.fullmatch(r"[a-z_\d]+", profiler) and profiler not in PROFILERS:
        raise UserError(f"trainer.profiler must be {', '.join(PROFILERS)} or a class, got {profiler}.")


def _check_number(name: str, value: Any, least: int) -> None:
    """Raise a UserError for a number of an option of the Trainer that is neither an integer nor a fraction."""
    if isinstance(value, float) and value > 1 and value.is_integer():
        value = int(value)  # as Lightning reads 2.0
    is_too_small = isinstance(value, int) and value < least
    is_no_fraction = isinstance(value, float) and not 0 <= value <= 1
    if is_too_small or is_no_fraction:
        fraction = ""
        if name.endswith(("_batches", "interval")):
            fraction = " or a fraction from 0.0 to 1.0"
        raise UserError(f"trainer.{name} must be an integer >= {least}{fraction}, got {value}")


def check_run(options: Mapping[str, Any]) -> None:
    """Raise a UserError for an option of the run that is out of range or contradicts another option."""
    if options.get("resume") and options.get("ckpt_path") is not None:
        raise UserError("--resume finds the checkpoint itself; give either --resume or --ckpt_path")
    seed_of(options.get("seed_everything", 0))


def seed_of(seed_everything: bool | int) -> int:
    """Return the seed of sample order and augmentation; raise a `UserError` for a random or negative seed."""
    if seed_everything is True or seed_everything < 0:
        raise UserError(f"seed_everything must be an integer >= 0, got {seed_everything}: it determines the order.")
    return int(seed_everything)


def check_launch(options: Mapping[str, Any], *, is_fit: bool) -> None:
    """Raise a UserError for processes that their launcher could not restart."""
    if is_fit and options.get("detach") and launch_id() is not None:
        raise UserError("--detach cannot be used with torchrun, whose processes end with it: use nohup torchrun ...")
    if is_fit and launch_id() == NO_LAUNCH_ID and may_restart():
        raise UserError("torchrun --max-restarts needs --rdzv-id, a new name for each run, to resume the run, got none")
    if uses_agent_store() and (may_restart() or (machines_of_launch() or 1) > 1):
        raise UserError(
            "torchrun's own store does not separate restarted processes from ended ones: "
            "start torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 and --rdzv-backend c10d, or --standalone"
        )


def check_length(options: Mapping[str, Any]) -> None:
    """Raise a UserError for a fit that trains no step, or without a number of epochs."""
    if options.get("trainer.max_epochs", 1) is None:
        raise UserError("trainer.max_epochs must be >= 1, for the schedules, got None.")
    for name, nothing in WITHOUT_TRAINING.items():
        if options.get(name) == nothing:
            raise UserError(f"{name} must be another value than {nothing}, with which a fit trains no step.")
    if options.get("trainer.limit_train_batches") == 0 and BATCH_SIZE_SEARCH not in str(options):
        raise UserError("trainer.limit_train_batches must be another value than 0, with which a fit trains no step.")


def check_deadline(options: Mapping[str, Any]) -> None:
    """Raise a UserError for a fit with a deadline that is malformed or, for a new run, past."""
    finish_by = options.get("finish_by")
    max_hours = options.get("max_hours")
    if max_hours is not None or finish_by is not None:
        option = "--finish_by" if max_hours is None else "--max_hours"
        for name, free in (("trainer.max_time", None), ("trainer.max_steps", -1)):
            limit = options.get(name, free)
            if limit not in (None, free):
                raise UserError(
                    f"{name} must be {json.dumps(free)} with {option}, got {limit}: the deadline sets the length"
                )
    deadline = options.get("deadline")
    if deadline is not None:
        parse_moment("deadline", str(deadline))
        if finish_by is not None or max_hours is not None:
            raise UserError(f"deadline must not be set with finish_by or max_hours, got {deadline}: remove --deadline")
    if finish_by is not None:
        moment = parse_moment("finish_by", str(finish_by))
        if moment.timestamp() <= time.time() and not resumes(options) and not is_supervised():
            raise UserError(f"finish_by must be in the future, got {moment.isoformat()}")


def resumes(options: Mapping[str, Any]) -> bool:
    """Return whether a fit resumes the newest run."""
    return bool(options.get("resume")) or options.get("ckpt_path") == "last"
