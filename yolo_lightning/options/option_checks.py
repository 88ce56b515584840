"""Words of a command line, and values of options, checked against the table of options."""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import takewhile
from typing import Any, NoReturn

from yolo_lightning.errors import UserError
from yolo_lightning.options.command_names import COMMANDS, PICTURES, PROGRAM, SUBCOMMANDS
from yolo_lightning.options.option_errors import (
    CALLBACKS_FORM,
    VALUE_SYNONYMS,
    missing_argument,
    stray_word,
    unknown_command,
    unknown_key,
    wrong_choice,
    wrong_class_name,
    wrong_group,
)
from yolo_lightning.options.option_table import (
    BOOLEAN,
    CALLBACKS,
    LIST,
    LOGGER,
    NULL,
    CommandOption,
    CommandOptions,
    find_command,
    has_type,
    is_class,
    is_known,
    required_arguments,
    sections_of,
)
from yolo_lightning.options.run_spec import CONFIG, PREFIX, TRUE, RunSpec, Setting, separated, stray_words, variable_of
from yolo_lightning.options.short_help import usage
from yolo_lightning.options.ultralytics_words import (
    TASKS,
    command_of,
    is_pair,
    names_pictures,
    options_of,
    translated,
    translated_file,
)
from yolo_lightning.utils.suggestions import did_you_mean, last_part, nearest_key, similar
from yolo_lightning.utils.yaml_file import value_of

LIGHTNING = "lightning.pytorch"  # beginning of the paths of classes of Lightning
TYPOGRAPHIC_QUOTES = ("\u2018", "\u201c", "\u201e")
SINGLE_HYPHEN = re.compile(r"-([a-zA-Z]\w[\w.]*)(?:=|$)")
SWITCH_VALUES = (TRUE, "false")
PARTS_IN_ORDER = ("trainer.callbacks", "trainer.logger", "trainer.plugins")
"""Options that can be repeated: each part belongs to the entry of the list before the part."""
OTHER_MEANING = ("device", "patience", "amp", "half", "batch", "batch_size", "save_txt")
"""Arguments of Ultralytics that several options replace, or whose values have another form."""


def check_command(words: Sequence[str]) -> None:
    """Raise a UserError for an unknown command or section, or for a command line in the form of Ultralytics."""
    has_pairs = any("=" in word for word in stray_words(words))
    if has_pairs or words[0] not in COMMANDS:
        _refuse_words_of_ultralytics(words)
    if words[0] not in COMMANDS:
        raise UserError(unknown_command(words[0]))
    sections = sections_of(words[0])
    section = "".join(words[1:2])
    meant = [f"{words[0]} {name}" for name in similar(section, sections)]
    if meant and section not in sections:
        raise UserError(f"{words[0]} has no section {section}{did_you_mean(meant)}")


def _refuse_words_of_ultralytics(words: Sequence[str]) -> None:
    """Raise a UserError with the command line to type for a command line in the form of Ultralytics."""
    command = command_of(words)
    if command is not None:
        has_pictures = command == "predict" and names_pictures(words)
        keys = find_command(PICTURES if has_pictures else command).keys
        raise UserError(translated(words, command, keys))
    if words[0].startswith("-") or is_pair(words[0]):
        translation = translated(words, "fit", find_command("fit").keys)
        raise UserError(f"the first word must be a command, such as fit, got {words[0]}; {translation}")
    if words[0] in TASKS:
        raise UserError("a mode is missing: fit, validate, test, predict or export")


def check_options(spec: RunSpec) -> None:
    """Raise a UserError for an unknown option, a value of another type, or a word that belongs to no option."""
    command = spec.table
    _check_hyphens(command, spec.arguments)
    if command.name in SUBCOMMANDS:
        _check_variables(command.name)
    for setting in spec.settings:
        if setting.key != CONFIG:
            _check_option(command, setting)
    _check_arguments_of_classes(spec.settings)
    _name_repeated(spec.settings)
    _check_stray_words(command, spec.arguments)
    for setting in spec.settings:
        if setting.key == CONFIG:
            _check_configuration(command, setting, spec.arguments)


def _check_hyphens(command: CommandOptions, words: Sequence[str]) -> None:
    """Raise a UserError for an option with one hyphen."""
    for word in words:
        match = SINGLE_HYPHEN.match(word)
        if match is None:
            continue
        meant: str | None = match[1]
        if not command.accepts(match[1]):
            meant = nearest_key(match[1], command.keys)
        if meant:
            raise UserError(f"options begin with two hyphens, got -{match[1]}. Did you mean --{meant}?")


