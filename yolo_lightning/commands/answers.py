"""Help, and errors for misspelled words and wrong values, from the table of options, without importing torch."""

import os
import re
import shlex
import sys
import textwrap
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, NoReturn

from yolo_lightning.commands import PICTURES, SUBCOMMANDS, TOOLS, WITH_RUN
from yolo_lightning.commands.option_errors import (
    CALLBACKS,
    LOGGER,
    VALUE_SYNONYMS,
    fail,
    options_for,
    stray_word,
    unknown_command,
    unknown_key,
    unset_argument,
    wrong_choice,
    wrong_classes,
    wrong_group,
)
from yolo_lightning.commands.option_limits import check_limits
from yolo_lightning.commands.ultralytics_words import (
    TASKS,
    WEIGHTS,
    command_of,
    is_pair,
    names_pictures,
    options_of,
    translated,
    translated_file,
)
from yolo_lightning.errors import UserError
from yolo_lightning.options.option_table import (
    BOOLEAN,
    LIST,
    NULL,
    CommandOption,
    CommandOptions,
    find_command,
    has_type,
    is_known,
    sections_of,
)
from yolo_lightning.options.run_spec import (
    CONFIG,
    FILE_OPTION,
    FULL_HELP,
    HELP_WORDS,
    PREFIX,
    TRUE,
    RunSpec,
    Setting,
    configuration_folder,
    read_spec,
    separated,
    stray_words,
    variable_of,
)
from yolo_lightning.supervision import is_supervised
from yolo_lightning.utils.addresses import refuse_secrets
from yolo_lightning.utils.nested_keys import flatten
from yolo_lightning.utils.run_files import config_name
from yolo_lightning.utils.suggestions import SYNONYMS, did_you_mean, missing, nearest_key, similar

PROGRAM = "python -m yolo_lightning"
SHOWN = (
    "config",
    "resume",
    "detach",
    "ckpt_path",
    "mirror",
    "supervision.enabled",
    "data.format",
    "data.root",
    "data.image_size",
    "data.batch_size",
    "data.loader.num_workers",
    "data.split.valid_share",
    "data.split.train_fraction",
    "data.augmentation.mosaic",
    "data.augmentation.close_mosaic_epochs",
    "model.variant",
    "model.weights",
    "model.recipe.optimizer",
    "model.recipe.lr0",
    "model.freeze",
    "model.convolution.backend",
    "model.detections.score_threshold",
    "model.detections.iou_threshold",
    "trainer.max_epochs",
    "trainer.accelerator",
    "trainer.devices",
    "trainer.precision",
    "trainer.default_root_dir",
    "seed_everything",
)
"""Options in the short help of fit; `TRAINING` are those that validate, test and predict do not use."""

TRAINING = (
    *("resume", "detach", "mirror", "supervision.enabled", "data.split.train_fraction", "data.augmentation.mosaic"),
    *("data.augmentation.close_mosaic_epochs", "model.recipe.optimizer", "model.recipe.lr0", "model.freeze"),
    "trainer.max_epochs",
)

SINGLE_HYPHEN = re.compile(r"-([a-zA-Z]\w[\w.]*)(?:=|$)")
SWITCH_VALUES = (TRUE, "false")
PARTS_IN_ORDER = ("trainer.callbacks", "trainer.logger", "trainer.plugins")
"""Options that can be repeated: each part belongs to the entry of the list before the part."""
OTHER_MEANING = ("device", "patience", "amp", "half", "batch", "batch_size", "save_txt")
"""Arguments of Ultralytics that several options replace, or whose values have another form."""

HELP = (*HELP_WORDS, FULL_HELP)


