"""Sources of options: command line, environment variables and configuration files, in this precedence.

Torch and jsonargparse are not imported: the supervisor of a fit reads the few options that it needs from here.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from yolo_lightning.commands import SUBCOMMANDS, WITH_RUN
from yolo_lightning.errors import UserError
from yolo_lightning.options.option_table import CommandOption, find_command, read_value
from yolo_lightning.utils.run_files import config_name
from yolo_lightning.utils.yaml_file import flatten, read_yaml, value_of

FILE_OPTION = "--config"
SHORT_FILE_OPTION = "-c"
HELP_WORDS = ("-h", "--help")
FULL_HELP = "--help.full"
HELP = (*HELP_WORDS, FULL_HELP)
PREFIX = "YOLO_LIGHTNING"
"""Of environment variables, as YOLO_LIGHTNING_FIT__MODEL__RECIPE__LR0."""

TRUE = "true"
WEIGHTS = (".ckpt", ".pt")
"""Suffixes of files of weights, which are no RUN; `answers` names the option for these files."""
NO_TRAINING = ("-h", "--help", "--print_config")
"""Beginnings of words that print something instead of running a command."""


class Layers(NamedTuple):
    """Sources of the options of fit, validate, test or predict, in ascending precedence."""

    files: list[str]  # configuration files, or configurations as texts
    variables: dict[str, str]  # texts of options in environment variables, by full name
    words: list[str]  # all other words of the command line

    def command_line(self) -> list[str]:
        """Return one command line, in which later words override earlier ones.

        jsonargparse itself would give the file of `--config` precedence over environment variables.
        """
        files = [f"{FILE_OPTION}={file}" for file in self.files]
        return [*files, *(f"--{name}={text}" for name, text in self.variables.items()), *self.words]


def variable_of(command: str, key: str) -> str:
    """Return the name of the environment variable of an option."""
    return f"{PREFIX}_{command}__{key}".replace(".", "__").upper()


def layers(words: Sequence[str], environment: Mapping[str, str]) -> Layers:
    """Return the sources of the options of a command line, from the subcommand on, and of the environment."""
    prefix = variable_of(words[0], "")
    variables = {
        name.removeprefix(prefix).replace("__", ".").lower(): text
        for name, text in environment.items()
        if name.startswith(prefix)
    }
    files, further_words = separated(words[1:])
    if "config" in variables:
        files.insert(0, configuration_file(variables.pop("config")))
    return Layers(files, variables, further_words)


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """Options that a user has set, by full name, with values as the parser reads them."""

    configured: dict[str, Any] = field(default_factory=dict)  # in configuration files
    typed: dict[str, Any] = field(default_factory=dict)  # on the command line and in environment variables

    @property
    def all(self) -> dict[str, Any]:
        return self.configured | self.typed


def given_options(words: Sequence[str], environment: Mapping[str, str]) -> GivenOptions:
    """Return the options of a command line, from the subcommand on, of its configuration files and of the environment.

    Raises:
        OSError, ValueError: If a configuration file cannot be read; the message is one for developers.
    """
    command = find_command(words[0])
    options: Mapping[str, CommandOption] = {}
    if command is not None:
        options = command.options
    sources = layers(words, environment)
    configured: dict[str, Any] = {}
    for text in sources.files:
        tree = read_yaml(Path(text)) if os.path.isfile(text) else value_of(text)
        if not isinstance(tree, dict):
            raise UserError(f"{text} is no configuration")
        configured |= flatten(tree)
    typed: dict[str, Any] = {}
    for key, text in [*sources.variables.items(), *named_values(sources.words)]:
        option = options.get(key, CommandOption())
        if not option.is_group:
            typed[key] = text
        elif os.path.isfile(text):
            typed |= flatten({key: read_yaml(Path(text))})
        else:
            typed |= flatten({key: value_of(text)})
    return GivenOptions(_read(configured, options), _read(typed, options))


def _read(values: Mapping[str, Any], options: Mapping[str, CommandOption]) -> dict[str, Any]:
    """Return the values of options as the parser reads them."""
    return {key: read_value(options.get(key, CommandOption()).types, value) for key, value in values.items()}


def named_values(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return the options of words such as `--a 1 --b=2 --switch` by name; a switch has the value `true`."""
    options = []
    for word, following in zip_longest(words, words[1:]):
        if not word.startswith("--"):
            continue
        name, equals, value = word.removeprefix("--").partition("=")
        if equals:
            options.append((name, value))
        elif following is None or following.startswith("--"):
            options.append((name, TRUE))
        else:
            options.append((name, following))
    return options


