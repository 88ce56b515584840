"""Errors of jsonargparse in one line, for what the parser alone decides: classes with `init_args`, other Lightnings."""

import re
import sys
from collections.abc import Callable, Collection, Sequence
from inspect import signature
from typing import Any, NoReturn

from yolo_lightning.commands.user_errors import fail
from yolo_lightning.options.option_errors import (
    CALLBACKS_FORM,
    missing_argument,
    stray_word,
    unknown_key,
    wrong_choice,
    wrong_class_name,
)
from yolo_lightning.options.option_table import (
    BOOLEAN,
    CALLBACKS,
    CLASS_PATH,
    INTEGER,
    LIST,
    LOGGER,
    NULL,
    NUMBER,
    TEXT,
    is_class,
)
from yolo_lightning.utils.plain_text import one_line
from yolo_lightning.utils.suggestions import did_you_mean, last_part, similar

Match = re.Match[str]

KEY = r'Parser key "(?P<key>[^"]+)":'
UNKNOWN_KEY = re.compile(r"unrecognized arguments: --(?P<key>[\w.]+)")
STRAY_WORDS = re.compile(r"unrecognized arguments: (?P<words>[^-].*)")
MISSING_POSITIONAL = re.compile(r"the following arguments are required: (?P<names>[\w, ]+)$")
PROBLEM_OF_CLASS = re.compile(
    KEY + r".*?given class_path '(?P<path>[\w.]+)':\s+(?P<problem>.*?)(?=\n    - |\n  Given value|\Z)", re.DOTALL
)
PROBLEM_OF_CALLABLE = re.compile(
    KEY + r".*?a callable class: (?P<problem>.*?)\. Got value: Namespace\(class_path='(?P<path>[\w.]+)'", re.DOTALL
)
"""An optimizer is a callable: jsonargparse constructs the class without the parameters of the network."""

WRONG_CLASS = re.compile(KEY + r".*?Expected a dot import path string: (?P<name>[\w.]+)", re.DOTALL)
WRONG_VALUE = re.compile(KEY + r".*(?:Given value|Got value): (?P<value>.*?)(?:\n.*)?$", re.DOTALL)
OPTION = re.compile(r"Option '(?P<option>[\w.]+)' is not accepted")
REQUIRED = re.compile(r"the following arguments are required: (?P<name>\w+)")
EXPECTED = re.compile(
    r"Expected an? (?:typing\.Literal\[(?P<choices>[^\]]*)\]|(?:<class ')?(?P<type>\w+))|(?P<callable>callable class)"
)
TYPES = {
    **{"int": INTEGER, "float": NUMBER, "bool": BOOLEAN, "str": TEXT, "NoneType": NULL, "dot": CLASS_PATH},
    **dict.fromkeys(("list", "tuple", "collections"), LIST),
}
"""Name of a type in messages, by the first word of its name in jsonargparse."""


class ShortErrors:
    """Parser mixin: errors in one line, without the list of all options; an option cannot be abbreviated."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **{"allow_abbrev": False, **named})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the message in one line and exit with code 2. jsonargparse itself would add the usage and a tip."""
        if not self.exit_on_error:  # type: ignore[attr-defined]  # the parser of a class within the parser of a command
            super().error(message, ex)  # type: ignore[misc]
        fail(short_message(message, _known_keys(self)), ex)


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

    Args:
        message: Message of jsonargparse.
        keys: Keys that the parser accepts.
    """
    for pattern, describe in FORMS:
        match = pattern.search(message)
        if match is not None:
            return describe(match, keys)
    return one_line(message)


def _unknown_key(match: Match, keys: Collection[str]) -> str:
    return unknown_key(match["key"], keys)


def _stray_word(match: Match, keys: Collection[str]) -> str:
    return stray_word([match["words"]], match["words"], keys)


def _missing_positional(match: Match, keys: Collection[str]) -> str:
    return f"{match['names'].upper()} is missing; see --help"


def _problem_of_class(match: Match, keys: Collection[str]) -> str:
    """Return the error for the arguments of a class, which the option names with or without `init_args`."""
    key = match["key"]
    name = last_part(match["path"])
    problem = match["problem"]
    option = OPTION.search(problem)
    if option is not None and name == "Callback":  # no class path was recognized
        return f"{CALLBACKS_FORM}, got {option['option']}: arguments of a callback belong into its init_args."
    if option is not None:
        accepted = _arguments_of(match["path"])
        meant = did_you_mean(similar(option["option"], accepted))
        listed = f" The options of {name} are {', '.join(accepted)}." if accepted else ""
        return f"{key}: {name} does not have the option {option['option']}{meant}{listed}"
    required = REQUIRED.search(problem)
    if required is not None:
        return missing_argument(key, name, required["name"])
    value = WRONG_VALUE.search(problem)
    if value is not None:
        return f"{key}: {name}: {_wrong_value(value, keys)}"
    if "no attribute 'keys'" in problem:
        return f"{key}: {name}: init_args must be keys and values, such as {{decay: 0.999}}"
    value = WRONG_VALUE.search(match.string)
    if "to be a subclass of" in problem and value is not None:
        return _wrong_value(value, keys)
    return f"{key}: {match['path']}: {one_line(problem)}"


def _arguments_of(path: str) -> Sequence[str]:
    """Return the names of the arguments of an imported class; an unknown class has no arguments."""
    module, _, name = path.rpartition(".")
    class_of_path = getattr(sys.modules.get(module), name, None)
    if class_of_path is None:
        return []
    return list(signature(class_of_path).parameters)


def _wrong_class(match: Match, keys: Collection[str]) -> str:
    """Return the error for the name of a class; a program can have classes of its own, so that the parser decides."""
    key = match["key"]
    if key in (CALLBACKS, LOGGER) and not is_class(key, match["name"]):
        return wrong_class_name(key, match["name"])
    value = WRONG_VALUE.search(match.string)
    if value is None:
        return one_line(match.string)
    return _wrong_value(value, keys)


def _wrong_value(match: Match, keys: Collection[str]) -> str:
    """Return the error for a value of another type."""
    value = match["value"].strip()
    if match["key"] == CALLBACKS:
        return f"{CALLBACKS_FORM}, got {value}"
    accepted: list[str] = []
    for expected in EXPECTED.finditer(match.string):
        if expected["choices"] is not None:
            accepted += [choice.strip().strip("'\"") for choice in expected["choices"].split(",")]
        elif expected["callable"] is not None:
            accepted.append(CLASS_PATH)
        elif expected["type"] in TYPES:
            accepted.append(TYPES[expected["type"]])
    if not accepted:
        return one_line(match.string)
    return wrong_choice(match["key"], value, list(dict.fromkeys(accepted)))


FORMS: tuple[tuple[re.Pattern[str], Callable[[Match, Collection[str]], str]], ...] = (
    (UNKNOWN_KEY, _unknown_key),
    (STRAY_WORDS, _stray_word),
    (PROBLEM_OF_CLASS, _problem_of_class),
    (PROBLEM_OF_CALLABLE, _problem_of_class),
    (WRONG_CLASS, _wrong_class),
    (MISSING_POSITIONAL, _missing_positional),
    (WRONG_VALUE, _wrong_value),
)
"""Messages of jsonargparse, and functions of the match and the keys that return the error; the first form is used."""