def resolve(words: Sequence[str]) -> RunSpec:
    """Print the answer to a command line and exit, or return the command line with the options that the user has set.

    Returns:
        The words, with RUN as the options of that run, and the settings of the command.

    Raises:
        SystemExit: After help, with code 0; after an error, with code 2.
        UserError: If the command line contains credentials, or RUN is no run.
    """
    if not words or words[0] in HELP_WORDS:
        commands = "\n".join(f"  {name:<18}{purpose}" for name, purpose in {**SUBCOMMANDS, **TOOLS}.items())
        print(f"usage: {PROGRAM} COMMAND [options]\n\nTrain YOLO detectors on LTDv2 or your own images.\n")
        print(fitted(commands))
        print(f"\n{PROGRAM} COMMAND --help: options; --version: version")
        raise SystemExit(0 if words else 2)
    _check_command(words)
    refuse_secrets(words)
    words = with_run(words)
    name = words[0]
    rest = words[1:]
    if has_pictures_of(words):
        command = find_command(PICTURES)
    else:
        command = find_command(" ".join(words[:2])) or find_command(name)  # with and without a section
        _check_section(words)
    settings: tuple[Setting, ...] = ()
    if command is not None:
        settings = check(command, rest).settings
    return RunSpec(tuple(words), settings)


def _check_command(words: Sequence[str]) -> None:
    """Exit with an error for a command line in the form of Ultralytics, or an unknown command."""
    commands = [*SUBCOMMANDS, *TOOLS]
    meant = command_of(words, commands)
    if meant is not None:
        has_pictures = meant == "predict" and names_pictures(words)
        command = find_command(PICTURES if has_pictures else meant)
        keys = command.keys if command is not None else ()  # a command with sections has no options
        fail(translated(words, meant, keys))
    if words[0].startswith("-") or is_pair(words[0]):
        fit = find_command("fit")
        assert fit is not None
        fail(f"the first word must be a command, such as fit, got {words[0]}; {translated(words, 'fit', fit.keys)}")
    if words[0] in TASKS:
        fail("a mode is missing: fit, validate, test, predict or export")
    if words[0] not in commands:
        fail(unknown_command(words[0], commands))


def _check_section(words: Sequence[str]) -> None:
    """Exit with an error for a misspelled section of a command."""
    sections = sections_of(words[0])
    section = "".join(words[1:2])
    if section in sections:
        return
    meant = [f"{words[0]} {name}" for name in similar(section, sections)]
    if meant:
        fail(f"{words[0]} has no section {section}{did_you_mean(meant)}")


def fitted(text: str) -> str:
    """Return a help text whose lines fit into the terminal; continued lines are indented as the last column."""
    lines = []
    for line in text.splitlines():
        indent = " " * re.match(r"\s*(\S+\s{2,})?", line).end()  # type: ignore[union-attr] # matches every text
        lines += textwrap.wrap(line, get_terminal_size().columns, subsequent_indent=indent[:24]) or [""]
    return "\n".join(lines)


def has_pictures_of(words: Sequence[str]) -> bool:
    """Return whether a command line is `predict PICTURES`, not `predict` with a dataset."""
    return words[0] == "predict" and len(words) > 1 and not words[1].startswith("-")


def is_tool(words: Sequence[str]) -> bool:
    """Return whether a command line runs without the imports of a fit, such as Lightning."""
    return words[0] in TOOLS or has_pictures_of(words)


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
    from yolo_lightning.checkpoints.run_folder import meant_run, runs  # the mirrors of a run import fsspec

    folders = runs(Path(base))
    if not folders:
        end = meant_run(Path(base))
        raise UserError(f"RUN must be the folder of a run: {base} and {base}-<n> contain no checkpoint{end}")
    return folders[0]