def stray_words(words: Sequence[str]) -> list[str]:
    """Return the words that are neither options nor values, for a command whose options have one value each."""
    strays = []
    for previous, word in zip(["", *words], words, strict=False):
        is_value = previous.startswith("--") and "=" not in previous
        if not is_value and not word.startswith("--"):
            strays.append(word)
    return strays


def with_run(words: Sequence[str]) -> list[str]:
    """Return a command line with RUN, the first word, as `--run=RUN`.

    For validate, test and predict, `--run` becomes the folder and the configuration of the newest run with this name;
    `--config` replaces the configuration.

    Raises:
        UserError: If no run with this name contains a checkpoint.
    """
    command, *rest = words
    has_words = bool(rest) and not rest[0].startswith("-")
    if command not in WITH_RUN or (command == "predict" and has_words) or any(word in HELP for word in rest):
        return [*words]
    is_file = has_words and Path(rest[0]).suffix in WEIGHTS
    if has_words and "=" not in rest[0] and not is_file:
        rest[0] = f"--run={rest[0]}"
    positions = [at for at, word in enumerate(rest) if word.partition("=")[0] == "--run"]
    if command not in SUBCOMMANDS or not positions:
        return [command, *rest]
    at = positions[0]
    base = rest.pop(at).removeprefix("--run=")
    if base == "--run" and at < len(rest):
        base = rest.pop(at)
    newest = _newest_run(base)
    config = newest / config_name("fit")
    files, _ = separated(rest)
    options = [f"--trainer.default_root_dir={newest}"]
    if config.is_file() and not files:
        options.insert(0, f"{FILE_OPTION}={config}")
    return [command, *options, *rest]


def _newest_run(base: str) -> Path:
    """Return the newest run with a checkpoint that has this name; raise a UserError if there is none."""
    from yolo_lightning.checkpoints.run_folder import runs  # the mirrors of a run import fsspec

    folders = runs(Path(base))
    if not folders:
        raise UserError(f"RUN must be the folder of a run: {base} and {base}-<n> contain no checkpoint.")
    return folders[0]


def separated(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the configuration files that a command line names, and all other words."""
    files: list[str] = []
    further_words: list[str] = []
    remaining = iter(words)
    for word in remaining:
        file = None
        if word in (FILE_OPTION, SHORT_FILE_OPTION):
            file = next(remaining, None)
        elif word.startswith(f"{FILE_OPTION}="):
            file = word.removeprefix(f"{FILE_OPTION}=")
        elif word.startswith(SHORT_FILE_OPTION):
            name = word.removeprefix(SHORT_FILE_OPTION)
            if os.path.isfile(configuration_file(name)):  # unlike -config or -cfg
                file = name
        if file is None:
            further_words.append(word)
        else:
            files.append(configuration_file(file))
    return files, further_words


def configuration_folder() -> Path:
    """Return the folder of the configurations that belong to the package."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "configs"
    if installed.is_dir():
        return installed
    return package.parent / "configs"  # of a checkout


def configuration_file(text: str) -> str:
    """Return the path of a configuration of the package that is given by its name, or the text itself.

    `ltdv2`, `yolo.yaml` and `configs/loader/single.yaml` name files of the package where no such file exists.
    """
    if os.path.exists(text):
        return text
    folder = configuration_folder()
    try:
        name = Path(text).with_suffix(".yaml").as_posix().removeprefix("configs/")
    except ValueError:  # a configuration as text
        return text
    is_name = not Path(name).is_absolute() and ".." not in Path(name).parts
    if is_name and os.path.isfile(folder / name):
        return str(folder / name)
    return text
