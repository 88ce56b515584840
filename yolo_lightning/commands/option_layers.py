"""Options of a subcommand in layers: command line, environment, weights, configuration files, defaults.

jsonargparse reads the environment before the file that `--config` names, so that the file would win. Here all layers
become one command line, in which a later word wins.
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
    """The command line with all layers, from the weakest to the strongest.

    Args:
        words: What was typed after the subcommand.
        parser: Of the subcommand.
        environment: Variables by name; jsonargparse itself reads the one that names a configuration file.
        bound: Values that the weights determine, by the option's full name.
    """
    files, others = separated(words)
    values = [f"--{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in bound.items()]
    return [*files, *values, *words_of_environment(parser, environment), *others]


def separated(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that name configuration files, and all others."""
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
    """Options that environment variables set, such as `YOLO_LIGHTNING_FIT__MODEL__LR0`, as words."""
    words = []
    for action in parser._actions:
        value = environment.get(f"{parser.env_prefix}_{action.dest}".replace(".", "__").upper())
        if value is None or not action.option_strings or isinstance(action, ActionConfigFile):
            continue
        if isinstance(action, _StoreTrueAction):  # has no word for false
            words.append(f"--config={json.dumps({action.dest: value.lower() == TRUE})}")
        else:
            words.append(f"--{action.dest}={value}")
    return words
