"""Command line of the commands besides fit, validate, test and predict: the arguments of a function as options.

A command is a function, or a dictionary of functions for several sections. Required arguments that are not keyword-only
are positional. torch is imported only by commands that use it.
"""

import gc
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import signature
from itertools import takewhile
from typing import Any, Literal, get_args, get_origin

from jsonargparse import ActionConfigFile, ArgumentParser

from yolo_lightning.commands.parser_errors import ShortErrors
from yolo_lightning.errors import UserError
from yolo_lightning.options.command_names import PROGRAM
from yolo_lightning.options.run_spec import HELP_WORDS, RunSpec, with_parser_help
from yolo_lightning.options.short_help import fitted
from yolo_lightning.utils.message_filters import hide_harmless_messages

DATA = "data"
"""Argument of functions that receive a data module, whose arguments are options `data.*`, as in `fit`."""
SWITCH_VALUE = re.compile(r"true|false|yes|no|on|off|-?\d+", re.IGNORECASE)
"""Word after a switch that is the value of the switch, also if the parser refuses the value."""


class ToolParser(ShortErrors, ArgumentParser):  # type: ignore[misc]
    """Parser of a command besides fit, validate, test and predict."""


def run_tool(spec: RunSpec) -> None:
    """Run a command. Its options are the arguments of its function, which has the name of the command."""
    function = tool_function(spec.command)
    if isinstance(function, dict):
        function = _section(spec, function)
    call(function, spec.words_after_name, spec.name)


def tool_function(name: str) -> Callable[..., Any] | dict[str, Callable[..., Any]]:
    """Return the function of a command, or the functions of its sections by name.

    The function of the name "" has the options that follow the command without a section.
    """
    gc.disable()  # a fifth of the processor time of an import of torch
    module = import_module(f"yolo_lightning.commands.{name}")
    if hasattr(module, "__path__"):  # a command in its own folder
        module = import_module(f"yolo_lightning.commands.{name}.command")
    gc.enable()
    hide_harmless_messages()
    function: Callable[..., Any] | dict[str, Callable[..., Any]] = getattr(module, name)
    return function


def _section(spec: RunSpec, functions: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Return the function of a section of a command, or print the sections, if the user asks for help, and exit."""
    section = spec.name.removeprefix(spec.command).strip()
    if section in functions:
        return functions[section]
    typed = "".join(spec.words[1:2])
    if typed not in HELP_WORDS:
        names = ", ".join(filter(None, functions))
        raise UserError(f"{spec.command} needs a section, one of {names}, got {typed or 'none'}.")
    print(f"usage: {PROGRAM} {spec.command} {'|'.join(functions)} [options]\n")
    for title, function in functions.items():
        purpose, _, _ = (function.__doc__ or "").partition(".")
        print(fitted(f"  {title:<10}{purpose}"))
    raise SystemExit(0)


def call(function: Callable[..., Any], words: Sequence[str], command: str = "") -> None:
    """Call a function with the options of a command line. The docstring of the function is the help text.

    For a function with an argument `data`, the section `data` of configuration files is read. If the function has an
    argument `checkpoint`, the data options that the checkpoint records override those of configuration files.

    Args:
        function: Function with annotated arguments.
        words: Command line after the command.
        command: Name of the command, and of its section; empty for a script.
    """
    parser = tool_parser(function, command)
    has_data = DATA in signature(function).parameters
    options = {action.dest: getattr(action, "_typehint", None) for action in parser._actions if action.option_strings}
    positional = [getattr(action, "_typehint", None) for action in parser._actions if not action.option_strings]
    words = spelled_out(with_parser_help(words), options, *positional[:1])
    if has_data:
        from yolo_lightning.commands.data_options import with_recorded

        words = with_recorded(words, parser, has_weights="checkpoint" in signature(function).parameters)
    arguments = parser.instantiate_classes(parser.parse_args(words)).as_dict()
    arguments.pop("config", None)
    function(**arguments)


def tool_parser(function: Callable[..., Any], command: str) -> ToolParser:
    """Return the parser of the function of a command; see `call`."""
    purpose, _, _ = (function.__doc__ or "").partition("Args:")
    program = None  # the name of the script
    if command:
        program = f"{PROGRAM} {command}"
    parser = ToolParser(prog=program, description=purpose.strip())
    if DATA in signature(function).parameters:
        from yolo_lightning.data.datamodule import DetectionDataModule

        parser.add_argument(
            "--config",
            action=ActionConfigFile,
            metavar="FILE",
            help="Configuration file of a run; later files override earlier ones. Only the section `data` is read.",
        )
        parser.add_class_arguments(DetectionDataModule, DATA)
    parser.add_function_arguments(function, skip={DATA}, as_group=False, as_positional=True, sub_configs=True)
    return parser


def spelled_out(words: Sequence[str], options: Mapping[str, Any], first: Any = None) -> list[str]:
    """Return the words with a switch, as `--json`, expanded to `--json=true`, and the values of a list as one word.

    `--score_thresholds 0.1 0.3` becomes `--score_thresholds=[0.1, 0.3]`. For a function with an argument `command`, all
    words after `--` become the value of `--command`.

    Args:
        words: Command line after the command.
        options: Types of the options by name.
        first: Type of the first positional argument. If it is a list, it has all words before the first option.
    """
    if "command" in options and "--" in words:
        at = list(words).index("--")
        return [*spelled_out(words[:at], options), f"--command={json.dumps(list(words[at + 1 :]))}"]
    expanded = []
    at = 0
    values = _leading_values(words)
    if _element_of(first) is not None and values:
        expanded.append(json.dumps(values))
        at = len(values)
    while at < len(words):
        word = words[at]
        at += 1
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name not in options:
            expanded.append(word)
            continue
        element = _element_of(options[name])
        if element is not None:
            values = [value]
            if not equals:
                values = _leading_values(words[at:])
                at += len(values)
            if not values:
                raise UserError(f"{name} needs one or more values")
            expanded.append(f"--{name}={_list_text(values, element)}")
        elif options[name] is bool and not equals and not SWITCH_VALUE.fullmatch("".join(words[at : at + 1])):
            expanded.append(f"{word}=true")
        else:
            expanded.append(word)
    return expanded


def _list_text(values: Sequence[str], element: type) -> str:
    """Return the values of a list as one word; a single value can be the list itself, null, or the only choice."""
    if len(values) == 1 and (values[0] == "null" or values[0].startswith("[") or get_origin(element) is Literal):
        return values[0]
    if element is str:
        return json.dumps(values)
    return f"[{', '.join(values)}]"


def _element_of(hint: Any) -> type | None:
    """Return the type of the elements of a list, None for other types."""
    for alternative in (hint, *get_args(hint)):
        if get_origin(alternative) in (list, tuple):
            element: type = get_args(alternative)[0]
            return element
    return None


def _leading_values(words: Sequence[str]) -> list[str]:
    """Return the words before the next option; a negative number is none."""
    return list(takewhile(lambda word: not re.match(r"-(?!\.?\d)", word), words))


def wide_console() -> Any:
    """Return a rich console for stdout; without a terminal and the variable COLUMNS, it is 120 columns wide."""
    from rich.console import Console

    width = None
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdigit():
        width = 120
    return Console(width=width, highlight=False)
