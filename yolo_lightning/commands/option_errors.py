"""Error messages for options: one line with the key, the accepted values, the value, and the nearest valid choice."""

import os
import re
import select
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from yolo_lightning.errors import UserError
from yolo_lightning.options.option_table import INTEGER, LIST, NUMBER, class_names, required_arguments
from yolo_lightning.supervision.failure_record import record_own_failure
from yolo_lightning.utils.addresses import redacted
from yolo_lightning.utils.exit_codes import ExitCode
from yolo_lightning.utils.files import DISK_FULL, with_place
from yolo_lightning.utils.plain_text import printable
from yolo_lightning.utils.run_files import CHECKPOINTS, config_name
from yolo_lightning.utils.stop_signals import request
from yolo_lightning.utils.suggestions import did_you_mean, last_part, nearest_key, similar
from yolo_lightning.utils.yaml_file import value_of

MODES = {
    "train": "fit",
    "training": "fit",
    "val": "validate",
    "eval": "validate",
    "inference": "predict",
    "track": "predict",
}
"""Commands for modes of Ultralytics and other words."""

VALUE_SYNONYMS = {"fp16": "16-mixed", "half": "16-mixed", "fp32": "32-true", "cuda": "gpu"}

KEYS_OF_FILES = {
    ".yaml": ("data.format", "format"),
    ".yml": ("data.format", "format"),
    ".pt": ("model.weights", "weights", "checkpoint"),
    ".ckpt": ("ckpt_path", "weights", "checkpoint", "checkpoints"),
    "folder": ("data.root", "root"),
}
"""Options whose name users omit, by the suffix of the value; the first one of the command is suggested."""

LIGHTNING = "lightning.pytorch."  # beginning of the paths of classes of Lightning
QUANTITY = re.compile(r"-?\d+\.?\d* ?[a-zA-Z]+")
ASSIGNMENT = re.compile(r"(?P<name>\w+) ?= ?(?P<value>.+)")
MISSING_PACKAGE = re.compile(r"(?P<path>[\w.]+)':\s+(?:- )?(?:Requirement|No module named) '(?P<package>[^']+)'")
CALLBACKS = "trainer.callbacks"
LOGGER = "trainer.logger"
CALLBACKS_FORM = f"{CALLBACKS} must be a list, such as [{{class_path: EMA, init_args: {{decay: 0.999}}}}]"
EQUAL_CLASS = 0.85  # except for the case of letters
NEAR_CLASS = 0.6  # the names of loggers differ from what is typed by their ending `Logger`


def fail(message: str, cause: Exception | None = None) -> NoReturn:
    """Print an error of the command line and exit."""
    error = UserError(message)
    error.__cause__ = cause
    record_own_failure(error)
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(ExitCode.USAGE) from cause


@contextmanager
def user_errors() -> Iterator[None]:
    """Print a `UserError`, a refusal of Lightning or a full disk in one line and exit; other errors are raised.

    Once this process has trained a step, a `UserError` is raised, too: the options of a running training are right.

    In a supervised trainer, the failure record of the exception is written, unless `Trainer.fit` has written it.
    A reader that has closed the standard output, such as `head`, ends the command without a message.
    """
    request.deferred = False
    try:
        yield
    except BrokenPipeError:
        if not _is_output_closed():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # of the flush at the exit
        raise SystemExit(1) from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            print(f"error: disk full: {with_place(error)}", file=sys.stderr)
            raise SystemExit(ExitCode.DISK_FULL) from None
        record_own_failure(error)
        is_refusal = type(error).__name__ == "MisconfigurationException"  # without an import of Lightning
        is_mistake = isinstance(error, UserError) and not request.deferred
        if not (is_refusal or is_mistake):
            raise
        fail(redacted(printable(str(error))))


def _is_output_closed() -> bool:
    events = select.poll()
    events.register(sys.stdout, 0)  # errors are always reported
    return bool(events.poll(0))


