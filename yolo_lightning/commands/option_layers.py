"""Precedence of options: command line, environment variables, weights, configuration files, defaults.

jsonargparse gives the file of `--config` precedence over environment variables. This file converts all sources to one
command line, in which later words override earlier ones.
"""

import json
from argparse import _StoreTrueAction
from collections.abc import Mapping, Sequence
from typing import Any

from jsonargparse import ActionConfigFile, ArgumentParser

FILE_OPTION, SHORT_FILE_OPTION = "--config", "-c"
TRUE = "true"


def layered(
    words: Sequence[str], parser: ArgumentParser, environment: Mapping[str, str], bound: Mapping[str, Any]
) -> list[str]:
    """Return the command line with the options of all sources, in ascending precedence.

    Args:
        words: Command line after the subcommand.
        parser: Parser of the subcommand.
        environment: Environment variables; jsonargparse itself reads the variable of the configuration file.
        bound: Options that the weights determine, by full name.
    """
    files, others = separated(words)
    values = [f"--{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in bound.items()]
    return [*files, *values, *words_of_environment(parser, environment), *others]


def separated(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words that name configuration files, and all other words."""
    files: list[str] = []
    others: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        has_value = word in (FILE_OPTION, SHORT_FILE_OPTION)
        is_file = has_value or word.startswith((f"{FILE_OPTION}=", SHORT_FILE_OPTION))
        taken = words[at : at + 1 + has_value]
        (files if is_file else others).extend(taken)
        at += len(taken)
    return files, others


def words_of_environment(parser: ArgumentParser, environment: Mapping[str, str]) -> list[str]:
    """Return the options of environment variables such as `YOLO_LIGHTNING_FIT__MODEL__LR0` as words."""
    words = []
    for action in parser._actions:
        value = environment.get(f"{parser.env_prefix}_{action.dest}".replace(".", "__").upper())
        if value is None or not action.option_strings or isinstance(action, ActionConfigFile):
            continue
        if isinstance(action, _StoreTrueAction):  # cannot be set to false on the command line
            words.append(f"--config={json.dumps({action.dest: value.lower() == TRUE})}")
        else:
            words.append(f"--{action.dest}={value}")
    return words
