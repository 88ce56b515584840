"""The options that a user has set: from configuration files, the environment and the command line, read once.

Torch and jsonargparse are not imported: the supervisor of a fit starts without them.
"""

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from yolo_lightning.errors import UserError
from yolo_lightning.options.command_names import PICTURES, SUBCOMMANDS
from yolo_lightning.options.option_errors import options_for
from yolo_lightning.options.option_table import CommandOption, CommandOptions, find_command, read_value, sections_of
from yolo_lightning.utils.files import replacing
from yolo_lightning.utils.json_record import read_json
from yolo_lightning.utils.nested_keys import flatten
from yolo_lightning.utils.run_files import SPEC_FILE
from yolo_lightning.utils.suggestions import did_you_mean, missing
from yolo_lightning.utils.yaml_file import read_yaml, value_of, yaml_line

CONFIG = "config"
FILE_OPTION = f"--{CONFIG}"
SHORT_FILE_OPTION = "-c"
HELP_WORDS = ("-h", "--help")
FULL_HELP = "--help.full"
PREFIX = "YOLO_LIGHTNING"
"""Of environment variables, as YOLO_LIGHTNING_FIT__MODEL__RECIPE__LR0."""

TRUE = "true"
WEIGHTS = (".ckpt", ".pt")
"""Suffixes of files of weights, which are neither a configuration nor RUN."""

NO_TRAINING = ("-h", "--help", "--print_config")
"""Beginnings of words that print something instead of running a command."""


class Setting(NamedTuple):
    """An option, or a configuration file, that a user has set."""

    key: str  # full name; `config` for a configuration file
    value: Any  # text; content of a configuration file or of a group of options; None for `--resume`
    source: str = ""  # configuration file or environment variable; empty for the command line

    @property
    def text(self) -> str:
        """The value of an option as a text; an option without a value is a switch."""
        if self.value is None:
            return TRUE
        return str(self.value)

    @property
    def options(self) -> dict[str, Any]:
        """All options that the setting sets, by full name: several for a file or a group of options."""
        if self.key == CONFIG:
            return flatten(self.value)
        if isinstance(self.value, dict):
            return flatten({self.key: self.value})
        if self.value is None:
            return {self.key: TRUE}
        return {self.key: self.value}

    @property
    def place(self) -> str:
        """Part of an error message that names the source; empty for the command line."""
        if not self.source:
            return ""
        return f" in {self.source}"

    @property
    def word(self) -> str:
        """The word of a command line that sets the option, with the content of a file in place of its name."""
        if self.value is None:
            return f"--{self.key}"
        if isinstance(self.value, dict):
            return f"--{self.key}={yaml_line(self.value)}"
        return f"--{self.key}={self.value}"


