"""The options of all commands, from `option_table.json`, which `make options` generates from the parsers."""

import json
from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from yolo_lightning.options.command_names import PICTURES
from yolo_lightning.utils.yaml_file import value_of

TABLE_FILE = Path(__file__).with_name("option_table.json")
INTEGER = "an integer"
NUMBER = "a number"
BOOLEAN = "true or false"
TEXT = "a text"
LIST = "a list"
CLASS_PATH = "a class path"
NULL = "null"
CALLBACKS = "trainer.callbacks"
LOGGER = "trainer.logger"


class CommandOption(NamedTuple):
    """One option, or one positional argument, of a command."""

    default: str = ""  # as help shows the default; empty for none
    help: str = ""  # first sentence
    types: Sequence[str] = ()  # accepted types and values, in words; empty if only the parser can decide
    is_group: bool = False  # whether the option is set by its keys
    is_switch: bool = False  # whether the option needs no value
    is_positional: bool = False
    settings: str = ""  # path of the dataclass of a group of settings whose file imports no torch

    @property
    def choices(self) -> Sequence[str]:
        """All accepted values; empty if they are no fixed list."""
        is_open = any(
            name in (INTEGER, NUMBER, BOOLEAN, TEXT, CLASS_PATH) or name.startswith(LIST) for name in self.types
        )
        return () if is_open else self.types


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """Purpose and options of a command, or of a section of a command."""

    name: str
    purpose: str
    options: Mapping[str, CommandOption]  # by full name, without hyphens
    shown: Sequence[str] = ()  # options of the short help

    @property
    def keys(self) -> list[str]:
        """Names of the options that have a value."""
        return [name for name, option in self.options.items() if not (option.is_group or option.is_positional)]

    def accepts(self, key: str) -> bool:
        """Return whether a key is an option, a group, or a part of an option that is no group, as of a callback."""
        prefix = key
        while prefix and prefix not in self.options:
            prefix = prefix.rpartition(".")[0]
        if not prefix or self.options[prefix].is_positional:
            return False
        return prefix == key or not self.options[prefix].is_group


@cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(TABLE_FILE.read_text(encoding="utf-8"))
    return content


@cache
def find_command(name: str) -> CommandOptions:
    """Return a command, such as `fit`, or the section of a command, such as `submission check`.

    A command whose sections have the options, such as `submission`, and an unknown command have no options.
    """
    content = _content()
    stored = content["commands"].get(name)
    if stored is None:
        return CommandOptions(name, "", {})
    options = {key: CommandOption(**content["entries"][position]) for key, position in stored["options"].items()}
    return CommandOptions(name, stored["purpose"], options, stored["shown"])


@cache
def sections_of(name: str) -> list[str]:
    """Return the names of the sections of a command; `predict PICTURES` is no section."""
    prefix = f"{name} "
    names = [command for command in _content()["commands"] if command.startswith(prefix) and command != PICTURES]
    return [command.removeprefix(prefix) for command in names]


def callbacks_of_package() -> list[str]:
    """Return the sorted names of the callbacks of this package."""
    return list(_content()["classes"]["yolo_lightning.callbacks"])


def class_names(key: str) -> list[str]:
    """Return the names of the classes of `trainer.callbacks` or `trainer.logger`."""
    classes = _content()["classes"]
    if key == LOGGER:
        return [name for name in classes["lightning.pytorch.loggers"] if name != "Logger"]
    return [*callbacks_of_package(), *classes["lightning.pytorch.callbacks"]]


def is_class(key: str, name: str) -> bool:
    """Return whether a text names a class of `trainer.callbacks` or `trainer.logger`, or can be the path of a class."""
    return name in class_names(key) or ("." in name and "(" not in name)


def required_arguments(name: str) -> list[str]:
    """Return the arguments without a default of a callback or logger; none for an unknown class."""
    arguments: list[str] = ChainMap(*_content()["classes"].values()).get(name, [])
    return arguments


def is_known(key: str) -> bool:
    """Return whether the table describes a key: `trainer.*` belongs to one version of Lightning."""
    return not key.startswith("trainer.") or lightning_version() == _content()["lightning"]


@cache
def lightning_version() -> str:
    """Return the installed version of Lightning; reading it takes a millisecond."""
    return version("lightning")


def has_type(types: Iterable[str], value: Any) -> bool:
    """Return whether a text of a command line, or a value of a YAML file, can have one of the types or values.

    The elements of lists are not checked.
    """
    loaded = value_of(value) if isinstance(value, str) else value
    for accepted in types:
        if accepted == TEXT:
            fits = not isinstance(value, list | dict)  # the parser decides on numbers
        elif accepted == NULL:
            fits = loaded is None
        elif accepted == BOOLEAN:
            fits = isinstance(loaded, bool)
        elif accepted in (INTEGER, NUMBER):
            is_integer = isinstance(loaded, int) and not isinstance(loaded, bool)
            fits = is_integer or _is_number_text(loaded) or (accepted == NUMBER and isinstance(loaded, float))
        elif accepted == CLASS_PATH:  # or the name of a class, which the parser completes
            fits = isinstance(loaded, dict) or (isinstance(loaded, str) and "." in loaded)
        elif accepted.startswith(LIST):
            fits = isinstance(loaded, list)
        else:
            fits = str(value) == accepted
        if fits:
            return True
    return False


def read_value(types: Collection[str], value: Any) -> Any:
    """Return the value that the parser reads from a text of a command line or from a value of a YAML file.

    Args:
        types: Accepted types and values of the option; the value must have one of them, see `has_type`.
        value: Text or value.
    """
    loaded = value_of(value) if isinstance(value, str) else value
    if loaded is None and NULL in types:
        return None
    if BOOLEAN in types and isinstance(loaded, bool):
        return loaded
    if INTEGER in types or NUMBER in types:
        if _is_number_text(loaded):
            return float(loaded)
        if isinstance(loaded, int | float):
            return loaded
    if TEXT in types and not isinstance(loaded, list | dict):
        return str(value)
    return loaded


def _is_number_text(value: Any) -> bool:
    """Return whether a text is a number that YAML reads as a text, such as 1e-3."""
    if not isinstance(value, str):
        return False
    try:
        float(value)
    except ValueError:
        return False
    return True
