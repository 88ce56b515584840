"""Error messages for options: one line with the key, the accepted values, the value, and the nearest valid choice."""

import os
import re
import select
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NoReturn

from yolo_lightning.errors import UserError
from yolo_lightning.options.option_table import class_names, required_arguments
from yolo_lightning.supervision.failure_record import record_own_failure
from yolo_lightning.utils.addresses import redacted
from yolo_lightning.utils.exit_codes import ExitCode
from yolo_lightning.utils.files import DISK_FULL, with_place
from yolo_lightning.utils.plain_text import printable
from yolo_lightning.utils.run_files import CHECKPOINTS, config_name
from yolo_lightning.utils.stop_signals import request
from yolo_lightning.utils.suggestions import did_you_mean, last_part, nearest_key, similar
from yolo_lightning.utils.yaml_file import value_of

Match = re.Match[str]

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
OBJECT = re.compile(r"\[?Namespace\(class_path='(?P<path>[\w.]+)'")
ASSIGNMENT = re.compile(r"(?P<name>\w+) ?= ?(?P<value>.+)")
STRAY_WORDS = re.compile(r"unrecognized arguments: (?P<words>[^-].*)")
UNKNOWN_KEY = re.compile(
    r"(?:unrecognized arguments: --(?P<typed>[\w.]+)|does not accept (?:option|nested key) '(?P<configured>[\w.]+)')"
)
KEY = r"Parser key \"(?P<key>[^\"]+)\":"
CLASS = r".*?given class_path '(?P<path>[\w.]+)':\s+"
WRONG_VALUE = re.compile(KEY + r".*(?:Given value|Got value): (?P<value>.*?)(?P<rest>\n.*)?$", re.DOTALL)
WRONG_CLASS = re.compile(KEY + r".*?Expected a dot import path string: (?P<name>[\w.]+)", re.DOTALL)
WRONG_CLASS_OPTION = re.compile(KEY + CLASS + r"Option '(?P<option>[\w.]+)' is not accepted", re.DOTALL)
PROBLEM_OF_CLASS = re.compile(KEY + CLASS + r"(?:\w+\.)?(?P<problem>\w+ must be [^\n]+)", re.DOTALL)
MISSING_PACKAGE = re.compile(r"(?P<path>[\w.]+)':\s+(?:- )?(?:Requirement|No module named) '(?P<package>[^']+)'")
SUBTYPES = re.compile(r"^\s*Subtypes: \[(?P<types>.+)\]$", re.MULTILINE)
COMMA = re.compile(r", (?![^\[]*\])")  # outside of brackets
CALLBACKS = "trainer.callbacks"
LOGGER = "trainer.logger"
CALLBACKS_FORM = f"{CALLBACKS} must be a list, such as [{{class_path: EMA, init_args: {{decay: 0.999}}}}]"
EQUAL_CLASS = 0.85  # except for the case of letters
NEAR_CLASS = 0.6  # the names of loggers differ from what is typed by their ending `Logger`
MISSING_POSITIONAL = re.compile(r"the following arguments are required: (?P<names>[\w, ]+)$")
TYPE_NAMES = {
    "<class 'int'>": "an integer",
    "<class 'float'>": "a number",
    "<class 'bool'>": "true or false",
    "<class 'str'>": "a text",
    "<class 'list'>": "a list",
    "<class 'tuple'>": "a list",
    "list[int]": "a list of integers",
    "tuple[int, ...]": "a list of integers",
    "list[float]": "a list of numbers",
    "collections.abc.Sequence[int]": "a list of integers",
    "<class 'collections.abc.Sequence'>": "a list",
    "<class 'NoneType'>": "null",
}


class ShortErrors:
    """Parser mixin: errors in one line, without the list of all options; an option cannot be abbreviated."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **{"allow_abbrev": False, **named})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the message in one line and exit with code 2. jsonargparse itself would add the usage and a tip."""
        shortened = short_message(message, _known_keys(self))
        if not self.exit_on_error:  # type: ignore[attr-defined]
            super().error(shortened, ex)  # type: ignore[misc]
        fail(shortened, ex)


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


def _known_keys(parser: Any) -> set[str]:
    """Return the keys that a parser and its subcommands accept, without leading hyphens."""
    keys = set()
    for action in parser._actions:
        keys |= {option.removeprefix("--") for option in action.option_strings if option.startswith("--")}
        for subparser in (getattr(action, "_name_parser_map", None) or {}).values():
            keys |= _known_keys(subparser)
    return keys


def short_message(message: str, keys: Collection[str]) -> str:
    """Return a message of jsonargparse in one line, in the form of the errors of this package.

    A message of an unknown form is returned unchanged.

    Args:
        message: Message of jsonargparse.
        keys: Keys that the parser accepts.
    """
    for pattern, describe in FORMS:
        match = pattern.search(message)
        if match is not None:
            text = describe(match, keys)
            if text is not None:
                return text
    return message


def _unknown_key(match: Match, keys: Collection[str]) -> str:
    return unknown_key(match["typed"] or match["configured"], keys)


def _stray_word(match: Match, keys: Collection[str]) -> str:
    return stray_word([match["words"]], match["words"], keys)