def _check_variables(command: str) -> None:
    """Raise a UserError for an environment variable that looks like an option and belongs to no command."""
    start = variable_of(command, "")
    prefixes = tuple(variable_of(name, "") for name in SUBCOMMANDS)
    for name in os.environ:
        is_option = name.startswith(f"{PREFIX}_") and ("__" in name or name.startswith(start[:-1]))
        if is_option and not name.startswith(prefixes):
            meant = name.removeprefix(f"{PREFIX}_").removeprefix(f"{command.upper()}_")
            first, _, rest = meant.partition("__")
            if similar(first.lower(), SUBCOMMANDS):
                meant = rest
            meant = f"{start}{meant}"
            raise UserError(f"the environment variable {name} is not used{did_you_mean([meant])}")


def _check_option(command: CommandOptions, setting: Setting) -> None:
    """Raise a UserError for an option of the command line or the environment that is unknown or has a wrong value."""
    name = setting.key
    text = setting.text
    place = setting.place
    if not is_known(name):
        return
    if text.startswith(TYPOGRAPHIC_QUOTES):
        raise UserError(f"{name}{place} begins with a typographic quote, got {text}; type straight quotes")
    if not command.accepts(name):
        _refuse_unknown(command, name, text, place)
    option = command.options.get(name, CommandOption())
    if option.is_switch and text.lower() not in SWITCH_VALUES:
        words = options_of(name, text, command.keys)
        meant = [shlex.join(words)] if words else []
        raise UserError(f"{name} takes no value, got {text!r}{did_you_mean(meant)}")
    if option.is_group:
        _check_group(command, setting)
        return
    _check_classes(name, text)
    if not text and command.name != "supervise":
        raise UserError(f"{name}{place} must not be empty, got ''; leave the option out for its default")
    if _has_one_word(command, option) and not has_type(option.types, text):
        raise UserError(wrong_choice(f"{name}{place}", text, option.types))


def _refuse_unknown(command: CommandOptions, name: str, text: str, place: str) -> NoReturn:
    """Raise the error for an unknown option of the command line or the environment."""
    if command.name == "predict" and name == "source":
        raise UserError(f"pictures have no option. Type: {PROGRAM} predict {shlex.quote(text)} --run RUN")
    if name in command.options:
        raise UserError(f"{name} has no option; {usage(command)}")
    if name.replace("-", "_") in OTHER_MEANING:
        words = options_of(name, text, command.keys)
        if words:
            raise UserError(f"unknown key {name}. Did you mean {shlex.join(words)}?")
    value = text
    if text.lower() in SWITCH_VALUES:  # the option means a number or a name
        value = ""
    accepting = [key for key in command.keys if _can_mean(command.options[key], value)]
    raise UserError(unknown_key(name, accepting, source=place, value=value, hyphens="--"))


def _can_mean(option: CommandOption, value: str) -> bool:
    """Return whether a value can have been meant for an option: an option with a few choices accepts no other value."""
    near = [*map(str.lower, option.choices), *VALUE_SYNONYMS]
    return not (value and option.choices) or has_type(option.types, value) or bool(similar(value.lower(), near))


def _check_group(command: CommandOptions, setting: Setting) -> None:
    """Raise a UserError for a group of options that is set by a text, an unknown key or a wrong value.

    The value of --data or --model can be weights, a variant or a data.yaml, as for Ultralytics.
    """
    name = setting.key
    meant = setting.text
    if isinstance(setting.value, dict):
        meant = setting.source
        if "names" not in setting.value:
            for key, value in setting.options.items():
                _check_value(command, key, value, setting.place)
            return
    if name in ("data", "model") and meant and not meant.startswith("{"):
        words = options_of(name, meant, command.keys) or []
        raise UserError(f"{name} must be set by its keys, got {meant!r}. Did you mean {shlex.join(words)}?")
    raise UserError(wrong_group(name, setting.text, command.keys, setting.place))


def _has_one_word(command: CommandOptions, option: CommandOption) -> bool:
    """Return whether the value of an option is the next word: other commands than fit, validate, ... read lists."""
    if not option.types or option.is_switch:
        return False
    words = [name for name in option.types if name != NULL and not name.startswith(LIST)]  # of a value that is no list
    return command.name in SUBCOMMANDS or words not in ([], [BOOLEAN])


def _check_classes(option: str, value: Any) -> None:
    """Raise a UserError if the option is `trainer.callbacks` or `trainer.logger`, and the value names no class.

    A program that has imported Lightning can have classes of its own, which the parser finds by their names.
    """
    key = option.removesuffix("+")
    if key in (CALLBACKS, LOGGER) and LIGHTNING not in sys.modules:
        check_class_names(key, value)


def check_class_names(key: str, value: Any) -> None:
    """Raise a UserError if a value of `trainer.callbacks` or `trainer.logger` names no class."""
    for entry in _entries(value):
        name = entry.get("class_path") if isinstance(entry, dict) else entry
        if key == CALLBACKS and isinstance(name, bool | int | float):
            raise UserError(f"{CALLBACKS_FORM}, got {value}")
        if not isinstance(name, str):
            continue
        if not is_class(key, name):
            raise UserError(wrong_class_name(key, name))
        package, dot, _ = name.partition(".")
        if dot and package and package not in sys.modules and find_spec(package) is None:
            raise UserError(
                f"{key}: there is no module {package} of {name}; its file must be in this folder or on PYTHONPATH"
            )