@dataclass(frozen=True)
class RunSpec:
    """A command line, and the options that the user has set for this command.

    Attributes:
        words: Command line, from the command on.
        settings: Options in ascending precedence: configuration files, environment, command line.
    """

    words: tuple[str, ...]
    settings: tuple[Setting, ...] = ()

    @property
    def command(self) -> str:
        return self.words[0]

    @cached_property
    def name(self) -> str:
        """Name of the command in the table of options: with its section, if there is one, or `predict PICTURES`."""
        following = "".join(self.words[1:2])
        if self.command == "predict" and following and not following.startswith("-"):
            return PICTURES
        if following in sections_of(self.command):
            return f"{self.command} {following}"
        return self.command

    @property
    def table(self) -> CommandOptions:
        """The options of the command."""
        return find_command(self.name)

    @property
    def is_tool(self) -> bool:
        """Whether the command runs without the imports of a fit, such as Lightning."""
        return self.name not in SUBCOMMANDS

    @property
    def reads_data(self) -> bool:
        """Whether the command reads a dataset, which options `data.*` describe."""
        return "data.root" in self.table.options

    @property
    def words_after_name(self) -> tuple[str, ...]:
        """The words after the command and its section."""
        if self.name in (self.command, PICTURES):
            return self.words[1:]
        return self.words[2:]

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words after the command and its section, without the command line of another program after `--`."""
        words = self.words_after_name
        if "--" in words:
            return words[: words.index("--")]
        return words

    @property
    def only_prints(self) -> bool:
        """Whether the command prints its help or its configuration instead of running."""
        return any(word.startswith(NO_TRAINING) for word in self.words)

    @cached_property
    def given(self) -> dict[str, Any]:
        """The options that the user has set, by full name, with values as the parser reads them."""
        return self._read(self.settings)

    @cached_property
    def typed(self) -> dict[str, Any]:
        """The options on the command line and in the environment."""
        return self._read(setting for setting in self.settings if setting.key != CONFIG)

    def parser_words(self) -> list[str]:
        """Return the command line for the parser: each option in one word, the content of files in place of names.

        jsonargparse itself would give the file of `--config` precedence over environment variables.
        """
        return [self.command, *with_parser_help(setting.word for setting in self.settings)]

    def write(self, folder: Path, checkpoint: str | None = None) -> None:
        """Write the options of a fit into its run folder, from which `--config` reads them.

        Only the owner can read the file, which can contain addresses for notifications.

        Args:
            folder: Run folder.
            checkpoint: File or address of the checkpoint at which the fit begins, if the options name one.
        """
        places = {"trainer.default_root_dir": str(folder)}
        if checkpoint is not None:
            places["ckpt_path"] = checkpoint
        words = [setting.word for setting in self.settings if setting.key not in places]
        words += [f"--{key}={place}" for key, place in places.items()]
        with replacing(folder / SPEC_FILE) as temporary:
            temporary.touch(0o600)
            temporary.write_text(json.dumps(words, indent=1))

    def _read(self, settings: Iterable[Setting]) -> dict[str, Any]:
        options = self.table.options
        values: dict[str, Any] = {}
        for setting in settings:
            values |= setting.options
        return {key: read_value(options.get(key, CommandOption()).types, value) for key, value in values.items()}


def read_spec(words: Sequence[str], environment: Mapping[str, str]) -> RunSpec:
    """Return a command line, from the command on, with the options of its configuration files and of the environment.

    Environment variables set options of fit, validate, test and predict only.

    Raises:
        UserError: If a configuration file cannot be read.
    """
    spec = RunSpec(tuple(words))
    files, further_words = separated(spec.arguments)
    recorded: list[Setting] = []
    if files and Path(files[0]).name == SPEC_FILE:
        spec_file = files.pop(0)
        recorded_files, recorded_words = separated(_recorded(spec_file))
        resumes = [setting.text.lower() for setting in named_values(further_words) if setting.key == "resume"]
        if resumes[-1:] == [TRUE]:
            recorded_words.append("--ckpt_path=null")
        files = [*recorded_files, *files]
        recorded = [setting._replace(source=spec_file) for setting in named_values(recorded_words)]
        environment = {}  # its options are recorded
    variables = {} if spec.is_tool else _variables(spec.name, environment)
    if CONFIG in variables:
        files.insert(0, configuration_file(variables.pop(CONFIG).text))
    configurations = [Setting(CONFIG, read_configuration(file, spec.table.keys), file) for file in files]
    settings = (*configurations, *variables.values(), *recorded, *named_values(further_words))
    return replace(spec, settings=tuple(_with_contents(setting, spec.table.options) for setting in settings))


def _variables(command: str, environment: Mapping[str, str]) -> dict[str, Setting]:
    """Return the options of a command that environment variables set."""
    prefix = variable_of(command, "")
    settings = {}
    for name, text in environment.items():
        if name.startswith(prefix):
            key = name.removeprefix(prefix).replace("__", ".").lower()
            settings[key] = Setting(key, text, f"the environment variable {name}")
    return settings


def _with_contents(setting: Setting, options: Mapping[str, CommandOption]) -> Setting:
    """Return a setting with the contents of the files that are values of groups of options, such as `data.loader`.

    The file of a group can be named on the command line, in the environment and within a configuration file.
    """
    key = setting.key
    value = setting.value
    if key != CONFIG:
        content = _with_groups({key: value}, options)[key]
        if content != value and os.path.isfile(value):
            return Setting(key, content, source=value)
        return setting._replace(value=content)
    is_flat = not any(isinstance(part, dict) for part in value.values())
    if is_flat:  # can contain arguments of Ultralytics, whose `data` and `model` are other files
        options = {name: option for name, option in options.items() if name not in ("data", "model")}
    return setting._replace(value=_with_groups(value, options))


def _with_groups(tree: Mapping[str, Any], options: Mapping[str, CommandOption], prefix: str = "") -> dict[str, Any]:
    """Return nested options, whose names begin with `prefix`, with the contents of files as values of groups."""
    contents = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        content = value
        if isinstance(value, str) and options.get(key, CommandOption()).is_group:
            content = _group_content(key, value)
        if isinstance(content, dict):
            content = _with_groups(content, options, f"{key}.")
        contents[name] = content
    return contents


def _group_content(key: str, text: str) -> Any:
    """Return the content of a YAML file or a YAML text that is the value of a group; another text is unchanged."""
    content = value_of(text)
    if os.path.isfile(text):
        try:
            content = read_yaml(Path(text))
        except (OSError, UserError) as error:
            raise UserError(f"the file {text} of --{key} cannot be read: {error}") from error
    return content if isinstance(content, dict) else text


def _recorded(file: str) -> list[str]:
    """Return the words that `RunSpec.write` has written."""
    try:
        return [str(word) for word in read_json(Path(file))]
    except (OSError, TypeError, ValueError) as error:
        raise UserError(f"the file {file} of --config cannot be read: {error}") from error


def with_parser_help(words: Iterable[str]) -> list[str]:
    """Return the words with `--help` in place of `--help.full`: the help of the parser is the complete one."""
    return [HELP_WORDS[1] if word == FULL_HELP else word for word in words]


def read_configuration(file: str, keys: Collection[str] = ()) -> dict[str, Any]:
    """Return the options of a configuration file, or of a configuration that is given as a text.

    Args:
        file: Path or text.
        keys: Options of the command, one of which may have been meant instead of `--config`.
    """
    name = f"the file {file} of --config"
    is_file = os.path.isfile(file)
    if os.path.isdir(file):
        raise UserError(f"{name} is a folder; pass a YAML file")
    is_text = ":" in file or file == "{}"
    if not is_file and not is_text:
        names = sorted(path.stem for path in configuration_folder().glob("*.yaml"))
        raise UserError(f"{name} {missing(Path(file), names)} The package has {', '.join(names)}.")
    if is_file and Path(file).suffix in WEIGHTS:
        meant = did_you_mean(options_for(file, keys))
        raise UserError(f"{name} must be a YAML file, got weights or a checkpoint{meant}")
    try:
        content = read_yaml(Path(file)) if is_file else value_of(file)
    except (OSError, UserError) as error:
        raise UserError(f"{name} cannot be read: {error}") from error
    if not isinstance(content, dict):
        got = "an empty file" if content is None else repr(content)
        raise UserError(f"{name} must contain keys and values, as 'data: {{root: PATH}}', got {got}")
    return content


def variable_of(command: str, key: str) -> str:
    """Return the name of the environment variable of an option."""
    return f"{PREFIX}_{command}__{key}".replace(".", "__").upper()


def named_values(words: Sequence[str]) -> list[Setting]:
    """Return the options of words such as `--a 1 --b=2 --switch`."""
    settings = []
    for word, following in zip_longest(words, words[1:]):
        if not word.startswith("--"):
            continue
        name, equals, value = word.removeprefix("--").partition("=")
        if not equals:
            value = following
            if following is not None and following.startswith("--"):
                value = None
        settings.append(Setting(name, value))
    return settings


def stray_words(words: Sequence[str]) -> list[str]:
    """Return the words that are neither options nor values, for a command whose options have one value each."""
    strays = []
    for previous, word in zip(["", *words], words, strict=False):
        is_value = previous.startswith("--") and "=" not in previous
        if not is_value and not word.startswith("--"):
            strays.append(word)
    return strays


def separated(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the configuration files that a command line names, and all other words."""
    files: list[str] = []
    further_words: list[str] = []
    remaining = iter(words)
    for word in remaining:
        file = None
        if word in (FILE_OPTION, SHORT_FILE_OPTION):
            file = next(remaining, None)
            if file is None:
                raise UserError(f"{word} must be followed by a YAML file or a name, such as {word} yolo")
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
    path = os.path.expanduser(text)
    if os.path.exists(path) and not os.path.isdir(path):
        return path
    folder = configuration_folder()
    try:
        name = Path(text).with_suffix(".yaml").as_posix().removeprefix("configs/")
    except ValueError:  # a configuration as text
        return text
    is_name = not Path(name).is_absolute() and ".." not in Path(name).parts
    if is_name and os.path.isfile(folder / name):
        return str(folder / name)
    return text