def check(command: CommandOptions, words: Sequence[str]) -> RunSpec:
    """Return the options of a command; exit after help, or with an error for an unknown option or a wrong value.

    Args:
        command: Command or section of a command.
        words: Command line after the command.
    """
    if "--" in words:  # the command line of another program follows
        words = words[: list(words).index("--")]
    if any(word in HELP_WORDS for word in words) and FULL_HELP not in words:
        pictures = find_command(PICTURES)
        if command.name == "predict" and pictures is not None:
            print(fitted(short_help(pictures)), end="\n\n\n")
        print(fitted(short_help(command)))
        raise SystemExit(0)
    files, further_words = separated(words)
    for file in files:
        _check_path(command, file)
    spec = read_spec([command.name, *words], os.environ)
    if FULL_HELP in words:
        return spec
    _check_hyphens(command, words)
    if command.name in SUBCOMMANDS:
        _check_variables(command.name)
    for setting in spec.settings:
        if setting.key != CONFIG:
            _check_option(command, setting)
    _check_arguments(spec.settings)
    _name_repeated(spec.settings)
    strays = _stray_words(command, words, further_words)
    if strays:
        _refuse_stray(command, words, strays[0])
    for setting in spec.settings:
        if setting.key == CONFIG:
            _check_content(command, setting, words)
    check_limits(command, spec)
    return spec


def _refuse_stray(command: CommandOptions, words: Sequence[str], stray: str) -> NoReturn:
    """Exit with the error for a word that is neither an option nor a value."""
    if command.name == "predict":
        fail(f"{stray!r} follows no option; pictures come first: predict {stray} --run RUN")
    path = path_with_spaces(words, stray)
    if path is not None:
        fail(f"{stray!r} follows no option; a path with spaces needs quotes: {shlex.quote(path)}")
    fail(stray_word(words, stray, command.keys))


def path_with_spaces(words: Sequence[str], part: str) -> str | None:
    """Return the existing path of which a word is the second part, because its spaces were not quoted, or None."""
    at = list(words).index(part)
    if at == 0:
        return None
    path = words[at - 1]
    if path.startswith("--"):
        path = path.partition("=")[2]
    for word in words[at:]:
        path += f" {word}"
        if os.path.exists(path):
            return path
    return None


def _stray_words(command: CommandOptions, words: Sequence[str], further_words: Sequence[str]) -> list[str]:
    """Return the words that are neither options nor values."""
    if command.name in SUBCOMMANDS:
        return stray_words(further_words)
    if any(option.is_positional for option in command.options.values()):
        return []
    # Later words can be the values of a list.
    leading = [*takewhile(lambda word: not word.startswith("-"), words)]
    if " " in command.name:
        del leading[:1]  # the section
    return leading


def _check_hyphens(command: CommandOptions, words: Sequence[str]) -> None:
    """Exit with an error for an option with one hyphen."""
    for word in words:
        match = SINGLE_HYPHEN.match(word)
        if match is None:
            continue
        meant: str | None = match[1]
        if not command.accepts(match[1]):
            meant = nearest_key(match[1], command.keys)
        if meant:
            fail(f"options begin with two hyphens, got -{match[1]}. Did you mean --{meant}?")


def _name_repeated(settings: Sequence[Setting]) -> None:
    """Print a line for each option with several values on the command line, of which the last one is used."""
    if is_supervised():  # the supervisor has printed the lines
        return
    values: dict[str, list[str]] = {}
    for setting in settings:
        if not setting.source and not setting.key.startswith(PARTS_IN_ORDER) and not setting.key.endswith("+"):
            values.setdefault(setting.key, []).append(setting.text)
    for name, texts in values.items():
        if len(set(texts)) > 1:
            print(f"--{name} is given {len(texts)} times: {texts[-1]} is used", file=sys.stderr)


def _check_option(command: CommandOptions, setting: Setting) -> None:
    """Exit with an error for an option of the command line or the environment that is unknown or has a wrong value."""
    name = setting.key
    text = setting.text
    place = setting.place
    if not is_known(name):
        return
    option = command.options.get(name)
    if not command.accepts(name):
        _refuse_unknown(command, name, text, place)
    if option is not None and option.is_switch and text.lower() not in SWITCH_VALUES:
        words = options_of(name, text, command.keys)
        meant = [shlex.join(words)] if words else []
        fail(f"{name} takes no value, got {text!r}{did_you_mean(meant)}")
    if option is not None and option.is_group:
        _check_group(command, setting)
        return
    _check_classes(name, text)
    if not text and command.name != "supervise":
        fail(f"{name}{place} must not be empty, got ''; leave the option out for its default")
    if option is not None and _has_one_word(command, option) and not has_type(option.types, text):
        fail(wrong_choice(f"{name}{place}", text, option.types))