def wrong_group(key: str, value: Any, keys: Collection[str], source: str = "") -> str:
    """Return the error for a group of keys that is set as a whole by a text, a number or a list."""
    assignment = ASSIGNMENT.fullmatch(value) if isinstance(value, str) else None
    if assignment is not None:
        pair = "{name}: {value}".format(**assignment.groupdict())
        return f"{key}{source} must be set by its keys, as {pair!r}, got {value!r}."
    names = {name.removeprefix(f"{key}.").partition(".")[0] for name in keys if name.startswith(f"{key}.")}
    group = sorted(f"{key}.{name}" for name in names if name.isidentifier() and name != "help")
    return f"{key}{source} must be set by its keys {', '.join(group)}, got {value!r}."


def missing_package(message: str) -> str | None:
    """Return the error for a logger whose package is not installed; None if the message is about something else."""
    match = MISSING_PACKAGE.search(message)
    if match is None:
        return None
    return f"{last_part(match['path'])} requires a missing package: pip install {shlex.quote(match['package'])}"


def unknown_command(typed: str, commands: Collection[str]) -> str:
    meant = [MODES.get(name, name) for name in similar(typed.lower(), [*commands, *MODES])]
    return f"unknown command {typed}{did_you_mean(meant)} The commands are {', '.join(commands)}."


def stray_word(words: Sequence[str], stray: str, keys: Collection[str]) -> str:
    """Return the error for a word of a command line that is neither an option nor a value."""
    if "command" in keys:
        command = " ".join(words[list(words).index(stray) :])
        return f"{stray!r} follows no option; write the command after all options: -- {command}"
    meant = did_you_mean(options_for(stray, keys))
    return f"{stray!r} follows no option; write --key value, and a list as --key '[a, b]'{meant}"


def options_for(file: str, keys: Collection[str]) -> list[str]:
    """Return the option whose value a file or a folder can be, with this value; none if no option is likely."""
    path = Path(file)
    suffix = "folder" if os.path.isdir(file) else path.suffix
    options = [f"--{key} {file}" for key in KEYS_OF_FILES.get(suffix, ()) if key in keys]
    if (path / CHECKPOINTS).is_dir():
        options = [f"--config {path / config_name('fit')}"] if "data.root" in keys else []
    if path.parent.name == CHECKPOINTS and "run" in keys:
        options.append(f"--run {path.parent.parent}")
    return options[:1]


def wrong_choice(key: str, value: str, accepted: Sequence[str]) -> str:
    by_lower = {choice.lower(): choice for choice in accepted}
    near = [VALUE_SYNONYMS.get(choice, choice) for choice in similar(value.lower(), [*by_lower, *VALUE_SYNONYMS])]
    meant = [by_lower[choice] for choice in near if choice in by_lower] or _in_numbers(value, accepted)
    choices = " or ".join(filter(None, [", ".join(accepted[:-1]), accepted[-1]]))
    message = f"{key} must be {choices}, got {value!r}{did_you_mean(meant[:1])}"
    if not meant and {NUMBER, INTEGER} & {*accepted} and QUANTITY.fullmatch(value):
        message += " Write the number without its unit."
    return message


def _in_numbers(value: str, accepted: Sequence[str]) -> list[str]:
    """Return the accepted form of `20%`, `0,1` or `640x480`, width x height; nothing for other values."""
    percent = re.fullmatch(r"(\d+\.?\d*) ?%", value)
    if percent and NUMBER in accepted:
        return [f"{float(percent[1]) / 100:g}"]
    pair = re.fullmatch(r"(\d+) ?([xX,]) ?(\d+)", value)
    if pair is None or not any(name.startswith(LIST) for name in accepted):
        return []
    numbers = [pair[1], pair[3]]
    if pair[2] != ",":
        numbers.reverse()
    return [f"'[{', '.join(numbers)}]'"]


def missing_argument(key: str, name: str, argument: str) -> str:
    """Return the error for a callback or logger without a required argument."""
    return f"{key}: {name} requires {argument}: set --{key}.{argument}, or init_args in a file."