def _problem_of_class(match: Match, keys: Collection[str]) -> str:
    return f"{match['key']}: {last_part(match['path'])}: {match['problem']}"


def _wrong_class_option(match: Match, keys: Collection[str]) -> str:
    name = last_part(match["path"])
    option = match["option"]
    if name == "Callback":  # no class path was recognized
        return f"{CALLBACKS_FORM}, got {option}: arguments of a callback belong into its init_args."
    accepted = _options_of_class(match["path"])
    options = ""
    if accepted:
        options = f" The options of {name} are {', '.join(accepted)}."
    meant = did_you_mean(similar(option, accepted))
    return f"{match['key']}: {name} does not have the option {option}{meant}{options}"


def _wrong_class(match: Match, keys: Collection[str]) -> str | None:
    """Return the error for the name of a class that is no callback or no logger; None for another option."""
    if match["key"] not in (CALLBACKS, LOGGER):
        return None
    return wrong_class_name(match["key"], match["name"]) or (
        f"{CALLBACKS_FORM}; the value for {match['name']} is not of this form."
    )


def _missing_positional(match: Match, keys: Collection[str]) -> str:
    return f"{match['names'].upper()} is missing; see --help"


def _wrong_value(match: Match, keys: Collection[str]) -> str | None:
    """Return the error for a value of another type; None if the message does not list the accepted types."""
    value = match["value"].strip()
    unset = _unset_arguments(value)
    if unset:
        return _requires(match["key"], *unset[:2])
    if match["key"] == CALLBACKS:
        return f"{CALLBACKS_FORM}, got {value}"
    accepted = _accepted_values(match.string)
    if not accepted:
        return None
    return wrong_choice(match["key"], value, accepted)


FORMS: tuple[tuple[re.Pattern[str], Callable[[Match, Collection[str]], str | None]], ...] = (
    (UNKNOWN_KEY, _unknown_key),
    (STRAY_WORDS, _stray_word),
    (PROBLEM_OF_CLASS, _problem_of_class),
    (WRONG_CLASS_OPTION, _wrong_class_option),
    (WRONG_CLASS, _wrong_class),
    (MISSING_POSITIONAL, _missing_positional),
    (WRONG_VALUE, _wrong_value),
)
"""Messages of jsonargparse, and functions of the match and the keys that return the error; the first text is used."""


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
    if not meant and {"a number", "an integer"} & {*accepted} and QUANTITY.fullmatch(value):
        message += " Write the number without its unit."
    return message


def _in_numbers(value: str, accepted: Sequence[str]) -> list[str]:
    """Return the accepted form of `20%`, `0,1` or `640x480`, width x height; nothing for other values."""
    percent = re.fullmatch(r"(\d+\.?\d*) ?%", value)
    if percent and "a number" in accepted:
        return [f"{float(percent[1]) / 100:g}"]
    pair = re.fullmatch(r"(\d+) ?([xX,]) ?(\d+)", value)
    if pair is None or not any(name.startswith("a list") for name in accepted):
        return []
    numbers = [pair[1], pair[3]]
    if pair[2] != ",":
        numbers.reverse()
    return [f"'[{', '.join(numbers)}]'"]


def _options_of_class(path: str) -> Mapping[str, Parameter]:
    """Return the arguments of an imported class by name; an unknown class has no arguments."""
    module, _, name = path.rpartition(".")
    class_of_path = getattr(sys.modules.get(module), name, None)
    if class_of_path is None:
        return {}
    return signature(class_of_path).parameters


def _unset_arguments(value: str) -> list[str]:
    """Return the class and the arguments without a default of a callback or logger that are not set; else nothing."""
    match = OBJECT.match(value)
    if match is None:
        return []
    arguments = _options_of_class(match["path"]).values()
    required = [argument.name for argument in arguments if argument.default is Parameter.empty]
    unset = [name for name in required if f"{name}=None" in value]
    return [last_part(match["path"]), *unset] if unset else []


def _requires(key: str, name: str, argument: str) -> str:
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
            return _requires(key, last_part(name), unset[0])
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


def _accepted_values(message: str) -> list[str]:
    """Return the values and types that a type error of jsonargparse lists, without duplicates."""
    accepted = []
    union = SUBTYPES.search(message)
    expectations: list[str] = []
    if union is not None:
        expectations = COMMA.split(union["types"])
    typing_names = ("typing.Literal", "typing.Callable")
    if not any(expected in TYPE_NAMES or expected.startswith(typing_names) for expected in expectations):
        expectations = re.findall(r"Expected an? (.+?)(?:\. Got value.*)?$", message, re.MULTILINE)
    for expected in expectations:
        literal = re.fullmatch(r"typing\.Literal\[(.*)\]", expected)
        if literal is not None:
            accepted += [value.strip().strip("'\"") for value in literal[1].split(",")]
        elif expected in TYPE_NAMES:
            accepted.append(TYPE_NAMES[expected])
        elif expected.startswith(("dot import path string", "typing.Callable")):
            accepted.append("a class path")
    return list(dict.fromkeys(accepted))


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