def _check_group(command: CommandOptions, setting: Setting) -> None:
    """Exit with an error for a group of options that is set by a text, an unknown key or a wrong value.

    The value of --data or --model can be weights, a variant or a data.yaml, as for Ultralytics.
    """
    name = setting.key
    content = setting.value
    meant = setting.text
    if isinstance(content, dict):
        meant = setting.source
        if "names" not in content:
            for key, value in flatten({name: content}).items():
                _check_value(command, key, value, setting.place)
            return
    if name in ("data", "model") and meant and not meant.startswith("{"):
        words = options_of(name, meant, command.keys) or []
        fail(f"{name} must be set by its keys, got {meant!r}. Did you mean {shlex.join(words)}?")
    fail(wrong_group(name, setting.text, command.keys, setting.place))


def _check_classes(key: str, value: Any) -> None:
    """Exit with an error for a callback or logger that does not exist.

    A program that has imported Lightning can have classes of its own, which the parser finds by their names.
    """
    key = key.removesuffix("+")
    if key not in (CALLBACKS, LOGGER) or "lightning.pytorch" in sys.modules:
        return
    problem = wrong_classes(key, value)
    if problem is not None:
        fail(problem)


def _check_arguments(settings: Sequence[Setting]) -> None:
    """Exit with an error for a callback or logger on the command line without a required argument."""
    for setting in settings:
        key = setting.key.removesuffix("+")
        has_arguments = any(other.key.startswith(f"{key}.") for other in settings)
        if key in (CALLBACKS, LOGGER) and is_known(key) and not has_arguments:
            problem = unset_argument(key, setting.text)
            if problem is not None:
                fail(problem)


def _has_one_word(command: CommandOptions, option: CommandOption) -> bool:
    """Return whether the value of an option is the next word: other commands than fit, validate, ... read lists."""
    if not option.types or option.is_switch:
        return False
    words = [name for name in option.types if name != NULL and not name.startswith(LIST)]  # of a value that is no list
    return command.name in SUBCOMMANDS or words not in ([], [BOOLEAN])


def _refuse_unknown(command: CommandOptions, name: str, text: str, place: str) -> NoReturn:
    """Exit with the error for an unknown option of the command line or the environment."""
    if command.name == "predict" and name == "source":
        fail(f"pictures have no option. Type: {PROGRAM} predict {shlex.quote(text)} --run RUN")
    if name in command.options:
        fail(f"{name} has no option; {usage(command)}")
    if name.replace("-", "_") in OTHER_MEANING:
        words = options_of(name, text, command.keys)
        if words:
            fail(f"unknown key {name}. Did you mean {shlex.join(words)}?")
    value = text
    if text.lower() in SWITCH_VALUES:  # the option means a number or a name
        value = ""
    accepting = [key for key in command.keys if _can_mean(command.options[key], value)]
    fail(unknown_key(name, accepting, source=place, value=value, hyphens="--"))


def _can_mean(option: CommandOption, value: str) -> bool:
    """Return whether a value can have been meant for an option: an option with a few choices accepts no other value."""
    near = [*map(str.lower, option.choices), *VALUE_SYNONYMS]
    return not (value and option.choices) or has_type(option.types, value) or bool(similar(value.lower(), near))