def _check_arguments_of_classes(settings: Sequence[Setting]) -> None:
    """Raise a UserError for a callback or logger on the command line without a required argument."""
    for setting in settings:
        key = setting.key.removesuffix("+")
        has_arguments = any(other.key.startswith(f"{key}.") for other in settings)
        if key in (CALLBACKS, LOGGER) and is_known(key) and not has_arguments:
            for entry in _entries(setting.text):
                _check_arguments(key, entry)


def _check_arguments(key: str, entry: Any) -> None:
    """Raise a UserError for a callback or logger of Lightning, a name or a dictionary, without a required argument."""
    path = entry
    arguments: Sequence[str] = ()
    if isinstance(entry, dict):
        path = entry.get("class_path")
        arguments = entry.get("init_args") or ()
    if not isinstance(path, str) or not path.startswith((f"{LIGHTNING}.", last_part(path))):
        return
    name = last_part(path)
    for argument in required_arguments(name):
        if argument not in arguments:
            raise UserError(missing_argument(key, name, argument))


def _entries(value: Any) -> list[Any]:
    """Return the entries of a value of `trainer.callbacks` or `trainer.logger`, which is a list or one entry."""
    entries = value_of(value) if isinstance(value, str) else value
    if not isinstance(entries, list):
        return [entries]
    return entries


def _name_repeated(settings: Sequence[Setting]) -> None:
    """Print a line for each option with several values on the command line, of which the last one is used."""
    values: dict[str, list[str]] = {}
    for setting in settings:
        if not setting.source and not setting.key.startswith(PARTS_IN_ORDER) and not setting.key.endswith("+"):
            values.setdefault(setting.key, []).append(setting.text)
    for name, texts in values.items():
        if len(set(texts)) > 1:
            print(f"--{name} is given {len(texts)} times: {texts[-1]} is used", file=sys.stderr)


def _check_stray_words(command: CommandOptions, words: Sequence[str]) -> None:
    """Raise a UserError for a word that is neither an option nor a value."""
    if any(option.is_positional for option in command.options.values()):
        return
    if command.name in SUBCOMMANDS:
        _, further_words = separated(words)
        strays = stray_words(further_words)
    else:
        # Later words can be the values of a list. RUN has become --run=RUN.
        separate_words = (word for word in words if not word.startswith("--run="))
        strays = [*takewhile(lambda word: not word.startswith("-"), separate_words)]
    if not strays:
        return
    stray = strays[0]
    if command.name == "predict":
        raise UserError(f"{stray!r} follows no option; pictures come first: predict {stray} --run RUN")
    path = _path_with_spaces(words, stray)
    if path is not None:
        raise UserError(f"{stray!r} follows no option; a path with spaces needs quotes: {shlex.quote(path)}")
    raise UserError(stray_word(words, stray, command.keys))


def _path_with_spaces(words: Sequence[str], part: str) -> str | None:
    """Return the existing path of which a word is the second part, because its spaces were not quoted, or None."""
    at = list(words).index(part)
    if at == 0:
        return None
    path = words[at - 1]
    if path.startswith("--"):
        path = path.partition("=")[2]
    for word in words[at:]:
        path += f" {word}"
        if os.path.exists(path):
            return path
    return None


def _check_configuration(command: CommandOptions, setting: Setting, words: Sequence[str]) -> None:
    """Raise a UserError for a configuration file with an unknown key or a wrong value, or that is another file."""
    file = setting.source
    content = setting.value
    if "names" in content and "data.format" in command.options:
        raise UserError(
            f"the file {file} of --config describes a dataset. Did you mean --config yolo --data.format {file}?"
        )
    is_flat = not any(isinstance(value, dict) for value in content.values())
    if is_flat:
        translation = translated_file(file, content, [command.name, *words], command.keys)
        if translation is not None:
            raise UserError(translation)
    for key, value in setting.options.items():
        section = key.partition(".")[0]
        is_read = command.name in SUBCOMMANDS or section == "data"  # other commands read the section `data` only
        if is_read and is_known(key):
            _check_value(command, key, value, setting.place)


def _check_value(command: CommandOptions, key: str, value: Any, place: str) -> None:
    """Raise a UserError for a key of a configuration file that is unknown or has a wrong value."""
    if not command.accepts(key):
        raise UserError(unknown_key(key, command.keys, source=place))
    option = command.options.get(key)
    if option is None:  # a part of an option
        return
    _check_classes(key, value)
    if option.is_group:
        if value not in (None, {}):
            raise UserError(wrong_group(key, value, command.keys, place))
    elif option.types and not has_type(option.types, value):
        message = wrong_choice(f"{key}{place}", str(value), option.types)
        if value is None:
            message += " YAML reads a key without a value as None."
        elif isinstance(value, bool):
            message += " YAML reads yes, no, on and off as True and False."
        raise UserError(message)
