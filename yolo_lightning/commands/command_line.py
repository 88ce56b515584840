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
from typing import Any

from jsonargparse import auto_cli

from yolo_lightning.commands import WITHOUT_TORCH
from yolo_lightning.commands.option_errors import ShortErrorToolParser
from yolo_lightning.utils.addresses import redacted, refuse_secrets
from yolo_lightning.utils.exit_codes import ExitCode
from yolo_lightning.utils.plain_text import printable

PROGRAM = "python -m yolo_lightning"
PACKAGE = "yolo_lightning"
BOUND = "bound_by_weights"
"""Name of an optional function of a command's module: the data options that the weights determine."""
SWITCH_VALUES = ("true", "false", "yes", "no")


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
    module = import_module(f"yolo_lightning.commands.{name}")
    if hasattr(module, "__path__"):  # a command in its own folder
        module = import_module(f"yolo_lightning.commands.{name}.command")
    function: Callable[..., Any] | dict[str, Callable[..., Any]] = getattr(module, name)
    program = f"{PROGRAM} {name}"
    if isinstance(function, dict):
        auto_cli(
            function,
            args=list(words),
            as_positional=True,
            parser_class=ShortErrorToolParser,
            prog=program,
            description=module.__doc__,
        )
        return
    parameters = signature(function).parameters
    if "data" in parameters:
        from yolo_lightning.commands.data_options import call_with_data

        call_with_data(function, words, program, getattr(module, BOUND, None), ShortErrorToolParser)
        return
    purpose, _, _ = (function.__doc__ or "").partition("Args:")
    auto_cli(
        function,
        args=spelled_out(words, parameters),
        as_positional="command" not in parameters
        and any(one.kind is Parameter.KEYWORD_ONLY for one in parameters.values()),
        parser_class=ShortErrorToolParser,
        prog=program,
        description=purpose.strip(),
    )


def spelled_out(words: Sequence[str], parameters: Mapping[str, Parameter]) -> list[str]:
    """Return the words with `--json` expanded to `--json=true` and hyphens in option names replaced by underscores.

    For a function with an argument `command`, all words after `--` become the value of `--command`.
    """
    if "command" in parameters and "--" in words:
        at = list(words).index("--")
        return [*spelled_out(words[:at], parameters), f"--command={json.dumps(list(words[at + 1 :]))}"]
    found = []
    for at, word in enumerate(words):
        typed, equals, value = word.removeprefix("--").partition("=")
        name = typed.replace("-", "_")
        if not word.startswith("--") or name not in parameters:
            found.append(word)
            continue
        has_value = bool(equals) or "".join(words[at + 1 : at + 2]).lower() in SWITCH_VALUES
        is_switch = parameters[name].annotation is bool
        found.append(f"--{name}=true" if is_switch and not has_value else f"--{name}{equals}{value}")
    return found


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