def _check_path(command: CommandOptions, file: str) -> None:
    """Exit with an error for a configuration file that does not exist or is no YAML file."""
    if ":" in file:  # a configuration as text
        return
    if os.path.isdir(file):
        fail(f"the file {file} of --config is a folder; pass a YAML file")
    if not os.path.isfile(file):
        names = sorted(path.stem for path in configuration_folder().glob("*.yaml"))
        fail(f"the file {file} of --config {missing(Path(file), names)} The package has {', '.join(names)}.")
    if Path(file).suffix in WEIGHTS:
        meant = did_you_mean(options_for(file, command.keys))
        fail(f"the file {file} of --config must be a YAML file, got weights or a checkpoint{meant}")


def _check_content(command: CommandOptions, setting: Setting, words: Sequence[str]) -> None:
    """Exit with an error for an unknown key or a wrong value in a configuration file."""
    file = setting.source
    content = setting.value
    if ":" in file:  # a configuration as text
        return
    if "names" in content and "data.format" in command.options:
        fail(f"the file {file} of --config describes a dataset. Did you mean --config yolo --data.format {file}?")
    translation = translated_file(file, content, [command.name, *words], command.keys)
    if translation is not None:
        fail(translation)
    for key, value in flatten(content).items():
        section = key.partition(".")[0]
        is_read = command.name in SUBCOMMANDS or section == "data"  # other commands read the section `data` only
        if is_read and is_known(key):
            _check_value(command, key, value, setting.place)


def _check_value(command: CommandOptions, key: str, value: Any, place: str) -> None:
    """Exit with an error for a key of a configuration file that is unknown or has a wrong value."""
    if not command.accepts(key):
        fail(unknown_key(key, command.keys, source=place))
    option = command.options.get(key)
    if option is None:  # a part of an option
        return
    _check_classes(key, value)
    if option.is_group:
        is_file = isinstance(value, str) and os.path.isfile(value)
        if value not in (None, {}) and not is_file:
            fail(wrong_group(key, value, command.keys, place))
    elif option.types and not has_type(option.types, value):
        message = wrong_choice(f"{key}{place}", str(value), option.types)
        if value is None:
            message += " YAML reads a key without a value as None."
        elif isinstance(value, bool):
            message += " YAML reads yes, no, on and off as True and False."
        fail(message)


def _check_variables(command: str) -> None:
    """Exit with an error for an environment variable that looks like an option and belongs to no command."""
    start = variable_of(command, "")
    prefixes = tuple(variable_of(name, "") for name in SUBCOMMANDS)
    for name in os.environ:
        is_option = name.startswith(f"{PREFIX}_") and ("__" in name or name.startswith(start[:-1]))
        if is_option and not name.startswith(prefixes):
            meant = name.removeprefix(f"{PREFIX}_").removeprefix(f"{command.upper()}_")
            first, _, rest = meant.partition("__")
            if similar(first.lower(), SUBCOMMANDS):
                meant = rest
            meant = f"{start}{meant}"
            fail(f"the environment variable {name} is not used{did_you_mean([meant])}")


def usage(command: CommandOptions) -> str:
    """Return the first line of the help of a command."""
    places = [name.upper() for name, option in command.options.items() if option.is_positional and option.is_shown]
    if command.name == PICTURES:  # the name contains the place
        places = []
    return f"usage: {' '.join((PROGRAM, command.name, *places))} [options]"


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
    shown = [key for key, option in command.options.items() if option.is_shown]
    if command.name in SUBCOMMANDS:
        shown.sort(key=SHOWN.index)
    for key in shown:
        option = command.options[key]
        line = f"  --{key}"
        if option.is_positional:
            line = "  PICTURES" if command.name == PICTURES else f"  {key.upper()}"
        if option.default:
            line += f" = {option.default}"
        synonyms = [synonym for synonym, keys in SYNONYMS.items() if key in keys and synonym not in key]
        if synonyms:
            line += f" [{', '.join(synonyms)}]"
        lines += [line, f"{'':6}{' | '.join(option.choices) or option.help}"]
    return "\n".join([*lines, "", f"all options: {PROGRAM} {command.name} {FULL_HELP}"])