def wrong_classes(key: str, value: Any) -> str | None:
    """Return the error for a value of `trainer.callbacks` or `trainer.logger` that names no class; else None."""
    for entry in _entries(value):
        name = entry.get("class_path") if isinstance(entry, dict) else entry
        if isinstance(name, str):
            problem = wrong_class_name(key, name)
            if problem:
                return problem
        elif key == CALLBACKS and isinstance(name, bool | int | float):
            return f"{CALLBACKS_FORM}, got {value}"
    return None


def unset_argument(key: str, value: Any) -> str | None:
    """Return the error for a callback or logger of Lightning without a required argument; else None."""
    for entry in _entries(value):
        name = entry
        arguments: Collection[str] = ()
        if isinstance(entry, dict):
            name = entry.get("class_path")
            arguments = entry.get("init_args") or ()
        if not isinstance(name, str) or not name.startswith((LIGHTNING, last_part(name))):
            continue
        unset = [argument for argument in required_arguments(last_part(name)) if argument not in arguments]
        if unset:
            return missing_argument(key, last_part(name), unset[0])
    return None


def _entries(value: Any) -> list[Any]:
    """Return the entries of a value of `trainer.callbacks` or `trainer.logger`, which is a list or one entry."""
    entries = value_of(value) if isinstance(value, str) else value
    if not isinstance(entries, list):
        return [entries]
    return entries


def wrong_class_name(key: str, name: str) -> str | None:
    """Return the error for a name that is no callback or no logger; None for a class, or for the path of a class."""
    package = class_names("yolo_lightning.callbacks")
    classes = [*package, *class_names("lightning.pytorch.callbacks")]
    if key == LOGGER:
        classes = [logger for logger in class_names("lightning.pytorch.loggers") if logger != "Logger"]
    if name in classes:
        return None
    if "(" in name:
        return f"{CALLBACKS_FORM.replace(CALLBACKS, key)}, got {name}"
    if "." in name:
        return None
    if key == LOGGER:
        near = similar(name, classes, cutoff=NEAR_CLASS) or similar(f"{name}Logger", classes, cutoff=EQUAL_CLASS)
        listed = f"The loggers are {', '.join(classes)}, true and false."
        return f"{key}: there is no logger {name}{did_you_mean(near)} {listed}"
    listed = f"The callbacks are {', '.join(package)}, and those of lightning.pytorch.callbacks."
    return f"{key}: there is no callback {name}{did_you_mean(similar(name, classes))} {listed}"


NO_OPTIONS = {
    **dict.fromkeys(
        ("class_names", "names", "nc", "num_classes"),
        "the data defines the classes: 'names' of the data.yaml, or the categories of the COCO file",
    ),
    "input_channels": "set data.input.channels",
    **dict.fromkeys(("data.class_path", "data.init_args"), "write the options of data and model without init_args"),
    "auto_lr_find": "model.recipe.lr0 sets the learning rate",
    "auto_scale_batch_size": "set data.batch_size to auto",
    **dict.fromkeys(("classes", "save_conf", "line_width"), "select or change the detections in predictions.json"),
}
"""What to do instead of setting an option that does not exist."""


def unknown_key(key: str, keys: Collection[str], *, source: str = "", value: str = "", hyphens: str = "") -> str:
    """Return the error for a key that is none of `keys`, with the nearest key.

    Args:
        key: Key as written, without hyphens.
        keys: Accepted keys.
        source: Where the key was found, such as ` in FILE`.
        value: Value to add to the suggestion.
        hyphens: Prefix of keys in the suggestion.
    """
    remedy = NO_OPTIONS.get(key) or NO_OPTIONS.get(last_part(key))
    if remedy is not None:
        return f"{key}{source} is no option: {remedy}."
    meant = nearest_key(key, keys)
    value = VALUE_SYNONYMS.get(value.lower(), value)
    if not meant:
        return f"unknown key {key}{source}; --help.full lists all keys."
    return f"unknown key {key}{source}{did_you_mean([f'{hyphens}{meant} {value}'.strip()])}"
