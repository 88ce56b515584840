"""Limits of `trainer.*` and of the length of a fit. Devices need no torch where it surely finds no GPU."""

import ctypes
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from yolo_lightning.errors import UserError
from yolo_lightning.supervision.trainer import is_supervised
from yolo_lightning.utils.choices import AUTO
from yolo_lightning.utils.distributed import launch_id
from yolo_lightning.utils.host import available_cores
from yolo_lightning.utils.moment import parse_moment
from yolo_lightning.utils.nested_keys import section

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

SHORT_NAME = re.compile(r"[a-z_\d]+")
"""Name of a strategy or a profiler, unlike the name or the path of a class."""

STRATEGIES = ("ddp", "auto", "single")
PROFILERS = ("simple", "advanced", "pytorch", "xla")
WITHIN_A_PROGRAM = ("_spawn", "_fork", "_notebook")
"""Ends of the names of strategies whose processes do not run the command line, with its filters and signals."""

REPLACED = {
    "accumulate_grad_batches": (1, "nominal_batch"),
    "gradient_clip_val": (0, "clip_norm"),
    "gradient_clip_algorithm": ("norm", "clip_norm"),
}
"""Value without effect of options of the Trainer that an option of the recipe replaces, and its name."""

PROCESSES_PER_CORE = 4  # Largest number of training processes per available core of a CPU
BUILD_FILE = "version.py"  # in torch's package: the versions of CUDA and ROCm for which torch was built, or None
CUDA_LIBRARY = "libcuda.so.1"  # of NVIDIA's driver
ROCM_DEVICES = ("/dev/kfd", "/dev/dxg")  # of Linux, and of its subsystem for Windows
NO_DEVICE: tuple[Any, ...] = (0, "0", [])


def check_trainer(options: Mapping[str, Any]) -> None:
    """Raise a UserError for an option of the Trainer that is out of range or replaced by another option."""
    values = section(options, "trainer")
    for name, least in LEAST.items():
        _check_number(name, values.get(name), least)
    for name, (off, replacement) in REPLACED.items():
        value = values.get(name)
        if value not in (None, off):
            raise UserError(f"trainer.{name} must not be set, got {value}: use model.recipe.{replacement}.")
    max_time = values.get("max_time")
    if isinstance(max_time, str | int | float) and not re.fullmatch(r"\d+(:\d\d){3}", str(max_time)):
        raise UserError(f"trainer.max_time must be DD:HH:MM:SS, got {max_time}")
    if values.get("accelerator") == "mps" and sys.platform != "darwin":
        raise UserError("trainer.accelerator must be auto, cpu or gpu on this machine, got mps, which needs macOS.")
    strategy = str(values.get("strategy"))  # can be the path of a class, which is not checked
    is_usable = strategy.startswith(STRATEGIES) and not strategy.endswith(WITHIN_A_PROGRAM)
    if SHORT_NAME.fullmatch(strategy) and not is_usable:
        raise UserError(f"trainer.strategy must be auto, ddp or a class, got {strategy}.")
    profiler = values.get("profiler")
    if isinstance(profiler, str) and SHORT_NAME.fullmatch(profiler) and profiler not in PROFILERS:
        raise UserError(f"trainer.profiler must be {', '.join(PROFILERS)} or a class, got {profiler}.")
    if values.get("use_distributed_sampler"):
        raise UserError("trainer.use_distributed_sampler must be false, got true: the data module assigns frames.")


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
    """Raise a UserError for a fit with a deadline that is malformed or, for a new run, past.

    `choose_run` checks a launch by torchrun or srun, when it is known whether the launch has begun a run before.
    """
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
        parse_moment("finish_by", str(finish_by))
        if not resumes(options) and not is_supervised() and launch_id() is None:  # a launch may resume its run
            check_deadline_of_new_run(options)


def check_deadline_of_new_run(options: Mapping[str, Any]) -> None:
    """Raise a UserError for a `finish_by` that is past."""
    finish_by = options.get("finish_by")
    if finish_by is not None:
        moment = parse_moment("finish_by", str(finish_by))
        if moment.timestamp() <= time.time():
            raise UserError(f"finish_by must be in the future, got {moment.isoformat()}")


def resumes(options: Mapping[str, Any]) -> bool:
    """Return whether a fit resumes the newest run."""
    return bool(options.get("resume")) or options.get("ckpt_path") == "last"


def check_processors(options: Mapping[str, Any]) -> None:
    """Raise a UserError for a GPU that torch surely does not find, or for devices that are no processes of a CPU.

    Args:
        options: Options that the user has set, by full name.
    """
    accelerator = options.get("trainer.accelerator", AUTO)
    devices = options.get("trainer.devices", AUTO)
    if devices in NO_DEVICE:
        raise UserError(f"trainer.devices must be auto, an integer >= 1 or a list of numbers, got {devices!r}")
    if accelerator in (AUTO, "cpu") and devices in (AUTO, 1, "1"):
        return
    has_no_gpu = surely_no_gpu()
    if has_no_gpu:
        check_accelerator(accelerator, ())
    check_devices(devices, is_cpu=has_no_gpu or accelerator == "cpu")


def check_accelerator(accelerator: Any, gpus: Sequence[str]) -> None:
    """Raise a UserError if an accelerator is unknown or this machine does not have it; `gpus` are those it has."""
    available = ["auto", "cpu"]
    remedy = " PyTorch finds no GPU; the command doctor inspects the machine."
    if gpus:
        available += ["gpu", *gpus]
        remedy = ""
    if isinstance(accelerator, str) and accelerator not in available:
        accepted = " or ".join(available)
        raise UserError(f"trainer.accelerator must be {accepted} on this machine, got {accelerator!r}.{remedy}")


def check_devices(devices: Any, *, is_cpu: bool) -> None:
    """Raise a UserError if a CPU cannot start, or has too few cores for, one process per device."""
    if not is_cpu or devices == AUTO:
        return
    if not str(devices).isdigit() or int(devices) < 1:
        raise UserError(f"trainer.devices must be auto or the number of processes, >= 1, on a CPU, got {devices!r}")
    cores = available_cores()
    most = PROCESSES_PER_CORE * cores
    if int(devices) > most:
        raise UserError(
            f"trainer.devices must be at most {most} with {cores} available cores, as each device is a process, "
            f"got {devices}"
        )


def surely_no_gpu() -> bool:
    """Return whether torch cannot find a GPU on this machine, without importing torch; False if this is unknown.

    A build for CUDA needs the library of NVIDIA's driver, a build for ROCm the device of AMD's driver.
    """
    package = find_spec("torch")
    if not sys.platform.startswith("linux") or package is None or package.origin is None:
        return False
    try:
        text = (Path(package.origin).parent / BUILD_FILE).read_text()
    except OSError:
        return False
    built_for = dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *(\S+)", text, re.MULTILINE))
    if len(built_for) < 2:  # another form of the file
        return False
    if built_for["hip"] != "None":
        return not any(map(os.path.exists, ROCM_DEVICES))
    if built_for["cuda"] == "None":
        return True
    try:
        ctypes.CDLL(CUDA_LIBRARY)
    except OSError:
        return True
    return False
