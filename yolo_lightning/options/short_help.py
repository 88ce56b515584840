"""Help of a command on one page, from the table of options."""

import re
import textwrap
from shutil import get_terminal_size

from yolo_lightning.options.command_names import PICTURES, PROGRAM, SUBCOMMANDS, TOOLS, WITH_RUN
from yolo_lightning.options.option_table import CommandOption, CommandOptions
from yolo_lightning.options.run_spec import FULL_HELP
from yolo_lightning.utils.suggestions import SYNONYMS


def list_of_commands() -> str:
    """Return the help of the program."""
    commands = "\n".join(f"  {name:<18}{purpose}" for name, purpose in {**SUBCOMMANDS, **TOOLS}.items())
    return (
        f"usage: {PROGRAM} COMMAND [options]\n\nTrain YOLO detectors on LTDv2 or your own images.\n\n"
        f"{fitted(commands)}\n\n{PROGRAM} COMMAND --help: options; --version: version"
    )


def short_help(command: CommandOptions) -> str:
    """Return the help of a command: of fit, validate, test and predict the common options, of others all but `data.*`.

    Names of Ultralytics are in brackets.
    """
    lines = [usage(command), ""]
    if command.name == "monitor":
        lines += [f"       {PROGRAM} monitor RUN [options]    one run", ""]
    elif command.name in WITH_RUN and command.name != "predict":
        lines += [f"       {PROGRAM} {command.name} RUN [options]    with the configuration of a run", ""]
    lines += [command.purpose, ""]
    for key in command.shown:
        lines += _option_lines(command.name, key, command.options[key])
    return "\n".join([*lines, "", f"all options: {PROGRAM} {command.name} {FULL_HELP}"])


def _option_lines(command: str, key: str, option: CommandOption) -> list[str]:
    """Return the name of an option with its default and its synonyms, and its choices or what it does."""
    line = f"  --{key}"
    if option.is_positional:
        line = "  PICTURES" if command == PICTURES else f"  {key.upper()}"
    if option.default:
        line += f" = {option.default}"
    synonyms = [synonym for synonym, keys in SYNONYMS.items() if key in keys and synonym not in key]
    if synonyms:
        line += f" [{', '.join(synonyms)}]"
    return [line, f"{'':6}{' | '.join(option.choices) or option.help}"]


def usage(command: CommandOptions) -> str:
    """Return the first line of the help of a command."""
    places = [key.upper() for key in command.shown if command.options[key].is_positional]
    if command.name == PICTURES:  # the name contains the place
        places = []
    return f"usage: {' '.join((PROGRAM, command.name, *places))} [options]"


def fitted(text: str) -> str:
    """Return a help text whose lines fit into the terminal; continued lines are indented as the last column."""
    lines = []
    for line in text.splitlines():
        indent = " " * re.match(r"\s*(\S+\s{2,})?", line).end()  # type: ignore[union-attr] # matches every text
        lines += textwrap.wrap(line, get_terminal_size().columns, subsequent_indent=indent[:24]) or [""]
    return "\n".join(lines)
