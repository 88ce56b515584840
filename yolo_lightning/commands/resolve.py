"""The answer to a command line: help, an error, or the options that the user has set. Torch is not imported."""

import os
from collections.abc import Sequence
from pathlib import Path

from yolo_lightning.commands.option_limits import check_files, check_limits
from yolo_lightning.errors import UserError
from yolo_lightning.options.command_names import PICTURES, SUBCOMMANDS, WITH_RUN
from yolo_lightning.options.option_checks import check_command, check_options
from yolo_lightning.options.option_table import find_command
from yolo_lightning.options.run_spec import (
    CONFIG,
    FILE_OPTION,
    FULL_HELP,
    HELP_WORDS,
    WEIGHTS,
    RunSpec,
    read_spec,
    separated,
)
from yolo_lightning.options.short_help import fitted, list_of_commands, short_help
from yolo_lightning.utils.addresses import refuse_secrets
from yolo_lightning.utils.paths import user_path
from yolo_lightning.utils.run_files import config_name


def resolve(words: Sequence[str]) -> RunSpec:
    """Print help and exit, or return a command line with the options that the user has set, which are checked.

    Args:
        words: Words after the program name.

    Returns:
        The words, with RUN as the options of that run, and the settings of the command.

    Raises:
        SystemExit: After help.
        UserError: If a word, an option, a value or a file is wrong.
    """
    if not words or words[0] in HELP_WORDS:
        print(list_of_commands())
        raise SystemExit(0 if words else 2)
    refuse_secrets(words)
    words = with_run(words)
    check_command(words)
    spec = RunSpec(tuple(words))
    if not spec.table.options:  # the command prints its sections
        return spec
    asks_full_help = FULL_HELP in spec.arguments
    if not asks_full_help and any(word in HELP_WORDS for word in spec.arguments):
        if spec.name == "predict":
            print(fitted(short_help(find_command(PICTURES))), end="\n\n\n")
        print(fitted(short_help(spec.table)))
        raise SystemExit(0)
    spec = read_spec(words, os.environ)
    if not asks_full_help:  # which the parser prints
        check_options(spec)
    if not spec.only_prints:
        check_limits(spec)
        spec = _with_configuration_of_run(spec)
        check_files(spec)
    return spec


def _with_configuration_of_run(spec: RunSpec) -> RunSpec:
    """Return a command line with the configuration of the run whose checkpoint a tool uses, unless one is given."""
    is_given = any(setting.key == CONFIG for setting in spec.settings)
    if is_given or not spec.reads_data or "checkpoint" not in spec.table.options:
        return spec
    from yolo_lightning.checkpoints.resume import chosen_checkpoint
    from yolo_lightning.checkpoints.run_folder import DEFAULT_RUN, configuration_of

    options = spec.given
    configuration = configuration_of(chosen_checkpoint(options.get("run", DEFAULT_RUN), options.get("checkpoint")))
    if configuration is None:
        return spec
    return read_spec([*spec.words, f"{FILE_OPTION}={configuration}"], os.environ)


def with_run(words: Sequence[str]) -> list[str]:
    """Return a command line with RUN, the first word, as `--run=RUN`.

    For validate, test and predict, `--run` becomes the folder and the configuration of the newest run with this name;
    `--config` replaces the configuration.

    Raises:
        UserError: If no run with this name contains a checkpoint.
    """
    command, *rest = words
    has_word = bool(rest) and not rest[0].startswith("-")
    has_pictures = command == "predict" and has_word
    asks_help = any(word in (*HELP_WORDS, FULL_HELP) for word in rest)
    if command not in WITH_RUN or has_pictures or asks_help:
        return [*words]
    if has_word and "=" not in rest[0] and Path(rest[0]).suffix not in WEIGHTS:
        rest[0] = f"--run={rest[0]}"
    positions = [position for position, word in enumerate(rest) if word.partition("=")[0] == "--run"]
    if command not in SUBCOMMANDS or not positions:
        return [command, *rest]
    position = positions[0]
    base = rest.pop(position).removeprefix("--run=")
    if base == "--run" and position < len(rest):
        base = rest.pop(position)
    from yolo_lightning.checkpoints.run_folder import meant_run, runs  # the mirrors of a run import fsspec

    folders = runs(user_path(base))
    if not folders:
        end = meant_run(Path(base))
        raise UserError(f"RUN must be the folder of a run: {base} and {base}-<n> contain no checkpoint{end}")
    newest = folders[0]
    config = newest / config_name("fit")
    files, _ = separated(rest)
    options = [f"--trainer.default_root_dir={newest}"]
    if config.is_file() and not files:
        options.insert(0, f"{FILE_OPTION}={config}")
    return [command, *options, *rest]
