"""Error messages for options: one line with the key, the accepted values, the value, and the nearest valid choice."""

import os
import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from yolo_lightning.options.command_names import COMMANDS
from yolo_lightning.options.option_table import (
    CALLBACKS,
    INTEGER,
    LIST,
    LOGGER,
    NUMBER,
    callbacks_of_package,
    class_names,
    sections_of,
)
from yolo_lightning.utils.run_files import CHECKPOINTS, config_name
from yolo_lightning.utils.suggestions import did_you_mean, last_part, nearest_key, similar

MODES = {
    "run": "fit",
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

TYPOGRAPHIC_DASHES = ("\u2010", "\u2011", "\u2012", "\u2013", "\u2014", "\u2212")
QUANTITY = re.compile(r"-?\d+\.?\d* ?[a-zA-Z]+")
ASSIGNMENT = re.compile(r"(?P<name>\w+) ?= ?(?P<value>.+)")
MISSING_PACKAGE = re.compile(r"(?P<path>[\w.]+)':\s+(?:- )?(?:Requirement|No module named) '(?P<package>[^']+)'")
CALLBACKS_FORM = f"{CALLBACKS} must be a list, such as [{{class_path: EMA, init_args: {{decay: 0.999}}}}]"
EQUAL_CLASS = 0.85  # except for the case of letters
NEAR_CLASS = 0.6  # the names of loggers differ from what is typed by their ending `Logger`


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


def unknown_command(typed: str) -> str:
    name = typed.lower()
    meant = [f"{command} {name}" for command in COMMANDS if name in sections_of(command)]
    if name in MODES or not meant:
        meant = [MODES.get(near, near) for near in similar(name, [*COMMANDS, *MODES])]
    return f"unknown command {typed}{did_you_mean(meant)} The commands are {', '.join(COMMANDS)}."


def stray_word(words: Sequence[str], stray: str, keys: Collection[str]) -> str:
    """Return the error for a word of a command line that is neither an option nor a value."""
    if stray.startswith(TYPOGRAPHIC_DASHES):
        plain = stray.lstrip("".join(TYPOGRAPHIC_DASHES))
        return f"{stray!r} begins with typographic dashes; type two hyphens: --{plain}"
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


def wrong_class_name(key: str, name: str) -> str:
    """Return the error for a name in `trainer.callbacks` or `trainer.logger` that is no class; see `is_class`."""
    if "(" in name:
        return f"{CALLBACKS_FORM.replace(CALLBACKS, key)}, got {name}"
    classes = class_names(key)
    if key == LOGGER:
        near = similar(name, classes, cutoff=NEAR_CLASS) or similar(f"{name}Logger", classes, cutoff=EQUAL_CLASS)
        listed = f"The loggers are {', '.join(classes)}, true and false."
        return f"{key}: there is no logger {name}{did_you_mean(near)} {listed}"
    of_package = ", ".join(callbacks_of_package())
    listed = f"The callbacks are {of_package}, and those of lightning.pytorch.callbacks."
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
