"""Command line of the commands besides fit, validate, test and predict: the arguments of a function as options.

A command is a function, or a dictionary of functions for several subcommands. If the function has keyword-only
arguments, its other required arguments are positional. torch is imported only by commands that use it.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from inspect import Parameter, signature
from itertools import takewhile
from typing import Any, get_args, get_origin

from jsonargparse import ArgumentParser, auto_cli

from yolo_lightning.commands import OWN_OPTIONS, WITHOUT_TORCH
from yolo_lightning.commands.answers import PICTURES, PROGRAM, learn
from yolo_lightning.commands.option_errors import ShortErrors
from yolo_lightning.commands.option_layers import divided
from yolo_lightning.utils.addresses import redacted, refuse_secrets
from yolo_lightning.utils.exit_codes import ExitCode
from yolo_lightning.utils.plain_text import printable

PACKAGE = "yolo_lightning"
BOUND = "bound_by_weights"
"""Name of an optional function of a command's module: the data options that the weights determine."""
SECTIONS = "function_of"
"""Name of an optional function of a command's module: the function that the first words select, and its words."""
SWITCH_VALUES = ("true", "false", "yes", "no")


class ToolParser(ShortErrors, ArgumentParser):  # type: ignore[misc]
    """Parser of a command besides fit, validate, test and predict."""

    def parse_args(self, args: Sequence[str] | None = None, *rest: Any, **named: Any) -> Any:
        """Parse the words after the command, unless they can be answered without the parser."""
        command = (self.prog or "").removeprefix(f"{PROGRAM} ")
        command = PICTURES if command == "predict" else command
        return super().parse_args(learn(command, self, list(args or ())), *rest, **named)


def main() -> None:
    """Run the command of the command line, which must be one that works without torch."""
    name, *words = sys.argv[1:]
    assert name in WITHOUT_TORCH, name
    with user_errors():
        run_tool(name, words)


def run_tool(name: str, words: Sequence[str]) -> None:
    """Run a command. Its options are the arguments of its function, and the data options if it has an argument `data`.

    Args:
        name: Name of the command, its module and its function.
        words: Command line after the name.
    """
    refuse_secrets(words)
    words = divided(words, OWN_OPTIONS[name]) if name in OWN_OPTIONS else words
    module = import_module(f"yolo_lightning.commands.{name}")
    if hasattr(module, "__path__"):  # a command in its own folder
        module = import_module(f"yolo_lightning.commands.{name}.command")
    function: Callable[..., Any] | dict[str, Callable[..., Any]]
    program = f"{PROGRAM} {name}"
    if hasattr(module, SECTIONS):
        program = f"{program} {''.join(words[:1])}"
        function, words = getattr(module, SECTIONS)(words)
    else:
        function = getattr(module, name)
    if isinstance(function, dict):
        auto_cli(
            function,
            args=[*words[:1], *_with_options(function, words)],
            as_positional=True,
            parser_class=ToolParser,
            prog=program,
            description=module.__doc__,
        )
        return
    parameters = signature(function).parameters
    if "data" in parameters:
        from yolo_lightning.commands.data_options import call_with_data

        call_with_data(function, words, program, getattr(module, BOUND, None), ToolParser)
        return
    purpose, _, _ = (function.__doc__ or "").partition("Args:")
    auto_cli(
        function,
        args=spelled_out(words, parameters),
        as_positional="command" not in parameters
        and any(one.kind is Parameter.KEYWORD_ONLY for one in parameters.values()),
        parser_class=ToolParser,
        prog=program,
        description=purpose.strip(),
    )


def _with_options(functions: Mapping[str, Callable[..., Any]], words: Sequence[str]) -> list[str]:
    """Return the words after the name of a subcommand, spelled out; leading words are one list if one is expected."""
    if not words or words[0] not in functions:
        return list(words[1:])
    parameters = signature(functions[words[0]]).parameters
    element, rest = _list_of(next(iter(parameters.values()))) if parameters else None, list(words[1:])
    files = leading_values(rest) if element is not None else []
    if files:
        rest = [_list_text(files, element), *rest[len(files) :]]
    return spelled_out(rest, parameters)


def spelled_out(words: Sequence[str], parameters: Mapping[str, Parameter]) -> list[str]:
    """Return the words with `--json` expanded to `--json=true`, and hyphens in option names replaced by underscores.

    The values of a list, as `--weights 0.7 0.3` or `--weights 0.7,0.3`, become one word, as `--weights=[0.7, 0.3]`.
    For a function with an argument `command`, all words after `--` become the value of `--command`.
    """
    if "command" in parameters and "--" in words:
        at = list(words).index("--")
        return [*spelled_out(words[:at], parameters), f"--command={json.dumps(list(words[at + 1 :]))}"]
    found = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        typed, equals, value = word.removeprefix("--").partition("=")
        name = typed.replace("-", "_")
        if not word.startswith("--") or name not in parameters:
            found.append(word)
        elif _list_of(parameters[name]) is not None:
            values = [value] if equals else leading_values(words[at:])
            at += 0 if equals else len(values)
            found.append(f"--{name}={_list_text(values, _list_of(parameters[name]))}")
        else:
            has_value = bool(equals) or "".join(words[at : at + 1]).lower() in SWITCH_VALUES
            is_switch = parameters[name].annotation is bool
            found.append(f"--{name}=true" if is_switch and not has_value else f"--{name}{equals}{value}")
    return found


def _list_of(parameter: Parameter) -> type | None:
    """Return the type of the elements of an argument that is a list, None for other arguments."""
    annotations = (parameter.annotation, *get_args(parameter.annotation))
    return next((get_args(one)[0] for one in annotations if get_origin(one) is list), None)


def _list_text(values: Sequence[str], element: type | None) -> str:
    """Return the values as one JSON list; a single word may be a list itself, as `[a, b]`, or `null`."""
    if len(values) == 1 and (values[0].startswith("[") or values[0] == "null"):
        return values[0]
    given = [one.strip() for word in values for one in word.split(",") if one.strip()]
    return f"[{', '.join(one if element is float and _is_number(one) else json.dumps(one) for one in given)}]"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def leading_values(words: Sequence[str]) -> list[str]:
    """Return the words before the first option; a negative number is no option."""
    return list(takewhile(lambda word: not word.startswith("-") or _is_number(word), words))


@contextmanager
def user_errors() -> Iterator[None]:
    """Print a `ValueError` raised by this package and exit with code 2; other errors keep their traceback."""
    try:
        yield
    except ValueError as error:
        if not is_ours(error):
            raise
        print(f"error: {redacted(printable(str(error)))}", file=sys.stderr)
        raise SystemExit(ExitCode.USAGE) from None


def is_ours(error: ValueError) -> bool:
    """Return whether code of this package raised the error."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    module = frame.tb_frame.f_globals.get("__name__", "") if frame is not None else ""
    return module.split(".")[0] == PACKAGE


def wide_console() -> Any:
    """Return a rich console for stdout that is 120 columns wide if stdout is not a terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)
